"""Combine the watermarks of a task's input channels into the watermark of the task.

The watermark of a task is the minimum over its live channels. A channel is not live while it is
idle, and after its last watermark. A channel that was idle counts again as soon as it has caught up
with the watermark of the task. (Flink: `StatusWatermarkValve`.)

Nothing here does I/O: an element of a channel goes in, and elements for the operators come out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK, Watermark
from penstock.runtime.network.elements import TimeElement, WatermarkStatus


@dataclass
class _Channel:
    """The status of a channel.

    Arguments:
        watermark: the newest watermark of the channel.
        idle: whether no watermarks come on the channel for now.
        counts: whether the channel is part of the minimum. A channel that was idle is included
            again only when its watermark has reached the watermark of the task.
    """

    watermark: int
    idle: bool = False
    counts: bool = True

    @property
    def ended(self) -> bool:
        """Return whether the channel has sent its last watermark."""
        return self.watermark == MAX_WATERMARK


class WatermarkValve:
    """Combines the watermarks of the input channels of a task.

    Arguments:
        channels: the ids of the channels that have watermarks.
        watermark: the first watermark of the task, in milliseconds since the epoch.
    """

    def __init__(self, channels: Iterable[Hashable], watermark: int = MIN_WATERMARK) -> None:
        self._channels = {id: _Channel(watermark) for id in channels}
        #: The watermark of the task, in milliseconds since the epoch.
        self.watermark = watermark
        #: Whether all channels that have not ended are idle.
        self.idle = False

    def restore(self, watermark: int) -> None:
        """Begin with the watermark of a snapshot, before any element."""
        self.watermark = watermark
        self._channels = {id: _Channel(watermark) for id in self._channels}

    def capture(self) -> list[Any]:
        """Return what the valve knows of its channels, for `restore_channels`."""
        states = [[one.watermark, one.idle, one.counts] for one in self._channels.values()]
        return [self.idle, states]

    def restore_channels(self, captured: list[Any]) -> None:
        """Continue with the channels of another valve, whose watermark was that of this one."""
        self.idle, states = captured
        for id, values in zip(self._channels, states, strict=True):
            self._channels[id] = _Channel(*values)

    def holder(self) -> Hashable | None:
        """Return the channel with the lowest watermark of those that count; None if none counts."""
        counting = [(state.watermark, id) for id, state in self._channels.items() if state.counts]
        return min(counting, key=itemgetter(0))[1] if counting else None

    def handle(self, channel: Hashable, element: TimeElement) -> list[TimeElement]:
        """Handle an element of a channel, and return the elements for the operators.

        Elements of a channel that the valve does not know are ignored.
        """
        state = self._channels.get(channel)
        if state is None or state.ended:
            return []
        if isinstance(element, Watermark):
            return self._advance(state, element.timestamp)
        return self._set_idle(state) if element.idle else self._set_active(state)

    def _advance(self, state: _Channel, timestamp: int) -> list[TimeElement]:
        if timestamp <= state.watermark or (state.idle and timestamp != MAX_WATERMARK):
            return []
        held_back = state.watermark == self.watermark and state.counts
        state.watermark = timestamp
        if timestamp == MAX_WATERMARK:
            state.idle = state.counts = False
            return self._without_channel(held_back)
        state.counts = state.counts or timestamp >= self.watermark
        return self._emit_minimum()

    def _set_idle(self, state: _Channel) -> list[TimeElement]:
        if state.idle:
            return []
        held_back = state.watermark == self.watermark and state.counts
        state.idle, state.counts = True, False
        return self._without_channel(held_back)

    def _set_active(self, state: _Channel) -> list[TimeElement]:
        if not state.idle:
            return []
        state.idle = False
        state.counts = state.watermark >= self.watermark
        if not self.idle:
            return []
        self.idle = False
        return [WatermarkStatus(idle=False)]

    def _without_channel(self, held_back: bool) -> list[TimeElement]:
        """Handle that a channel is no longer live.

        Arguments:
            held_back: whether the watermark of the channel was equal to the watermark of the task.
        """
        living = [other for other in self._channels.values() if not other.ended]
        if not living:
            return self._emit(MAX_WATERMARK)
        if any(not other.idle for other in living):
            return self._emit_minimum()
        out: list[TimeElement] = []
        if held_back:
            # All channels are idle now. No records of theirs are expected, so the one that was
            # ahead of the others need not wait for them.
            out = self._emit(max(other.watermark for other in living))
        if not self.idle:
            self.idle = True
            out.append(WatermarkStatus(idle=True))
        return out

    def _emit_minimum(self) -> list[TimeElement]:
        counting = [state.watermark for state in self._channels.values() if state.counts]
        return self._emit(min(counting)) if counting else []

    def _emit(self, timestamp: int) -> list[TimeElement]:
        if timestamp <= self.watermark:
            return []
        self.watermark = timestamp
        return [Watermark(timestamp)]

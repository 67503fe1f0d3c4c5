"""The input gate of a task: takes from whichever unblocked channel has an element.

Channels that have something take turns, one element each, so that none starves. A blocked
channel keeps what it has; it is not looked at until it is unblocked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.dataflow.compile import ChannelId
from penstock.runtime.channel import Channel
from penstock.runtime.elements import Element

__all__ = ["InputGate"]


class InputGate:
    """All input channels of one task.

    Arguments:
        wake: called when there may be something to take after there was nothing.
        clock: seconds, for the channels' statistics.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self.channels: dict[ChannelId, Channel] = {}
        self._wake = wake
        self._clock = clock
        #: Unblocked channels that have an element; each is here at most once.
        self._ready: deque[Channel] = deque()

    def add(self, id: ChannelId, capacity: int) -> Channel:
        """Make an input channel."""
        channel = self.channels[id] = Channel(id, self, capacity, self._clock)
        return channel

    def take(self) -> tuple[Channel, Element] | None:
        """The next element and its channel, or None if there is nothing to take now."""
        if not self._ready:
            return None
        channel = self._ready.popleft()
        element = channel.take()
        if len(channel):
            self._ready.append(channel)
        return channel, element

    def on_ready(self, channel: Channel) -> None:
        """A channel has become takeable; called by the channel."""
        self._ready.append(channel)
        self._wake()

    def on_blocked(self, channel: Channel) -> None:
        """A channel was blocked; called by the channel."""
        if channel in self._ready:
            self._ready.remove(channel)

    @property
    def ready(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._ready)

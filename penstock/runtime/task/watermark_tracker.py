"""Track the watermark of a task, and fire its operators when the watermark advances.

A new watermark *fires* at the first operator of the chain: timers and windows emit records. This
may take long, so it runs in pieces, between which the task handles barriers. The task processes
nothing else meanwhile. Then the watermark is passed to the other operators and to all outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK, Watermark
from penstock.runtime.network.elements import (
    EndOfInput,
    LoopElement,
    TimeElement,
    WatermarkStatus,
)
from penstock.runtime.network.loop_probe import LoopProbe, ProbeRequest
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.time.watermark_operators import TimestampsOperator
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.watermark_valve import WatermarkValve
from penstock.snapshot.metadata.handles import EventTimeState


@dataclass(frozen=True)
class _FiredBefore:
    """A watermark for which the operators had fired before the snapshot."""

    watermark: Watermark


#: An element for all operators, or one that an operator emits.
_Queued = (
    RecordBatch | TimeElement | EndOfInput | tuple[RunningOperator, TimeElement] | _FiredBefore
)


class WatermarkTracker:
    """Tracks the watermark of a task, and fires its operators when the watermark advances.

    Arguments:
        chain: the operators of the task.
        channels: the ids of the input channels that have watermarks.
        is_source: whether the task reads a source.
    """

    def __init__(
        self, chain: ChainRunner, channels: Iterable[Hashable], is_source: bool = False
    ) -> None:
        self._chain, self._is_source = chain, is_source
        self._generators = [o for o in chain.operators if isinstance(o, TimestampsOperator)]
        self.valve = WatermarkValve(channels)
        #: The elements that the operators have not handled yet, in order.
        self._queue: deque[_Queued] = deque()
        self._firing: Iterator[None] | None = None
        #: The last watermark for which firing has begun, in milliseconds since the epoch. The
        #: operators know it when the first piece is done.
        self._begun = MIN_WATERMARK
        #: Whether elements of event time are being handled. The task checks it in each step.
        self.running = False
        #: Whether the last watermark has gone to all outputs.
        self.at_end = False

    # ---- snapshots

    def capture(self) -> dict[str, EventTimeState]:
        """Return the event time of the operators for a snapshot, keyed by uid.

        The last watermark is not part of it: after a restore, the inputs end again.
        """
        states: dict[str, EventTimeState] = {}
        root = self._chain.root.operator
        # The log contains the records that the source has read and the operators have not
        # processed.
        watermark = self._known_watermark()
        if self._is_source:
            watermark = max(root.context.watermark, self._begun)
        highest = root.context.restored_watermark
        state = EventTimeState(highest=highest if highest > watermark else None)
        if MIN_WATERMARK < watermark < MAX_WATERMARK:
            state = replace(state, watermark=watermark, has_fired=self._has_fired())
        if state != EventTimeState():
            states[root.context.uid] = state
        for operator in self._generators:
            uid = operator.context.uid
            before = states.get(uid, EventTimeState())
            states[uid] = replace(before, generator=operator.snapshot_time())
        return states

    def _known_watermark(self) -> int:
        """Return the watermark for which the operators have fired, or are firing now."""
        return self.valve.watermark

    def _has_fired(self) -> bool:
        """Return whether the operators have fired for the known watermark."""
        waits = not self._is_source and any(isinstance(one, Watermark) for one in self._queue)
        return self._firing is None and not waits

    def restore(self, states: dict[str, list[EventTimeState]]) -> None:
        """Restore the event time from the states of old subtasks, keyed by uid.

        The lowest watermark of these subtasks counts, so that no record becomes late by a restart.
        All downstream tasks get it again. If a snapshot was taken while the operators handled it,
        they handle it again, too. Otherwise timers up to the watermark come from late records, and
        fire with the next watermark, as they would have without the restart.
        """
        root = self._chain.root.operator.context.uid
        watermarks = [state.watermark for state in states.get(root, [])]
        known = [watermark for watermark in watermarks if watermark is not None]
        highest = [state.highest for state in states.get(root, []) if state.highest is not None]
        if known or highest:
            self._chain.root.operator.context.set_restored_watermark(max(known + highest))
        if known and len(known) == len(watermarks):
            watermark = min(known)
            self.valve.restore(watermark)
            self._chain.root.operator.context.set_watermark(watermark)
            fired = all(state.has_fired for state in states[root])
            self.add(_FiredBefore(Watermark(watermark)) if fired else Watermark(watermark))
        for operator in self._generators:
            found = [state.generator for state in states.get(operator.context.uid, [])]
            generators = [generator for generator in found if generator is not None]
            if generators and len(generators) == len(found):
                operator.restore_time(generators)
                if operator.watermark > MIN_WATERMARK:
                    self.add((operator, Watermark(operator.watermark)))

    def capture_for_log(self) -> list[Any]:
        """Return what decides on the next watermarks and is no part of snapshots.

        These are the watermarks of the single channels, and when watermark generators emit.
        """
        return [self.valve.capture(), [one.capture() for one in self._generators]]

    def continue_from(self, captured: list[Any]) -> None:
        """Continue with what the predecessor has captured for its log at the restored barrier."""
        channels, generators = captured
        self.valve.restore_channels(channels)
        if self.valve.idle:
            # The receivers do not know yet that the task is idle again.
            self.add(WatermarkStatus(idle=True))
        for operator, state in zip(self._generators, generators, strict=True):
            for element in operator.continue_from(state):
                self.add((operator, element))

    def in_hand(self) -> list[RecordBatch | TimeElement]:
        """Return the elements that the source has read after the current batch, for a log.

        Watermarks that have come on channels belong to the state instead.
        """
        if not self._is_source:
            return []
        others = (EndOfInput, tuple, _FiredBefore)
        return [element for element in self._queue if not isinstance(element, others)]

    def holder(self) -> ChannelId | None:
        """Return the input channel that holds the watermark; None if all are idle or have ended."""
        return cast("ChannelId | None", self.valve.holder())

    # ---- elements

    def receive(self, channel: Hashable, element: TimeElement | LoopElement) -> None:
        """Handle an element of an input channel.

        Raises:
            ProtocolError: if the element belongs to a loop, and the task to none.
        """
        if isinstance(element, LoopProbe | ProbeRequest):
            raise ProtocolError(f"{element} on {channel}, which is in no loop")
        for combined in self.valve.handle(channel, element):
            self.add(combined)

    def end_channel(self, channel: Hashable) -> None:
        """Handle the end of a channel, which no longer holds back the watermark."""
        self.receive(channel, Watermark(MAX_WATERMARK))

    def fire_last(self) -> None:
        """Fire for `MAX_WATERMARK`. Fire again if timers were set since the last call."""
        if self._chain.must_fire or not self.at_end:
            self.add(Watermark(MAX_WATERMARK))

    def add(self, element: _Queued) -> None:
        """Handle an element for the operators, after those that are being handled."""
        self._queue.append(element)
        self.running = True

    def step(self) -> RecordBatch | EndOfInput | None:
        """Run the next piece of work.

        Returns:
            A batch that the task must process now, or `EndOfInput` once all elements before it are
            handled; else None.
        """
        due: RecordBatch | EndOfInput | None = None
        if self._firing is not None:
            if next(self._firing, self) is self:
                self._firing = None
        elif isinstance(element := self._queue.popleft(), Watermark):
            self._advance(element)
        elif isinstance(element, WatermarkStatus):
            self._set_status(element)
        elif isinstance(element, tuple):
            self._chain.emit_time_from(*element)
        elif isinstance(element, _FiredBefore):
            self._chain.pass_on(element.watermark)
        else:
            due = element
        self.running = self._firing is not None or bool(self._queue)
        return due

    def _advance(self, watermark: Watermark) -> None:
        self.at_end = watermark.timestamp == MAX_WATERMARK
        self._begun = watermark.timestamp
        self._firing = self._chain.advance(watermark)

    def _set_status(self, status: WatermarkStatus) -> None:
        self._chain.set_status(status)

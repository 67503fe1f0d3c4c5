"""Track the event time of a task in a loop, and execute the commands of `LoopWatermarks`.

The watermarks from outside of the loop do not reach the operators. They go to `LoopWatermarks`,
which decides when the watermark of the task advances. A first task of the loop advances when
`LoopWatermarks` returns the command. The other tasks of the loop receive the watermarks of the
first tasks on their regular inputs inside of the loop. Back-edges carry no watermarks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import cast

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import MAX_WATERMARK, Watermark
from penstock.runtime.network.elements import (
    EndOfInput,
    LoopElement,
    TimeElement,
    WatermarkStatus,
)
from penstock.runtime.network.loop_probe import LoopProbe, ProbeRequest
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.loop_watermarks import (
    AdvanceInside,
    LoopPlace,
    LoopTimeCommand,
    ReleaseBehind,
    SendProbe,
    SendRequest,
    SetIdle,
)
from penstock.runtime.task.watermark_tracker import WatermarkTracker
from penstock.runtime.task.watermark_valve import WatermarkValve


class LoopTimeTracker(WatermarkTracker):
    """Tracks the event time of a task in a loop.

    Arguments:
        chain: the operators of the task.
        place: the place of the task in its loop.
    """

    def __init__(self, chain: ChainRunner, place: LoopPlace) -> None:
        own_time = place.watermarks.own_time
        super().__init__(chain, (*place.regular, *place.outside) if own_time else place.regular)
        self._place, self._watermarks = place, place.watermarks
        self._outside = WatermarkValve(place.outside)
        if not place.outside:
            self._watermarks.no_outside()
        self._inside = [channel for node in chain.nodes for channel in node.all_outputs_inside]
        self._commands: deque[LoopTimeCommand] = deque()
        #: Whether the task fires because of a command, and not because of a watermark.
        self._cutting = False

    def _known_watermark(self) -> int:
        watermarks = self._watermarks
        return self.valve.watermark if watermarks.own_time else watermarks.inside

    def _has_fired(self) -> bool:
        # Timers of a loop fire in each cut, also if the watermark does not advance.
        return False

    def holder(self) -> ChannelId | None:
        """Return the input channel that holds the watermark; None if all are idle or have ended."""
        outside = cast("ChannelId | None", self._outside.holder())
        return super().holder() if outside is None else outside

    def receive(self, channel: Hashable, element: TimeElement | LoopElement) -> None:
        """Handle an element of an input channel."""
        if isinstance(element, LoopProbe):
            self._execute(self._watermarks.probe_arrived(channel, element))
        elif isinstance(element, ProbeRequest):
            self._execute(self._watermarks.request_arrived(element))
        elif channel in self._place.outside:
            self._outside_changed(channel, element)
        else:
            super().receive(channel, element)

    def _outside_changed(self, channel: Hashable, element: TimeElement) -> None:
        valve = self._outside
        valve.handle(channel, element)
        self._execute(self._watermarks.outside_changed(valve.watermark, valve.idle))
        if self._watermarks.own_time:
            super().receive(channel, element)

    def end_channel(self, channel: Hashable) -> None:
        """Handle that a channel has ended. Those inside of the loop end when it is closed."""
        if channel in self._place.outside:
            super().end_channel(channel)

    def step(self) -> RecordBatch | EndOfInput | None:
        """Run the next piece of work. Return None, because loops end in another way."""
        if self._commands and self._firing is None:
            self._execute_next(self._commands.popleft())
        else:
            self._step_firing()
        self.running = self._firing is not None or bool(self._queue or self._commands)
        return None

    def _step_firing(self) -> None:
        firing = self._firing
        super().step()
        if firing is not None and self._firing is None and self._cutting:
            self._cutting = False
            self._execute(self._watermarks.fired())

    def _advance(self, watermark: Watermark) -> None:
        if watermark.timestamp != MAX_WATERMARK:  # which leaves the loop when it is closed
            self._watermarks.inside_advanced(watermark.timestamp)
        super()._advance(watermark)

    def _execute(self, commands: Iterable[LoopTimeCommand]) -> None:
        self._commands.extend(commands)
        self.running = self.running or bool(self._commands)

    def _execute_next(self, command: LoopTimeCommand) -> None:
        match command:
            case AdvanceInside() if self.at_end:
                self._execute(self._watermarks.fired())
            case AdvanceInside(timestamp):
                self._cutting = True
                super()._advance(Watermark(timestamp))
            case ReleaseBehind(timestamp):
                self._chain.release(Watermark(timestamp))
            case SetIdle(idle):
                self._set_status(WatermarkStatus(idle))
            case SendProbe(probe):
                self._send(probe)
            case SendRequest(request):
                self._send(request)

    def _set_status(self, status: WatermarkStatus) -> None:
        super()._set_status(status)
        self._chain.release(status)

    def _send(self, element: LoopProbe | ProbeRequest) -> None:
        for channel in self._inside:
            channel.mark(element)

"""Handle the end of a task's channels, and end the task."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from penstock.dataflow.time.watermark import MAX_WATERMARK, Watermark
from penstock.runtime.network.elements import EndOfInput, LoopElement, TimeElement
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.runtime.task.watermark_tracker import WatermarkTracker


class TaskEnd:
    """Handles the end of channels and of the source, and ends the task.

    Arguments:
        chain: the operators of the task.
        event_time: the event time of the task. Timers fire before the hooks run.
        end_of_input: the tracker of the channels and hooks.
        outputs: the output channels of the task.
        is_source: whether the task reads a source.
        outside_ended: a function that is called when all input from outside of the task's loop has
            ended.
        input_ended: a function that is called when the task has ended.
    """

    def __init__(
        self,
        chain: ChainRunner,
        event_time: WatermarkTracker,
        end_of_input: EndOfInputTracker,
        outputs: TaskOutputs,
        is_source: bool,
        outside_ended: Callable[[], None],
        input_ended: Callable[[], None],
    ) -> None:
        self._chain, self._event_time = chain, event_time
        self._end_of_input, self._outputs = end_of_input, outputs
        self._is_source = is_source
        self._outside_ended, self._input_ended = outside_ended, input_ended
        #: Whether the task has ended. It emits nothing more.
        self.ended = False

    def receive_marker(
        self, channel: Hashable, element: TimeElement | LoopElement | EndOfInput
    ) -> None:
        """Handle an element without records, when all records before it are processed."""
        if not isinstance(element, EndOfInput):
            if not self.ended:
                self._event_time.receive(channel, element)
            return
        self._event_time.end_channel(channel)
        if self._end_of_input.channel_ended(channel):
            self.input_over()

    def input_over(self) -> None:
        """Handle the end of all awaited channels, or the end of the source."""
        if self._end_of_input.in_loop:
            self._outside_ended()
            return
        if self._is_source:
            self._event_time.add(Watermark(MAX_WATERMARK))
        self._event_time.add(EndOfInput())  # timers may still fire before the hooks run

    def end(self) -> None:
        """End the task: drop its timers, flush its sinks, and notify the outputs."""
        self.ended = True
        for operator in self._chain.operators:
            operator.drop_timers()
        self._chain.end_sinks()
        if self._end_of_input.in_loop or not self._event_time.at_end:
            self._outputs.broadcast(Watermark(MAX_WATERMARK))
        self._outputs.broadcast(EndOfInput())
        self._input_ended()

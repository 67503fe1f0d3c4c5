"""Advance the event time of a task, and run its end-of-input hooks."""

from __future__ import annotations

from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.activities.activity import Activity
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.slice_runner import SliceRunner
from penstock.runtime.task.task_end import TaskEnd
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.runtime.task.watermark_tracker import WatermarkTracker


class EventTime(Activity):
    """Handles watermarks, and the elements that have come after them.

    Arguments:
        tracker: the event time of the task.
        slices: processes batches.
        end_of_input: the hooks, which begin when the event time has come to its end.
        end: ends the task if there are no hooks.
        outputs: the output channels of the task.
    """

    def __init__(
        self,
        tracker: WatermarkTracker,
        slices: SliceRunner,
        end_of_input: EndOfInputTracker,
        end: TaskEnd,
        outputs: TaskOutputs,
    ) -> None:
        self._tracker, self._slices = tracker, slices
        self._end_of_input, self._end, self._outputs = end_of_input, end, outputs

    def ready(self) -> bool:
        """Return whether operators fire, or elements wait for that."""
        return self._tracker.running

    def step(self) -> bool:
        """Do the next piece of firing, or handle the next element."""
        element = self._tracker.step()
        if isinstance(element, RecordBatch):
            self._slices.start(element, None)
        elif element is not None and not self._end_of_input.begin(1):
            self._end.end()  # no operator of the chain has an end-of-input hook
        self._outputs.send_full()
        return True


class EndOfInputHooks(Activity):
    """Runs a round of end-of-input hooks.

    Arguments:
        end_of_input: the hooks.
        chain: the operators of the task.
        end: ends the task after the round, unless the task is in a loop.
        outputs: the output channels of the task.
    """

    def __init__(
        self,
        end_of_input: EndOfInputTracker,
        chain: ChainRunner,
        end: TaskEnd,
        outputs: TaskOutputs,
    ) -> None:
        self._end_of_input, self._chain = end_of_input, chain
        self._end, self._outputs = end, outputs

    def ready(self) -> bool:
        """Return whether a round of hooks has begun."""
        return self._end_of_input.running

    def step(self) -> bool:
        """Run the hooks until they emit records."""
        output = self._end_of_input.next()
        if output is not None:
            self._chain.emit_from(output.operator, output.records)
            self._outputs.send_full()
        elif not self._end_of_input.in_loop:
            self._end.end()
        return True

"""Process batches in slices of about 1 ms, so that the task can handle messages between them.

`docs/inside/decisions/010-slices-of-work.md` has the reasons and the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.operators.requests import OperatorRequests
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.batch_sizing import (
    MOST,
    SLICE_SECONDS,
    BatchSizer,
    ColumnBatchSizer,
)
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.task_settings import TaskSettings
from penstock.runtime.task.task_steps import TaskSteps


class SliceRunner:
    """Processes the current batch of a task in slices.

    Attributes:
        is_logged: whether each slice is a step of its own in the log of the task.

    Arguments:
        chain: the operators that process the batch.
        gate: the input gate, which passes the wanted sizes of batches to the senders.
        outputs: the output channels of the task.
        settings: the clocks and settings of the task.
    """

    is_logged = False

    def __init__(
        self,
        chain: ChainRunner,
        gate: InputGate,
        outputs: Sequence[OutputChannel],
        settings: TaskSettings,
    ) -> None:
        self._chain, self._root = chain, chain.root
        self._gate = gate
        self._outputs = outputs
        self._timer, self._processor = settings.timer, settings.processor
        self._target_seconds = settings.target_seconds
        is_columnar = any(operator.is_columnar for operator in chain.operators)
        self.sizer = self._new_sizer(ColumnBatchSizer if is_columnar else BatchSizer)
        #: The sinks that may gather records for slow writes.
        self._sinks = [sink for sink in chain.sinks if sink.writer.per_record is None]
        for sink in self._sinks:
            sink.report_slow_writes(self._count_write)
        #: The duration of slow writes in the current slice, in seconds.
        self._written = 0.0
        #: Whether a sink gathers records for slow writes.
        self._writes_slowly = False
        #: The current batch, or None if all of its records are processed. `_position` is the index
        #: of the first record that is not processed.
        self.batch: RecordBatch | None = None
        self._position = 0
        #: The channel that delivered the batch; None if the task's source read it.
        self._channel: InputChannel | None = None
        self.busy_seconds = 0.0

    @property
    def waits(self) -> bool:
        """Return whether the rest of the batch waits until requests have ended."""
        return False

    def start(
        self, batch: RecordBatch, channel: InputChannel | None, began: float | None = None
    ) -> None:
        """Process the first slice of a new batch.

        Arguments:
            batch: the new batch.
            channel: the channel that delivered the batch; None if the task's source read it.
            began: the time at which the source began to read the batch. None means the current
                time.
        """
        self.batch = batch
        self._channel = channel
        if self._chain.second_input and channel is not None:
            self._chain.select_input(channel.id.link)
        self.run(began)

    def run(self, began: float | None = None) -> None:
        """Process the next slice of the batch.

        Arguments:
            began: the time at which the work for the slice began. None means the current time.
        """
        batch: Any = self.batch  # The callers have checked that there is one.
        position = self._position
        size = self._size()
        count = batch.count - position
        # A short rest is processed in the same slice. A separate slice for it would cost as much
        # as a full slice.
        if count <= size + size // 2:
            part = batch.slice(position) if position else batch
            self.batch, self._position = None, 0
        else:
            # The rest is not copied. Copying it would touch all of its records in each slice.
            part, count = batch.slice(position, position + size), size
            self._position = position + size
        if began is None:
            began = self._timer()
        self._begin(count)
        self._chain.process(self._root, part, count)
        seconds = self._timer() - began
        self.busy_seconds += seconds
        if self._written:
            seconds, self._written = seconds - self._written, 0.0
        # Sizes depend on what the task could do with a whole processor. Otherwise batches would be
        # smaller, and cost more, on a busy machine.
        if self.sizer.took(count, seconds * self._processor.share):
            if seconds >= SLICE_SECONDS:
                for sink in self._sinks:
                    sink.measure()
            if batch.arrow is not None and type(self.sizer) is BatchSizer:
                self.sizer = self._new_sizer(ColumnBatchSizer)
            self._gate.follow(self.sizer)

    def _size(self) -> int:
        """Return the number of records of the next slice."""
        return self.sizer.slice

    def _begin(self, count: int) -> None:
        """Begin a slice of `count` records."""

    def output_waited(self, seconds: float) -> None:
        """Adjust the sizes to the time for which the output of the last slices has waited."""
        self.sizer.waited(seconds * self._processor.share)
        self._gate.follow(self.sizer)

    def _new_sizer(self, kind: type[BatchSizer]) -> BatchSizer:
        return kind(self._target_seconds, self._output_records)

    def _output_records(self) -> int:
        """Return how many records all receivers of the output want in a batch, at least.

        Slow writes limit the records of the task, even if its receivers want more.
        """
        if self._writes_slowly:
            return 1
        return min([output.limit for output in self._outputs], default=MOST)

    def _count_write(self, seconds: float, records: int, limit: int, in_slice: bool) -> None:
        """Adjust the sizes to a slow write, for which a sink had gathered records.

        The size of a slice does not depend on the duration of the write, but the number of records
        in flight does.

        Arguments:
            seconds: the duration of the write.
            records: the number of its records; 0 if the sink gathers no more records.
            limit: the number of records for which the next write waits.
            in_slice: whether the write was a part of the current slice.
        """
        if in_slice:
            self._written += seconds
        else:
            self.busy_seconds += seconds
        self._writes_slowly = records > 0
        self.sizer.keep_for_write(records)
        self.sizer.limit_slice(limit)
        self.output_waited(seconds)

    def unprocessed(self) -> list[tuple[InputChannel | None, RecordBatch]]:
        """Return a list with the channel and the unprocessed part of the batch, if any."""
        return [] if self.batch is None else [(self._channel, self.batch.slice(self._position))]


class LoggedSliceRunner(SliceRunner):
    """Logs each slice as a step, since operators depend on where batches begin and end.

    While steps are repeated, each batch is a slice that is logged already.

    Arguments:
        steps: the steps of the task.
        arguments: the arguments of `SliceRunner`.
    """

    is_logged = True

    def __init__(self, steps: TaskSteps, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._steps = steps

    def _size(self) -> int:
        assert self.batch is not None
        return self.batch.count if self._steps.next is not None else super()._size()

    def _begin(self, count: int) -> None:
        if self._steps.next is None:
            assert self._channel is not None
            self._steps.taken(self._channel.id, count)


class RequestSliceRunner(SliceRunner):
    """Processes batches as far as the first operator has room for more requests.

    Arguments:
        requests: the requests of the first operator.
        arguments: the arguments of `SliceRunner`.
    """

    def __init__(self, requests: OperatorRequests, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._requests = requests
        #: The time since which the batch waits for requests, in seconds; None if it does not wait.
        self._waiting_since: float | None = None

    @property
    def waits(self) -> bool:
        """Return whether the rest of the batch waits until requests have ended."""
        return self.batch is not None and not self._requests.room

    def _output_records(self) -> int:
        """Return 1: requests limit the records of the task, even if its receivers want more."""
        return 1

    def run(self, began: float | None = None) -> None:
        """Process the next slice of the batch, if there is room for requests."""
        if self.waits:
            if self._waiting_since is None:
                self._waiting_since = self._timer()
            return
        since, self._waiting_since = self._waiting_since, None
        if since is not None:
            self.output_waited(self._timer() - since)
            began = None
        self.sizer.limit_slice(self._requests.room)
        super().run(began)


def slice_runner(
    chain: ChainRunner,
    gate: InputGate,
    outputs: Sequence[OutputChannel],
    settings: TaskSettings,
) -> SliceRunner:
    """Return the slice runner for a chain; see `SliceRunner`."""
    if chain.requests is not None:
        return RequestSliceRunner(chain.requests, chain, gate, outputs, settings)
    if settings.steps is not None and any(operator.is_columnar for operator in chain.operators):
        return LoggedSliceRunner(settings.steps, chain, gate, outputs, settings)
    return SliceRunner(chain, gate, outputs, settings)

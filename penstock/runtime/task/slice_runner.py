"""Process batches in slices of about 1 ms, so that a task looks up in between."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.batch_sizing import BatchSizer
from penstock.runtime.task.chain_runner import ChainRunner

__all__ = ["SliceRunner"]


class SliceRunner:
    """The batch that a task is processing, and the chain that processes it.

    Arguments:
        chain: the operators.
        gate: its senders follow the sizes of the batches that the task can process in time.
        timer: seconds, fine enough for the duration of a slice.
        target_seconds: the aimed time for processing all records in flight to the task.
    """

    def __init__(
        self,
        chain: ChainRunner,
        gate: InputGate,
        timer: Callable[[], float],
        target_seconds: float,
    ) -> None:
        self._chain = chain
        self._gate = gate
        self._timer = timer
        self.sizer = BatchSizer(target_seconds)
        #: The batch; its records from `_position` on are unprocessed. None if all are processed.
        self.batch: RecordBatch | None = None
        self._position = 0
        #: The channel that the batch came from; None if the task's source read it.
        self._channel: InputChannel | None = None
        self.busy_seconds = 0.0

    def start(
        self, batch: RecordBatch, channel: InputChannel | None, began: float | None = None
    ) -> None:
        """Process the first slice of a new batch.

        Arguments:
            batch: its records.
            channel: the channel that it came from; None if the task's source read it.
            began: when reading it began, if that counts as work of the task.
        """
        self.batch, self._channel = batch, channel
        self.run(began)

    def run(self, began: float | None = None) -> None:
        """Process the next slice of the batch.

        Arguments:
            began: when the work that counts for the slice began; None for now.
        """
        batch, position, size = self.batch, self._position, self.sizer.slice
        assert batch is not None
        count = len(batch) - position
        # A short rest is processed at once: alone it would cost as much as a whole slice.
        if count <= size + size // 2:
            part = batch.slice(position) if position else batch
            self.batch, self._position = None, 0
        else:
            # The rest stays in place. To copy it would touch each record once for each slice.
            part, count = batch.slice(position, position + size), size
            self._position = position + size
        if began is None:
            began = self._timer()
        self._chain.run(part, count)
        seconds = self._timer() - began
        self.busy_seconds += seconds
        if self.sizer.took(count, seconds):
            self._gate.follow(self.sizer)

    def output_waited(self, seconds: float) -> None:
        """Take into account that the output of the last slices waited for room."""
        self.sizer.waited(seconds)
        self._gate.follow(self.sizer)

    def unprocessed(self) -> list[tuple[InputChannel | None, RecordBatch]]:
        """Return the rest of the batch, if there is any, with the channel that it came from."""
        return [] if self.batch is None else [(self._channel, self.batch.slice(self._position))]

"""The operators at the two ends of a job: sources and sinks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.dataflow.sink import Sink, SinkWriter
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.user_code.errors import calling, to_job_error

__all__ = ["SinkOperator", "SourceOperator"]


class SinkOperator(RecordLoopOperator):
    """Passes records to the writer of a sink.

    Arguments:
        writer: the sink's writer.
        context: the operator's place in the job.
        sink: the sink, whose function may have operator state.
    """

    is_connector = True

    def __init__(
        self, writer: SinkWriter, context: OperatorContext, sink: Sink | None = None
    ) -> None:
        super().__init__(sink, context)
        self.writer = writer
        if writer.per_record is not None:
            self._set_loop(loops.call_records, function=writer.per_record)

    def open(self) -> None:
        """Open the sink's writer."""
        self.writer.open()

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Pass a batch of records to the sink's writer, and return an empty batch."""
        if self.writer.per_record is not None:
            self._run_loop(batch)
        elif batch.arrow is not None and self.writer.write_columns is not None:
            self.writer.write_columns(batch.arrow)
        else:
            self.writer.write(batch.rows())
        return EMPTY

    def flush(self) -> None:
        """Flush the buffers of the sink's writer."""
        try:
            self.writer.flush()
        except BaseException as error:
            raise to_job_error(error, self, []) from error

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """Separate the output before a barrier from the output behind it.

        Returns:
            A function that makes the output before the barrier durable, and returns the payloads
            of its committables. The function may block. The value is None if there is no
            output.
        """
        try:
            finish = self.writer.prepare(snapshot)
        except BaseException as error:
            raise to_job_error(error, self, []) from error
        return None if finish is None else partial(self._stage, finish)

    def _stage(self, finish: Callable[[], list[Any]]) -> list[Any]:
        with calling(self.name, "output could not be staged"):
            return finish()

    def close(self) -> None:
        """Close the sink's writer."""
        self.writer.close()


class SourceOperator(RunningOperator):
    """The first operator of a chain that begins with a source.

    The task reads the source. This operator returns the records without a change.
    """

    is_connector = True

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch without a change."""
        return batch

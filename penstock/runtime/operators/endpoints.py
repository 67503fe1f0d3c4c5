"""The operators at the two ends of a job: sources and sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dataflow.sink import SinkWriter
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.user_code.errors import to_job_error

__all__ = ["SinkOperator", "SourceOperator"]


class SinkOperator(RecordLoopOperator):
    """Pass records to the writer of a sink.

    Arguments:
        writer: the sink's writer.
        context: the operator's place in the job.
    """

    def __init__(self, writer: SinkWriter, context: OperatorContext) -> None:
        super().__init__(None, context)
        self.writer = writer
        if writer.per_record is not None:
            self._set_loop(loops.call_records, function=writer.per_record)

    def process(self, batch: RecordBatch) -> list[Any]:
        """Write the records; emit nothing."""
        if self.writer.per_record is not None:
            return self._run_loop(batch)
        self.writer.write(batch.rows())
        return []

    def flush(self) -> None:
        """Flush the writer's buffers."""
        try:
            self.writer.flush()
        except BaseException as error:
            raise to_job_error(error, self, []) from error

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """Separate the output before a barrier from the output behind it.

        Returns a function that makes the output before the barrier durable, and returns the
        payloads of its committables. It may block. Returns None if there is no output.
        """
        try:
            return self.writer.prepare(snapshot)
        except BaseException as error:
            raise to_job_error(error, self, []) from error

    def close(self) -> None:
        """Close the writer."""
        self.writer.close()


class SourceOperator(RunningOperator):
    """The first operator of a source's chain. The task reads the source; this passes records on."""

    def process(self, batch: RecordBatch) -> list[Any]:
        """Return the same records."""
        return batch.rows()

"""The operators at the two ends of a job: sources and sinks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.dataflow.sink import Sink, SinkWriter
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.sink_writes import WriteSizer
from penstock.runtime.operators.time.source_watermarks import SourceWatermarks
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.user_code.errors import calling, to_job_error


class SinkOperator(RecordLoopOperator):
    """Passes records to the writer of a sink.

    If a call of `SinkWriter.write` is slow, it gathers records for the next call; see
    `sink_writes.py`. Gathered records are written before a barrier, and otherwise as soon as the
    time since the last write is as long as that write was.

    Arguments:
        writer: the sink's writer.
        context: the operator's place in the job.
        sink: the sink, whose function may have operator state.
        timer: a function that returns the time in seconds, precisely enough to measure a write.
    """

    is_connector = True

    def __init__(
        self,
        writer: SinkWriter,
        context: OperatorContext,
        sink: Sink | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(sink, context)
        self.writer = writer
        self._timer = timer
        self._sizer = WriteSizer()
        #: Whether writes are measured. It is False as long as the task is quick.
        self._measures = False
        #: The records that are gathered for the next write.
        self._gathered: list[Any] = []
        #: The time at which the gathered records are written at the latest, in seconds.
        self._write_at = 0.0
        self._listener: Callable[[float, int, int, bool], None] = _ignore
        #: Whether `flush` may have something to do.
        self.flushes = writer.per_record is None or type(writer).flush is not SinkWriter.flush
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
            if self._gathered:
                self._write_gathered(in_slice=True)
            self.writer.write_columns(batch.arrow)
        elif self._measures:
            self._write_measured(batch.rows())
        else:
            self.writer.write(batch.rows())
        return EMPTY

    def report_slow_writes(self, listener: Callable[[float, int, int, bool], None]) -> None:
        """Set the function that is called after each write of gathered records.

        It gets the duration of the write in seconds, the number of its records, the number of
        records for which the next write waits, and whether the write was a part of `process`.
        """
        self._listener = listener

    def measure(self) -> None:
        """Measure the next write, because the task was slow."""
        self._measures = True

    def _write_measured(self, rows: list[Any]) -> None:
        """Write records, or gather them if writes are slow."""
        if self._sizer.gathers:
            self._gathered += rows
            if len(self._gathered) >= self._sizer.limit or self._timer() >= self._write_at:
                self._write_gathered(in_slice=True)
            return
        began = self._timer()
        self.writer.write(rows)
        self._sizer.wrote(len(rows), self._timer() - began)
        self._measures = self._sizer.gathers

    def _write_gathered(self, *, in_slice: bool = False) -> None:
        records, self._gathered = self._gathered, []
        began = self._timer()
        self.writer.write(records)
        ended = self._timer()
        self._sizer.wrote(len(records), ended - began)
        self._measures = self._sizer.gathers
        # Meanwhile the task does other work. So writes take at most half of its time, unless
        # records come faster.
        self._write_at = 2 * ended - began
        sizer = self._sizer
        self._listener(ended - began, len(records) if sizer.gathers else 0, sizer.limit, in_slice)

    @property
    def write_delay(self) -> float | None:
        """Return the seconds until `flush` writes the gathered records; None if there are none."""
        return max(0.0, self._write_at - self._timer()) if self._gathered else None

    def flush(self) -> None:
        """Write the gathered records if it is time, and flush the buffers of the sink's writer.

        An idle task may get many records soon: while it wrote, it received nothing.
        """
        try:
            if self._gathered and self._timer() >= self._write_at:
                self._write_gathered()
            self.writer.flush()
        except BaseException as error:
            raise to_job_error(error, self, []) from error

    def end(self) -> None:
        """Write the gathered records, because there are no more records."""
        try:
            if self._gathered:
                self._write_gathered()
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
            if self._gathered:
                self._write_gathered()
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
    #: The event time of the source; None if it has no watermark strategy.
    watermarks: SourceWatermarks | None = None

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch without a change."""
        return batch


def build_sink(place: OperatorPlace) -> RunningOperator:
    """Build the operator of a sink, with a writer."""
    services, sink = place.services, place.function
    writer = services.create_writer(sink, place.context.metrics)
    return SinkOperator(writer, place.context, sink, services.timer)


def _ignore(seconds: float, records: int, limit: int, in_slice: bool) -> None:
    del seconds, records, limit, in_slice

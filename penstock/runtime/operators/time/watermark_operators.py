"""The operators that emit watermarks: a source, and `assign_timestamps_and_watermarks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from penstock.dataflow.metrics import FIRST_EVENT_TIME
from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK, Watermark
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
from penstock.runtime.network.elements import TimeElement, WatermarkStatus
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.endpoints import SourceOperator
from penstock.runtime.operators.time.source_watermarks import SourceWatermarks
from penstock.runtime.operators.time.timestamped_stream import TimestampedStream
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.user_code.current_operator import operator_at_work


class TimedOutput(Protocol):
    """Takes the output that an operator emits before `process` returns; see `ChainRunner`."""

    def emit_from(self, operator: RunningOperator, out: RecordBatch) -> None:
        """Pass records of an operator to its consumers."""

    def emit_time_from(self, operator: RunningOperator, element: TimeElement) -> None:
        """Pass a watermark or status of an operator to its consumers."""


class TimedSourceOperator(SourceOperator):
    """A source with a watermark strategy.

    Records get their event times when they are read. This operator emits the periodic watermarks.

    Arguments:
        function: the source.
        context: the place of the operator in the job.
        watermarks: the event time of the source task.
    """

    def __init__(
        self, function: Any, context: OperatorContext, watermarks: SourceWatermarks
    ) -> None:
        super().__init__(function, context)
        self.watermarks: SourceWatermarks = watermarks
        context.metrics.gauge(FIRST_EVENT_TIME, lambda: watermarks.first_time)

    def next_processing_time(self) -> int | None:
        """Return the time of the next periodic watermark, in milliseconds since the epoch."""
        if self.context.watermark == MAX_WATERMARK:
            return None
        return self.watermarks.next_emission

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch | TimeElement]:
        """Yield the periodic watermark, if there is a new one."""
        yield from self.watermarks.emit_periodically(now)


class TimestampsOperator(RunningOperator):
    """Gives records event times, and emits watermarks in place of those of its input.

    (Flink: `TimestampsAndWatermarksOperator`.)

    Arguments:
        strategy: the watermark strategy.
        context: the place of the operator in the job.
        interval_ms: the period of watermarks, in milliseconds; 0 for none.
    """

    _output: TimedOutput

    def __init__(
        self, strategy: WatermarkStrategy, context: OperatorContext, interval_ms: int
    ) -> None:
        super().__init__(None, context)
        now = context.now_ms()
        stream = self._stream = TimestampedStream(strategy, context.name, now)
        context.metrics.gauge(FIRST_EVENT_TIME, lambda: stream.first_time)
        self._interval = interval_ms
        self._next_emission = now + interval_ms if interval_ms else None
        self._emitted = self._stream.watermark
        self._idle = False

    def connect(self, output: TimedOutput) -> None:
        """Set the output for watermarks that the generator emits among the records."""
        self._output = output

    @property
    def watermark(self) -> int:
        """Return the newest watermark that the operator has emitted."""
        return self._emitted

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return the records with their event times."""
        for piece, changed in self._stream.process(batch):
            if not changed:
                return piece
            self._output.emit_from(self, piece)
            for element in self._changes():
                self._output.emit_time_from(self, element)
            operator_at_work.set(self.context)
        return EMPTY

    def lets_pass(self, element: TimeElement) -> bool:
        """Return True for the last watermark only: the operator emits its own watermarks."""
        return element == Watermark(MAX_WATERMARK)

    def next_processing_time(self) -> int | None:
        """Return the time of the next periodic watermark, in milliseconds since the epoch."""
        return None if self.context.watermark == MAX_WATERMARK else self._next_emission

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch | TimeElement]:
        """Yield the periodic watermark, if there is a new one."""
        self._next_emission = now + self._interval
        self._stream.emit_periodically(now)
        yield from self._changes()

    def _changes(self) -> list[TimeElement]:
        """Return the changes of the watermark and the status since the last call."""
        stream, out = self._stream, list[TimeElement]()
        if stream.idle != self._idle:
            self._idle = stream.idle
            out.append(WatermarkStatus(self._idle))
        if stream.watermark > self._emitted:
            self._emitted = stream.watermark
            out.append(Watermark(self._emitted))
        return out

    # ---- snapshots

    def snapshot_time(self) -> list[int]:
        """Return the state of the generator, for `restore_time`."""
        return self._stream.snapshot()

    def restore_time(self, states: list[list[int]]) -> None:
        """Restore the states of all subtasks whose records this one may get.

        The lowest watermark counts, so that no record becomes late by a restart.
        """
        self._stream.restore(min(states))
        self._emitted = self._stream.watermark

    # ---- logs of steps

    def capture(self) -> list[Any]:
        """Return all that decides on the next watermarks, for `continue_from`."""
        return [self._next_emission, self._stream.capture()]

    def continue_from(self, captured: list[Any]) -> list[TimeElement]:
        """Continue with what the operator of the predecessor has captured.

        Returns:
            The watermark and the status of the operator, which its consumers may not know.
        """
        self._next_emission, stream = captured
        self._stream.continue_from(stream)
        self._emitted, self._idle = self._stream.watermark, self._stream.idle
        known = [Watermark(self._emitted)] if self._emitted > MIN_WATERMARK else []
        return [*known, WatermarkStatus(self._idle)]


def build_source(place: OperatorPlace) -> RunningOperator:
    """Build the operator of a source, with watermarks or without."""
    context, operator = place.context, place.operator
    strategy = operator.watermark_strategy
    if strategy is None:
        return SourceOperator(place.function, context)
    interval = place.services.watermark_interval_ms
    watermarks = SourceWatermarks(strategy, operator.name, interval, context.now_ms)
    return TimedSourceOperator(place.function, context, watermarks)


def build_timestamps(place: OperatorPlace) -> RunningOperator:
    """Build the operator of `assign_timestamps_and_watermarks`."""
    interval = place.services.watermark_interval_ms
    return TimestampsOperator(place.function, place.context, interval)

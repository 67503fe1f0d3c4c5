"""Give the records of one stream event times, and generate the watermarks of the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.time.watermark import MIN_WATERMARK, NO_TIMESTAMP, Watermark
from penstock.dataflow.time.watermark_generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkOutput,
)
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
from penstock.runtime.operators.time.timestamps import TimestampAssignment
from penstock.runtime.serialization.arrow_batch import event_times
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.user_code.errors import to_job_error

#: The generators that only need the highest event time of a batch.
_WHOLE_BATCH = (AscendingTimestampsWatermarks, BoundedOutOfOrdernessWatermarks)


class TimestampedStream(WatermarkOutput):
    """Gives records event times, and holds the watermark that the generator has emitted.

    Arguments:
        strategy: how records get event times, and how watermarks are generated.
        operator: the name of the operator in errors.
        now: the time of the machine's clock, in milliseconds since the epoch.
    """

    is_connector = False

    def __init__(self, strategy: WatermarkStrategy, operator: str, now: int) -> None:
        extract = strategy.extract_timestamp
        self._assignment = None if extract is None else TimestampAssignment(extract, operator)
        self._generator = strategy.create_generator()
        self._idle_timeout = strategy.idle_timeout_ms
        self._operator = operator
        #: The newest watermark of the stream, in milliseconds since the epoch.
        self.watermark = MIN_WATERMARK
        #: Whether no watermarks are expected for now.
        self.idle = False
        #: The event time of the first record, in milliseconds since the epoch; None before it.
        self.first_time: int | None = None
        self._changed = False
        #: No iterator: `_observe` knows the current record itself.
        self.iterator: Any = None
        #: Whether records have arrived since the last check for idleness, and the time without
        #: records.
        self._active = True
        self._inactive_ms = 0
        self._checked_at = now

    # ---- the output of the generator

    def emit_watermark(self, watermark: Watermark) -> None:
        """Set the watermark, unless it is not higher than before. The stream then is active."""
        if type(watermark) is not Watermark or type(watermark.timestamp) is not int:
            raise JobError(
                f"a watermark generator emitted {watermark!r}: emit a Watermark with the "
                f"milliseconds since the epoch as an int, for example Watermark(1_700_000_000_000)",
                operator=self._operator,
            )
        self.mark_active()
        if watermark.timestamp > self.watermark:
            self.watermark, self._changed = watermark.timestamp, True

    def advance(self, timestamp: int) -> bool:
        """Handle a watermark of the source, in ms; return whether it has changed the stream."""
        self.emit_watermark(Watermark(timestamp))
        self._active = True
        changed, self._changed = self._changed, False
        return changed

    def mark_idle(self) -> None:
        """Mark the stream as idle."""
        if not self.idle:
            self.idle = self._changed = True

    def mark_active(self) -> None:
        """Mark the stream as active again."""
        if self.idle:
            self.idle, self._changed = False, True

    # ---- records

    def process(self, batch: RecordBatch) -> Iterator[tuple[RecordBatch, bool]]:
        """Give the records event times, and pass them to the generator.

        Yields:
            The records in pieces, each with whether the watermark or the status of the stream has
            changed behind it. There is only one piece unless the generator emits in between.
        """
        if self._assignment is not None:
            batch = batch.with_timestamps(self._assignment.assign(batch))
        self._active = True
        generator, timestamps = self._generator, batch.times()
        if self.first_time is None and timestamps[0] != NO_TIMESTAMP:
            self.first_time = int(timestamps[0])
        if type(generator) in _WHOLE_BATCH:
            times = event_times(batch) if batch.arrow is not None else None
            highest = max(timestamps) if times is None else int(times.max())
            generator.on_event(None, highest, self)
        elif type(generator) is not NoWatermarks:
            begin = 0
            for end in self._observe(batch.rows(), timestamps):
                yield batch.slice(begin, end), True
                begin = end
            if not begin:
                yield batch, False
            elif begin < len(batch):
                yield batch.slice(begin), False
            return
        yield batch, False

    def _observe(self, records: list[Any], timestamps: list[int]) -> Iterator[int]:
        """Pass the records to the generator; yield the index after each one at which it emits."""
        on_event = self._generator.on_event
        for end, (record, timestamp) in enumerate(zip(records, timestamps, strict=True), 1):
            try:
                on_event(record, timestamp, self)
            except BaseException as error:
                raise self._error(error, record) from error
            if self._changed:
                self._changed = False
                yield end

    def _error(self, error: BaseException, record: Any = None) -> JobError:
        failed = to_job_error(error, self, [], self.name)
        if record is not None and failed.record is None:
            failed.record = repr(record)[:500]
        return failed

    @property
    def name(self) -> str:
        """Return the name of the user's generator in errors."""
        return f"watermark generator of {self._operator!r}"

    @property
    def inputs(self) -> Sequence[str]:
        """Return no names."""
        return ()

    def hint(self, error: BaseException) -> str:
        """Return no advice."""
        del error
        return ""

    # ---- periodic work

    def emit_periodically(self, now: int, paused: bool = False) -> bool:
        """Let the generator emit a watermark, or mark the stream as idle.

        Arguments:
            now: the time of the machine's clock, in milliseconds since the epoch.
            paused: whether the stream is not read for now, so that it is not idle.

        Returns:
            Whether the watermark or the status of the stream has changed.
        """
        if self._is_idle(now, paused):
            self.mark_idle()
        else:
            try:
                self._generator.on_periodic_emit(self)
            except BaseException as error:
                raise self._error(error) from error
        changed, self._changed = self._changed, False
        return changed

    def _is_idle(self, now: int, paused: bool) -> bool:
        timeout = self._idle_timeout
        if timeout is None:
            return False
        # While output waits for credits there are no checks. Such a time does not count in full.
        passed = min(max(0, now - self._checked_at), timeout // 2 + 1)
        self._checked_at = now
        if self._active or paused:
            self._active, self._inactive_ms = False, 0
            return False
        self._inactive_ms += passed
        return self._inactive_ms > timeout

    # ---- snapshots

    def snapshot(self) -> list[int]:
        """Return the watermark and the highest event time, for `restore`."""
        generator = self._generator
        if isinstance(generator, BoundedOutOfOrdernessWatermarks):
            return [self.watermark, generator.max_timestamp]
        return [self.watermark, MIN_WATERMARK]

    def restore(self, state: list[int]) -> None:
        """Restore a value that `snapshot` returned, maybe by another strategy."""
        watermark, max_timestamp = state
        self.watermark = max(self.watermark, watermark)
        if type(self._generator) in _WHOLE_BATCH:
            self._generator.on_event(None, max_timestamp, self)

    # ---- logs of steps

    def capture(self) -> list[Any]:
        """Return all that decides on the next watermarks, for `continue_from`.

        A generator of the program may remember more.
        """
        idleness = [self.idle, self._active, self._inactive_ms, self._checked_at]
        return [self.snapshot(), idleness]

    def continue_from(self, captured: list[Any]) -> None:
        """Continue with what another stream of the same strategy has captured."""
        state, idleness = captured
        self.restore(state)
        self.idle, self._active, self._inactive_ms, self._checked_at = idleness

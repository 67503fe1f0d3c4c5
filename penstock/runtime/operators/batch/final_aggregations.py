"""The running aggregations in batch mode: they emit the last value of each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.dataflow.time.watermark import MAX_WATERMARK, NO_TIMESTAMP
from penstock.runtime.operators.base import batched
from penstock.runtime.operators.keyed import KeyedCountOperator, KeyedOperator, KeyedReduceOperator
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch


class FinalResults(KeyedOperator):
    """A mixin for operators that emit the values of all keys when the input has ended.

    A result has the largest event time of the records of its key.
    """

    _TIMES = "event times"
    _emitted = False

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Process a batch, and emit nothing."""
        if batch.timestamps is not None:
            self._keep_times(batch)
        super().process(batch)  # type: ignore[safe-super]
        return EMPTY

    def _keep_times(self, batch: RecordBatch) -> None:
        times, key_of = self.backend.table(self._TIMES), self._key_of
        self.iterator = iter(batch.rows())
        for record, timestamp in zip(self.iterator, batch.timestamps or (), strict=False):
            key = key_of(record)
            before: Any = times.get(key, NO_TIMESTAMP)
            if timestamp > before:
                times.put(key, timestamp)

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Yield the values of all keys, if the input has ended."""
        if timestamp != MAX_WATERMARK or self._emitted:
            return
        self._emitted = True
        timed = self._TIMES in self.backend.tables.names
        # A reduce function that returns None has removed the value of the key.
        values = (entry for entry in self.backend.scan(self.STATE) if entry[1] is not None)
        for entries in batched(values):
            times: Any = None
            if timed:
                table = self.backend.table(self._TIMES)
                times = [table.get(key, NO_TIMESTAMP) for key, _ in entries]
            yield RecordBatch([self._result(key, value) for key, value in entries], None, times)
        # A batch job is never resumed in the middle, so nothing reads the state any more.
        self.backend.clear()

    def _result(self, key: Any, value: Any) -> Any:
        """Return the record to emit for a key."""
        del key
        return value


class FinalReduceOperator(FinalResults, KeyedReduceOperator):
    """Reduces the records of each key, and emits the last value."""

    def copy_emitted(self, record: Any) -> Any:
        """Return a mutable record without a copy, because it is not emitted."""
        self._table.allow_mutable()
        return record

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Yield the values of all keys, if the input has ended."""
        self._table.allow_mutable()
        yield from super().advance_watermark(timestamp)


class FinalCountOperator(FinalResults, KeyedCountOperator):
    """Counts the records of each key, and emits a pair (key, count)."""

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Yield the counts of all keys, if the input has ended."""
        self._table.allow_mutable()
        yield from super().advance_watermark(timestamp)

    def _result(self, key: Any, value: Any) -> Any:
        return key, value

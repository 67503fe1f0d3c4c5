"""The operator of sessions, windows by processing time and windows with an allowed lateness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.columns.column_key import key_columns
from penstock.runtime.operators.columns.aggregation_input import AggregationInput
from penstock.runtime.operators.columns.aggregation_operator import AggregationOperator
from penstock.runtime.operators.columns.part_values import (
    PartValues,
    array_of_part,
    values_of_rows,
)
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.windowing.choice import window_class
from penstock.runtime.serialization.record_batch import RecordBatch


class RowWindowOperator(AggregationOperator):
    """Aggregates columns in windows row by row, with an operator of windows over rows.

    A row becomes a record `(key, index in its batch, values of the parts)`. The results of the
    windows become columns again. So all kinds of windows mean the same as over rows.

    Arguments:
        function: the keys, the aggregates and the windows.
        context: the operator's place in the job.
    """

    has_windows = True
    schedules_timers = True

    def __init__(self, function: ColumnAggregation, context: OperatorContext) -> None:
        super().__init__(function, context)
        assert function.window is not None
        operation = replace(
            function.window,
            aggregator=PartValues(self.parts),
            window_function=_with_span,
            state_label=self.state_name,
        )
        self._windows = window_class(operation, context)(operation, context, itemgetter(0))

    def open(self) -> None:
        """Get the tables and timers, which are already restored."""
        self._windows.open()

    def close(self) -> None:
        """Close the windows, and report the fields that no row has had."""
        self._windows.close()
        super().close()

    def _aggregate(self, rows: AggregationInput, batch: RecordBatch) -> RecordBatch:
        """Add rows to their windows, and return the results of windows that fire for them."""
        self.results.note_types(rows.key_columns)
        keys, count = rows.keys, batch.count
        of_codes = keys.values
        of_rows = [of_codes[code] for code in keys.codes.tolist()]
        parts = [values_of_rows(part, rows.values(part), count) for part in self.parts]
        records = list(zip(of_rows, range(count), zip(*parts, strict=True), strict=True))
        times = None if batch.timestamps is None else list(batch.timestamps)
        out = self._windows.process(RecordBatch(records, None, times))
        self._emit_late_rows(batch)
        return self._converted(out)

    def _emit_late_rows(self, batch: RecordBatch) -> None:
        """Emit the rows of the records that are in the side output of late data."""
        for tag, late in self._windows.side_outputs.take():
            rows = batch.select([place for _, place, _ in late.rows()]).rows()
            for row, timestamp in zip(rows, late.times(), strict=True):
                self.side_outputs.emit(tag, row, timestamp)

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire the windows that end at or before the watermark."""
        return map(self._converted, self._windows.advance_watermark(timestamp))

    def next_processing_time(self) -> int | None:
        """Return the time at which the first window by processing time ends, or None."""
        return self._windows.next_processing_time()

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch]:
        """Fire the windows that end by processing time."""
        return map(self._converted, self._windows.advance_processing_time(now))

    def _converted(self, out: RecordBatch) -> RecordBatch:
        """Return results of windows as rows."""
        if not out.count:
            return out
        keys, starts, ends, of_parts = map(list, zip(*out.rows(), strict=True))
        columns = zip(self.parts, zip(*of_parts, strict=True), strict=True)
        values = {part: array_of_part(column) for part, column in columns}
        names = key_columns(keys, len(self.aggregation.keys))
        times = np.array(out.times(), np.int64)
        return self.window_rows(names, np.array(starts), np.array(ends), values, times)


def _with_span(key: Any, window: Any, results: list[Any]) -> Any:
    return [(key, window.start, window.end, results[0])]

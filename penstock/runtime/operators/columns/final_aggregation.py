"""The operator of aggregates over columns in batch mode: one row for each group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.dataflow.columns.column_key import key_columns
from penstock.dataflow.time.watermark import MAX_WATERMARK, NO_TIMESTAMP
from penstock.runtime.operators.base import batched
from penstock.runtime.operators.columns.accumulators import result_column
from penstock.runtime.operators.columns.aggregation_input import AggregationInput
from penstock.runtime.operators.columns.group_table import GroupTable
from penstock.runtime.operators.columns.running_aggregation import RunningAggregationOperator
from penstock.runtime.serialization.arrow_batch import event_times, packed_times
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch

#: The name of the table with the largest event time of each group.
_TIMES = "event times"


class FinalAggregationOperator(RunningAggregationOperator):
    """Emits the last aggregates of each group when the input has ended.

    A row has the largest event time of the rows of its group.
    """

    _emitted = False

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Aggregate the rows of a batch, and emit nothing."""
        super().process(batch)
        return EMPTY

    def _aggregate(self, rows: AggregationInput, batch: RecordBatch) -> RecordBatch:
        """Add rows to their groups."""
        times = event_times(batch)
        if times is not None:
            latest = np.full(len(rows.keys), NO_TIMESTAMP, np.int64)
            np.maximum.at(latest, rows.keys.codes, times)
            table = self.backend.table(_TIMES)
            for key, time in zip(rows.keys.values, latest.tolist(), strict=True):
                before: Any = table.get(key, NO_TIMESTAMP)
                if time > before:
                    table.put(key, time)
        self.results.note_types(rows.key_columns)
        self._add(rows)
        return EMPTY

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Yield the aggregates of all groups, if the input has ended."""
        if timestamp != MAX_WATERMARK or self._emitted:
            return
        self._emitted = True
        self._table.allow_mutable()
        self.write_state()
        timed = _TIMES in self.backend.tables.names
        for entries in batched(self.backend.scan(self.state_name)):
            groups = GroupTable(self.parts)
            for part in self.parts:
                # All batches have the same types.
                groups.widen(part, self._groups.values_of(part).dtype)
            for key, saved in entries:
                groups.restore(key, saved)
            yield self._rows(groups, timed)
        # A batch job is never resumed in the middle, so nothing reads the state any more.
        self._groups = GroupTable(self.parts)
        self.backend.clear()

    def _rows(self, groups: GroupTable, timed: bool) -> RecordBatch:
        values = {part: groups.values_of(part) for part in self.parts}
        columns = {one.name: result_column(one, values) for one in self.aggregation.aggregates}
        times = None
        if timed:
            table = self.backend.table(_TIMES)
            found = [table.get(key, NO_TIMESTAMP) for key in groups.keys]
            times = packed_times(np.array(found, np.int64))
        keys = key_columns(groups.keys, len(self.aggregation.keys))
        return self.results.batch(keys, columns, times)

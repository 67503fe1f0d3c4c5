"""Define the operator that aggregates columns in windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.columns.column_key import key_columns
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.dataflow.windows.time_windows import without_timestamp
from penstock.runtime.operators.columns.aggregation_input import AggregationInput
from penstock.runtime.operators.columns.aggregation_operator import AggregationOperator
from penstock.runtime.operators.columns.group_table import GroupTable
from penstock.runtime.operators.columns.row_groups import Array
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.late_records import LateRecords
from penstock.runtime.serialization.arrow_batch import event_times
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import TOMBSTONE


class WindowAggregationOperator(AggregationOperator):
    """Emits one row for each group of a window when the window ends.

    It runs tumbling and sliding windows by event time without an allowed lateness. All others are
    run by `RowWindowOperator`.

    The groups of open windows are kept in arrays. An entry of the state belongs to a key and a
    window. All entries of a window are removed when it fires, in the same step in which its rows
    are emitted. So a window never fires twice, even if a restored task begins with a lower
    watermark.
    """

    def __init__(self, function: ColumnAggregation, context: OperatorContext) -> None:
        super().__init__(function, context)
        assert function.window is not None
        self._late = LateRecords(function.window.late_tag, context, self.side_outputs)

    def open(self) -> None:
        """Get the groups of the open windows from the restored state."""
        assigner = self.aggregation.assigner
        slide = assigner.slide
        windows = f"size {assigner.size}, slide {slide}, offset {assigner.offset}"
        # Earlier snapshots of this version have the name without the windows.
        name = f"{self.state_name} (windows: {windows})"
        self._table = self.backend.composite_table(name, StateKind.WINDOW, [self.state_name])
        self._windows: dict[int, GroupTable] = {}
        entries: Iterator[tuple[Any, Any]] = self.backend.scan(name)
        for (key, window), saved in entries:
            self._groups_of(window).restore(key, saved)

    def _aggregate(self, rows: AggregationInput, batch: RecordBatch) -> RecordBatch:
        """Add rows to their windows.

        Raises:
            JobError: if a row has no event time.
        """
        times = event_times(batch)
        if times is None or (times == NO_TIMESTAMP).any():
            raise without_timestamp(self.aggregation.assigner)
        self.results.note_types(rows.key_columns)
        size = self.aggregation.assigner.size
        self._skip_late(times, batch)
        for start in self._open_windows(times):
            # Each window gets its rows in their original order, because the order affects the last
            # bits of a sum.
            places = np.flatnonzero((times >= start) & (times < start + size))
            self._add(start, rows, places)
        return EMPTY

    def _open_windows(self, times: Array) -> list[int]:
        """Return the windows of some rows that have not fired, in ascending order."""
        assigner = self.aggregation.assigner
        size, slide = assigner.size, assigner.slide
        last = np.unique(times - (times - assigner.offset) % slide)
        found = np.unique(np.concatenate([last - back for back in range(0, size, slide)]))
        starts = found[found + (size - 1) > self.context.watermark].tolist()
        # If the slide does not divide the size, the earliest window may have no rows.
        return [start for start in starts if ((times >= start) & (times < start + size)).any()]

    def _skip_late(self, times: Array, batch: RecordBatch) -> None:
        """Handle the rows whose windows have all fired."""
        assigner = self.aggregation.assigner
        slide = assigner.slide
        last = times - (times - assigner.offset) % slide
        late = np.flatnonzero(last + (assigner.size - 1) <= self.context.watermark)
        if len(late) and self._late.are_dropped:
            self._late.count_dropped(len(late))
        elif len(late):
            of_late = times[late].tolist()
            for row, timestamp in zip(batch.select(late.tolist()).rows(), of_late, strict=True):
                self._late.add(row, timestamp)

    def _add(self, window: int, rows: AggregationInput, places: Array) -> None:
        """Add some rows of a batch to a window.

        Arguments:
            window: the start of the window.
            rows: the rows of the batch.
            places: the indices of the rows that are added.
        """
        table, keys = self._groups_of(window), rows.keys
        if len(places) < len(keys.codes):
            keys = keys.of_rows(places)
        slots = table.slots_of(keys)[keys.codes]
        for part, values in self.values_of_parts(rows, table):
            part.add(table.values_of(part), slots, values.of_rows(places))

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire the windows that end at or before the watermark, in ascending order."""
        size = self.aggregation.assigner.size
        for window in sorted(self._windows):
            if window + size - 1 > timestamp:
                return
            yield self._fire(window)

    def waits_for_watermark(self) -> bool:
        """Return whether there are open windows."""
        return bool(self._windows)

    def _fire(self, window: int) -> RecordBatch:
        """Return the rows of a window, and remove its groups."""
        table = self._windows.pop(window)
        self._table.dirty.update(
            zip(zip(table.saved_keys, repeat(window)), repeat(TOMBSTONE), strict=False)
        )
        starts = np.full(len(table), window, np.int64)
        ends = starts + self.aggregation.assigner.size
        values = {part: table.values_of(part) for part in self.parts}
        of_slots = table.keys
        if self.backend.in_order:
            # The order of the slots is that of arrival, and another one after a restore.
            encoded = self.backend.codec.encode_values([*of_slots])
            order = sorted(range(len(of_slots)), key=encoded.__getitem__)
            of_slots = [of_slots[slot] for slot in order]
            values = {part: column[order] for part, column in values.items()}
        keys = key_columns(of_slots, len(self.aggregation.keys))
        return self.window_rows(keys, starts, ends, values, ends - 1)

    def write_state(self) -> None:
        """Write the groups that have changed into the keyed state."""
        for window, table in self._windows.items():
            self._table.dirty.update(
                ((key, window), values) for key, values in table.take_changed()
            )

    def _groups_of(self, window: int) -> GroupTable:
        table = self._windows.get(window)
        if table is None:
            table = self._windows[window] = GroupTable(self.parts)
        return table

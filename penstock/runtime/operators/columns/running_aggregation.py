"""The operator of running aggregates over columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.runtime.operators.columns.accumulators import Part, result_column
from penstock.runtime.operators.columns.aggregation_input import AggregationInput
from penstock.runtime.operators.columns.aggregation_operator import AggregationOperator
from penstock.runtime.operators.columns.group_table import GroupTable
from penstock.runtime.operators.columns.row_groups import Array, RowGroups
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.state import MISSING

#: The maximum number of groups that are kept in arrays. When it is exceeded, all groups are saved
#: and removed from the arrays. A group is loaded again when its key arrives again. So the state may
#: be larger than memory.
MAX_GROUPS = 1 << 20


class RunningAggregationOperator(AggregationOperator):
    """For each row, emits its key and the aggregates of its group up to this row."""

    def open(self) -> None:
        """Get the table of the restored state."""
        self._table = self.backend.table(self.state_name)
        self._table.declare_immutable()
        self._groups = GroupTable(self.parts, self._load)

    def _aggregate(self, rows: AggregationInput, batch: RecordBatch) -> RecordBatch:
        """Add rows to their groups, and return the new values for each row."""
        results = self._add(rows)
        columns = {one.name: result_column(one, results) for one in self.aggregation.aggregates}
        return self.results.batch(rows.key_columns, columns, batch.timestamps)

    def _add(self, rows: AggregationInput) -> dict[Part, Array]:
        """Add rows to their groups, and return the new values of each part, for each row."""
        keys = rows.keys
        if len(self._groups) > MAX_GROUPS:
            self.write_state()
            self._groups = GroupTable(self.parts, self._load)
        table = self._groups
        slots = table.slots_of(keys)
        groups = RowGroups(keys.codes, len(keys))
        results: dict[Part, Array] = {}
        changed: list[tuple[Part, Array]] = []
        for part, values in self.values_of_parts(rows, table):
            running = part.running(groups, values, table.values_of(part)[slots])
            results[part] = running
            changed.append((part, groups.last_of(running)))
        for part, last in changed:
            table.values_of(part)[slots] = last
        return results

    def _has_floats(self, part: Part) -> bool:
        """Return whether the values of a part are floats already, for all groups."""
        kind: str = self._groups.values_of(part).dtype.kind
        return kind == "f"

    def write_state(self) -> None:
        """Write the groups that have changed into the keyed state."""
        self._table.dirty.update(self._groups.take_changed())

    def _load(self, key: Any) -> Sequence[Any] | None:
        saved: Any = self._table.get(key)
        return None if saved is MISSING else saved

"""Define the base class of the operators that aggregate columns."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from penstock.dataflow.columns.aggregates import ALL, ColumnAggregation
from penstock.dataflow.columns.arrow import array_of
from penstock.dataflow.columns.column_key import ColumnKey
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.columns.accumulators import (
    ColumnValues,
    Part,
    parts_of,
    result_column,
)
from penstock.runtime.operators.columns.aggregation_input import (
    AggregationInput,
    ColumnInput,
    RowInput,
)
from penstock.runtime.operators.columns.aggregation_results import AggregationResults
from penstock.runtime.operators.columns.group_table import GroupTable
from penstock.runtime.operators.columns.row_groups import Array
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.arrow_batch import packed_times
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.state.operator_state import OperatorStateSnapshot

_LOGGER = logging.getLogger("penstock")
#: The number of rows after which a field that none of them has is reported.
_MANY = 10_000


class AggregationOperator(RunningOperator):
    """An operator that aggregates columns of the rows of each key.

    Arguments:
        function: the keys, the aggregates and the windows.
        context: the operator's place in the job.
    """

    is_columnar = True
    keeps_state_in_tables = False

    def __init__(self, function: ColumnAggregation, context: OperatorContext) -> None:
        super().__init__(function, context)
        assert context.backend is not None
        self.backend = context.backend
        self.aggregation = function
        self.parts = parts_of(function.aggregates)
        #: The name of the state. It contains the names of the parts, so a program with other
        #: aggregates never reads these entries.
        self.state_name = ", ".join(f"{part.kind}({part.column})" for part in self.parts)
        self.results = AggregationResults(function.keys, context)
        self._key_of = ColumnKey(function.keys)
        #: The fields that no row has had, and the number of rows that were examined.
        self._unseen = {one.column for one in function.aggregates} - {ALL}
        self._examined = 0

    def initialize_state(self) -> None:
        """Take the restored types of the key columns."""
        super().initialize_state()
        self.results.restore()

    def capture_operator_state(self, number: int, timestamp: int) -> OperatorStateSnapshot | None:
        """Return the types of the key columns."""
        self.results.save()
        return super().capture_operator_state(number, timestamp)

    def close(self) -> None:
        """Report the fields that no row has had."""
        super().close()
        self._report_unseen()

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Aggregate the rows of a batch."""
        if batch.arrow is not None:
            self._unseen.clear()  # A column that an Arrow batch lacks is an error.
            return self._aggregate(ColumnInput(batch.arrow, self.aggregation.keys), batch)
        rows = RowInput(batch, self._key_of)
        self._note_fields(rows, batch)
        numbers = (part for part in self.parts if part.kind != "count")
        places = rows.first_floats({part.column for part in numbers if not self._has_floats(part)})
        if not places:
            return self._aggregate(rows, batch)
        # The rows before a float are aggregated as if they had come in a batch of their own.
        emitted: list[Any] = []
        times: list[int] = []
        for begin, end in pairwise([0, *places, batch.count]):
            piece = batch.slice(begin, end)
            out = self._aggregate(RowInput(piece, self._key_of), piece)
            emitted += out.rows()
            times += out.times()
        timed = times.count(NO_TIMESTAMP) < len(times)
        return RecordBatch(emitted, None, times if timed else None)

    @abstractmethod
    def _aggregate(self, rows: AggregationInput, batch: RecordBatch) -> RecordBatch:
        """Aggregate rows, and return the rows to emit.

        Arguments:
            rows: the keys and values of the rows.
            batch: the rows.
        """

    def _has_floats(self, part: Part) -> bool:
        """Return whether the values of a part are floats already, for all groups."""
        del part
        return False

    def _note_fields(self, rows: RowInput, batch: RecordBatch) -> None:
        if self._unseen:
            self._examined += batch.count
            self._unseen = set(filter(rows.lacks, self._unseen))
            if self._examined >= _MANY:
                self._report_unseen()

    def _report_unseen(self) -> None:
        if self._examined:
            for name in sorted(self._unseen):
                _LOGGER.warning(
                    "operator %r: none of %d rows has a field %r, so all its values are null. Is "
                    "the name right?",
                    self.name,
                    self._examined,
                    name,
                )
        self._unseen.clear()

    def values_of_parts(
        self, rows: AggregationInput, table: GroupTable
    ) -> list[tuple[Part, ColumnValues]]:
        """Return each part with the values of its column, in the type that the table uses.

        Arguments:
            rows: the rows.
            table: the table of the groups. Its parts become floats if the column has floats.
        """
        found = []
        for part in self.parts:
            values = rows.values(part)
            if part.kind != "count":
                table.widen(part, values.dtype)
                values = values.as_type(table.values_of(part).dtype)
            found.append((part, values))
        return found

    def window_rows(
        self,
        keys: Sequence[list[Any]],
        starts: Array,
        ends: Array,
        values: dict[Part, Array],
        times: Any,
    ) -> RecordBatch:
        """Return the rows of windows.

        Arguments:
            keys: the values of each key column.
            starts: the start of the window of each row, in milliseconds since the epoch.
            ends: the end of the window of each row.
            values: the values of each part.
            times: the event times of the rows.
        """
        columns = {"window_start": array_of(starts), "window_end": array_of(ends)}
        columns |= {one.name: result_column(one, values) for one in self.aggregation.aggregates}
        return self.results.batch(keys, columns, packed_times(times))

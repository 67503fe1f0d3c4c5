"""Define the base class of the operators that aggregate columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.columns.arrow_records import arrow_of
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.columns.accumulators import (
    ColumnValues,
    Part,
    parts_of,
    values_of,
)
from penstock.runtime.operators.columns.group_table import GroupTable
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.record_batch import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AggregationOperator"]


class AggregationOperator(RunningOperator):
    """An operator that aggregates columns of the rows of each key.

    Arguments:
        function: the keys, the aggregates and the windows.
        context: the operator's place in the job.
    """

    is_columnar = True

    def __init__(self, function: ColumnAggregation, context: OperatorContext) -> None:
        super().__init__(function, context)
        assert context.backend is not None
        self.backend = context.backend
        self.aggregation = function
        self.parts = parts_of(function.aggregates)
        #: The name of the state. It contains the names of the parts, so a program with other
        #: aggregates never reads these entries.
        self.state_name = ", ".join(f"{part.kind}({part.column})" for part in self.parts)
        self._columns = function.columns

    def columns_of(self, batch: RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch as Arrow columns."""
        if batch.arrow is not None:
            return batch.arrow
        return arrow_of(batch.rows(), None, self._columns)

    def values_of_parts(
        self, arrow: pa.RecordBatch, table: GroupTable
    ) -> list[tuple[Part, ColumnValues]]:
        """Return each part with the values of its column, in the type that the table uses.

        Arguments:
            arrow: the rows.
            table: the table of the groups. Its parts become floats if the column has floats.
        """
        found = []
        for part in self.parts:
            values = values_of(arrow, part.column, part.kind)
            if part.kind != "count":
                table.widen(part, values.dtype)
                values = values.as_type(table.values_of(part).dtype)
            found.append((part, values))
        return found

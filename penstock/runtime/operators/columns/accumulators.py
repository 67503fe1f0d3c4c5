"""The parts that aggregates are computed from: counts, sums, minima and maxima of groups.

An aggregate such as a mean is computed from several parts, and several aggregates share a part. A
part has one value for each group. All parts of a batch are computed with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.dataflow.columns.aggregates import ALL, Aggregate
from penstock.dataflow.columns.arrow import array_of
from penstock.dataflow.columns.column_key import column_named
from penstock.dataflow.errors import JobError
from penstock.runtime.operators.columns.row_groups import Array, RowGroups

if TYPE_CHECKING:
    import pyarrow as pa

#: `fmin` and `fmax` return the other number if one is NaN.
_COMBINE: dict[str, np.ufunc] = {
    "count": np.add,
    "sum": np.add,
    "min": np.fmin,
    "max": np.fmax,
}
#: The kinds of parts that each function needs. They are all parts of the same column.
_PARTS = {
    "count": ("count",),
    "sum": ("sum", "count"),
    "min": ("min", "count"),
    "max": ("max", "count"),
    "mean": ("sum", "count"),
}
_INT64 = np.iinfo(np.int64)
#: If the sum of magnitudes, computed with floats, is below this limit, all sums fit into 64 bits.
_SAFE = 9.2e18


@dataclass(frozen=True)
class Part:
    """A count, sum, minimum or maximum of one column.

    Arguments:
        kind: "count", "sum", "min" or "max".
        column: the column; `*` to count rows.
    """

    kind: str
    column: str

    @property
    def combine(self) -> np.ufunc:
        """The function that combines two values of the part."""
        return _COMBINE[self.kind]

    def identity(self, dtype: np.dtype[Any]) -> Any:
        """Return the value of a group without rows."""
        if self.kind in ("count", "sum"):
            return 0
        if dtype.kind == "f":
            return np.nan
        return _INT64.max if self.kind == "min" else _INT64.min

    def running(self, groups: RowGroups, values: ColumnValues, initial: Array) -> Array:
        """For each row, return the value of its group up to and including this row.

        Arguments:
            groups: the rows by group.
            values: the values of the part's column.
            initial: the value of each group before its first row.
        """
        if self.kind == "count":
            if values.nulls is None:
                return groups.running_count(initial)
            return groups.running_sum((~values.nulls).astype(np.int64), initial)
        numbers = values.filled(self.identity(values.dtype))
        if self.kind == "sum" and values.dtype.kind == "i":
            self._check_sum(groups.codes, numbers, initial)
            return groups.running_sum(numbers, initial)
        return groups.running(self.combine, numbers, initial)

    def add(self, state: Array, groups_of_rows: Array, values: ColumnValues) -> None:
        """Add the rows of a batch to the values of the groups.

        Arguments:
            state: the value of each group, which is changed.
            groups_of_rows: the group of each row.
            values: the values of the part's column.
        """
        if self.kind == "count":
            chosen = groups_of_rows if values.nulls is None else groups_of_rows[~values.nulls]
            state += np.bincount(chosen, minlength=len(state))
            return
        numbers = values.filled(self.identity(values.dtype))
        if self.kind == "sum" and values.dtype.kind == "i":
            self._check_sum(groups_of_rows, numbers, state)
        self.combine.at(state, groups_of_rows, numbers)

    def _check_sum(self, groups_of_rows: Array, values: Array, state: Array) -> None:
        """Raise an error if a sum of integers does not fit into 64 bits after some row."""
        largest = float(np.abs(state.astype(np.float64)).max(initial=0.0))
        if largest + float(np.abs(values.astype(np.float64)).sum()) < _SAFE:
            return
        # The sums of groups are smaller than this estimate, so they are computed.
        sums = state.tolist()
        for group, value in zip(groups_of_rows.tolist(), values.tolist(), strict=True):
            sums[group] = check_sum(self.column, sums[group] + value)


def check_sum(column: str, total: Any) -> Any:
    """Return the sum of a column.

    Raises:
        JobError: if it is a whole number that does not fit into 64 bits.
    """
    if type(total) is int and not _INT64.min <= total <= _INT64.max:
        raise JobError(
            f"the sum of column {column!r} does not fit into 64 bits: cast the column to float64 "
            f"before"
        )
    return total


def parts_of(aggregates: Sequence[Aggregate]) -> list[Part]:
    """Return the parts that aggregates are computed from, without duplicates."""
    parts = [Part(kind, one.column) for one in aggregates for kind in _PARTS[one.function]]
    return list(dict.fromkeys(parts))


class ColumnValues:
    """The values of one column of a batch as numbers.

    Arguments:
        values: an array of 64-bit integers or floats. The values at nulls are undefined.
        nulls: whether each value is null; None if none is.
    """

    def __init__(self, values: Array, nulls: Array | None) -> None:
        self.values, self.nulls = values, nulls

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    def as_type(self, dtype: np.dtype[Any]) -> ColumnValues:
        """Return the values, converted to another numeric type."""
        if dtype == self.values.dtype:
            return self
        return ColumnValues(self.values.astype(dtype), self.nulls)

    def of_rows(self, rows: Array) -> ColumnValues:
        """Return the values of some rows."""
        values = self.values[rows] if len(self.values) else self.values
        return ColumnValues(values, None if self.nulls is None else self.nulls[rows])

    def filled(self, value: Any) -> Array:
        """Return the values, with nulls replaced by `value`."""
        return self.values if self.nulls is None else np.where(self.nulls, value, self.values)


def values_of(batch: pa.RecordBatch, name: str, use: str) -> ColumnValues:
    """Return the values of a column that an aggregate needs.

    Arguments:
        batch: the rows.
        name: the name of the column; `*` for the rows themselves.
        use: the function, for error messages. `count` accepts columns of every type.

    Raises:
        JobError: if the column is missing, or has no numbers.
    """
    import pyarrow as pa

    if name == ALL:
        return ColumnValues(np.empty(0, np.int64), None)
    column = column_named(batch, name)
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if use == "count":
        return ColumnValues(np.empty(0, np.int64), nulls)
    kind, types = column.type, pa.types
    if types.is_null(kind):
        return ColumnValues(np.zeros(len(column), np.int64), np.ones(len(column), np.bool_))
    try:
        if types.is_boolean(kind) or types.is_integer(kind):
            wide = column.cast(pa.int64())
        elif types.is_floating(kind):
            wide = column.cast(pa.float64())
        else:
            raise JobError(
                f"column {name!r} of type {kind} has no {use}: cast it to int64 or float64 before, "
                f"for example with map_batches"
            )
    except pa.ArrowInvalid as error:
        raise JobError(f"the {use} of column {name!r} cannot be computed: {error}") from None
    if nulls is not None:
        wide = wide.fill_null(0)
    return ColumnValues(wide.to_numpy(), nulls)


def result_column(aggregate: Aggregate, values: dict[Part, Array]) -> pa.Array:
    """Return the column of an aggregate.

    Arguments:
        aggregate: the aggregate.
        values: the values of its parts. A group without values has the result null.
    """
    counts = values[Part("count", aggregate.column)]
    if aggregate.function == "count":
        return array_of(counts)
    empty = counts == 0
    mask = empty if empty.any() else None
    if aggregate.function == "mean":
        sums = values[Part("sum", aggregate.column)]
        return array_of(sums / np.maximum(counts, 1), mask)
    return array_of(values[Part(aggregate.function, aggregate.column)], mask)

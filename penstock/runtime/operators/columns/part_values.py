"""Aggregate rows one by one, for windows that do not keep their groups in arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

import numpy as np

from penstock.dataflow.windows import AggregateFunction
from penstock.runtime.operators.columns.accumulators import (
    ColumnValues,
    Part,
    check_sum,
)
from penstock.runtime.operators.columns.row_groups import Array

Values = tuple[Any, ...]


class PartValues(AggregateFunction[Any, Values, Values]):
    """Combines the values of the parts of several rows.

    An accumulator is the tuple of the values of the parts. A sum, minimum or maximum without values
    is None. A record is a tuple whose last item are the values of one row.

    Arguments:
        parts: the parts of the aggregates.
    """

    merges_panes = True

    def __init__(self, parts: Sequence[Part]) -> None:
        self._combine = [_combination(part) for part in parts]
        self._first = tuple(0 if part.kind == "count" else None for part in parts)

    def create_accumulator(self) -> Values:
        """Return the values of no rows."""
        return self._first

    def add(self, value: Any, accumulator: Values) -> Values:
        """Return the values of some rows and one more row."""
        return self.merge(accumulator, value[-1])

    def get_result(self, accumulator: Values) -> Values:
        """Return the values."""
        return accumulator

    def merge(self, acc_a: Values, acc_b: Values) -> Values:
        """Return the values of the rows of two accumulators."""
        pairs = zip(self._combine, acc_a, acc_b, strict=True)
        return tuple([combine(first, second) for combine, first, second in pairs])


def values_of_rows(part: Part, values: ColumnValues, count: int) -> list[Any]:
    """Return the value of a part for each row.

    Arguments:
        part: the part.
        values: the values of its column.
        count: the number of rows.
    """
    if part.kind == "count":
        return [1] * count if values.nulls is None else (~values.nulls).astype(np.int64).tolist()
    numbers: list[Any] = values.values.tolist()
    if values.nulls is not None:
        for place in np.flatnonzero(values.nulls).tolist():
            numbers[place] = None
    return numbers


def array_of_part(values: Sequence[Any]) -> Array:
    """Return values of a part as an array. None becomes 0."""
    kind = np.float64 if any(type(value) is float for value in values) else np.int64
    return np.array([0 if value is None else value for value in values], kind)


def _combination(part: Part) -> Callable[[Any, Any], Any]:
    if part.kind == "count":
        return add
    if part.kind == "sum":

        def combine_sums(first: Any, second: Any) -> Any:
            if first is None or second is None:
                return second if first is None else first
            return check_sum(part.column, first + second)

        return combine_sums
    choose: Callable[[Any, Any], Any] = min if part.kind == "min" else max

    def combine_extremes(first: Any, second: Any) -> Any:
        # NaN is left out, unless there is nothing else.
        if first is None or second is None:
            return second if first is None else first
        if first != first or second != second:
            return second if first != first else first
        return choose(first, second)

    return combine_extremes

"""Read the keys and the values of a batch for an aggregation: from columns, or from rows.

Rows have no types. A batch of rows is not converted to Arrow, since Arrow finds one type for all
values of a batch. It might then refuse a value because of the other rows of the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.dataflow.columns.aggregates import ALL
from penstock.dataflow.columns.arrow_records import fields_of
from penstock.dataflow.columns.column_key import (
    ColumnKey,
    DistinctKeys,
    column_named,
    distinct_keys,
    key_columns,
)
from penstock.dataflow.errors import JobError
from penstock.runtime.operators.columns.accumulators import ColumnValues, Part, values_of
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.user_code.errors import rendered

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = frozenset({int, bool})
_NUMBERS = _WHOLE | {float, type(None)}
_NO_VALUES = np.empty(0, np.int64)


class AggregationInput(ABC):
    """The rows of a batch, as an aggregation reads them."""

    @property
    @abstractmethod
    def keys(self) -> DistinctKeys:
        """The distinct keys, and the index of the key of each row."""

    @property
    @abstractmethod
    def key_columns(self) -> Sequence[Any]:
        """The values of each key column: an Arrow array or a list."""

    @abstractmethod
    def values(self, part: Part) -> ColumnValues:
        """Return the values of the column of a part.

        Raises:
            JobError: if the column does not exist, or has values that the part does not accept.
        """


class ColumnInput(AggregationInput):
    """The rows of an Arrow batch.

    Arguments:
        arrow: the rows.
        names: the names of the key columns.
    """

    def __init__(self, arrow: pa.RecordBatch, names: Sequence[str]) -> None:
        self._arrow, self._names = arrow, names

    @cached_property
    def keys(self) -> DistinctKeys:
        """The distinct keys, and the index of the key of each row."""
        return distinct_keys(self._arrow, self._names)

    @property
    def key_columns(self) -> Sequence[pa.Array]:
        """The key columns."""
        return [column_named(self._arrow, name) for name in self._names]

    def values(self, part: Part) -> ColumnValues:
        """Return the values of the column of a part."""
        return values_of(self._arrow, part.column, part.kind)


class RowInput(AggregationInput):
    """Records with named fields. A field that a record lacks is null.

    Arguments:
        batch: the records.
        key_of: returns the key of a record.
    """

    def __init__(self, batch: RecordBatch, key_of: ColumnKey) -> None:
        self._records, self._key_of = batch.rows(), key_of
        self._columns: dict[str, list[Any]] = {}

    @cached_property
    def _fields(self) -> list[dict[str, Any]]:
        return fields_of(self._records)

    def lacks(self, name: str) -> bool:
        """Return whether no record has a field."""
        return not any(name in fields for fields in self._fields)

    @cached_property
    def _own_keys(self) -> list[Any]:
        return list(map(self._key_of, self._records))

    @cached_property
    def keys(self) -> DistinctKeys:
        """The distinct keys, and the index of the key of each record."""
        places: dict[Any, int] = {}
        codes = [places.setdefault(key, len(places)) for key in self._own_keys]
        return DistinctKeys(np.array(codes, np.int64), list(places))

    @property
    def key_columns(self) -> Sequence[list[Any]]:
        """The values of each field of the key."""
        return key_columns(self._own_keys, len(self._key_of.columns))

    def values(self, part: Part) -> ColumnValues:
        """Return the values of the field of a part."""
        if part.column == ALL:
            return ColumnValues(_NO_VALUES, None)
        column = self._column(part.column)
        missing = [value is None for value in column]
        nulls = np.array(missing, np.bool_) if any(missing) else None
        if part.kind == "count":
            return ColumnValues(_NO_VALUES, nulls)
        return ColumnValues(self._numbers(column, part), nulls)

    def first_floats(self, names: Iterable[str]) -> list[int]:
        """Return the indices of the first floats of fields that are whole numbers before.

        Whole numbers are aggregated exactly, until a float comes.
        """
        places: set[int] = set()
        for name in names:
            column = self._column(name)
            kinds = set(map(type, column))
            floats = {kind for kind in kinds if issubclass(kind, float | np.floating)}
            whole = {kind for kind in kinds if issubclass(kind, int | np.integer | np.bool_)}
            if floats and whole:
                place = next(place for place, value in enumerate(column) if type(value) in floats)
                if not whole.isdisjoint(map(type, column[:place])):
                    places.add(place)
        return sorted(places)

    def _column(self, name: str) -> list[Any]:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = [fields.get(name) for fields in self._fields]
        return column

    def _numbers(self, column: list[Any], part: Part) -> np.ndarray[Any, Any]:
        """Return the values of a field as an array of numbers, with 0 for null."""
        kinds = set(map(type, column))
        if not kinds <= _NUMBERS:
            column = [self._number(value, place, part) for place, value in enumerate(column)]
            kinds = set(map(type, column))
        if type(None) in kinds:
            column = [0 if value is None else value for value in column]
        whole = column
        if float in kinds:
            whole = [value for value in column if type(value) is not float]
        try:
            numbers = np.array(whole, np.int64)
        except OverflowError:
            place = next(at for at, value in enumerate(column) if not _fits(value))
            raise self._refusal(place, part, "the number does not fit into 64 bits") from None
        return np.array(column, np.float64) if float in kinds else numbers

    def _number(self, value: Any, place: int, part: Part) -> Any:
        """Return a value as a number of Python."""
        if isinstance(value, np.bool_ | np.integer | np.floating):
            value = value.item()
        if type(value) in _NUMBERS:
            return value
        if isinstance(value, int | float):
            return float(value) if isinstance(value, float) else int(value)
        kind = type(value).__name__
        what = f"it is a {kind}, and must be an int or a float; convert it before, such as with map"
        raise self._refusal(place, part, what)

    def _refusal(self, place: int, part: Part, what: str) -> JobError:
        return JobError(
            f"the {part.kind} of field {part.column!r} cannot be computed: {what}",
            record=rendered(self._records[place]),
        )


def _fits(value: Any) -> bool:
    return type(value) is float or -(2**63) <= value < 2**63

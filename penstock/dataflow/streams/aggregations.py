"""Implement the aggregations of keyed streams (`sum`, `min`, …) as reduce functions.

As in PyFlink, `sum`, `min` and `max` keep the first record of a key, and replace one field in it.
`min_by` and `max_by` keep the whole record whose field is the smallest or largest. A record without
fields, such as a number or a text, counts as its own field 0.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import ReduceFunction
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types import Row

Field = int | str | None


def _check(field: Field) -> None:
    if field is not None and (isinstance(field, bool) or not isinstance(field, int | str)):
        raise GraphError(
            f"an aggregation needs a field position (int), a field name (str) or None for the "
            f"record itself, not {field!r}"
        )


#: The classes of records whose fields have positions. A record of another class is one value.
_WITH_POSITIONS = (tuple, list, Row)


def _get(record: UserValue, field: Field) -> UserValue:
    if field is None:
        return record
    if isinstance(record, dict):
        return record[field]
    if isinstance(field, str):
        return getattr(record, field)
    return record[field] if isinstance(record, _WITH_POSITIONS) else _whole(record, field)


def _whole(record: UserValue, field: int) -> UserValue:
    """Return a record without positions, if `field` is its only field, which is 0."""
    if dataclasses.is_dataclass(record):
        raise TypeError(
            f"the fields of a {type(record).__name__} have names and no positions: name the field "
            f"to aggregate"
        )
    if field == 0:
        return record
    raise TypeError(
        f"{type(record).__name__} has no field {field}: it is one value; aggregate it without a "
        f"position"
    )


def _replaced(record: UserValue, field: Field, value: UserValue) -> UserValue:
    """Return a copy of a record in which one field is replaced by `value`."""
    if field is None:
        return value
    if isinstance(record, dict):
        return {**record, field: value}
    if isinstance(record, Row):
        return record.replaced(field, value)
    if isinstance(record, tuple):
        if isinstance(field, str):
            return record._replace(**{field: value})  # type: ignore[attr-defined]
        position = range(len(record))[field]
        items = (*record[:position], value, *record[position + 1 :])
        return items if type(record) is tuple else record._make(items)  # type: ignore[attr-defined]
    if isinstance(record, list):
        position = range(len(record))[int(field)]
        return [*record[:position], value, *record[position + 1 :]]
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return dataclasses.replace(record, **{str(field): value})
    if field == 0:
        return value
    raise TypeError(
        f"cannot set field {field!r} of a {type(record).__name__}: records to aggregate by field "
        f"are tuples, named tuples, lists, dicts, Rows or dataclasses"
    )


class FieldAggregation(ReduceFunction):
    """Combines one field of two records, and keeps the other fields of the first record.

    Arguments:
        field: the position or name of the field; None for the record as a whole.
        combine: a function that combines two values of the field into one.
    """

    def __init__(self, field: Field, combine: Callable[[UserValue, UserValue], UserValue]) -> None:
        _check(field)
        self.field = field
        self.combine = combine

    def reduce(self, value1: UserValue, value2: UserValue) -> UserValue:
        """Return a copy of `value1` whose field is combined with the field of `value2`."""
        field = self.field
        return _replaced(value1, field, self.combine(_get(value1, field), _get(value2, field)))


class FieldChoice(ReduceFunction):
    """Keeps the record whose field is the smallest or largest.

    If two records have equal fields, the first record is kept.

    Arguments:
        field: the position or name of the field; None for the record as a whole.
        better: a function of two values of the field. It returns whether the first value's record
            replaces the second value's record.
    """

    def __init__(self, field: Field, better: Callable[[UserValue, UserValue], bool]) -> None:
        _check(field)
        self.field = field
        self.better = better

    def reduce(self, value1: UserValue, value2: UserValue) -> UserValue:
        """Return the record to keep, which is `value1` or `value2`."""
        return value2 if self.better(_get(value2, self.field), _get(value1, self.field)) else value1


def projection(fields: list[int]) -> Callable[[UserValue], tuple[UserValue, ...]]:
    """Return a function that returns some items of a record as a tuple."""
    if len(fields) == 1:
        [field] = fields
        return lambda record: (record[field],)
    return operator.itemgetter(*fields)

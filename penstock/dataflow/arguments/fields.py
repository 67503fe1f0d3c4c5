"""Read fields of records: by position, by name, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import UserValue

#: A function that returns the key, a field or another value of a record.
Selector: TypeAlias = Callable[[UserValue], UserValue]


def field_of(field: int | str, record: UserValue) -> UserValue:
    """Return a field of a record, by its position or name.

    The record is a tuple, list, `Row`, mapping, named tuple, dataclass or another object.
    """
    if isinstance(field, int) or isinstance(record, Mapping):
        return record[field]
    return getattr(record, field)


def value_of(method: str, field: object) -> Selector:
    """Return a function that reads a field.

    Arguments:
        method: the name of the API's method, for error messages.
        field: a position, a name, a function of one record, or None for the record itself.

    Raises:
        GraphError: if it is something else.
    """
    if field is None:
        return _same
    if callable(field):
        read: Selector = field
        return read
    return values_of(method, [field])


def values_of(method: str, fields: Sequence[UserValue], *, as_tuple: bool = False) -> Selector:
    """Return a function that reads fields of a record: their value, or a tuple of several.

    Arguments:
        method: the name of the API's method, for error messages.
        fields: the positions and names of the fields, at least one.
        as_tuple: whether the value of a single field is a tuple, too.

    Raises:
        GraphError: if a field is neither a position nor a name.
    """
    for field in fields:
        if isinstance(field, bool) or not isinstance(field, int | str):
            raise GraphError(
                f"{method} takes a function, or positions (int) and names (str) of fields, and got "
                f"{field!r}"
            )
    if all(isinstance(field, int) for field in fields):
        # A lambda without a closure is inlined into the loops of operators.
        items = ", ".join(f"record[{field:d}]" for field in fields)
        comma = "," if as_tuple else ""
        source = f"lambda record: ({items}{comma})"
        made: Selector = eval(source, {"__name__": __name__})
        return made
    if len(fields) == 1 and not as_tuple:
        return partial(field_of, fields[0])
    return partial(_several, tuple(fields))


def _same(record: UserValue) -> UserValue:
    return record


def _several(fields: tuple[int | str, ...], record: UserValue) -> tuple[UserValue, ...]:
    return tuple([field_of(field, record) for field in fields])

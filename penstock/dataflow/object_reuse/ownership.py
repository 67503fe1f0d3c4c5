"""Copy a value if it can change and other code still refers to it.

If no other code refers to a value, no other code can change it, so it needs no copy. This is
checked by the reference count. The count also includes the caller's own reference, which depends on
how the caller got the value. So there is one function for each case: an item that `map` passes, a
local variable of a loop, and an item of a list.

`docs/inside/decisions/011-emitted-records.md` has the reasons and the figures.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import is_
from sys import getrefcount

from penstock.dataflow.object_reuse.mutability import (
    IMMUTABLE,
    MUTABLE_CONTAINERS,
    can_change,
)
from penstock.dataflow.type_variables import R, T, UserValue
from penstock.dataflow.types.row import Row


def _references(value: object) -> int:
    return getrefcount(value)


def _references_of_result(value: object, _record: object) -> int:
    return getrefcount(value)


def _references_in_loop(values: Iterable[object]) -> int:
    for value in values:
        return _references(value)
    raise AssertionError("there is a value")


def _references_of_item(values: Iterable[object]) -> int:
    for value in values:
        return getrefcount(value)
    raise AssertionError("there is a value")


def _same(value: T) -> T:
    return value


# The reference counts of a value to which no other code refers, one for each way to pass the value.
# They are measured here, because they differ between versions of Python.
_RECORDS: list[list[object]] = [[]]
_RESULT = next(map(_references_of_result, map(list, [()]), [None]))
_GIVEN = next(map(_references_of_result, map(_same, _RECORDS), _RECORDS))
_MAPPED = next(map(_references, map(list, [()])))
_LISTED = next(map(_references, [[]]))
_LOCAL = _references_in_loop(map(list, [()]))
_ITEM = _references_of_item([[]])


def copy_if_shared(value: T) -> T:
    """Return a value that `map` passes to this function, or a copy of it.

    The value is copied if it can change and other code refers to it.
    """
    if type(value) in IMMUTABLE or (getrefcount(value) <= _MAPPED and _holds_alone(value)):
        return value
    return _copy_if_mutable(value)


def copy_local_if_shared(value: T) -> T:
    """Return the value of a local variable, or a copy of it.

    The value is copied if it can change and anything except the variable refers to it.
    """
    if type(value) in IMMUTABLE or (getrefcount(value) <= _LOCAL and _holds_alone(value)):
        return value
    return _copy_if_mutable(value)


def copy_listed_if_shared(value: T) -> T:
    """Return an item of a list, or a copy of it. No other code may refer to the list.

    The item is copied if it can change and anything except the list refers to it.
    """
    if type(value) in IMMUTABLE or (getrefcount(value) <= _LISTED and _holds_alone(value)):
        return value
    return _copy_if_mutable(value)


def copy_items_if_shared(values: list[T]) -> Iterable[T]:
    """Return the items of `values`, and a copy in place of each item that other code may change.

    An item is copied if it is mutable, and if other code refers to the item or to the list. The
    caller must hold the list in one local variable, and this reference does not count.
    """
    only_local = getrefcount(values) <= _LOCAL
    return map(copy_listed_if_shared if only_local else _copy_if_mutable, values)


def map_and_copy_if_shared(
    function: Callable[[T], R], iterator: Iterator[T], records: Sequence[T]
) -> list[R]:
    """Call a function for each record, and return the results, or copies of them.

    A result is copied if it can change and other code refers to it.

    Arguments:
        function: the user's function.
        iterator: an iterator over the records.
        records: a list of the same records. If a result is the record itself, this list also
            refers to the result. The check does not count this reference.
    """
    return list(map(_copy_result_if_shared, map(function, iterator), records))


def _copy_result_if_shared(value: T, record: object) -> T:
    if type(value) in IMMUTABLE:
        return value
    alone = _GIVEN if value is record else _RESULT
    if getrefcount(value) <= alone and _holds_alone(value):
        return value
    return _copy_if_mutable(value)


def _holds_alone(value: UserValue) -> bool:
    """Return whether no other code refers to mutable values inside a value."""
    kind = type(value)
    items: Iterable[object]
    if kind is dict:
        items = value.values()
    elif kind in (list, tuple, deque):
        items = value
    elif kind is Row:
        items = value.parts[2]
    elif "__dataclass_fields__" in vars(kind) and hasattr(value, "__dict__"):
        items = vars(value).values()
    else:
        return False
    if IMMUTABLE.issuperset(map(type, items)):
        return True
    for item in items:
        if type(item) not in IMMUTABLE and (getrefcount(item) > _ITEM or not _holds_alone(item)):
            return False
    return True


def _copy_if_mutable(value: T) -> T:
    try:
        return _copy(value) if can_change((value,)) else value
    except RecursionError:
        return value  # The value contains itself. The codec will raise an error for it.


def _copy(value: UserValue) -> UserValue:
    """Return a copy of a value, in which all records and containers are also copied."""
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(map(_copy, value))
    if kind is deque:
        return deque(map(_copy, value), value.maxlen)
    if kind is Row:
        row_kind, names, values = value.parts
        return Row.of_parts(row_kind, names, list(map(_copy, values)))
    if isinstance(value, tuple):
        items = tuple(map(_copy, value))
        # Some classes of tuples cannot be made of their items, such as `pyarrow.MonthDayNano`.
        return value if all(map(is_, items, value)) else tuple.__new__(kind, items)
    if kind in MUTABLE_CONTAINERS:
        made = copy.copy(value)
        if isinstance(made, dict):
            for key, item in value.items():
                made[key] = _copy(item)
        return made
    if "__dataclass_fields__" in vars(kind):
        made = copy.copy(value)
        for field in dataclasses.fields(kind):
            if hasattr(value, field.name):
                object.__setattr__(made, field.name, _copy(getattr(value, field.name)))
        return made
    return value

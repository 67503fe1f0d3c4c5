"""Copy a value if it can change and other code still refers to it.

A value without another reference needs no copy, since no code is left that could change it. How
many references a value has where it is checked depends on how the caller holds it, so there is one
function for each way: an item that `map` passes, a local variable of a loop, an item of a list.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import getrefcount
from typing import Any

from penstock.dataflow.object_reuse.mutability import (
    IMMUTABLE,
    MUTABLE_CONTAINERS,
    can_change,
)

__all__ = [
    "copy_if_shared",
    "copy_items_if_shared",
    "copy_listed_if_shared",
    "copy_local_if_shared",
    "map_and_copy_if_shared",
]


def _references(value: Any) -> int:
    return getrefcount(value)


def _references_of_result(value: Any, _record: Any) -> int:
    return getrefcount(value)


def _references_in_loop(values: Iterable[Any]) -> int:
    for value in values:
        return _references(value)
    raise AssertionError("there is a value")


def _references_of_item(values: Iterable[Any]) -> int:
    for value in values:
        return getrefcount(value)
    raise AssertionError("there is a value")


def _same(value: Any) -> Any:
    return value


# The number of references that a value has where it is checked, if there are no others. They are
# counted, since versions of Python differ in which of their own references they count.
_RECORDS: list[Any] = [[]]
_RESULT = next(map(_references_of_result, map(list, [()]), [None]))
_GIVEN = next(map(_references_of_result, map(_same, _RECORDS), _RECORDS))
_MAPPED = next(map(_references, map(list, [()])))
_LISTED = next(map(_references, [[]]))
_LOCAL = _references_in_loop(map(list, [()]))
_ITEM = _references_of_item([[]])


def copy_if_shared(value: Any) -> Any:
    """Return a value that `map` passes to this function, or a copy if it can change elsewhere."""
    if type(value) in IMMUTABLE or (getrefcount(value) <= _MAPPED and _holds_alone(value)):
        return value
    return _copy_if_mutable(value)


def copy_local_if_shared(value: Any) -> Any:
    """Do as `copy_if_shared`, for a value that is bound to one local variable."""
    if type(value) in IMMUTABLE or (getrefcount(value) <= _LOCAL and _holds_alone(value)):
        return value
    return _copy_if_mutable(value)


def copy_listed_if_shared(value: Any) -> Any:
    """Do as `copy_if_shared`, for an item of a list that nothing else refers to."""
    if type(value) in IMMUTABLE or (getrefcount(value) <= _LISTED and _holds_alone(value)):
        return value
    return _copy_if_mutable(value)


def copy_items_if_shared(values: list[Any]) -> Iterable[Any]:
    """Return the items of a list that is bound to one local variable, or copies of them."""
    only_local = getrefcount(values) <= _LOCAL
    return map(copy_listed_if_shared if only_local else _copy_if_mutable, values)


def map_and_copy_if_shared(
    function: Callable[[Any], Any], iterator: Iterator[Any], records: Sequence[Any]
) -> list[Any]:
    """Return a function's results for records, or copies of them.

    Arguments:
        function: the user's function.
        iterator: over the records.
        records: the same records. A result may be its record itself, which this list refers to.
    """
    return list(map(_copy_result_if_shared, map(function, iterator), records))


def _copy_result_if_shared(value: Any, record: Any) -> Any:
    if type(value) in IMMUTABLE:
        return value
    alone = _GIVEN if value is record else _RESULT
    if getrefcount(value) <= alone and _holds_alone(value):
        return value
    return _copy_if_mutable(value)


def _holds_alone(value: Any) -> bool:
    """Return whether nothing else refers to what a value holds, as far as that can change."""
    kind = type(value)
    items: Iterable[Any]
    if kind is dict:
        items = value.values()
    elif kind in (list, tuple, deque):
        items = value
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


def _copy_if_mutable(value: Any) -> Any:
    try:
        return _copy(value) if can_change((value,)) else value
    except RecursionError:
        return value  # it contains itself, and the codec will refuse it


def _copy(value: Any) -> Any:
    """Return a copy of a value, with copies of all records and containers within it."""
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(map(_copy, value))
    if kind is deque:
        return deque(map(_copy, value), value.maxlen)
    if isinstance(value, tuple):
        return tuple.__new__(kind, map(_copy, value))
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

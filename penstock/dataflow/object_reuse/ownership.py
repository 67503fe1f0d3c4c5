"""Object reuse: what a function has emitted must not change when the function goes on.

Records wait in batches, and are encoded later or not at all. A program may keep a record that it
has emitted, change it and emit it again. So a record that can change is copied when it is emitted,
as Flink does unless object reuse is enabled. It is not copied if it has no other reference, since
then no code is left that could change it: `yield {"word": word}` costs no copy, and
`yield record; record["n"] = 0` costs one.

Immutable records need none of this. An `EmissionGuard` finds out whether a function emits anything
that can change, and has each record looked at only in that case. `may_change_objects` reads from a
function's code whether it changes objects at all; for the others two records of a batch are enough.
"""

from __future__ import annotations

import copy
import dataclasses
import dis
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from itertools import chain
from operator import attrgetter
from sys import getrefcount
from types import BuiltinFunctionType, CodeType, MethodDescriptorType, NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

__all__ = ["IMMUTABLE", "EmissionGuard", "can_change", "may_change_objects", "own", "own_local"]

IMMUTABLE = frozenset({NoneType, bool, int, float, str, bytes, complex, Decimal, Fraction})
IMMUTABLE |= {datetime, date, time, timedelta, timezone, ZoneInfo, UUID, range}
"""Types whose values cannot change, nor hold anything that can."""

_MUTABLE = frozenset({list, dict, set, deque, bytearray, OrderedDict, Counter, defaultdict})


def can_change(values: Sequence[Any]) -> bool:
    """Return whether any of the values can change, or holds something that can.

    An object of a class that is no record class counts as one that cannot: no other task can be
    sent it, so that its own chain alone decides what becomes of it.
    """
    kinds: set[Any] = set(map(type, values))
    if kinds <= IMMUTABLE:
        return False
    for kind in kinds - IMMUTABLE:
        if kind in _MUTABLE:
            return True
        if issubclass(kind, tuple) or kind is frozenset:
            alike = [value for value in values if type(value) is kind] if len(kinds) > 1 else values
            # Most tuples hold plain values, for which no list of all the items is needed.
            plain = IMMUTABLE.issuperset(map(type, chain.from_iterable(alike)))
            if not plain and can_change(list(chain.from_iterable(alike))):
                return True
        elif issubclass(kind, Enum):
            continue
        elif (parameters := getattr(kind, "__dataclass_params__", None)) is not None:
            if not parameters.frozen:
                return True
            alike = [value for value in values if type(value) is kind]
            for field in dataclasses.fields(kind):
                if can_change(list(map(attrgetter(field.name), alike))):
                    return True
    return False


def _references(value: Any) -> int:
    return getrefcount(value)


def _references_of_made(value: Any, _given: Any) -> int:
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


# How many references a value has where it is looked at, if there are no others. They are counted,
# since versions of Python differ in which of their own they count.
_RECORDS: list[Any] = [[]]
_MADE = next(map(_references_of_made, map(list, [()]), [None]))
_GIVEN = next(map(_references_of_made, map(_same, _RECORDS), _RECORDS))
_MAPPED = next(map(_references, map(list, [()])))
_LISTED = next(map(_references, [[]]))
_LOCAL = _references_in_loop(map(list, [()]))
_ITEM = _references_of_item([[]])


def own(value: Any) -> Any:
    """Return a value that `map` gives, or a copy if it can change and something refers to it."""
    if type(value) in IMMUTABLE or (getrefcount(value) <= _MAPPED and _holds_alone(value)):
        return value
    return _copied(value)


def own_local(value: Any) -> Any:
    """Do as `own`, for a value that is bound to one local variable."""
    if type(value) in IMMUTABLE or (getrefcount(value) <= _LOCAL and _holds_alone(value)):
        return value
    return _copied(value)


def _own_listed(value: Any) -> Any:
    """Do as `own`, for an item of a list that nothing else refers to."""
    if type(value) in IMMUTABLE or (getrefcount(value) <= _LISTED and _holds_alone(value)):
        return value
    return _copied(value)


def _own_made(value: Any, given: Any) -> Any:
    """Do as `own`, for what a function has made of a record, which may be the record itself."""
    if type(value) in IMMUTABLE:
        return value
    alone = _GIVEN if value is given else _MADE
    return value if getrefcount(value) <= alone and _holds_alone(value) else _copied(value)


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


def _copied(value: Any) -> Any:
    try:
        return _copy(value) if can_change((value,)) else value
    except RecursionError:
        return value  # it contains itself, and is refused where it is encoded


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
    if kind in _MUTABLE:
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


# Methods of the mutable built-in types that change them.
_CHANGING_METHODS = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "rotate"})
_CHANGING_METHODS |= {"pop", "popleft", "popitem", "remove", "discard", "clear", "sort", "reverse"}
_CHANGING_METHODS |= {"update", "setdefault", "add", "subtract", "move_to_end"}
_CHANGING_METHODS |= {f"{kind}_update" for kind in ("difference", "intersection")}
_CHANGING_METHODS |= {"symmetric_difference_update", "setattr", "delattr"}
_CHANGING_METHODS |= {"__setitem__", "__delitem__", "__setattr__", "__iadd__", "__ior__"}
_CHANGING_INSTRUCTIONS = ("STORE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_SUBSCR")


def may_change_objects(function: Any) -> bool:
    """Return whether a function's own code changes objects, or cannot be read.

    The code of the functions that it calls is not examined.
    """
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, type):
        return False
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        # A built-in function changes nothing, as those of `str` and `json` do.
        return not isinstance(function, BuiltinFunctionType | MethodDescriptorType)
    return _changes(code)


def _changes(code: CodeType) -> bool:
    if not _CHANGING_METHODS.isdisjoint(code.co_names):
        return True
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        # `items += more` changes a list in place.
        if name in _CHANGING_INSTRUCTIONS or (
            name == "BINARY_OP" and instruction.argrepr.endswith("=")
        ):
            return True
    return any(_changes(inner) for inner in code.co_consts if isinstance(inner, CodeType))


class EmissionGuard:
    """Keeps what one function emits apart from what the function may change later.

    A function is watched from its first batch on. It is watched no longer when a batch has shown
    that it emits immutable records, and always once it has emitted a record that can change. What a
    function emits whose own code changes objects is looked at in every batch, as far as it can
    change.

    Arguments:
        function: the user's function.
    """

    def __init__(self, function: Any) -> None:
        #: Whether each record is to be looked at when it is emitted.
        self.watching = True
        #: Whether the function itself changes objects, maybe some that it has emitted.
        self.changes = may_change_objects(function)
        self._emits_mutable = False

    def map(
        self, function: Callable[[Any], Any], iterator: Iterator[Any], records: Sequence[Any]
    ) -> list[Any]:
        """Return what a watched function makes of each of the records, which `iterator` gives."""
        return list(map(_own_made, map(function, iterator), records))

    def items(self, made: list[Any]) -> Iterable[Any]:
        """Return the items of a list that a watched function has made."""
        return map(_own_listed if getrefcount(made) <= _LOCAL else _copied, made)

    def seen(self, records: list[Any]) -> list[Any]:
        """Return a batch that was emitted, and decide whether the next one is watched."""
        if not records:
            return records
        looked_at = records if self.watching or self.changes else (records[0], records[-1])
        if not can_change(looked_at):
            self.watching = self._emits_mutable
            return records
        watched, self.watching, self._emits_mutable = self.watching, True, True
        return records if watched else list(map(_own_listed, records))

"""The loops that run once per record; everything else in the engine runs once per batch.

`penstock.runtime.codegen` compiles them again with the user's expressions in the place of calls. So
the user's functions are the first parameters, and are called by plain names. The operators handle
the errors that a loop raises.

* `list.append` is looked up at each record: Python then appends without a call. It does not if a
  variable holds the method.
* `find` returns the value of a key that `dirty` does not seem to hold. `dirty.get` is faster
  without a default, so its None may also be a value.
* `value in probe` raises `TypeError` if the value may be able to change. An empty dict raises it
  for values without a hash, and computes no number as `hash` does. None raises it for all values.
  See `OperatorContext.mutability_probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.dataflow.object_reuse import (
    copy_if_shared,
    copy_items_if_shared,
    copy_local_if_shared,
)
from penstock.snapshot.state import MISSING

__all__ = [
    "call_records",
    "count_records",
    "emit_records",
    "filter_records",
    "flat_map_records",
    "map_records",
    "map_and_copy_records",
    "process_records",
    "reduce_records",
]

Copied = Callable[[Any], Any]


def map_records(function: Callable[[Any], Any], iterator: Iterator[Any]) -> list[Any]:
    """Return the function's result for each record."""
    return [function(record) for record in iterator]


def flat_map_records(
    function: Callable[[Any], Iterable[Any]], iterator: Iterator[Any]
) -> list[Any]:
    """Return all items of the function's results, in order."""
    out: list[Any] = []
    for record in iterator:
        out.extend(function(record))
    return out


def map_and_copy_records(
    function: Callable[[Any], Any], iterator: Iterator[Any], probe: Any
) -> list[Any]:
    """Return the function's result for each record, copied if the function may change it later."""
    out: list[Any] = []
    for record in iterator:
        made = function(record)
        try:
            made in probe  # noqa: B015 - see above
        except TypeError:
            made = copy_local_if_shared(made)
        out.append(made)
    return out


def emit_records(
    function: Callable[..., Iterable[Any] | None],
    iterator: Iterator[Any],
    arguments: tuple[Any, ...],
    probe: Any,
) -> list[Any]:
    """Return all that the function emits, in order, copied if the function may change it later.

    A generator continues after each record that it yields, so each record is checked before that.
    The items of a list are checked together.

    Arguments:
        function: returns an iterable for a record.
        iterator: over the records.
        arguments: further arguments of the function.
        probe: see the head of this module; None also lets immutable records be checked.
    """
    out: list[Any] = []
    for record in iterator:
        made: Any = function(record, *arguments)
        if made is None and arguments:
            continue  # a process function may return None
        if type(made) is list:
            emitted = None
            try:
                for emitted in made:
                    emitted in probe  # noqa: B015 - see above
            except TypeError:
                emitted = None  # so that this variable does not count as a reference
                out.extend(copy_items_if_shared(made))
            else:
                out.extend(made)
        elif probe is None:
            out.extend(map(copy_if_shared, made))
        else:
            for emitted in made:
                try:
                    emitted in probe  # noqa: B015 - see above
                except TypeError:
                    emitted = copy_local_if_shared(emitted)
                out.append(emitted)
    return out


def filter_records(function: Callable[[Any], Any], iterator: Iterator[Any]) -> list[Any]:
    """Return the records for which the function is true."""
    return [record for record in iterator if function(record)]


def call_records(function: Callable[[Any], object], iterator: Iterator[Any]) -> list[Any]:
    """Call the function with each record; emit nothing."""
    for record in iterator:
        function(record)
    return []


def reduce_records(
    key_of: Callable[[Any], Any],
    combine: Callable[[Any, Any], Any],
    iterator: Iterator[Any],
    dirty: dict[Any, Any],
    find: Callable[[Any], Any],
    probe: Any,
    copied: Copied,
) -> list[Any]:
    """Return the new value of each record's key, copied if it can change."""
    out: list[Any] = []
    missing, get = MISSING, dirty.get
    for record in iterator:
        key = key_of(record)
        value = get(key)
        if value is not None or (value := find(key)) is not missing:
            value = combine(value, record)
        else:
            value = record
        dirty[key] = value
        try:
            value in probe  # noqa: B015 - see above
        except TypeError:
            value = copied(value)
        out.append(value)
    return out


def count_records(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    dirty: dict[Any, Any],
    find: Callable[[Any], Any],
) -> list[Any]:
    """Return a pair (key, number of its records until now) for each record."""
    out: list[Any] = []
    missing, get = MISSING, dirty.get
    for record in iterator:
        key = key_of(record)
        count: Any = get(key)
        if count is None and (count := find(key)) is missing:
            count = 0
        dirty[key] = count = count + 1
        out.append((key, count))
    return out


def process_records(
    key_of: Callable[[Any], Any],
    function: Callable[[Any, Any], Iterable[Any] | None],
    iterator: Iterator[Any],
    context: Any,
    shown: Any,
    probe: Any,
    copied: Copied,
) -> list[Any]:
    """Return all that the function emits; the context's `key` is that of the record."""
    out: list[Any] = []
    for record in iterator:
        context.key = key_of(record)
        for emitted in function(record, shown) or ():
            try:
                emitted in probe  # noqa: B015 - see above
            except TypeError:
                emitted = copied(emitted)
            out.append(emitted)
    return out

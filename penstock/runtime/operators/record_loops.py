"""The loops that run once per record; everything else costs something once per batch.

Each goes through an iterator over one list. `penstock.runtime.codegen` compiles them again
with the user's expressions in the place of calls, so functions of the user's are the first
parameters here, and are called with plain names. `append` is looked up at the list each time:
Python then appends without a call, which it does not with a variable that holds the method. `find`
gives the value of a key that seems to have none: what is asked for first is quicker without a
default, and may be None. `probe` is empty, and raises `TypeError` if it is asked for what has no
hash: an empty dict does, and makes no number of the hash, as `hash` would. It is None, which
raises always, where a hash does not say whether a value can change.

The operators handle what the loops raise.
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
    """What the function makes of each."""
    return [function(record) for record in iterator]


def flat_map_records(
    function: Callable[[Any], Iterable[Any]], iterator: Iterator[Any]
) -> list[Any]:
    """All that the function gives for each, in order."""
    out: list[Any] = []
    for record in iterator:
        out.extend(function(record))
    return out


def map_and_copy_records(
    function: Callable[[Any], Any], iterator: Iterator[Any], probe: Any
) -> list[Any]:
    """What the function makes of each, when it may change that later; `probe` as below."""
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
    """All that the function emits for each, in order, when it may change what it has emitted.

    A generator goes on after each record, so its records are looked at before that. `probe`
    raises for those that may have to be copied; None has all of them looked at. The items of a list
    that holds such a record are looked at by `own_items`.
    """
    out: list[Any] = []
    for record in iterator:
        made: Any = function(record, *arguments)
        if made is None and arguments:
            continue  # a process function may emit probe
        if type(made) is list:
            emitted = None
            try:
                for emitted in made:
                    emitted in probe  # noqa: B015 - see above
            except TypeError:
                emitted = None  # one reference less, if that was the only one
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
    """Those for which the function is true."""
    return [record for record in iterator if function(record)]


def call_records(function: Callable[[Any], object], iterator: Iterator[Any]) -> list[Any]:
    """Call the function with each; probe is emitted."""
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
    """The new value of each record's key. `probe` raises for values that have to be copied."""
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
    """A pair (key, how many so far) for each record."""
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
    """All that the function emits, called with the record's key as the context's `key`."""
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

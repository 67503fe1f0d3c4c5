"""The loops that process each record. The rest of the engine runs once per batch.

`penstock.runtime.codegen` compiles the loops again with the user's expressions inlined. For that,
the user's functions must be the first parameters, and the loops call them by plain names. The
operators handle the errors that a loop raises.

* A loop with the parameters `timestamps` and `times` is for batches with event times: `timestamps`
  has the event time of each record, and the loop appends the event time of each record that it
  returns to `times`. `codegen.without_times` derives the loop for batches without event times.
* The loops look up `list.append` for each record, because Python then appends without a function
  call. If the loop kept the method in a variable, Python would call a function.
* `find` returns the value of a key for which `dirty.get` returned None. `dirty.get` has no default,
  because it is faster without one. So it also returns None if the value in `dirty` is None.
* `value in probe` raises `TypeError` if the value may be mutable. A `HashProbe` raises it for
  values without a hash, and is faster than `hash`. None raises it for all values. See
  `OperatorContext.mutability_probe`.

`docs/inside/decisions/012-loops-of-operators.md` has the reasons and the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

from penstock.dataflow.object_reuse import (
    copy_if_shared,
    copy_items_if_shared,
    copy_local_if_shared,
)
from penstock.snapshot.state import MISSING

Copied = Callable[[Any], Any]


def map_records(function: Callable[[Any], Any], iterator: Iterator[Any]) -> list[Any]:
    """Return the function's result for each record."""
    return [function(record) for record in iterator]


def map_some_records(
    function: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    """Return the function's results that are not None."""
    out: list[Any] = []
    for record, timestamp in zip(iterator, timestamps, strict=False):
        made = function(record)
        if made is not None:
            out.append(made)
            times.append(timestamp)
    return out


def flat_map_records(
    function: Callable[[Any], Iterable[Any]],
    iterator: Iterator[Any],
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    """Return the items of all results of the function, in order.

    Arguments:
        function: returns an iterable of records for each record.
        iterator: the iterator over the input records.
        timestamps: the event time of each input record.
        times: the event time of each emitted record is appended to this list.
    """
    out: list[Any] = []
    for record, timestamp in zip(iterator, timestamps, strict=False):
        out.extend(function(record))
        times.extend(repeat(timestamp, len(out) - len(times)))
    return out


def map_and_copy_records(
    function: Callable[[Any], Any], iterator: Iterator[Any], probe: Any
) -> list[Any]:
    """Return the function's result for each record.

    If a result is mutable and the function may still change it, the result is copied.
    """
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
    """Return all records that the function emits, in order.

    If a record is mutable and the function may still change it, the record is copied. A generator
    continues after each record that it yields, so the loop checks the record before that. The loop
    checks the items of a list together.

    Arguments:
        function: a function that returns an iterable of records for each record.
        iterator: the iterator over the input records.
        arguments: further arguments of the function.
        probe: see the docstring of this module. If it is None, all records are checked.
    """
    out: list[Any] = []
    for record in iterator:
        made: Any = function(record, *arguments)
        if made is None and arguments:
            continue  # A process function may return None instead of an iterable.
        if type(made) is list:
            emitted = None
            try:
                for emitted in made:
                    emitted in probe  # noqa: B015 - see above
            except TypeError:
                # `copy_items_if_shared` counts the references to each item, so drop this reference.
                emitted = None
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


def emit_timed_records(
    function: Callable[..., Iterable[Any] | None],
    iterator: Iterator[Any],
    arguments: tuple[Any, ...],
    probe: Any,
    context: Any,
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    """Return all records that the function emits, in order; see `emit_records`.

    Before each call, `context.timestamp` is set to the event time of the record.

    Arguments:
        function: returns an iterable of records for each record.
        iterator: the iterator over the input records.
        arguments: further arguments of the function.
        probe: see `emit_records`.
        context: the context of the operator.
        timestamps: the event time of each input record.
        times: the event time of each emitted record is appended to this list.
    """
    out: list[Any] = []
    for record, timestamp in zip(iterator, timestamps, strict=False):
        context.timestamp = timestamp
        out += emit_records(function, iter((record,)), arguments, probe)
        times.extend(repeat(timestamp, len(out) - len(times)))
    return out


def filter_records(function: Callable[[Any], Any], iterator: Iterator[Any]) -> list[Any]:
    """Return the records for which the function returns a true value."""
    return [record for record in iterator if function(record)]


def filter_timed_records(
    function: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    """Return the records for which the function returns a true value.

    Without event times, the comprehension of `filter_records` is faster than this loop.

    Arguments:
        function: returns whether a record is kept.
        iterator: the iterator over the input records.
        timestamps: the event time of each input record.
        times: the event time of each returned record is appended to this list.
    """
    out: list[Any] = []
    for record, timestamp in zip(iterator, timestamps, strict=False):
        if function(record):
            out.append(record)
            times.append(timestamp)
    return out


def call_records(function: Callable[[Any], object], iterator: Iterator[Any]) -> list[Any]:
    """Call the function with each record, and return an empty list."""
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
    """Combine each record with the value of its key, and return the new values.

    If a new value is mutable, a copy of it is returned, because the value itself is in the state.
    """
    out: list[Any] = []
    missing, get = MISSING, dirty.get
    for record in iterator:
        key = key_of(record)
        value = get(key)
        # A function that returns None has removed the value of the key.
        if value is not None or ((value := find(key)) is not missing and value is not None):
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
    """Count the records of each key, and return a pair (key, new count) for each record."""
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
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    """Call a keyed process function for each record, and return the emitted records.

    Before each call, `context.key` and `context.timestamp` are set to the key and the event time
    of the record.

    Arguments:
        key_of: returns the key of a record.
        function: the method of the process function.
        iterator: the iterator over the input records.
        context: the context of the operator.
        shown: the context that the function gets.
        probe: see the docstring of this module.
        copied: returns a copy of an emitted record that may be mutable.
        timestamps: the event time of each input record.
        times: the event time of each emitted record is appended to this list.
    """
    out: list[Any] = []
    for record, context.timestamp in zip(iterator, timestamps, strict=False):
        context.key = key_of(record)
        for emitted in function(record, shown) or ():
            try:
                emitted in probe  # noqa: B015 - see above
            except TypeError:
                emitted = copied(emitted)
            out.append(emitted)
            times.append(context.timestamp)
    return out

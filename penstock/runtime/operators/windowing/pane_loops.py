"""The loops that add records to panes.

A pane is the greatest piece of event time that no window border divides. So all records of a pane
belong to the same windows, and each record is added to one pane only.

`penstock.runtime.codegen` compiles the loops again with the user's expressions inlined; see
`record_loops`. A record whose time is not after the watermark may belong to windows that have
fired, so the loops call `add_late` for it. They call `add_first` for the first record of a key and
a pane. A pane of a later time was never removed, so the loops meet no `TOMBSTONE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.snapshot.state import MISSING


def aggregate_into_panes(
    key_of: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    dirty: dict[Any, Any],
    find: Callable[[Any], Any],
    watermark: int,
    size: int,
    offset: int,
    add_first: Callable[[Any, int, Any], None],
    add_late: Callable[[Any, int], None],
) -> None:
    """Add each record to the accumulator of its key and pane.

    `codegen.with_swapped_arguments` derives the loop for a reduce function, which takes the
    accumulator first.

    Arguments:
        key_of: returns the key of a record.
        add: returns the new accumulator, given a record and the accumulator of its pane.
        iterator: the records.
        timestamps: the event time of each record.
        dirty: the changed entries of the table of panes.
        find: returns the value of an entry for which `dirty.get` returned None, or `MISSING`.
        watermark: the current watermark.
        size: the size of a pane, in milliseconds.
        offset: the begin of some pane, in milliseconds.
        add_first: adds the first record of a key and pane, and registers its timers.
        add_late: adds a record that is not after the watermark.
    """
    missing, get, least = MISSING, dirty.get, watermark + 1
    low = begin = end = 0
    for record, timestamp in zip(iterator, timestamps):  # noqa: B905 - one side may be endless
        if not low <= timestamp < end:
            if timestamp < least:
                add_late(record, timestamp)
                continue
            begin = timestamp - (timestamp - offset) % size
            low, end = begin if begin > least else least, begin + size
        key = key_of(record)
        entry = key, begin
        value = get(entry)
        if value is None:
            value = find(entry)
            if value is missing or value is None:
                add_first(key, begin, record)
                continue
        dirty[entry] = add(record, value)


def collect_into_panes(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    dirty: dict[Any, Any],
    find: Callable[[Any], Any],
    watermark: int,
    size: int,
    offset: int,
    add_first: Callable[[Any, int, Any], None],
    add_late: Callable[[Any, int], None],
    group: int,
    add_to_full: Callable[[Any, int, Any], None],
) -> None:
    """Append each record to the list of its key and pane.

    This is `aggregate_into_panes` for lists; see `ListedContents`. `group` is the greatest number
    of records in a list. `add_to_full` adds a record to a list with `group` records.
    """
    missing, get, least = MISSING, dirty.get, watermark + 1
    low = begin = end = 0
    for record, timestamp in zip(iterator, timestamps):  # noqa: B905 - one side may be endless
        if not low <= timestamp < end:
            if timestamp < least:
                add_late(record, timestamp)
                continue
            begin = timestamp - (timestamp - offset) % size
            low, end = begin if begin > least else least, begin + size
        key = key_of(record)
        entry = key, begin
        value = get(entry)
        if value is None:
            value = find(entry)
        if value is missing:
            add_first(key, begin, record)
        elif len(value) <= group:
            value.append(record)
        else:
            add_to_full(key, begin, record)

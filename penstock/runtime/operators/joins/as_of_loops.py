"""The loops of an as-of join.

`penstock.runtime.codegen` compiles them again with the key selector inlined; see `record_loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.snapshot.state import MISSING

__all__ = ["add_versions", "hold_records"]


def hold_records(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    least: int,
    find: Callable[[Any], Any],
    add_first: Callable[[Any, int, Any], None],
    add_late: Callable[[Any, int], None],
) -> None:
    """Add each record to the list of its key and time, where it waits for the watermark.

    Arguments:
        key_of: returns the key of a record.
        iterator: the records.
        timestamps: the event time of each record.
        least: the smallest timestamp of a record that is not late.
        find: returns the list of a key and time, or `MISSING`.
        add_first: adds the first record of a key and time, and registers its timer.
        add_late: handles a late record.
    """
    missing = MISSING
    for record, timestamp in zip(iterator, timestamps, strict=False):
        if timestamp < least:
            add_late(record, timestamp)
            continue
        key = key_of(record)
        waiting = find((key, timestamp))
        if waiting is missing:
            add_first(key, timestamp, record)
        else:
            waiting.append(record)


def add_versions(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    add: Callable[[Any, int, Any], None],
) -> None:
    """Add each record to the versions of its key.

    Arguments:
        key_of: returns the key of a record.
        iterator: the records.
        timestamps: the event time of each record.
        add: adds a version, given its key and time.
    """
    for record, timestamp in zip(iterator, timestamps, strict=False):
        add(key_of(record), timestamp, record)

"""The loops that add records to sessions.

A key has a list of sessions in the order of time. Each is a list of its start, its end and its
accumulator. Most records belong to the newest session of their key, and the loops only extend this
session. They call `add_other` for all other records, and if a function has returned None for the
session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.snapshot.state import MISSING, TOMBSTONE


def aggregate_into_sessions(
    key_of: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    dirty: dict[Any, Any],
    find: Callable[[Any], Any],
    gap: int,
    add_other: Callable[[Any, Any, int], None],
) -> None:
    """Add each record to the accumulator of its session.

    `codegen.with_swapped_arguments` derives the loop for a reduce function, which takes the
    accumulator first.

    Arguments:
        key_of: returns the key of a record.
        add: returns the new accumulator, given a record and the accumulator of its session.
        iterator: the records.
        timestamps: the event time of each record.
        dirty: the changed entries of the table of sessions.
        find: returns the sessions of a key that is not in `dirty`.
        gap: the gap that ends a session, in milliseconds.
        add_other: adds a record that does not belong to the newest session of its key.
    """
    missing, tombstone, get = MISSING, TOMBSTONE, dirty.get
    for record, timestamp in zip(iterator, timestamps):  # noqa: B905 - one side may be endless
        key = key_of(record)
        sessions = get(key)
        if sessions is None:
            sessions = find(key)
        if sessions is missing or sessions is tombstone:
            add_other(key, record, timestamp)
            continue
        session = sessions[-1]
        value = session[2]
        if value is not None and session[0] <= timestamp <= session[1]:
            if timestamp + gap > session[1]:
                session[1] = timestamp + gap
            session[2] = add(record, value)
        else:
            add_other(key, record, timestamp)

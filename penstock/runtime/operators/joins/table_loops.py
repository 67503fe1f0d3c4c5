"""The loops that join records with the rows of a table.

`penstock.runtime.codegen` compiles them again with the user's expressions inlined; see
`record_loops`, which explains `probe` and `times`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.dataflow.object_reuse import copy_local_if_shared
from penstock.snapshot.state import MISSING

Get = Callable[[Any, Any], Any]


def join_row(
    key_of: Callable[[Any], Any],
    function: Callable[[Any, Any], Any],
    iterator: Iterator[Any],
    get: Get,
    default: Any,
    probe: Any,
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    """Return a result for each record that has a row.

    Arguments:
        key_of: returns the key of a record.
        function: returns the result for a record and its row.
        iterator: the records.
        get: returns the row of a key, or a default.
        default: the row to use for a key without a row; with `MISSING`, the record is dropped.
        probe: finds out whether a result may be mutable.
        timestamps: the event time of each record.
        times: the event time of each result is appended to this list.
    """
    out: list[Any] = []
    missing = MISSING
    for record, timestamp in zip(iterator, timestamps, strict=False):
        row = get(key_of(record), default)
        if row is not missing:
            made = function(record, row)
            try:
                made in probe  # noqa: B015 - see `record_loops`
            except TypeError:
                made = copy_local_if_shared(made)
            out.append(made)
            times.append(timestamp)
    return out


def join_rows(
    key_of: Callable[[Any], Any],
    function: Callable[[Any, Any], Any],
    iterator: Iterator[Any],
    get: Get,
    default: Any,
    probe: Any,
    timestamps: list[int],
    times: list[int],
) -> list[Any]:
    """Return a result for each record and each of its rows; see `join_row`."""
    out: list[Any] = []
    for record, timestamp in zip(iterator, timestamps, strict=False):
        for row in get(key_of(record), default):
            made = function(record, row)
            try:
                made in probe  # noqa: B015 - see `record_loops`
            except TypeError:
                made = copy_local_if_shared(made)
            out.append(made)
            times.append(timestamp)
    return out

"""Select entries of a state: those of a key given as JSON, or the largest ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.keys import KeyRefusedError
from penstock.runtime.serialization.entry_fields import field_of
from penstock.saved.entries import StateEntry
from penstock.saved.json_values import keys_of
from penstock.saved.snapshot import SavedSnapshot


def entries_of_key(
    snapshot: SavedSnapshot, operator: str, state: str, text: str
) -> list[StateEntry]:
    """Return the entries of a key that is given as JSON.

    Arguments:
        snapshot: the snapshot.
        operator: the uid of the operator.
        state: the name of the state.
        text: the key as JSON, as `keys_of` describes.

    Raises:
        GraphError: if there is no such state, or the text is no JSON or cannot be a key.
    """
    refused = None
    for key in keys_of(text):
        try:
            found = snapshot.find(operator, state, key)
        except KeyRefusedError as error:
            refused = error
            continue
        if found:
            return found
    if refused is not None:
        raise GraphError(f"{text} cannot be a key: {refused}")
    return []


def largest(entries: Iterable[StateEntry], number: int, by: str) -> list[StateEntry]:
    """Return the entries with the largest values of a field, the largest first.

    Entries without a value of the field are left out.

    Arguments:
        entries: the entries.
        number: the largest number of entries to return.
        by: the field: `key`, `part` or `value`, and further fields, keys or indices after dots.

    Raises:
        GraphError: if no entry has the field, or its values cannot be compared.
    """
    first, *path = by.split(".")
    if first not in StateEntry._fields:
        raise GraphError(
            f"an entry has no field {first!r}: it has key, part, value and last_used_ms; "
            f"a field of a value is named as value.{by}"
        )
    any_entry, order = None, count()

    def ranked() -> Iterable[tuple[Any, int, StateEntry]]:
        nonlocal any_entry
        for entry in entries:
            any_entry = entry
            value = field_of(getattr(entry, first), path)
            if value is not None:
                yield value, -next(order), entry

    try:
        found = heapq.nlargest(number, ranked(), key=lambda one: one[:2])
    except TypeError as error:
        raise GraphError(
            f"the values of {by} cannot be compared ({error}); name a field of one type"
        ) from None
    if not found and any_entry is not None:
        raise GraphError(
            f"no entry has a field {by}; a value is, for example, {any_entry.value!r:.200}"
        )
    return [entry for _, _, entry in found]

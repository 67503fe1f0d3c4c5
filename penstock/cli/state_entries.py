"""Reads the entries of state in a snapshot, for `penstock snapshots show` and `state`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from penstock.dataflow.errors import GraphError, StoreError
from penstock.saved.entries import OPERATOR_KINDS, StateEntry
from penstock.saved.json_values import as_json as json_text
from penstock.saved.state_parts import (
    StatePart,
    find_state,
    part_of,
    read_part,
)
from penstock.snapshot.metadata.handles import KeyedHandle, StateMode
from penstock.snapshot.metadata.manifest import Manifest


def state_kinds(handles: Iterable[KeyedHandle]) -> dict[str, str]:
    """Return the kind of each state by its name, for example `map` or `value, expires`."""
    kinds = {}
    for handle in handles:
        for state_id, state in enumerate(handle.states):
            expires = ", expires" if state_id in handle.expiring else ""
            kinds[state] = handle.kind(state_id).value + expires
    return kinds


def operator_states(manifest: Manifest, operator: str) -> list[dict[str, Any]]:
    """Return the name, the kind and the number of elements of each operator state.

    The number is that of all subtasks. Broadcast state counts as one copy.
    """
    states: dict[str, dict[str, Any]] = {}
    for handle in manifest.handles:
        if handle.uid != operator or handle.operator_state is None:
            continue
        for entry in handle.operator_state.states:
            kind = OPERATOR_KINDS[entry.mode]
            found = states.setdefault(entry.name, {"name": entry.name, "kind": kind, "elements": 0})
            copies = entry.mode is StateMode.BROADCAST
            count = found["elements"]
            found["elements"] = max(count, entry.elements) if copies else count + entry.elements
    return [states[name] for name in sorted(states)]


def entry_counts(manifest: Manifest, operator: str) -> dict[str, int]:
    """Return the number of entries of each state of an operator that is in the manifest.

    States that are in files are left out, since it takes long to count their entries.
    """
    counts: Counter[str] = Counter()
    in_files: set[str] = set()
    for handle in manifest.handles:
        if handle.keyed is None or handle.uid != operator:
            continue
        if handle.keyed.inline is None:
            in_files.update(handle.keyed.states)
            continue
        counts.update(dict.fromkeys(handle.keyed.states, 0))
        try:
            part = part_of(manifest, handle, Path(), None)
            counts.update(entry.state for entry in read_part(part))
        except (StoreError, ValueError):
            in_files.update(handle.keyed.states)  # The state cannot be decoded.
    return {state: count for state, count in sorted(counts.items()) if state not in in_files}


def select_entries(
    directory: Path, number: int | None, operator: str | None, state: str | None, key: str | None
) -> Iterator[tuple[StatePart, StateEntry]]:
    """Yield the entries of a snapshot, each with the part of the state in which it is.

    Arguments:
        directory: a job's checkpoint folder, or the folder of a snapshot.
        number: the number of the snapshot, or None.
        operator: the uid of the only operator, or None.
        state: the name of the only state, or None.
        key: the only key as JSON, or None.

    Raises:
        GraphError: if there is no such operator or state, or the key is no JSON.
    """
    wanted = None
    if key is not None:
        try:
            wanted = json.dumps(json.loads(key), ensure_ascii=False)
        except ValueError:
            raise GraphError(f"the key {key!r} is no JSON; a text needs quotes: '\"a\"'") from None
    for part in find_state(directory, number, operator, state):
        for entry in read_part(part):
            if wanted is None or json_text(entry.key) == wanted:
                yield part, entry


def print_entries(
    found: Iterator[tuple[StatePart, StateEntry]], limit: int, *, as_json: bool
) -> None:
    """Print entries as a table, or as a JSON object for each entry."""
    rows = [_row(part, entry) for part, entry in islice(found, limit)]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        _print_table(rows)
        if next(found, None) is not None:
            click.echo(f"... more than {limit} entries: use --limit, --state or --key")


def _row(part: StatePart, entry: StateEntry) -> dict[str, Any]:
    return {
        "operator": part.operator,
        "state": entry.state,
        "kind": entry.kind,
        "key": json.loads(json_text(entry.key)),
        "part": json.loads(json_text(entry.part)),
        "value": json.loads(json_text(entry.value)),
        "last_used_ms": entry.last_used_ms,
        "key_group": entry.group,
        "subtask": part.subtask,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    shown = ("operator", "state", "kind", "key", "part", "value")
    for heading in shown:
        table.add_column(heading)
    for row in rows:
        texts = [row[name] for name in shown[:3]]
        for name in shown[3:]:
            absent = name == "part" and row[name] is None and row["kind"] != "map"
            texts.append("" if absent else json.dumps(row[name], ensure_ascii=False))
        table.add_row(*map(Text, texts))
    console = Console(highlight=False)
    # A program that reads the output needs all columns, so the width is not limited to 80.
    Console(highlight=False, width=None if console.is_terminal else 1000).print(table)

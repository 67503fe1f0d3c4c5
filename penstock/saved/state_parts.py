"""Read the state of a snapshot by subtasks, so that other processes can read the parts.

The parts of a snapshot are sent to Spark's executors. The job's code is not needed. Instances of
record classes are returned as tuples of their fields. The sizes of files are checked, but not their
checksums; `penstock snapshots verify` checks both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import GraphError, StoreError
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.entry_fields import entry_parts, is_bounds
from penstock.saved.entries import OPERATOR_KINDS, StateEntry
from penstock.saved.keyed_state import open_keyed_state
from penstock.saved.record_classes import TupleRegistry
from penstock.snapshot.metadata.handles import (
    KeyedHandle,
    OperatorHandle,
    OperatorStateHandle,
    StateMode,
)
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.state.operator_state import PackedState, read_operator_state
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.objects.fetched_snapshots import fetch_snapshot
from penstock.snapshot.storage.store import Store


@dataclass(frozen=True)
class StatePart:
    """The state of one subtask of one operator.

    Arguments:
        folder: the folder of the snapshot.
        number: the number of the snapshot.
        operator: the uid of the operator.
        subtask: the index of the subtask.
        max_parallelism: the number of key groups.
        handle: the handle of the keyed state, as `KeyedHandle.to_wire` returns it, or None.
        state: the name of the only state to read; None reads all states.
        types: the record classes of the snapshot.
        operator_state: the handle of the operator state, as `OperatorStateHandle.to_wire` returns
            it, or None.
    """

    folder: str
    number: int
    operator: str
    subtask: int
    max_parallelism: int
    handle: list[Any] | None
    state: str | None
    types: tuple[RecordSchema, ...] = ()
    operator_state: list[Any] | None = None


def find_state(
    path: Path, number: int | None = None, operator: str | None = None, state: str | None = None
) -> list[StatePart]:
    """Return the state of a snapshot, as one part for each subtask, in their order.

    Arguments:
        path: a job's checkpoint folder, or the folder of one of its snapshots.
        number: the number of the snapshot; None takes the snapshot that `path` names, or else the
            newest one.
        operator: the uid of the only operator to read; None reads all operators.
        state: the name of the only state to read; None reads all states.

    Raises:
        StoreError: if there is no such snapshot, or if it is damaged.
        GraphError: if the snapshot holds no such operator or state.
    """
    paths, located = JobPaths.locate(path)
    store = Store(paths.root)
    store.job_name()
    wanted = located if number is None else number
    manifest = store.newest() if wanted is None else store.load(wanted)
    if manifest is None:
        raise StoreError("there is no complete snapshot in the folder", paths.root)
    fetch_snapshot(paths, manifest.number)
    store.verify(manifest)
    _require(manifest, operator, state)
    return [
        part_of(manifest, handle, paths.snapshot(manifest.number), state)
        for handle in sorted(manifest.handles, key=lambda handle: (handle.uid, handle.subtask))
        if operator in (None, handle.uid)
        and (names := _names_of(handle))
        and (state is None or state in names)
    ]


def _names_of(handle: OperatorHandle) -> set[str]:
    """Return the names of all states of a subtask."""
    names = set() if handle.keyed is None else set(handle.keyed.states)
    if handle.operator_state is not None:
        names.update(entry.name for entry in handle.operator_state.states)
    return names


def part_of(
    manifest: Manifest, handle: OperatorHandle, folder: Path, state: str | None
) -> StatePart:
    """Return the state of one subtask.

    Arguments:
        manifest: the manifest of the snapshot.
        handle: the handle of the subtask.
        folder: the folder of the snapshot.
        state: the name of the only state to read; None reads all states.
    """
    groups = {entry.uid: entry.max_parallelism for entry in manifest.operators}
    return StatePart(
        str(folder),
        manifest.number,
        handle.uid,
        handle.subtask,
        groups[handle.uid],
        None if handle.keyed is None else handle.keyed.to_wire(),
        state,
        manifest.types,
        None if handle.operator_state is None else handle.operator_state.to_wire(),
    )


def _require(manifest: Manifest, operator: str | None, state: str | None) -> None:
    states: dict[str, set[str]] = {}
    for handle in manifest.handles:
        names = _names_of(handle)
        if names:
            states.setdefault(handle.uid, set()).update(names)
    there = "; ".join(f"{uid}: {', '.join(sorted(names))}" for uid, names in sorted(states.items()))
    problem = None
    if operator is not None and operator not in states:
        problem = f"no state of an operator with the uid {operator!r}"
    elif state is not None and not any(
        state in names for uid, names in states.items() if operator in (None, uid)
    ):
        problem = f"no state {state!r}"
    if problem is not None:
        raise GraphError(
            f"snapshot {manifest.number} holds {problem}; it holds, by uid: {there or 'none'}"
        )


def read_part(part: StatePart) -> Iterator[StateEntry]:
    """Yield the entries of the state of one subtask, keyed state first.

    The entries of a state come in the order of their key groups.

    Raises:
        StoreError: if a file is missing or damaged.
    """
    codec = Codec(TupleRegistry(part.types))
    if part.handle is not None:
        yield from _read_keyed(part, KeyedHandle.from_wire(part.handle), codec)
    if part.operator_state is not None:
        operator_state = OperatorStateHandle.from_wire(part.operator_state)
        for packed in read_operator_state(operator_state, Path(part.folder)):
            if part.state in (None, packed.name):
                yield from _operator_entries(part, packed, codec)


def _operator_entries(part: StatePart, packed: PackedState, codec: Codec) -> Iterator[StateEntry]:
    kind = OPERATOR_KINDS[packed.mode]
    for index, data in enumerate(packed.elements):
        inner, value = index, codec.decode_value(data)
        if packed.mode is StateMode.BROADCAST:
            inner, value = value
        yield StateEntry(
            part.operator, packed.name, kind, None, inner, value, None, None, part.subtask
        )


def _read_keyed(part: StatePart, handle: KeyedHandle, codec: Codec) -> Iterator[StateEntry]:
    opened = open_keyed_state(handle, part.max_parallelism, codec, Path(part.folder))
    try:
        for index, name in enumerate(handle.states):
            if part.state not in (None, name):
                continue
            kind = handle.kind(index)
            for group, _, key, value in opened.scan(index):
                if is_bounds(kind, key):
                    continue
                last_used = None
                if index in handle.expiring:
                    value, last_used = value
                first, inner = entry_parts(kind, key)
                yield StateEntry(
                    part.operator,
                    name,
                    kind.value,
                    first,
                    inner,
                    value,
                    last_used,
                    group,
                    part.subtask,
                )
    finally:
        opened.close()

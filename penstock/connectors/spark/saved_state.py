"""Read the state in a snapshot from outside the job that wrote it: keyed and operator state.

The job's code is not needed. Instances of record classes are returned as tuples of their fields,
and no class that the data names is imported. A database writes into the folder that it opens. So
the snapshot's files are linked into a temporary folder, or copied if links are impossible, and that
folder is opened. This module checks the sizes of the files. It does not check checksums;
`penstock snapshots show --verify` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from penstock.dataflow.errors import GraphError, StoreError
from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_serializers import RecordSerializer
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.handles import (
    KeyedHandle,
    OperatorHandle,
    OperatorStateHandle,
    StateMode,
)
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.schema import RecordKind, RecordSchema
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state.cold.blocks import BLOCKS, newest_entries, read_block
from penstock.snapshot.state.cold.checkpoint import CheckpointFiles
from penstock.snapshot.state.cold.rows import ROW_PREFIX, original_key, value_offset
from penstock.snapshot.state.engines import engine_of, open_files
from penstock.snapshot.state.operator_state import PackedState, read_operator_state
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store

#: The memory of the database that is read, in bytes.
_CACHE_BYTES = 8 * 1024 * 1024
#: The kinds of operator state, by the mode of redistribution.
OPERATOR_KINDS = {
    StateMode.SPLIT: "operator list",
    StateMode.UNION: "union list",
    StateMode.BROADCAST: "broadcast",
}


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


@dataclass(frozen=True)
class StateEntry:
    """An entry of keyed state or operator state.

    Arguments:
        state: the name of the state.
        kind: the kind of the state. Operator state is of the kind `operator list`, `union list` or
            `broadcast`.
        group: the key group of the key; None for operator state.
        key: the key; None for operator state.
        part: the part that identifies the entry among those of the key: the key of an entry of a
            map, the index of an element of a list, or a list of the parts of a window or timer.
            None if a key has only one entry.
        value: the value.
        last_used_ms: the time of the last use of a value that expires, in milliseconds since the
            epoch; None if it does not expire.
    """

    state: str
    kind: str
    group: int | None
    key: Any
    part: Any
    value: Any
    last_used_ms: int | None


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

    Entries that are read from files come in the order of their key groups. Entries that are stored
    in the manifest come in the order of their states.

    Raises:
        StoreError: if a file is missing or damaged.
    """
    codec = Codec(_Nameless(part.types))
    if part.handle is not None:
        yield from _read_keyed(part, KeyedHandle.from_wire(part.handle), codec)
    if part.operator_state is not None:
        operator_state = OperatorStateHandle.from_wire(part.operator_state)
        for packed in read_operator_state(operator_state, Path(part.folder)):
            if part.state in (None, packed.name):
                yield from _operator_entries(packed, codec)


def _operator_entries(packed: PackedState, codec: Codec) -> Iterator[StateEntry]:
    kind = OPERATOR_KINDS[packed.mode]
    for index, data in enumerate(packed.elements):
        inner, value = index, codec.decode_value(data)
        if packed.mode is StateMode.BROADCAST:
            inner, value = value
        yield StateEntry(packed.name, kind, None, None, inner, value, None)


def _read_keyed(part: StatePart, handle: KeyedHandle, codec: Codec) -> Iterator[StateEntry]:
    if handle.inline is not None:
        yield from _read_inline(part, handle, codec, handle.inline)
    elif handle.folder is not None:
        yield from _read_files(part, handle, codec)


def _read_inline(
    part: StatePart, handle: KeyedHandle, codec: Codec, inline: bytes
) -> Iterator[StateEntry]:
    for state_id, pairs in enumerate(msgpack.unpackb(inline)):
        if part.state not in (None, handle.states[state_id]):
            continue
        for original, data in pairs:
            stored = codec.decode_value(original), codec.decode_value(data)
            yield from _entries(part, handle, state_id, *stored)


def _entries(
    part: StatePart, handle: KeyedHandle, state_id: int, key: Any, value: Any
) -> Iterator[StateEntry]:
    """Yield the state entry of a key and its value. The bounds of a list are not an entry."""
    kind, inner, last_used = handle.kind(state_id), None, None
    if kind.is_composite:
        key, *parts = key
        if kind.is_list and parts[-1] is None:
            return  # These are the bounds of a list.
        inner = parts[0] if kind in (StateKind.MAP, StateKind.LIST) else parts
    if state_id in handle.expiring:
        value, last_used = value
    group = key_group(canonical(key), part.max_parallelism)
    yield StateEntry(handle.states[state_id], kind.value, group, key, inner, value, last_used)


def _read_files(part: StatePart, handle: KeyedHandle, codec: Codec) -> Iterator[StateEntry]:
    source, engine = Path(part.folder), engine_of(handle.files)
    with TemporaryFolder("state") as made:
        folder = made.path / "db"
        CheckpointFiles(folder).take_over(source, handle.files, folder)
        memory = engine.memory(_CACHE_BYTES)
        database = open_files(engine, folder, memory, source / str(handle.folder))
        try:
            blocks = database.rows_of(BLOCKS)
            read = (read_block(codec, row_key, row) for row_key, row in blocks)
            for table, key, value in newest_entries(read):
                if part.state in (None, handle.states[table]):
                    yield from _entries(part, handle, table, key, value)
            for row_key, row in database.scan(b"", BLOCKS):
                _, table = ROW_PREFIX.unpack_from(row_key)
                if part.state in (None, handle.states[table]):
                    key = codec.decode_value(original_key(row_key, row))
                    value = codec.decode_value(row[value_offset(row) :])
                    yield from _entries(part, handle, table, key, value)
        finally:
            database.close()


class _Nameless(TypeRegistry):
    """A type registry that decodes the instances of every record class as tuples.

    Arguments:
        types: the record classes of the snapshot. Instances of an older version of a dataclass are
            decoded with the fields of the newest version. A field that they lack is None.
    """

    def __init__(self, types: Sequence[RecordSchema]) -> None:
        super().__init__()
        self._types = types
        self._newest = {schema.name: schema for schema in types if schema.fields is not None}

    def serializer_at(self, index: int) -> RecordSerializer:
        """Return the serializer that decodes instances of a record class as tuples."""
        places = None
        if index < len(self._types):
            schema = self._types[index]
            names = schema.field_names
            newest = self._newest.get(schema.name, schema)
            if schema.kind is RecordKind.DATACLASS and names and names != newest.field_names:
                found = {name: place for place, name in enumerate(names)}
                places = [found.get(name) for name in newest.field_names or ()]
        return _Row(index, places)


class _Row(RecordSerializer):
    """Turns the rows of one record class into tuples.

    Arguments:
        index: the index of the record class in the snapshot's list of record classes.
        places: for each item of the tuple, its position in the row, or None if the row lacks it.
            If `places` itself is None, the tuple has the items of the row in their order.
    """

    def __init__(self, index: int, places: list[int | None] | None) -> None:
        super().__init__(index, tuple, 0, frozen=True)
        self._places = places

    def to_row(self, value: Any) -> tuple[Any, ...]:
        """Return the row for a tuple."""
        return tuple(value)

    def from_row(self, row: Sequence[Any]) -> Any:
        """Return the tuple for a row."""
        if self._places is None:
            return tuple(row)
        return tuple(None if place is None else row[place] for place in self._places)

    def from_rows(self, width: int, rows: Any) -> list[Any]:
        """Return the tuples for many rows; the argument `width` is ignored."""
        del width
        return list(map(self.from_row, rows))

"""Write and change the state of one operator in a snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.key_groups import key_group, key_group_range
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.entry_fields import is_bounds
from penstock.runtime.serialization.rekeying import Merge, Rekeying
from penstock.saved.snapshot import SavedSnapshot
from penstock.saved.tables import require
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes, StateMode
from penstock.snapshot.metadata.manifest import OperatorEntry
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import MISSING, KeyedBackend, KeyedTable, run_at_once
from penstock.snapshot.state.operator_state import (
    OperatorStateSnapshot,
    PackedState,
    read_operator_state,
)
from penstock.snapshot.state.table.composite_table import CompositeTable
from penstock.snapshot.storage.job_paths import JobPaths

#: The names of the tables of timers, and the value of their rows, as the runtime has them.
EVENT_TIMERS, PROCESSING_TIMERS = "timers/event-time", "timers/processing-time"
_TIMER = 2
#: The kinds of states with one value for each key, by the word for them.
_SINGLE = {
    kind.value: kind for kind in (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)
}
_INLINE_BYTES = 64 * 1024
#: After this number of writes, the memory is checked.
_WRITES_PER_CHECK = 256


@dataclass(frozen=True)
class WrittenHandle:
    """A handle that was written, with its size and the names of files to link from the source."""

    handle: OperatorHandle
    size: SnapshotBytes
    linked: tuple[str, ...]


class OperatorWriter:
    """Writes the state of one operator. `SnapshotWriter.operator` returns one.

    Values are written as the job has them: tuples, records of the classes that were passed to the
    writer, and so on. Keys decide the key group, so they must be those of the program's `key_by`.

    Arguments:
        entry: the description of the operator.
        handles: the handles of the operator in the snapshot that is edited.
        codec: the codec, which encodes keys and values.
        folder: a temporary folder.
        source: the snapshot that is edited, or None.

    Examples:
        >>> with SnapshotWriter("bootstrap", "visits") as writer:
        ...     visits = writer.operator("visits")
        ...     visits.put_map("pages", "ada", {"/": 3})
        ...     visits.put_list("last", "ada", ["/", "/"])
        ...     visits.add_timer("ada", 1_790_000_000_000)
    """

    def __init__(
        self,
        entry: OperatorEntry,
        handles: Sequence[OperatorHandle],
        codec: Codec,
        folder: Path,
        source: SavedSnapshot | None,
    ) -> None:
        self.entry = entry
        self._handles = list(handles)
        self._codec, self._folder, self._source = codec, folder, source
        self._backends: dict[range, KeyedBackend] = {}
        self._operator_states: dict[str, tuple[StateMode, list[Any]]] = {}
        self._versions: dict[str, int] = {}
        #: The number of times that all state got other keys.
        self._rekeyed = 0
        self._writes = 0

    # --- keyed state ---

    def put(self, state: str, key: Any, value: Any, *, kind: str = "value") -> None:
        """Set the value of a key.

        Arguments:
            state: the name of the state.
            key: the key.
            value: the value; for an aggregating state, its accumulator.
            kind: the kind of the state: `value`, `reducing` or `aggregating`.

        Raises:
            GraphError: if the snapshot has a state of another kind with this name.
        """
        backend = self._backend(key)
        table = self._table(backend, state, _single(kind))
        table.put(key, self._timed(table, value))
        self._written(backend)

    def put_all(self, state: str, pairs: Iterable[tuple[Any, Any]], *, kind: str = "value") -> None:
        """Set the values of many keys, given as pairs; see `put`."""
        for key, value in pairs:
            self.put(state, key, value, kind=kind)

    def put_map(self, state: str, key: Any, entries: Mapping[Any, Any]) -> None:
        """Replace the map of a key. An empty map removes it."""
        self._clear(state, key, StateKind.MAP)
        self.add_to_map(state, key, entries)

    def add_to_map(self, state: str, key: Any, entries: Mapping[Any, Any]) -> None:
        """Set entries in the map of a key, and keep its other entries."""
        backend = self._backend(key)
        table = self._table(backend, state, StateKind.MAP)
        for part, value in entries.items():
            table.put((key, part), self._timed(table, value))
            self._written(backend)

    def put_list(self, state: str, key: Any, values: Iterable[Any]) -> None:
        """Replace the list of a key. An empty list removes it."""
        self._clear(state, key, StateKind.LIST)
        backend = self._backend(key)
        table = self._table(backend, state, StateKind.LIST)
        count = 0
        for count, value in enumerate(values, 1):
            table.put((key, count - 1), self._timed(table, value))
            self._written(backend)
        if count:
            table.put((key, None), (0, count))

    def add_timer(self, key: Any, time_ms: int, *, by_event_time: bool = True) -> None:
        """Register a timer of a process function.

        Arguments:
            key: the key.
            time_ms: the time of the timer, in milliseconds since the epoch.
            by_event_time: whether the timer is due by event time, or else by processing time.
        """
        backend = self._backend(key)
        name = EVENT_TIMERS if by_event_time else PROCESSING_TIMERS
        self._table(backend, name, StateKind.TIMER).put((key, time_ms, None), _TIMER)
        self._written(backend)

    def delete(self, state: str, key: Any) -> None:
        """Remove all that a state has of a key.

        Raises:
            GraphError: if there is no such state.
        """
        self._clear(state, key, self._kind(state))

    def transform(self, state: str, function: Callable[[Any, Any], Any]) -> int:
        """Replace each value of a state by what a function returns, and return their number.

        Arguments:
            state: the name of the state: one value for each key, a map or a list.
            function: takes a key and a value. If it returns None, the value of a key or the entry
                of a map is removed.

        Raises:
            GraphError: if there is no such state, or a list would lose an element.
        """
        kind, count = self._kind(state), 0
        if kind not in (*_SINGLE.values(), StateKind.MAP, StateKind.LIST):
            raise GraphError(f"{state!r} is a {kind.value} state, which cannot be transformed")
        for backend in self._all_backends():
            table = self._table(backend, state, kind)
            entries: list[tuple[Any, Any]] = list(backend.scan(state))
            for entry, stored in entries:
                if is_bounds(kind, entry):
                    continue
                value, used = stored if table.expires else (stored, None)
                new = function(table.key_of(entry), value)
                count += 1
                if new is not None:
                    table.put(entry, (new, used) if table.expires else new)
                elif kind is StateKind.LIST:
                    raise GraphError(f"an element of the list state {state!r} cannot be removed")
                else:
                    table.delete(entry)
                self._written(backend)
        return count

    def rekey(self, new_key: Callable[[Any], Any], merge: Merge | None = None) -> int:
        """Move all keyed state to other keys: values, maps, lists, timers and open windows.

        The program's `key_by` must return the new keys from then on. (Flink cannot change keys.)

        Arguments:
            new_key: takes a key, and returns the new one.
            merge: combines the values of two keys that become one: `merge(state, a, b)` gets the
                name of the state and both values. For aggregating states and windows, these are
                accumulators. Lists are appended without a call, and maps are united; it is called
                for keys that are in both maps.

        Returns:
            The number of values, entries of maps, lists and timers with another key.

        Raises:
            GraphError: if two keys become one and there is no `merge`, or if records in flight to
                the operator have the old keys.

        Examples:
            >>> with SnapshotWriter.edit("job", "edited") as writer:  # doctest: +SKIP
            ...     visits = writer.operator("visits")
            ...     visits.rekey(str.lower, merge=lambda state, a, b: a + b)
        """
        if any(log.records for handle in self._handles for log in handle.logs):
            raise GraphError(
                f"there are records in flight to {self.entry.uid!r}, which have the old keys: "
                f"stop the job with an aligned savepoint, and edit that"
            )
        old = {groups: self._opened(groups) for groups in self._ranges()}
        self._rekeyed += 1
        name = f"rekeyed-{self._rekeyed}"
        self._backends = {groups: self._new_backend(groups, name) for groups in self._ranges()}

        def table_of(key: Any, table: KeyedTable) -> tuple[KeyedTable, KeyedBackend]:
            backend = self._backends[self._range_of(key)]
            made = self._table(backend, table.name, table.kind)
            made.expires, made.version, made.is_late = table.expires, table.version, table.is_late
            return made, backend

        try:
            moved = Rekeying(new_key, merge, table_of).run(old.values())
        except BaseException:
            # The caller may go on with the writer, so the state stays as it was.
            old, self._backends = self._backends, old
            raise
        finally:
            for backend in old.values():
                backend.close()
        return moved

    def load(
        self,
        state: str,
        table: Any,
        *,
        key: str | Sequence[str],
        value: str | Sequence[str],
        as_: Callable[..., Any] | None = None,
        kind: str = "value",
    ) -> int:
        """Set the values of many keys from a table, and return the number of its rows.

        Arguments:
            state: the name of the state.
            table: a data frame of pandas, Polars or Spark, a table of Arrow, or the path of a
                Parquet file or of a folder of them.
            key: the column of the keys, or a list of columns for keys that are tuples.
            value: the column of the values, or a list of columns for values that are tuples.
            as_: makes a value of its columns, for example a record class; by default one column is
                the value itself, and several make a tuple.
            kind: the kind of the state, as for `put`.

        Raises:
            GraphError: if pyarrow is missing, or the table lacks a column.
        """
        count = 0
        for names, columns in _batches(table, [*_names(key), *_names(value)]):
            found = dict(zip(names, columns, strict=True))
            keys = _rows([found[name] for name in _names(key)], isinstance(key, str), None)
            values = _rows([found[name] for name in _names(value)], isinstance(value, str), as_)
            for one, other in zip(keys, values, strict=True):
                self.put(state, one, other, kind=kind)
                count += 1
        return count

    # --- operator state ---

    def put_operator_list(
        self, state: str, elements: Iterable[Any], *, is_union: bool = False
    ) -> None:
        """Replace a list state of the operator.

        Arguments:
            state: the name of the state.
            elements: the elements, which the subtasks of the job share.
            is_union: whether each subtask gets all elements.
        """
        mode = StateMode.UNION if is_union else StateMode.SPLIT
        self._operator_states[state] = mode, list(elements)

    def put_broadcast(self, state: str, entries: Mapping[Any, Any]) -> None:
        """Replace a broadcast state of the operator."""
        self._operator_states[state] = StateMode.BROADCAST, list(entries.items())

    def set_version(self, state: str, version: int) -> None:
        """Declare the version of the values of a state, as its descriptor in the program has it.

        Without this call a new state has version 1, and an edited one the version that it had.

        Arguments:
            state: the name of a state that has been put or transformed.
            version: the version.
        """
        self._versions[state] = version
        for backend in self._all_backends():
            if state in backend.tables.names:
                backend.tables.named(state).version = version

    def drop(self, state: str) -> None:
        """Remove a state with all its entries; the program must not have it any more.

        Raises:
            GraphError: if there is no such keyed state.
        """
        self._kind(state)
        for backend in self._all_backends():
            if state in backend.tables.names:
                backend.drop(state)

    # --- writing ---

    def write(self, paths: JobPaths, number: int, attempt: int) -> Iterator[WrittenHandle]:
        """Write the state, and yield its handles."""
        uid = self.entry.uid
        left = dict(self._backends)
        subtasks: set[int] = set()
        for handle in self._all_handles():
            size, linked = SnapshotBytes(), [file.name for log in handle.logs for file in log.files]
            first = handle.subtask not in subtasks
            subtasks.add(handle.subtask)
            backend = None
            if handle.keyed is not None:
                groups = range(handle.keyed.first_group, handle.keyed.end_group)
                backend = left.pop(groups, None)
                if backend is None:
                    linked += [file.name for file in handle.keyed.files]
            elif first and left:
                backend = left.pop(self._groups(handle.subtask), None)
            if backend is not None:
                target = paths.task(number, uid, handle.subtask, attempt)
                written = run_at_once(backend.capture(number).write(target))
                assert written is not None
                handle = replace(handle, keyed=written[0])
                size += written[1]
            if self._operator_states and first:
                handle, more = self._with_operator_state(handle, paths, number, attempt)
                size += more
            elif handle.operator_state is not None:
                linked += [file.name for file in handle.operator_state.files]
            yield WrittenHandle(handle, size, tuple(linked))

    def _all_handles(self) -> list[OperatorHandle]:
        """Return the handles of the edited snapshot, and one for each subtask without a handle."""
        missing = {*range(self.entry.parallelism)} - {one.subtask for one in self._handles}
        return self._handles + [OperatorHandle(self.entry.uid, one) for one in sorted(missing)]

    def _with_operator_state(
        self, handle: OperatorHandle, paths: JobPaths, number: int, attempt: int
    ) -> tuple[OperatorHandle, SnapshotBytes]:
        states = {}
        if handle.operator_state is not None and self._source is not None:
            found = read_operator_state(handle.operator_state, self._source.path)
            states = {one.name: one for one in found}
        is_first = handle.subtask == 0
        for name, (mode, elements) in self._operator_states.items():
            # A broadcast state has a copy in each subtask. All elements of a list are in one.
            here = elements if is_first or mode is StateMode.BROADCAST else []
            version = self._versions.get(name, states[name].version if name in states else 1)
            states[name] = PackedState(name, mode, self._codec.encode_values(here), version)
        path = paths.operator_state(number, handle.uid, handle.subtask, attempt)
        packed = OperatorStateSnapshot(tuple(states.values()))
        made, size = run_at_once(packed.write(path, _INLINE_BYTES))
        return replace(handle, operator_state=made), size

    def close(self) -> None:
        """Close the state."""
        for backend in self._backends.values():
            backend.close()
        self._backends = {}

    # --- the backends of the subtasks ---

    def _groups(self, subtask: int) -> range:
        return key_group_range(subtask, self.entry.max_parallelism, self.entry.parallelism)

    def _ranges(self) -> list[range]:
        """Return the key groups of each subtask."""
        keyed = [handle.keyed for handle in self._handles if handle.keyed is not None]
        if keyed:
            return [range(one.first_group, one.end_group) for one in keyed]
        return [self._groups(subtask) for subtask in range(self.entry.parallelism)]

    def _backend(self, key: Any) -> KeyedBackend:
        return self._opened(self._range_of(key))

    def _range_of(self, key: Any) -> range:
        """Return the key groups of the subtask that has a key."""
        group = key_group(canonical(key), self.entry.max_parallelism)
        for groups in self._ranges():
            if group in groups:
                return groups
        raise GraphError(f"no subtask of {self.entry.uid!r} has the key group {group}")

    def _all_backends(self) -> list[KeyedBackend]:
        return [self._opened(groups) for groups in self._ranges()]

    def _opened(self, groups: range) -> KeyedBackend:
        if groups not in self._backends:
            backend = self._backends[groups] = self._new_backend(groups)
            for handle in self._handles:
                keyed = handle.keyed
                if keyed is None or self._source is None or keyed.first_group != groups.start:
                    continue
                run_at_once(backend.restore([(self._source.path, keyed)]))
                for index, name in enumerate(keyed.states):
                    # The table of a restored state is in use from now on.
                    self._table(backend, name, keyed.kind(index))
        return self._backends[groups]

    def _new_backend(self, groups: range, name: str = "state") -> KeyedBackend:
        return KeyedBackend(
            folder=self._folder / f"{name}-{groups.start}",
            codec=self._codec,
            canonical=canonical,
            max_parallelism=self.entry.max_parallelism,
            groups=groups,
        )

    def _table(self, backend: KeyedBackend, state: str, kind: StateKind) -> KeyedTable:
        if kind.is_composite:
            return backend.composite_table(state, kind)
        return backend.table(state, kind)

    def _kind(self, state: str) -> StateKind:
        for backend in self._all_backends():
            if state in backend.tables.names:
                return backend.tables.named(state).kind
        names = {name for backend in self._backends.values() for name in backend.tables.names}
        raise GraphError(
            f"the operator {self.entry.uid!r} has no keyed state {state!r}; it has "
            f"{', '.join(sorted(names)) or 'none'}"
        )

    def _clear(self, state: str, key: Any, kind: StateKind) -> None:
        backend = self._backend(key)
        table = self._table(backend, state, kind)
        if isinstance(table, CompositeTable):
            table.clear(key)
        elif table.get(key) is not MISSING:
            table.delete(key)
        self._written(backend)

    @staticmethod
    def _timed(table: KeyedTable, value: Any) -> Any:
        return (value, int(time.time() * 1000)) if table.expires else value

    def _written(self, backend: KeyedBackend) -> None:
        self._writes += 1
        if self._writes % _WRITES_PER_CHECK == 0 and backend.over_memory_limit:
            run_at_once(backend.evict())


def _single(kind: str) -> StateKind:
    if kind not in _SINGLE:
        raise GraphError(f"put writes a state of the kind {', '.join(_SINGLE)}, not {kind!r}")
    return _SINGLE[kind]


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _batches(table: Any, columns: list[str]) -> Iterator[tuple[list[str], list[list[Any]]]]:
    """Yield the batches of a table, each as the names and the values of its columns."""
    pa = require("pyarrow", "columns")
    if isinstance(table, str | Path):
        source = require("pyarrow.dataset", "columns").dataset(str(table), format="parquet")
        names = source.schema.names
    elif isinstance(table, pa.Table):
        source, names = table, table.column_names
    elif hasattr(table, "to_arrow") or hasattr(table, "toArrow"):
        source = table.to_arrow() if hasattr(table, "to_arrow") else table.toArrow()
        names = source.column_names
    elif hasattr(table, "columns"):
        source = pa.Table.from_pandas(table, preserve_index=False)
        names = source.column_names
    else:
        raise GraphError(
            f"a state is loaded from a data frame, a table of Arrow or the path of a Parquet file, "
            f"not from a {type(table).__name__}; pairs of keys and values are for put_all"
        )
    if missing := [name for name in columns if name not in names]:
        raise GraphError(f"the table has no column {missing[0]!r}; it has {', '.join(names)}")
    wanted = list(dict.fromkeys(columns))
    if isinstance(source, pa.Table):
        batches = source.select(wanted).to_batches()
    else:
        batches = source.to_batches(columns=wanted)
    for batch in batches:
        yield wanted, [column.to_pylist() for column in batch.columns]


def _rows(
    columns: list[list[Any]], is_single: bool, make: Callable[..., Any] | None
) -> Iterable[Any]:
    if make is not None:
        return map(make, *columns)
    return columns[0] if is_single else zip(*columns, strict=True)

"""Read a snapshot as data, without the job and without its code.

    with penstock.open_snapshot("words") as snapshot:
        print(snapshot.get("count", "total", "the"))

`SavedSnapshot` opens the state of a subtask when it is first needed. A key is looked up in the
subtask of its key group only. As long as the snapshot is open, a lease keeps the job from removing
it (`penstock/snapshot/storage/leases.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import GraphError, ProtocolError, StoreError
from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.serialization.codec import Codec
from penstock.saved.entries import (
    OPERATOR_KINDS,
    InFlightElement,
    SavedState,
    SourcePosition,
    StateEntry,
    UnknownStateError,
    state_entries,
)
from penstock.saved.keyed_state import KeyedState, Stored, open_keyed_state, undecodable
from penstock.saved.record_classes import PlainRegistry
from penstock.snapshot.metadata.handles import OperatorHandle, StateMode
from penstock.snapshot.metadata.manifest import Manifest, OperatorEntry
from penstock.snapshot.metadata.split_positions import split_position
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state.operator_state import read_operator_state
from penstock.snapshot.storage.decoding import Decoding
from penstock.snapshot.storage.in_flight_log import BATCH, WATERMARK, read_elements
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.leases import Lease
from penstock.snapshot.storage.objects.fetched_snapshots import FetchedFolder, fetch_snapshot
from penstock.snapshot.storage.store import Store

if TYPE_CHECKING:
    import pandas
    import pyarrow

_TIME = struct.Struct(">q")
_VALUES = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)


class SavedSnapshot:
    """A complete snapshot of a job, opened for reading. `open_snapshot` opens one.

    It needs neither the job nor its code. Records of the job's classes are named tuples, and
    members of its enums are members of an enum of the same name, unless the classes are passed.
    Keyed state is opened when it is first read. Close the snapshot, or use it as a context manager.

    Arguments:
        path: a job's checkpoint folder, a snapshot's folder, or the URL of an object store.
        number: the number of the snapshot; None takes the snapshot that `path` names, or else the
            newest one.
        classes: record classes of the job. Their instances are decoded as such.

    Raises:
        StoreError: if there is no such snapshot, if it is damaged, or if a newer version of
            Penstock has written it.

    Examples:
        >>> import penstock
        >>> issubclass(penstock.SavedSnapshot, object)
        True
    """

    def __init__(
        self, path: str | Path, number: int | None = None, classes: Iterable[type] = ()
    ) -> None:
        self._fetched = FetchedFolder(path)
        place = self._fetched.path
        if not place.exists():
            raise StoreError(
                "there is no such folder; give the checkpoint folder of a job, or the folder of "
                "one of its snapshots",
                place,
            )
        self.paths, located = JobPaths.locate(place)
        self._store = Store(self.paths.root)
        self._store.job_name()
        self._keyed: dict[int, KeyedState] = {}
        self.manifest, self._lease = self._pin(located if number is None else number)
        try:
            fetch_snapshot(self.paths, self.manifest.number)
            # The sizes of the files are compared, which is fast. `verify` reads them.
            self._store.verify(self.manifest)
        except BaseException:
            self._lease.release()
            raise
        self.registry = PlainRegistry(self.manifest.types, classes)
        self.codec = Codec(self.registry)
        self._entries = {entry.uid: entry for entry in self.manifest.operators}

    def _pin(self, wanted: int | None) -> tuple[Manifest, Lease]:
        """Return a manifest that was read after the lease of its snapshot was taken."""
        while True:
            number = max(self._store.published(), default=0) if wanted is None else wanted
            lease = Lease(self.paths, number)
            try:
                if wanted is not None:
                    return self._store.load(wanted), lease
                manifest = self._store.newest()
                if manifest is None:
                    raise StoreError("there is no complete snapshot in the folder", self.paths.root)
                if manifest.number == number:
                    return manifest, lease
            except BaseException:
                lease.release()
                raise
            lease.release()  # A newer snapshot was published meanwhile.

    # --- what the snapshot is ---

    @property
    def path(self) -> Path:
        """The folder of the snapshot."""
        return self.paths.snapshot(self.manifest.number)

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.manifest.job

    @property
    def number(self) -> int:
        """The number of the snapshot."""
        return self.manifest.number

    @property
    def kind(self) -> str:
        """The kind of the snapshot: `checkpoint`, `savepoint` or `final`."""
        return self.manifest.kind.value

    @property
    def created(self) -> datetime:
        """The time at which the snapshot was taken, in UTC."""
        return datetime.fromtimestamp(self.manifest.created_ms / 1000, UTC)

    @property
    def operators(self) -> tuple[OperatorEntry, ...]:
        """All operators of the job, with uid, name, kind, parallelism and max_parallelism."""
        return self.manifest.operators

    @property
    def states(self) -> list[SavedState]:
        """All states, in the order of the uids of their operators and of their names."""
        found: dict[tuple[str, str], SavedState] = {}
        for handle in self.manifest.handles:
            if (keyed := handle.keyed) is not None:
                for index, name in enumerate(keyed.states):
                    kind, expires = keyed.kind(index).value, index in keyed.expiring
                    found[handle.uid, name] = SavedState(handle.uid, name, kind, expires)
            if handle.operator_state is not None:
                for one in handle.operator_state.states:
                    kind = OPERATOR_KINDS[one.mode]
                    found[handle.uid, one.name] = SavedState(handle.uid, one.name, kind, False)
        return [found[place] for place in sorted(found)]

    def state(self, operator: str, state: str) -> SavedState:
        """Return the description of a state.

        Raises:
            GraphError: if the snapshot holds no such state. The message lists those that it holds.
        """
        states = self.states
        for one in states:
            if (one.operator, one.name) == (operator, state):
                return one
        self._require(operator, state)
        raise AssertionError(state)

    def _require(self, operator: str | None, state: str | None) -> None:
        names: dict[str, list[str]] = {}
        for one in self.states:
            names.setdefault(one.operator, []).append(one.name)
        there = "; ".join(f"{uid}: {', '.join(some)}" for uid, some in sorted(names.items()))
        problem = None
        if operator is not None and operator not in names:
            problem = f"no state of an operator with the uid {operator!r}"
        elif state is not None and not any(
            state in some for uid, some in names.items() if operator in (None, uid)
        ):
            problem = f"no state {state!r}" + ("" if operator is None else f" of {operator!r}")
        if problem is not None:
            raise UnknownStateError(
                f"snapshot {self.number} holds {problem}; it holds, by uid: {there or 'none'}"
            )

    # --- entries of state ---

    def entries(
        self, operator: str | None = None, state: str | None = None
    ) -> Iterator[StateEntry]:
        """Yield the entries of keyed state and operator state.

        There is an entry for each value, each entry of a map and each element of a list. The
        entries of a keyed state come in the order of their key groups.

        Arguments:
            operator: the uid of the only operator to read; None reads all operators.
            state: the name of the only state to read; None reads all states.

        Raises:
            GraphError: if the snapshot holds no such operator or state.
            StoreError: if a file is missing or damaged.
        """
        self._require(operator, state)
        return self._all_entries(operator, state)

    def _all_entries(self, operator: str | None, state: str | None) -> Iterator[StateEntry]:
        for handle in self._handles(operator):
            if handle.keyed is not None:
                for index, name in enumerate(handle.keyed.states):
                    if state in (None, name):
                        opened = self.keyed_state(handle)
                        yield from self.shown(handle, index, opened.scan(index))
            if handle.operator_state is not None:
                yield from self._operator_entries(handle, state)

    def holds(self, operator: str, state: str) -> bool:
        """Return whether a state of an operator has an entry."""
        return next(self.entries(operator, state), None) is not None

    def find(self, operator: str, state: str, key: Any) -> list[StateEntry]:
        """Return the entries of one key of a keyed state.

        Arguments:
            operator: the uid of the operator.
            state: the name of the state.
            key: the key, as the job has it. A record of one of its classes is given as a tuple.

        Raises:
            GraphError: if the snapshot holds no such keyed state.
            KeyRefusedError: if nothing of this type can be a key.
        """
        self._require_keyed(operator, state)
        group = key_group(canonical(key), self._entries[operator].max_parallelism)
        return [
            entry
            for handle, index in self._places(operator, state)
            if handle.keyed is not None
            and handle.keyed.first_group <= group < handle.keyed.end_group
            for entry in self.shown(handle, index, self.keyed_state(handle).find(index, key))
        ]

    def get(self, operator: str, state: str, key: Any, default: Any = None) -> Any:
        """Return the value of one key of a keyed state.

        A map is returned as a dict, a list as a list, and the contents of windows as a dict by
        window.

        Arguments:
            operator: the uid of the operator.
            state: the name of the state.
            key: the key, as the job has it.
            default: the result if the state has no entry of the key.

        Raises:
            GraphError: if the snapshot holds no such keyed state.
            KeyRefusedError: if nothing of this type can be a key.
        """
        entries = self.find(operator, state, key)
        if not entries:
            return default
        kind = StateKind(entries[0].kind)
        if kind in _VALUES:
            return entries[0].value
        if kind is StateKind.LIST:
            return [entry.value for entry in sorted(entries, key=lambda entry: entry.part)]
        if kind is StateKind.MAP:
            return {entry.part: entry.value for entry in entries}
        return {
            entry.part[0] if len(entry.part) == 1 else tuple(entry.part): entry.value
            for entry in entries
        }

    def prefix(self, operator: str, state: str, prefix: Any) -> Iterator[StateEntry]:
        """Yield the entries of the keys that begin with a prefix.

        Arguments:
            operator: the uid of the operator.
            state: the name of the state.
            prefix: the beginning of a text or of bytes; or a tuple of the first items of a tuple.

        Raises:
            GraphError: if the snapshot holds no such keyed state, or nothing can begin with the
                prefix.
        """
        self._require_keyed(operator, state)
        if not isinstance(prefix, (str, bytes, tuple)):
            raise GraphError(
                f"{prefix!r} is no prefix of a key: give the beginning of a text or of bytes, or a "
                f"tuple of the first items of a tuple"
            )
        return self._prefixed(operator, state, prefix)

    def _prefixed(
        self, operator: str, state: str, prefix: str | bytes | tuple[Any, ...]
    ) -> Iterator[StateEntry]:
        for handle, index in self._places(operator, state):
            opened = self.keyed_state(handle)
            if handle.keyed is not None and not handle.keyed.kind(index).is_composite:
                # The canonical bytes of a text, of bytes and of a tuple begin with those of the
                # prefix.
                found = opened.prefix(index, canonical(prefix))
                yield from self.shown(handle, index, found)
                continue
            for entry in self.shown(handle, index, opened.scan(index)):
                if _begins(entry.key, prefix):
                    yield entry

    def _places(self, operator: str, state: str) -> Iterator[tuple[OperatorHandle, int]]:
        """Yield each subtask that has a keyed state, and the id of the state there."""
        for handle in self._handles(operator):
            if handle.keyed is not None and state in handle.keyed.states:
                yield handle, handle.keyed.states.index(state)

    def _require_keyed(self, operator: str, state: str) -> None:
        self.state(operator, state)
        if not any(self._places(operator, state)):
            raise GraphError(
                f"the state {state!r} of {operator!r} has no keys: it is operator state; read it "
                f"with entries()"
            )

    def _handles(self, operator: str | None) -> list[OperatorHandle]:
        handles = sorted(self.manifest.handles, key=lambda handle: (handle.uid, handle.subtask))
        return [handle for handle in handles if operator in (None, handle.uid)]

    def keyed_state(self, handle: OperatorHandle) -> KeyedState:
        """Return the keyed state of a subtask, which is opened if it is not open yet."""
        place = id(handle)
        if place not in self._keyed:
            if handle.keyed is None:
                raise ProtocolError("a subtask without keyed state was opened")
            groups = self._entries[handle.uid].max_parallelism
            self._keyed[place] = open_keyed_state(handle.keyed, groups, self.codec, self.path)
        return self._keyed[place]

    def close_keyed_state(self, handle: OperatorHandle) -> None:
        """Close the keyed state of a subtask, if it is open."""
        opened = self._keyed.pop(id(handle), None)
        if opened is not None:
            opened.close()

    def shown(
        self, handle: OperatorHandle, index: int, found: Iterable[Stored]
    ) -> Iterator[StateEntry]:
        """Yield the entries of a state of a subtask; the bounds of a list are left out.

        Arguments:
            handle: the handle of the subtask.
            index: the id of the state.
            found: the entries as they are stored.
        """
        keyed = handle.keyed
        assert keyed is not None
        place = handle.uid, keyed.states[index], keyed.kind(index), handle.subtask
        return state_entries(*place, index in keyed.expiring, found)

    def operator_entries(self, operator: str, state: str) -> Iterator[StateEntry]:
        """Yield the elements of an operator state of all subtasks."""
        for handle in self._handles(operator):
            if handle.operator_state is not None:
                yield from self._operator_entries(handle, state)

    def _operator_entries(self, handle: OperatorHandle, state: str | None) -> Iterator[StateEntry]:
        assert handle.operator_state is not None
        for packed in read_operator_state(handle.operator_state, self.path):
            if state not in (None, packed.name):
                continue
            kind = OPERATOR_KINDS[packed.mode]
            try:
                values = self.codec.decode_values(packed.elements)
            except ProtocolError as error:
                raise undecodable("an element of operator state", error, self.path) from error
            for index, value in enumerate(values):
                part: Any = index
                if packed.mode is StateMode.BROADCAST:
                    part, value = value
                yield StateEntry(
                    handle.uid, packed.name, kind, None, part, value, None, None, handle.subtask
                )

    # --- the rest of the snapshot ---

    def sources(self) -> list[SourcePosition]:
        """Return the position of each unfinished split of each source.

        Raises:
            StoreError: if the splits of a source are damaged.
        """
        found: list[SourcePosition] = []
        for handle in self._handles(None):
            if handle.uid in self.manifest.enumerators:
                with Decoding(f"the splits of source {handle.uid!r}", self.path):
                    for split, payload, joined in handle.small or ():
                        place = handle.uid, handle.subtask, split, payload
                        found.append(SourcePosition(*place, *split_position(joined)))
        return found

    def enumerators(self) -> dict[str, Any]:
        """Return, for the uid of each source, the state of its enumerator: splits not yet begun."""
        states: dict[str, Any] = self.manifest.enumerators
        return {
            uid: state["enumerator"] if isinstance(state, dict) and "enumerator" in state else state
            for uid, state in states.items()
        }

    def in_flight(self, operator: str | None = None) -> Iterator[InFlightElement]:
        """Yield the records, watermarks and statuses in the logs of back-edges and channels.

        Arguments:
            operator: the uid of the only receiver; None means all of them.

        Raises:
            StoreError: if a log is missing or damaged.
        """
        for handle in self._handles(operator):
            for log in handle.logs:
                edge = handle.uid, handle.subtask, log.producer, log.source, log.input
                for kind, payload in read_elements(log, self.path):
                    if kind == BATCH:
                        try:
                            batch = self.codec.decode_record_batch(payload)
                        except ProtocolError as error:
                            raise undecodable("a batch in flight", error, self.path) from error
                        rows = batch.rows()
                        for index, record in enumerate(rows):
                            at = None if batch.timestamps is None else batch.timestamps[index]
                            yield InFlightElement(*edge, log.partitioning, "record", record, at)
                    elif kind == WATERMARK:
                        (time,) = _TIME.unpack(payload)
                        yield InFlightElement(*edge, log.partitioning, "watermark", time, None)
                    else:
                        idle = bool(payload[0])
                        yield InFlightElement(*edge, log.partitioning, "status", idle, None)

    def watermarks(self) -> dict[tuple[str, int], int]:
        """Return the watermark of each (uid, subtask) that has one, in milliseconds."""
        return {
            (handle.uid, handle.subtask): handle.event_time.watermark
            for handle in self._handles(None)
            if handle.event_time is not None and handle.event_time.watermark is not None
        }

    # --- as tables ---

    def to_arrow(self, operator: str, state: str) -> pyarrow.Table:
        """Return the entries of a state as a table of Arrow; see `to_pandas`."""
        from penstock.saved.tables import table_of_state

        described = self.state(operator, state)
        return table_of_state(described, self.entries(operator, state))

    def to_pandas(self, operator: str, state: str) -> pandas.DataFrame:
        """Return the entries of a state as a data frame.

        The columns are `key`, `value` and, if the state has them, `part` (the key in a map or the
        index in a list), `window`, and `last_used_ms`. A tuple becomes a struct with the fields
        `f0`, `f1` and so on, and a record a struct with its fields. Values of different types are
        converted to JSON text.

        Arguments:
            operator: the uid of the operator.
            state: the name of the state.

        Raises:
            GraphError: if the snapshot holds no such state, or pyarrow or pandas is missing.
        """
        from penstock.saved.tables import require

        require("pandas", "columns")
        return self.to_arrow(operator, state).to_pandas()

    def sql(self, query: str) -> pyarrow.Table:
        """Return the result of an SQL query over the snapshot, as a table of Arrow.

        DuckDB runs the query. Each state is a table: `"uid"."state"`, or `"state"` if only one
        operator has a state of this name. The tables `operators`, `states`, `sources` and
        `in_flight` describe the snapshot. Only the tables of the query are read.

        Arguments:
            query: the query.

        Raises:
            GraphError: if DuckDB is missing, or refuses the query.
        """
        from penstock.saved.sql import run_query

        return run_query(self, query)

    def verify(self) -> dict[str, int]:
        """Read the whole snapshot: compare all checksums, and decode all entries.

        Returns:
            The numbers of `files`, `bytes` in files, `entries` of state and `records` in flight.

        Raises:
            StoreError: for the first file that is missing or damaged, or that does not decode.
        """
        self._store.verify(self.manifest, checksums=True)
        entries = records = 0
        for handle in self._handles(None):
            if handle.keyed is not None:
                opened = self.keyed_state(handle)
                for index in range(len(handle.keyed.states)):
                    entries += sum(1 for _ in self.shown(handle, index, opened.scan(index)))
                self.close_keyed_state(handle)
            if handle.operator_state is not None:
                entries += sum(1 for _ in self._operator_entries(handle, None))
        records = sum(1 for element in self.in_flight() if element.kind == "record")
        # A file of a loop's queue may hold pieces of several logs.
        files = {file.name: file.size for handle in self.manifest.handles for file in handle.files}
        return {
            "files": len(files),
            "bytes": sum(files.values()),
            "entries": entries,
            "records": records,
        }

    def close(self) -> None:
        """Close the snapshot, and end its lease."""
        while self._keyed:
            self._keyed.popitem()[1].close()
        self._lease.release()
        self._fetched.remove()

    def __enter__(self) -> SavedSnapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<snapshot {self.number} of job {self.job!r}, {self.kind}>"


def _begins(key: Any, prefix: str | bytes | tuple[Any, ...]) -> bool:
    if isinstance(prefix, tuple):
        return isinstance(key, tuple) and key[: len(prefix)] == prefix
    if isinstance(prefix, str):
        return isinstance(key, str) and key.startswith(prefix)
    return isinstance(key, bytes) and key.startswith(prefix)


def open_snapshot(
    path: str | Path, number: int | None = None, *, classes: Iterable[type] = ()
) -> SavedSnapshot:
    """Open a snapshot as data, without the job and without its code.

    The job may be running. A lease keeps it from removing the snapshot until it is closed.

    Arguments:
        path: a job's checkpoint folder, or the folder of a snapshot.
        number: the number of the snapshot; None takes the snapshot that `path` names, or else the
            newest one.
        classes: record classes of the job. Their instances are decoded as such.

    Raises:
        StoreError: if there is no such snapshot, if it is damaged, or if a newer version of
            Penstock has written it.

    Examples:
        >>> open_snapshot("no/such/folder")
        Traceback (most recent call last):
        penstock.dataflow.errors.StoreError: there is no such folder; ... [no/such/folder]
    """
    return SavedSnapshot(path, number, classes)

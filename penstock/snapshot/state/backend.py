"""The keyed state of one subtask of one operator: its tables and their snapshots.

A small state is kept in dicts only. Each snapshot captures the whole state and stores it in its
handle. When the state exceeds `inline_threshold`, the backend opens a database and writes the whole
state to it. From then on a snapshot captures only the changed entries. While all entries fit into
memory, they are written as *blocks*. When the state exceeds the memory budget, it is written again
as *rows*. Rows can be read one by one, so entries may be evicted. The backend never switches back.

Invariants:

* Changes of an interval are written to the database only after the files of the previous checkpoint
  are linked.
* While a database is open, it holds all clean entries.
* Only clean entries are evicted, and only while the database holds rows.
* At most one generator of slow work is in a step off the event loop at a time. Between any two
  steps, the task may capture snapshots and process records.

The backend does not schedule its slow work. The runtime drives it, as `slices.Work` describes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from penstock.dataflow.errors import GraphError, ProtocolError
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state.cold.database import DatabaseEngine, SharedMemory
from penstock.snapshot.state.cold.rows import REMEMBERED_BYTES, RowKeys
from penstock.snapshot.state.eager_flush import EagerFlusher
from penstock.snapshot.state.early_checkpoint import EarlyCheckpoint
from penstock.snapshot.state.engines import default_engine
from penstock.snapshot.state.entries import MISSING, TOMBSTONE, StateCodec
from penstock.snapshot.state.key_kinds import KeyKinds
from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.memory_budget import MemoryBudget
from penstock.snapshot.state.restore import Restorer
from penstock.snapshot.state.settings import DEFAULT_SETTINGS, StateSettings
from penstock.snapshot.state.slices import Slicing, Work, run_at_once
from penstock.snapshot.state.state_snapshot import StateSnapshot, StateSnapshotWriter
from penstock.snapshot.state.table.composite_table import CompositeTable
from penstock.snapshot.state.table.keyed_table import KeyedTable
from penstock.snapshot.state.tables import Tables

_MAX_PRIVATE_CACHE_BYTES = 32 * 1024 * 1024
_MIN_PRIVATE_CACHE_BYTES = 1024 * 1024
_MIN_REMEMBERED_ROWS = 4096
#: The number of restored keys, and of keys of a run, that are compared.
_COMPARED_KEYS = 100
#: The number of entries that are rewritten between two checks of the memory.
_REWRITTEN_ROWS = 1024


class KeyedBackend:
    """The keyed state of one subtask.

    Arguments:
        folder: the local working folder, used by this attempt only. The backend creates the folder
            when it is needed, and does not remove it.
        codec: the codec, which encodes keys and values.
        canonical: a function that returns the canonical bytes of a key. Only equal keys have the
            same bytes.
        max_parallelism: the number of key groups, at most 32768.
        groups: the key groups of this subtask.
        inline_threshold: the largest packed size of a state that is stored in its handle, in
            bytes. If it is 0, a database is used from the first snapshot on, even for an empty
            state.
        memory_budget: the memory for the entries, for the cache of row keys, and for a part of
            `shared`, in bytes. All sizes are estimates. The entries and the cache get at least
            half of it.
        clock: a function that returns a monotonic time in seconds.
        slice_seconds: the longest duration of a slice of work on the event loop.
        shared: the caches and buffers of the process, made by the `memory` of `engine`. If it is
            None, the backend creates its own, with about a quarter of `memory_budget`, but at most
            32 MiB.
        settings: the thresholds of the backend. Tests set smaller ones.
        engine: the kind of database for a state that is not small. The default is RocksDB, or
            SQLite if RocksDB is not installed.
        in_order: whether entries of composite tables and timers of the same time come in the order
            of their bytes, and not in the order in which they were put. This order is the same
            after a restore.
    """

    def __init__(
        self,
        *,
        folder: Path,
        codec: StateCodec,
        canonical: Callable[[object], bytes],
        max_parallelism: int,
        groups: range,
        inline_threshold: int = 64 * 1024,
        memory_budget: int = 256 * 1024 * 1024,
        clock: Callable[[], float] = time.perf_counter,
        slice_seconds: float = 0.002,
        shared: SharedMemory | None = None,
        settings: StateSettings = DEFAULT_SETTINGS,
        engine: DatabaseEngine | None = None,
        in_order: bool = False,
    ) -> None:
        self.groups, self.in_order = groups, in_order
        self._codec = codec
        self.tables = Tables(codec, settings, in_order)
        self.storage = LocalStorage(
            folder,
            codec,
            RowKeys(
                codec,
                canonical,
                max_parallelism,
                max(_MIN_REMEMBERED_ROWS, memory_budget // 8 // REMEMBERED_BYTES),
            ),
            Slicing(clock, slice_seconds, settings.max_slice_entries),
            settings,
            shared,
            max(_MIN_PRIVATE_CACHE_BYTES, min(_MAX_PRIVATE_CACHE_BYTES, memory_budget // 4)),
            lambda: self._last_number,
            engine or default_engine(),
        )
        self.memory = MemoryBudget(memory_budget, self.tables, self.storage)
        self._last_number = -1
        self._key_kinds = KeyKinds(canonical)
        self._early = EarlyCheckpoint(self.storage, settings)
        self._snapshots = StateSnapshotWriter(
            self.tables, self.storage, self._early, groups, inline_threshold
        )
        self._flush = EagerFlusher(self.tables, self.storage, self._snapshots.is_busy)

    @property
    def codec(self) -> StateCodec:
        """The codec of keys and values."""
        return self._codec

    def table(
        self, name: str, kind: StateKind = StateKind.VALUE, aliases: Sequence[str] = ()
    ) -> KeyedTable:
        """Return the table of state `name`, and register it if it is new.

        A restored table keeps its id.

        Arguments:
            name: the name of the state.
            kind: the kind of the state.
            aliases: former names of the state. A restored state with such a name becomes this one.

        Raises:
            GraphError: if there is a state of this name and another kind, or if the restored
                states of two names have entries of the same key.
        """
        for alias in aliases:
            if alias in self.tables.names:
                self._take_over(self.tables.named(alias), name, kind)
        return self.tables.table(name, kind)

    def _take_over(self, former: KeyedTable, name: str, kind: StateKind) -> None:
        """Make a restored state with a former name the state `name`."""
        if former.is_requested:
            return  # the same operator also has a state of its own with this name
        if name not in self.tables.names:
            self.tables.rename(former, name)
            return
        # The snapshot has both. If the state is requested late, only some subtasks of an earlier
        # run may have renamed it. Then the two have different keys.
        entries = list(self.scan(former.name))
        table = self.tables.table(name, kind)
        if not entries:
            return
        keys = {table.key_of(entry) for entry, _ in self.scan(name)}
        if former.form != table.form or any(former.key_of(entry) in keys for entry, _ in entries):
            raise GraphError(
                f"the snapshot has both a state {name!r} and a state {former.name!r}, so the "
                f"latter is not the former name of the first: take it out of the aliases"
            )
        # A snapshot that is not written yet may hold the values of the former table. A value that
        # changes in place must not be in two tables.
        data = self._codec.encode_values([value for _, value in entries])
        for (key, _), encoded in zip(entries, data, strict=True):
            table.put(key, self._codec.decode_value(encoded))
        self.drop(former.name)

    def expect(self, name: str) -> None:
        """Declare that the operator may request a state later than when it is opened.

        If this is not declared, it is unknown whether the program still has a restored state that
        it requests late.
        """
        self.tables.expect(name)

    def end_opening(self) -> tuple[list[KeyedTable], list[KeyedTable]]:
        """Return which restored states are gone, and which states are new.

        Call this when the operator has requested the states that it needs, and before its first
        record. A restored state is gone if it has entries, is not requested, and was not
        requested late by the program that took the snapshot.
        """
        self.tables.end_opening()
        if any(table.is_restored for table in self.tables):
            # Entries are counted, and not keys: one key may have a million of them.
            restored = (
                table.key_of(entry)
                for table in self.tables
                if table.kind is not StateKind.TIMER
                for entry, _ in islice(self.scan(table.name), _COMPARED_KEYS)
            )
            self._key_kinds.note_restored(islice(restored, _COMPARED_KEYS))
        left = [table for table in self.tables if not table.is_requested and not table.is_late]
        gone = [table for table in left if next(self.scan(table.name), None) is not None]
        return gone, [table for table in self.tables if not table.is_restored]

    def _changed_keys(self) -> Iterator[object]:
        """Yield the keys with changes since the last snapshot, in no particular order."""
        for table in self.tables:
            yield from map(table.key_of, table.dirty)

    def drop(self, name: str) -> None:
        """Remove all entries of a state that no operator uses."""
        table = self.tables.named(name)
        # A snapshot that is not written yet needs what the database holds.
        if not self._snapshots.is_busy() and self.storage.cold.remove_table(table, self.groups):
            table.drop_entries()
            return
        for key in [key for key, _ in self.scan(name)]:
            table.delete(key)

    def composite_table(
        self, name: str, kind: StateKind = StateKind.MAP, aliases: Sequence[str] = ()
    ) -> CompositeTable:
        """Return the table of state `name` with composite keys, and register it if it is new.

        A composite key is a tuple `(key, part, ...)`. The key group is that of `key` alone. The
        parts have the types of keys, and identify an entry of this key.

        The arguments and errors are those of `table`.
        """
        table = self.table(name, kind, aliases)
        if not isinstance(table, CompositeTable):
            raise ProtocolError(f"the keys of {kind.value} state {name!r} are not composite")
        return table

    # --- methods that capture and restore snapshots ---

    def capture(self, number: int) -> StateSnapshot:
        """Capture the current state for snapshot `number`.

        Once a database is open, the duration does not depend on the size of the state, except for
        dense tables. A dense table takes about 20 ns for each entry.

        Raises:
            ProtocolError: if `number` is not higher than the numbers of all earlier snapshots.
        """
        if number <= self._last_number:
            raise ProtocolError(f"snapshot {number} is captured after {self._last_number}")
        self._last_number = number
        if self._key_kinds.is_pending:
            self._key_kinds.compare(islice(self._changed_keys(), _COMPARED_KEYS))
        captured = self.tables.capture(whole=not self.storage.is_open)
        self._flush.end_interval(captured)
        self._early.snapshot_captured()
        return self._snapshots.add(number, captured)

    def announce_snapshot(self, number: int, seconds: float, target: Path) -> None:
        """Record that a snapshot is due soon, so that work can be done before its barrier.

        Arguments:
            number: the number of the snapshot. If it was already captured, the call has no effect.
            seconds: the time until the snapshot is due.
            target: the folder for the files of the snapshot; see `StateSnapshot.write`.
        """
        if number <= self._last_number:
            return
        self._flush.announce_snapshot()
        self._early.announce_snapshot(seconds, target)

    def restore(self, handles: Sequence[tuple[Path, KeyedHandle]]) -> Work[None]:
        """Restore the state of the key groups of this subtask from a snapshot.

        Arguments:
            handles: handles that together cover these key groups. Each handle comes with the folder
                of its snapshot, which is only read.

        Raises:
            ProtocolError: if the backend has been used before.
            StoreError: if a file is missing or cannot be read.
        """
        if self.tables or self.storage.is_open or self._last_number >= 0:
            raise ProtocolError("a backend was restored after it had been used")
        yield from Restorer(self.tables, self.storage, self.groups).restore(handles)

    # --- methods for work between snapshots ---

    @property
    def wants_eager_flush(self) -> bool:
        """Whether `flush_eagerly` would write entries now."""
        return self._flush.wanted

    def flush_eagerly(self) -> Work[None]:
        """Write the oldest dirty entries before the next snapshot.

        The generator yields only None, and the caller may abandon it at any step. It ends when few
        dirty entries are left, when a snapshot was captured, or if no database is open.
        """
        return self._flush.run()

    @property
    def wants_preparation(self) -> bool:
        """Whether it is time to call `prepare_checkpoint` for an announced snapshot."""
        return not self._snapshots.is_busy() and self._early.is_due

    def prepare_checkpoint(self) -> Work[None]:
        """Make most of the checkpoint of the announced snapshot.

        The caller must drive the generator to its end.
        """
        return self._early.prepare()

    @property
    def wants_checksums(self) -> bool:
        """Whether there may be a table file whose checksum is not computed yet."""
        return not self._snapshots.is_busy() and self.storage.wants_checksums

    def compute_checksum(self) -> Work[bool]:
        """Compute the checksum of one table file before the next snapshot needs it.

        The caller must drive the generator to its end. It returns False if all checksums are known.
        """
        return self.storage.compute_checksum()

    @property
    def over_memory_limit(self) -> bool:
        """Whether the memory budget is exceeded. Read it once for each batch of records.

        If the budget is exceeded, the task must stop processing records. It first drives the
        `write` generators of pending snapshots to their end, and then the generator of `evict`.
        """
        return self.memory.check()

    def evict(self) -> Work[None]:
        """Evict entries until they take three quarters of their limit.

        The generator ends early when a snapshot is captured, since the snapshot must be written
        first.
        """
        return self.memory.evict(self._snapshots.is_busy)

    def close(self) -> None:
        """Close the database, which is slow. No generator may be in a step off the event loop."""
        self.storage.close()

    # --- methods for all entries ---

    def rewrite(self, table: KeyedTable, convert: Callable[[object, object], object]) -> None:
        """Replace each value of a restored table, before the operator's first record.

        The entries stay within the memory budget. The steps off the event loop block it.

        Arguments:
            table: the table.
            convert: returns the new value of an entry, from its key and its value. `MISSING`
                deletes the entry.
        """

        def replace(key: object, value: object) -> None:
            new = convert(key, value)
            if new is MISSING:
                table.delete(key)
            else:
                table.put(key, new)

        loaded = {*table.clean, *table.dirty}
        cursor: bytes | None = b"" if table.has_cold else None
        while cursor is not None:
            page, cursor = self.cold_page(table, cursor, _REWRITTEN_ROWS)
            for key, value in page:
                # Rows behind the cursor are not read again, so evicting new values is safe.
                if key not in loaded:
                    replace(key, value)
            run_at_once(self.evict())
        for count, key in enumerate(loaded):
            value = table.get(key)
            if value is not MISSING:
                replace(key, value)
            if count % _REWRITTEN_ROWS == 0:
                run_at_once(self.evict())

    def clear(self) -> None:
        """Remove all entries of all states."""
        for name in self.tables.names:
            self.drop(name)

    def scan(self, state: str) -> Iterator[tuple[object, object]]:
        """Return an iterator over the current entries of a state, in no particular order.

        The caller must not change the values.
        """
        if state not in self.tables.names:
            return iter(())
        table = self.tables.named(state)
        hot = dict(table.clean)
        for entries in (*table.captured, table.dirty):
            hot.update(entries)
        cold = self.storage.cold.cold_entries(table.table_id, self.groups, hot)
        return _chain(hot, cold)

    def cold_page(
        self, table: KeyedTable, cursor: bytes, limit: int
    ) -> tuple[list[tuple[object, object]], bytes | None]:
        """Return some entries of a table that are rows in the database, even if they have changed.

        Arguments:
            table: the table.
            cursor: the cursor that the call before returned; empty for the first page.
            limit: the largest number of entries.

        Returns:
            The entries as keys and values; and the cursor, or None behind the last page.
        """
        return self.storage.cold.page(table, self.groups, cursor, limit)

    def keys(self, state: str | None = None) -> Iterator[object]:
        """Yield each key that has an entry in a state, once and in no particular order.

        Timers do not count as state.

        Arguments:
            state: the name of the state. None means any state.
        """
        seen: set[object] = set()
        tables = [
            table
            for table in self.tables
            if table.kind is not StateKind.TIMER and state in (None, table.name)
        ]
        for table in tables:
            for entry, _ in self.scan(table.name):
                key = table.key_of(entry)
                if len(tables) > 1 or table.is_composite:
                    if key in seen:
                        continue
                    seen.add(key)
                yield key


def _chain(
    hot: dict[object, object], cold: Iterator[tuple[object, object]]
) -> Iterator[tuple[object, object]]:
    for key, value in hot.items():
        if value is not TOMBSTONE:
            yield key, value
    yield from cold

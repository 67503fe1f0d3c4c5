"""The keyed state of one subtask of one operator: its tables and their snapshots.

A small state is in dicts only, is captured as a whole at each barrier, and travels in the handle.
When it exceeds `inline_threshold`, RocksDB is opened and the whole state is written to it. From
then on a snapshot captures what changed. As long as all of it is in memory it is written as
*blocks*. When it exceeds the memory budget it is written again as *rows*, which can be read one by
one, so that entries may be evicted. It does not switch back.

Invariants:

* An epoch enters RocksDB only after the checkpoint of the one before is linked.
* While RocksDB is open, it holds all clean entries.
* Only clean entries are evicted, and only while RocksDB holds rows.
* At most one generator of slow work is in an off-loop step at a time. Snapshots may be captured,
  and records processed, between any two steps.

Nothing here schedules work: the runtime drives it, as `slices.Work` describes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.state.entries import TOMBSTONE, StateCodec
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.local_storage import CreateDatabase, LocalStorage
from penstock.snapshot.state.memory_budget import MemoryBudget
from penstock.snapshot.state.preparation.eager_flush import EagerFlusher
from penstock.snapshot.state.preparation.early_checkpoint import EarlyCheckpoint
from penstock.snapshot.state.restore import Restorer
from penstock.snapshot.state.rocksdb.database import RocksDatabase
from penstock.snapshot.state.rocksdb.options import SharedMemory
from penstock.snapshot.state.rocksdb.rows import REMEMBERED_BYTES, RowKeys
from penstock.snapshot.state.settings import DEFAULT_SETTINGS, StateSettings
from penstock.snapshot.state.slices import Slicing, Work
from penstock.snapshot.state.state_snapshot import SnapshotWriter, StateSnapshot
from penstock.snapshot.state.tables import Tables

__all__ = ["KeyedBackend"]

_MAX_PRIVATE_CACHE_BYTES = 32 * 1024 * 1024
_MIN_PRIVATE_CACHE_BYTES = 1024 * 1024
_MIN_REMEMBERED_ROWS = 4096


class KeyedBackend:
    """The keyed state of one subtask.

    Arguments:
        folder: local working folder, of this attempt alone; made when it is needed, left when
            closed.
        codec: encodes keys and values.
        canonical: canonical bytes of a key, equal exactly for equal keys.
        max_parallelism: number of key groups, at most 32768.
        groups: the key groups of this subtask.
        inline_threshold: largest packed size of a state that travels in its handle, in bytes. 0
            for RocksDB from the first snapshot on, even when empty.
        memory_budget: bytes for entries in memory, remembered keys, and the share of `shared`; an
            estimate. At least half of it is left to entries.
        clock: seconds, monotonic.
        slice_seconds: the longest slice of work on the event loop.
        shared: block cache and write buffers; None for its own, a quarter of the budget.
        settings: thresholds; tests set smaller ones.
        create_database: makes an empty database in a folder.
    """

    def __init__(
        self,
        *,
        folder: Path,
        codec: StateCodec,
        canonical: Callable[[Any], bytes],
        max_parallelism: int,
        groups: range,
        inline_threshold: int = 64 * 1024,
        memory_budget: int = 256 * 1024 * 1024,
        clock: Callable[[], float] = time.perf_counter,
        slice_seconds: float = 0.002,
        shared: SharedMemory | None = None,
        settings: StateSettings = DEFAULT_SETTINGS,
        create_database: CreateDatabase = RocksDatabase.create,
    ) -> None:
        self.groups = groups
        self.tables = Tables(codec, settings)
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
            create_database,
        )
        self.memory = MemoryBudget(memory_budget, self.tables, self.storage)
        self._last_number = -1
        self._early = EarlyCheckpoint(self.storage, settings)
        self._snapshots = SnapshotWriter(
            self.tables, self.storage, self._early, groups, inline_threshold
        )
        self._flush = EagerFlusher(self.tables, self.storage, self._snapshots.is_busy)

    def table(self, name: str) -> KeyedTable:
        """Return the state `name`, registered if it is new; a restored one keeps its id."""
        return self.tables.table(name)

    # --- snapshots ---

    def capture(self, number: int) -> StateSnapshot:
        """Capture the state as it is for snapshot `number`.

        Takes no time that depends on the size of the state once RocksDB is open, except for dense
        tables, which take 20 ns an entry.

        Raises:
            ProtocolError: if `number` isn't higher than all before.
        """
        if number <= self._last_number:
            raise ProtocolError(f"snapshot {number} is captured after {self._last_number}")
        self._last_number = number
        captured = self.tables.capture(whole=not self.storage.is_open)
        self._flush.end_interval(captured)
        self._early.snapshot_captured()
        return self._snapshots.add(number, captured)

    def announce_snapshot(self, number: int, seconds: float, target: Path) -> None:
        """Prepare for a snapshot that is due soon.

        Arguments:
            number: of the snapshot; ignored if it was captured already.
            seconds: time until it is due.
            target: folder for its files; see `StateSnapshot.write`.
        """
        if number <= self._last_number:
            return
        self._flush.announce_snapshot()
        self._early.announce_snapshot(seconds, target)

    def restore(self, handles: Sequence[tuple[Path, KeyedHandle]]) -> Work[None]:
        """Restore the state that a snapshot holds for the key groups of this subtask.

        Arguments:
            handles: handles that together cover them, each with the snapshot's folder. Those
                folders are only read.

        Raises:
            ProtocolError: if the backend is not new.
            StoreError: if a file is missing or can't be read.
        """
        if self.tables or self.storage.is_open or self._last_number >= 0:
            raise ProtocolError("a backend was restored after it had been used")
        yield from Restorer(self.tables, self.storage, self.groups).restore(handles)

    # --- background work ---

    @property
    def wants_eager_flush(self) -> bool:
        """Whether `flush_eagerly` would write something now."""
        return self._flush.wanted

    def flush_eagerly(self) -> Work[None]:
        """Write the oldest dirty entries before the next snapshot; yields None only.

        May be given up at any step. Ends by itself when little is left, when a snapshot was
        captured, or while RocksDB isn't open.
        """
        return self._flush.run()

    @property
    def wants_preparation(self) -> bool:
        """Whether it is time for `prepare_checkpoint`."""
        return not self._snapshots.is_busy() and self._early.is_due

    def prepare_checkpoint(self) -> Work[None]:
        """Make most of the checkpoint of the announced snapshot; to be driven to its end."""
        return self._early.prepare()

    @property
    def wants_checksums(self) -> bool:
        """Whether `compute_checksum` may have something to do now."""
        return not self._snapshots.is_busy() and self.storage.wants_checksums

    def compute_checksum(self) -> Work[bool]:
        """Compute the checksum of one table file before the next snapshot needs it.

        To be driven to its end. Returns False if there was none to compute.
        """
        return self.storage.compute_checksum()

    @property
    def over_memory_limit(self) -> bool:
        """Whether to process no more records until entries are evicted; read it for each batch.

        Pending snapshots are driven to their end first, then `evict`.
        """
        return self.memory.check()

    def evict(self) -> Work[None]:
        """Bring memory back to three quarters of the budget.

        Ends early when a snapshot is captured, which must be written first.
        """
        return self.memory.evict(self._snapshots.is_busy)

    def close(self) -> None:
        """Close RocksDB; slow. No generator may be in an off-loop step."""
        self.storage.close()

    # --- reading ---

    def scan(self, state: str) -> Iterator[tuple[Any, Any]]:
        """Return all entries of a state as they are now, in no order; do not change values."""
        table = self.table(state)
        hot = dict(table.clean)
        for entries in (*table.captured, table.dirty):
            hot.update(entries)
        cold = self.storage.cold.cold_entries(table.table_id, self.groups, hot)
        return _chain(hot, cold)

    def keys(self) -> Iterator[Any]:
        """Yield every key that has an entry in some state, once, as it is now, in no order."""
        seen: set[Any] = set()
        names = self.tables.names
        for name in names:
            for key, _ in self.scan(name):
                if len(names) > 1:
                    if key in seen:
                        continue
                    seen.add(key)
                yield key


def _chain(hot: dict[Any, Any], cold: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    for key, value in hot.items():
        if value is not TOMBSTONE:
            yield key, value
    yield from cold

"""The keyed state of one subtask of one operator.

A small state lies in dicts only, is captured whole at each barrier and travels in the handle.
When it outgrows `inline_threshold` RocksDB is opened, the whole state is captured into it, and
from then on a capture takes what changed. As long as all of it is hot it is written as *blocks*
(`blocks.py`). When it outgrows the memory budget it is written anew as *rows* (`rows.py`), which
can be looked up, and entries may be evicted. It does not switch back.

Invariants: an epoch enters RocksDB only after the checkpoint of the one before is linked. While
RocksDB is open, a clean entry is in it. Only clean entries are evicted, and only from rows. At
most one generator of slow work is amid an off-loop step at a time; captures may be taken, and
records processed, between any two steps.

This module does no scheduling: see `values.Work`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.state.dense_table import Positions
from penstock.snapshot.state.eager_flush import EagerFlushPolicy
from penstock.snapshot.state.entries import (
    MAX_SLICE_ENTRIES,
    MISSING,
    TOMBSTONE,
    SliceTimer,
    ValueCodec,
    Work,
    encode_entries,
)
from penstock.snapshot.state.keyed_table import SAMPLE_ENTRIES, KeyedTable
from penstock.snapshot.state.restore import restore_into
from penstock.snapshot.state.rocksdb.blocks import Blocks
from penstock.snapshot.state.rocksdb.checkpoint import CheckpointFiles
from penstock.snapshot.state.rocksdb.database import (
    CHECKSUM_BYTES,
    RocksStore,
    SharedMemory,
    new_batch,
)
from penstock.snapshot.state.rocksdb.rows import (
    REMEMBERED_BYTES,
    ROW_PREFIX,
    RowKeys,
    original_key,
    value_offset,
)
from penstock.snapshot.state.state_snapshot import StateSnapshot

__all__ = ["KeyedBackend"]

# With fewer dirty entries than this, writing ahead would save less than a millisecond or two.
EAGER_FLUSH_ENTRIES = 1024
#: A checkpoint is begun, or what was written ahead is flushed, so long before its snapshot is due,
#: and 1.5 times what it takes: blocks are written ahead again between that and the barrier, and
#: the log has room for them.
AHEAD_SECONDS = 0.02
#: What it takes, until that is known.
AHEAD_TAKES_SECONDS = 0.02
#: The first if it is likely that no more has to be written afterwards: a log has to be read when
#: the snapshot is restored, and RocksDB keeps one only until a buffer is full. The second if there
#: is so much to flush.
MAX_LOG_BYTES, FLUSH_AHEAD_BYTES = 768 * 1024, 64 * 1024
#: A batch has rarely more entries, and an operator rarely more than one for each record of it.
BATCH_ENTRIES = 4096
MOST_UNWATCHED = 64
MAX_PRIVATE_CACHE_BYTES = 32 * 1024 * 1024
MIN_PRIVATE_CACHE_BYTES = 1024 * 1024


class KeyedBackend:
    """The keyed state of one subtask.

    Arguments:
        folder: local working folder, of this attempt alone; made when it is needed, left when
            closed.
        codec: for keys and values.
        canonical: canonical bytes of a key, equal exactly for equal keys.
        max_parallelism: how many key groups there are, at most 32768.
        groups: the key groups of this subtask.
        inline_threshold: largest packed size in bytes of a state that travels in its handle; 0
            for RocksDB from the first capture on, even when empty.
        memory_budget: bytes for hot entries, remembered keys, and the share of `shared`; an
            estimate. At least half of it is left to hot entries.
        clock: seconds, monotonic.
        slice_seconds: how long a slice of work on the event loop may be.
        shared: block cache and write buffers; its own if None, a quarter of the budget.
    """

    def __init__(
        self,
        *,
        folder: Path,
        codec: ValueCodec,
        canonical: Callable[[Any], bytes],
        max_parallelism: int,
        groups: range,
        inline_threshold: int = 64 * 1024,
        memory_budget: int = 256 * 1024 * 1024,
        clock: Callable[[], float] = time.perf_counter,
        slice_seconds: float = 0.002,
        shared: SharedMemory | None = None,
    ) -> None:
        self.folder = folder
        self.codec = codec
        self.groups = groups
        self.inline_threshold = inline_threshold
        self.memory_budget = memory_budget
        self.tables: list[KeyedTable] = []
        self.captures: deque[StateSnapshot] = deque()
        self.store: RocksStore | None = None
        # None: there is no RocksDB, or it holds rows.
        self.blocks: Blocks | None = None
        self.files = CheckpointFiles(folder / "upload")
        self.row_keys = RowKeys(
            codec, canonical, max_parallelism, max(4096, memory_budget // 8 // REMEMBERED_BYTES)
        )
        self._shared = shared
        self._joined = False
        self._clock = clock
        self._slice_seconds = slice_seconds
        self._last_number = -1
        self._offloading = False
        # Whether an entry may be in RocksDB only.
        self.cold_possible = False
        self._policy = EagerFlushPolicy()
        # When to do what can be done ahead of a snapshot that was announced, and its folder.
        self._ahead: tuple[float, Path] | None = None
        self._ahead_takes = AHEAD_TAKES_SECONDS
        # Whether that was done, and how much was written between then and the snapshot's end.
        self._came_ahead = False
        self._late_bytes = 0
        # So often `over_memory_limit` need not look.
        self._calm = 0

    def table(self, name: str) -> KeyedTable:
        """The state `name`, registered if it is new; a restored one keeps its id."""
        for table in self.tables:
            if table.name == name:
                return table
        table = KeyedTable(name, len(self.tables), self.codec)
        table.cold = self if self.cold_possible else None
        self.tables.append(table)
        return table

    # --- snapshots ---

    def capture(self, number: int) -> StateSnapshot:
        """Takes the state as it is for snapshot `number`.

        At once when RocksDB is open, but for tables by position, which take 20 ns an entry.

        Raises:
            ProtocolError: if `number` isn't higher than all before.
        """
        if number <= self._last_number:
            raise ProtocolError(f"snapshot {number} is captured after {self._last_number}")
        self._last_number = number
        whole = self.store is None
        maps, lists, turnover = [], [], set()
        for table in self.tables:
            had_levels = table.positions is None
            if self.blocks is not None:
                self.blocks.end_positions(table)
            if table.positions is not None:
                lists.append((table, table.positions, table.positions.capture(table.dirty)))
                continue
            if entries := table.seal(whole=whole):
                maps.append((table, entries))
                if had_levels and not whole:
                    turnover.add(table)
        self._policy.captured(_written_again(maps, lists))
        self._ahead = None
        capture = StateSnapshot(self, number, maps, lists, turnover)
        self.captures.append(capture)
        return capture

    @property
    def wants_eager_flush(self) -> bool:
        """Whether `flush_eagerly` would write something now."""
        return self._may_flush_eagerly() and (self._passing() is not None or self._many_dirty())

    def _may_flush_eagerly(self) -> bool:
        return self.store is not None and not self.captures and self._policy.allowed

    def _many_dirty(self) -> bool:
        return sum(len(table.dirty) for table in self._with_levels()) > EAGER_FLUSH_ENTRIES

    def flush_eagerly(self) -> Work[None]:
        """Writes the oldest dirty entries ahead, while the task is idle; yields None only.

        So that the next snapshot finds most of them written. May be given up at any step; ends by
        itself when little is left, when a capture was taken, or while RocksDB isn't open.
        """
        passing = self._passing()
        if passing is not None and self._may_flush_eagerly():
            yield from self._flush_blocks_eagerly(*passing)
        while self._may_flush_eagerly() and self._many_dirty():
            table = max(self._with_levels(), key=lambda table: len(table.dirty))
            if not self._policy.may_write(table.table_id, next(iter(table.dirty))):
                return
            self._policy.wrote(table.table_id, self._move_slice(table))
            yield None

    def announce_snapshot(self, number: int, seconds: float, target: Path) -> None:
        """A snapshot is due in so many seconds. What is written ahead now is judged by itself.

        Arguments:
            number: of the snapshot; its barrier may have been here before.
            seconds: from now.
            target: as of `StateSnapshot.write`.
        """
        if number <= self._last_number:
            return
        self._policy.prepare()
        for table in self.tables:
            if table.positions is not None:
                table.positions.look_again()
        lead = AHEAD_SECONDS + 1.5 * self._ahead_takes
        self._ahead = self._clock() + seconds - lead, target

    @property
    def wants_preparation(self) -> bool:
        """Whether it is time for `prepare_checkpoint`."""
        return (
            self._ahead is not None
            and self.store is not None
            and not self.captures
            and self._clock() >= self._ahead[0]
            and (self._begins_checkpoint() or self.store.unflushed_bytes >= FLUSH_AHEAD_BYTES)
        )

    def _begins_checkpoint(self) -> bool:
        return self._late_bytes <= MAX_LOG_BYTES

    def prepare_checkpoint(self) -> Work[None]:
        """Makes most of the checkpoint of the snapshot that was announced.

        To be driven to its end. If little changes until the snapshot, it adds a log of that; if
        that is not to be expected, there is at least less left to flush.
        """
        ahead, self._ahead = self._ahead, None
        if self.store is None or ahead is None:
            return
        self._came_ahead, began = True, self._clock()
        if self._begins_checkpoint():
            yield from self.offload(partial(self.files.begin, self.store, ahead[1]))
        else:
            yield from self.offload(self.store.flush)
        self._ahead_takes += (self._clock() - began - self._ahead_takes) / 4

    @property
    def wants_checksums(self) -> bool:
        """Whether `compute_checksum` may have something to do now."""
        return (
            self.store is not None
            and not self.captures
            and self.store.written_bytes >= CHECKSUM_BYTES
        )

    def compute_checksum(self) -> Work[bool]:
        """Computes the checksum of a table file ahead of the next snapshot; False if there is none.

        To be driven to its end, which is soon.
        """
        if self.store is None:
            return False
        summed = yield from self.offload(partial(self.files.compute_checksum, self.store))
        return bool(summed)

    def _passing(self) -> tuple[KeyedTable, Positions] | None:
        """A table with one level, of which blocks may be written ahead now."""
        for table in self.tables:
            if table.positions is not None and table.positions.may_pass(self._clock()):
                return table, table.positions
        return None

    def _flush_blocks_eagerly(self, table: KeyedTable, positions: Positions) -> Work[None]:
        assert self.blocks is not None
        for block in positions.settled(table.dirty, self._clock()):
            if block is not None:
                begin, values = block
                self.blocks.write_block(table, positions, begin, values)
                self._policy.wrote(table.table_id, [begin])
            # A record that comes now should not wait for a second one.
            yield None
            if self.captures:
                return
        yield None

    def restore(self, handles: Sequence[tuple[Path, KeyedHandle]]) -> Work[None]:
        """Takes over the state that a snapshot holds for the key groups of this subtask.

        Arguments:
            handles: handles that together cover them, each with the snapshot's folder. Those
                folders are only read.

        Raises:
            ProtocolError: if the backend is not new.
            StoreError: if a file is missing or can't be read.
        """
        if self.tables or self.store is not None or self._last_number >= 0:
            raise ProtocolError("a backend was restored after it had been used")
        yield from restore_into(self, handles)

    # --- reading ---

    def read(self, table_id: int, key: Any) -> Any:
        """The value of `key` in RocksDB, or `MISSING`; tables ask this."""
        assert self.store is not None
        data = self.store.get(self.row_keys.row_key(table_id, key))
        return MISSING if data is None else self.codec.decode_value(data[value_offset(data) :])

    def scan(self, state: str) -> Iterator[tuple[Any, Any]]:
        """All entries of a state as they are now, in no order; values must not be changed."""
        table = self.table(state)
        hot = dict(table.clean)
        for entries in (*table.captured, table.dirty):
            hot.update(entries)
        rows = []
        if self.cold_possible and self.store is not None:
            for group in self.groups:
                rows.append(self.store.rows_of(ROW_PREFIX.pack(group, table.table_id)))
        return self._scan(hot, rows)

    def keys(self) -> Iterator[Any]:
        """Every key that has an entry in some state, once, as it is now, in no order."""
        seen: set[Any] = set()
        names = [table.name for table in self.tables]
        for name in names:
            for key, _ in self.scan(name):
                if len(names) > 1:
                    if key in seen:
                        continue
                    seen.add(key)
                yield key

    def _scan(
        self, hot: dict[Any, Any], rows: list[Iterator[tuple[bytes, bytes]]]
    ) -> Iterator[tuple[Any, Any]]:
        for key, value in hot.items():
            if value is not TOMBSTONE:
                yield key, value
        decode = self.codec.decode_value
        for group in rows:
            for row_key, data in group:
                key = decode(original_key(row_key, data))
                if key not in hot:
                    yield key, decode(data[value_offset(data) :])

    # --- memory ---

    def hot_bytes(self) -> int:
        """An estimate of the memory that hot entries and remembered keys take, in bytes."""
        total = self.row_keys.memory_bytes()
        for table in self.tables:
            total += table.hot_bytes()
        return total

    def hot_budget(self) -> int:
        """The part of the budget that they may take, in bytes."""
        share = 0 if self._shared is None else self._shared.share_bytes()
        return max(self.memory_budget // 2, self.memory_budget - share)

    def over_budget(self) -> bool:
        """Whether they take more."""
        return self.hot_bytes() > self.hot_budget()

    @property
    def over_memory_limit(self) -> bool:
        """Whether to process no more records until entries are evicted; to be asked at each batch.

        Captures that are pending are driven to their end first, then `evict`.
        """
        if self._calm:
            self._calm -= 1
            return False
        room = self.hot_budget() - self.hot_bytes()
        if room < 0:
            return True
        # Looking costs as much as a record. So many batches can't fill what there is room for.
        entry = max((table.entry_bytes() for table in self.tables), default=1)
        self._calm = min(MOST_UNWATCHED, int(room / (BATCH_ENTRIES * entry)))
        return False

    def evict(self) -> Work[None]:
        """Brings memory back within three quarters of the budget.

        Evicts clean entries; when those are gone, writes dirty ones and evicts them. Ends early
        when a capture is taken, which must be written first.
        """
        if not self.over_budget() or self.captures:
            return
        if not self.cold_possible:
            # Before, so that a capture that is taken meanwhile takes everything.
            self.nothing_is_clean()
            yield from self.open_rows()
            self.enable_cold()
        timer = self.timer()
        while not self.captures and self.hot_bytes() > self.hot_budget() * 3 // 4:
            largest = max(self.tables, key=lambda table: len(table.clean))
            evicted = largest.evict(MAX_SLICE_ENTRIES // 16)
            if not evicted:
                dirtiest = max(self.tables, key=lambda table: len(table.dirty))
                if not self._move_slice(dirtiest):
                    self.row_keys.forget()
                    return
                evicted = MAX_SLICE_ENTRIES
            if timer.is_over(evicted):
                yield None
                timer.restart()

    def close(self) -> None:
        """Closes RocksDB; slow, and nothing may be at work."""
        if self.store is not None:
            self.store.close()
            self.store = None
        if self._joined and self._shared is not None:
            self._shared.users -= 1
            self._joined = False

    def _with_levels(self) -> list[KeyedTable]:
        return [table for table in self.tables if table.positions is None]

    # --- for the other modules of this package ---

    def timer(self) -> SliceTimer:
        """A timer whose first slice begins now."""
        return SliceTimer(self._clock, self._slice_seconds)

    def offload(self, work: Callable[[], Any]) -> Work[Any]:
        """Has `work` run off the loop and returns its result."""
        if self._offloading:
            raise ProtocolError("two generators of a state backend are driven at the same time")
        self._offloading = True
        try:
            return (yield work)
        finally:
            self._offloading = False

    def written_ahead(self, table: KeyedTable) -> Container[Any]:
        """The keys of a table that were written ahead of the newest capture."""
        return self._policy.written_before(table.table_id)

    def count_lasting(self, table: KeyedTable, entries: Container[Any]) -> int:
        """About how many of those are not in the capture, of which these are the entries."""
        return self._policy.count_lasting(table.table_id, entries)

    def newest_capture(self) -> int:
        """The highest number of a capture that was taken."""
        return self._last_number

    def capture_written(self) -> None:
        """The entries of a capture are in RocksDB."""
        if self.store is not None:
            written = self.store.unflushed_bytes
            # If that was not done, it would not have been more.
            self._late_bytes = written if self._came_ahead else min(self._late_bytes, written)
        self._came_ahead = False
        self._policy.forget()
        if self.blocks is not None:
            self.blocks.end_interval()

    def shared_memory(self) -> SharedMemory:
        """The block cache and write buffers, made or joined with the first RocksDB."""
        if self._shared is None:
            capacity = min(MAX_PRIVATE_CACHE_BYTES, self.memory_budget // 4)
            self._shared = SharedMemory(max(MIN_PRIVATE_CACHE_BYTES, capacity))
        if not self._joined:
            self._joined = True
            self._shared.users += 1
        return self._shared

    def open_blocks(self) -> Work[None]:
        """Opens an empty RocksDB for blocks."""
        create = partial(RocksStore.create, self.folder / "db", self.shared_memory())
        self.store = yield from self.offload(create)
        self.blocks = Blocks(self.store, self.codec, self.newest_capture)

    def open_rows(self) -> Work[None]:
        """Opens an empty RocksDB for rows, in place of one for blocks if there is one."""
        old, shared = self.store, self.shared_memory()

        def replace() -> RocksStore:
            if old is not None:
                self.files.give_up(old)
                old.close()
            return RocksStore.create(self.folder / "db", shared)

        self.store = yield from self.offload(replace)
        # Names of files began anew, so that what is known of them by name is not to be trusted.
        self.files = CheckpointFiles(self.folder / "upload")
        self.blocks = None

    def nothing_is_clean(self) -> None:
        """All hot entries are yet to be written into the RocksDB that is open now."""
        for table in self.tables:
            table.dirty, table.clean = {**table.clean, **table.dirty}, {}
            table.positions, table.turned_over = None, False

    def chunk_entries(self, table: KeyedTable) -> int:
        """How many entries of a table to write at once."""
        return table.chunk_entries() if self.blocks is None else table.block_entries()

    def enable_cold(self) -> None:
        """From now on an entry may be in RocksDB only."""
        if not self.cold_possible:
            self.cold_possible = True
            for table in self.tables:
                table.cold = self

    def write_entries(self, table: KeyedTable, keys: list[Any], values: list[Any]) -> None:
        """Writes dirty or captured entries of a table, and makes them clean.

        Without RocksDB they become clean only, since the next capture takes the whole state.
        """
        if self.store is None:
            table.absorb(keys, values, marked=True)
            return
        if self.blocks is not None:
            self.blocks.write(table, keys, values)
            return
        encoded, marked = encode_entries(self.codec, values)
        batch = new_batch()
        rows = self.row_keys.rows(table.table_id, keys)
        if marked:
            for (row_key, opening), data in zip(rows, encoded, strict=True):
                if data is None:
                    del batch[row_key]
                else:
                    batch[row_key] = opening + data
        else:
            for (row_key, opening), data in zip(rows, encoded, strict=True):
                batch[row_key] = opening + data  # type: ignore[operator]
        self.store.write(batch)
        table.note_encoded([data for data in encoded[:SAMPLE_ENTRIES] if data is not None])
        table.absorb(keys, values, marked=marked)

    def _move_slice(self, table: KeyedTable) -> list[Any]:
        """Writes a slice of the oldest dirty entries and makes them clean; returns their keys."""
        if self._offloading:
            raise ProtocolError("two generators of a state backend are driven at the same time")
        dirty = table.dirty
        oldest = list(islice(dirty, MAX_SLICE_ENTRIES // 2))
        timer = self.timer()
        begin = 0
        while begin < len(oldest):
            keys = oldest[begin : begin + self.chunk_entries(table)]
            self.write_entries(table, keys, [dirty[key] for key in keys])
            for key in keys:
                del dirty[key]
            begin += len(keys)
            if timer.is_over(len(keys)):
                break
        return oldest[:begin]


def _written_again(
    maps: list[tuple[KeyedTable, dict[Any, Any]]],
    lists: list[tuple[KeyedTable, Positions, list[Any]]],
) -> Callable[[int, Any], bool]:
    """Tells, by table, whether a capture has an entry, or a block, that was written ahead."""
    entries = {table.table_id: captured for table, captured in maps}
    blocks = {table.table_id: (positions, values) for table, positions, values in lists}

    def tell(table: int, what: Any) -> bool:
        if table in blocks:
            positions, values = blocks[table]
            return positions.differs(what, values)
        return what in entries.get(table, ())

    return tell

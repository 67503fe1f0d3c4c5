"""Stores keyed state in a database as blocks, while all entries are also in memory.

While all entries are in memory, no key is looked up in the database. It is used for snapshots
only. A block of a thousand entries then costs much less than a thousand rows: it takes less time to
encode, write, sort and compact. A restore reads all blocks. If several blocks contain a key, the
entry in the newest block is valid.

**Compaction.** It begins when the blocks of a state hold more than about twice its live entries.
After the next snapshot was written, the store writes all clean entries again that are in no block
of the last interval. Then it removes the older blocks.

The compaction leaves out entries that have changed again meanwhile. The clean value of such an
entry may be an object that the task is changing. Or there is no clean value, because the captured
value was encoded. The snapshot that captures the change writes the entry. The older blocks stay
until then.

A dense table (`dense_layout.py`) replaces each block under the same number, so its blocks
need no compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.cold.blocks import BLOCKS, block_key, pack_block, read_block
from penstock.snapshot.state.cold.cold_store import ColdStore
from penstock.snapshot.state.cold.database import StateDatabase
from penstock.snapshot.state.entries import MARKS, TOMBSTONE, EncodedValue, StateCodec
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import SliceTimer, Work
from penstock.snapshot.state.table.keyed_table import KeyedTable


def _without(keys: list[object], levels: Iterable[Container[object]]) -> list[object]:
    """Return the keys that are in none of the levels."""
    for level in levels:
        keys = [key for key in keys if key not in level]
    return keys


@dataclass
class _BlockSeries:
    """Counts the entries in the blocks of one state, and notes which blocks are outdated."""

    #: The number of entries of each block, keyed by the number of the block.
    blocks: dict[int, int] = field(default_factory=dict)
    entries: int = 0
    #: The block number below which blocks are outdated. These blocks are removed after a snapshot
    #: with a higher number than `after` was written.
    outdated_below: int = 0
    after: int | None = None
    #: The number of a snapshot. Until a later snapshot is written, the clean level may lack entries
    #: whose captured values were encoded.
    incomplete_until: int = -1

    def put(self, number: int, entries: int) -> None:
        self.entries += entries - self.blocks.get(number, 0)
        self.blocks[number] = entries


class BlockStore(ColdStore):
    """Writes the entries of all tables of a backend as blocks, and loads them.

    Arguments:
        database: the database.
        codec: the codec, which encodes keys and values.
        settings: the thresholds of the backend.
        newest: a function that returns the highest number of a captured snapshot.
    """

    def __init__(
        self,
        database: StateDatabase,
        codec: StateCodec,
        settings: StateSettings,
        newest: Callable[[], int] = lambda: -1,
    ) -> None:
        self._database = database
        self._codec = codec
        self._settings = settings
        self._newest = newest
        self._series: dict[int, _BlockSeries] = {}
        #: The number of the next block.
        self.next_number = 0
        # The number of the first block that was written since the last snapshot was written.
        self._interval_begin = 0

    @property
    def unflushed_bytes(self) -> int:
        """The number of bytes that were written since the last requested flush."""
        return self._database.unflushed_bytes

    @property
    def unlisted_bytes(self) -> int:
        """The number of bytes that were written since the table files were last listed."""
        return self._database.unlisted_bytes

    def chunk_entries(self, table: KeyedTable) -> int:
        """Return how many entries of a table to write as one block."""
        return table.size.block_entries()

    def write(self, table: KeyedTable, keys: list[object], values: list[object]) -> None:
        """Write dirty or captured entries of a table as one block, and mark them as clean."""
        marked = not MARKS.isdisjoint(map(type, values))
        if not marked:
            self._append(table, keys, values, [])
        else:
            kept, kept_values, deleted = [], [], []
            for key, value in zip(keys, values, strict=True):
                if value is TOMBSTONE:
                    deleted.append(key)
                    continue
                kept.append(key)
                if isinstance(value, EncodedValue):
                    value = self._codec.decode_value(value.data)
                    self._series_of(table).incomplete_until = self._newest()
                kept_values.append(value)
            self._append(table, kept, kept_values, deleted)
        table.absorb(keys, values, marked=marked)

    def compact(
        self,
        table: KeyedTable,
        number: int,
        written: Sequence[Container[object]],
        timer: SliceTimer,
    ) -> Work[None]:
        """Compact the blocks of a table, if they hold too many outdated entries.

        Arguments:
            table: the table. Its oldest captured map is still the map of the snapshot.
            number: the number of the snapshot whose map was just written.
            written: collections of the keys that were written since the previous snapshot.
            timer: the timer of the current slice.
        """
        series = self._series_of(table)
        if series.after is not None:
            if number > series.after:
                self._remove_outdated(table, series)
            return
        live, settings = len(table.clean), self._settings
        if series.entries <= settings.garbage_factor * live + settings.slack_entries:
            return
        series.outdated_below = self._interval_begin
        complete = number > series.incomplete_until
        # No entry is evicted or read from the database, so the clean level keeps its keys.
        keys = iter(table.clean)
        while chunk := list(islice(keys, table.size.block_entries())):
            left = _without(chunk, written)
            # The captured maps are read again for each chunk, since a snapshot may be captured
            # between two slices.
            same = _without(left, (table.dirty, *table.captured[1:]))
            complete = complete and len(same) == len(left)
            if same:
                self._append(table, same, [table.clean[key] for key in same], [])
            if timer.is_over(len(chunk)):
                yield None
                timer.restart()
        if complete:
            self._remove_outdated(table, series)
        else:
            # An entry that was left out may have changed after the newest captured snapshot. So the
            # older blocks stay until a later snapshot is written.
            series.after = self._newest()

    def end_interval(self) -> None:
        """Begin a new interval, after a state snapshot was written."""
        self._interval_begin = self.next_number

    def reserve(self, end: int) -> None:
        """Reserve all block numbers below `end`. Further blocks get numbers from `end` on."""
        self.next_number = max(self.next_number, end)

    def put_block(
        self, table: KeyedTable, number: int, keys: bytes, values: bytes, entries: int
    ) -> None:
        """Write a block under a given number, and replace an older block with this number.

        Arguments:
            table: the table to which the block belongs.
            number: the number of the block.
            keys: the keys of the block, encoded by the codec as a batch.
            values: the values of the block, encoded by the codec as a batch.
            entries: the number of entries in the block.
        """
        self._put(table, number, (keys, values, self._codec.encode_batch([])), entries)
        table.size.note_mean(len(values) / entries)

    def remove_below(self, table: KeyedTable, number: int) -> None:
        """Remove all blocks of a table whose number is lower than `number`."""
        series = self._series_of(table)
        series.outdated_below = number
        self._remove_outdated(table, series)

    def load(self, tables: Sequence[KeyedTable], timer: SliceTimer) -> Work[None]:
        """Read all blocks of the database, and add their entries to new tables as clean entries.

        Arguments:
            tables: the tables, in the order of their ids.
            timer: the timer of the current slice.

        Raises:
            StoreError: if a block is damaged.
        """
        for row_key, data in self._database.rows_of(BLOCKS):
            block = read_block(self._codec, row_key, data)
            tables[block.state].add_restored(zip(block.keys, block.values, strict=True))
            tables[block.state].remove_restored(block.deleted)
            entries = len(block.keys) + len(block.deleted)
            self._series.setdefault(block.state, _BlockSeries()).put(block.number, entries)
            self.reserve(block.number + 1)
            if timer.is_over(entries):
                yield None
                timer.restart()
        self.end_interval()

    def _series_of(self, table: KeyedTable) -> _BlockSeries:
        return self._series.setdefault(table.table_id, _BlockSeries())

    def _append(
        self, table: KeyedTable, keys: list[object], values: list[object], deleted: list[object]
    ) -> None:
        encode = self._codec.encode_batch
        columns = encode(plain_keys(keys)), encode(values), encode(plain_keys(deleted))
        self._put(table, self.next_number, columns, len(keys) + len(deleted))
        self.next_number += 1
        if values:
            table.size.note_mean(len(columns[1]) / len(values))

    def _put(
        self, table: KeyedTable, number: int, columns: tuple[bytes, bytes, bytes], entries: int
    ) -> None:
        batch = self._database.new_batch()
        batch[block_key(table.table_id, number)] = pack_block(*columns)
        self._database.write(batch)
        self._series_of(table).put(number, entries)

    def _remove_outdated(self, table: KeyedTable, series: _BlockSeries) -> None:
        outdated = [number for number in series.blocks if number < series.outdated_below]
        series.after = None
        batch = self._database.new_batch()
        for number in outdated:
            series.entries -= series.blocks.pop(number)
            del batch[block_key(table.table_id, number)]
        if outdated:
            self._database.write(batch)

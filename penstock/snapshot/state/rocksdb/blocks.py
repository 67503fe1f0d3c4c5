"""Keyed state in RocksDB as blocks: many entries of one state in one value, by column.

As long as all entries are hot nobody looks a key up in RocksDB: it is there to make snapshots of.
Then a block of a thousand entries costs a fraction of what a thousand rows cost, in encoding, in
writing, in sorting and in compaction; and there is nothing to merge but what was written twice.

    key    FF FF · state id (2 bytes, big-endian) · number (8 bytes, big-endian)
    value  msgpack: [keys, values, deleted]     each the codec's bytes of a batch

Key groups are below FF FF, so blocks and rows never mix. Blocks are read in the order of their
numbers, and the last one that has a key is right. A database holds blocks or rows, never both.

A table of which most changes each time has its blocks by position (`positions.py`): those are
written again under their own numbers, and nothing is to be tidied up.

**Tidying.** When the blocks of a state hold more than twice as many entries as there are, the
next capture, once it is written, also writes the clean entries that no block of its own interval
has, and the older blocks go. An entry that has changed again meanwhile is left out, because its
clean value may be the very object that is being changed, or is not there, if the captured value
had to be encoded. It will be written with the capture that has the change, and until that is done
the older blocks stay.

This module doesn't decide which entries are written when: see `backend.py` and `capture.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgpack

from penstock.dataflow.errors import StoreError
from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.dense_table import Positions, goes_on, start
from penstock.snapshot.state.entries import MARKS, TOMBSTONE, SliceTimer, ValueCodec, Work
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.rocksdb.database import RocksStore, new_batch
from penstock.snapshot.state.rocksdb.rows import BLOCKS

__all__ = ["Block", "Blocks", "newest_entries", "read_block"]

_KEY = struct.Struct(">HHQ")
_NO_GROUP = 0xFFFF
# Blocks may hold so many entries for each that there is, and so many beyond that.
GARBAGE_FACTOR = 2
SLACK_ENTRIES = 8192


@dataclass(frozen=True)
class Block:
    """A block as it was read.

    Arguments:
        state: id of the state.
        number: number of the block; later ones are right.
        keys: keys that got a value.
        values: for each of them, the value.
        deleted: keys that were deleted.
    """

    state: int
    number: int
    keys: list[Any]
    values: list[Any]
    deleted: list[Any]


def read_block(codec: ValueCodec, row_key: bytes, data: bytes) -> Block:
    """The block in a row of RocksDB. `StoreError` if it is none."""
    try:
        _, state, number = _KEY.unpack(row_key)
        keys, values, deleted = map(codec.decode_batch, msgpack.unpackb(data))
    except Exception as error:
        message = f"a block of keyed state can't be decoded ({error}); use another snapshot"
        raise StoreError(message) from error
    return Block(state, number, keys, values, deleted)


def newest_entries(blocks: Iterable[Block]) -> Iterator[tuple[int, Any, Any]]:
    """State id, key and value of each entry that lasts, from all blocks of a database."""
    states: dict[int, dict[Any, Any]] = {}
    for block in blocks:
        _apply(block, states.setdefault(block.state, {}))
    for state, entries in states.items():
        for key, value in entries.items():
            yield state, key, value


def _apply(block: Block, entries: dict[Any, Any]) -> None:
    entries.update(zip(block.keys, block.values, strict=True))
    for key in block.deleted:
        entries.pop(key, None)


def _without(keys: list[Any], levels: Iterable[Container[Any]]) -> list[Any]:
    """The keys that are in none of the levels."""
    for level in levels:
        keys = [key for key in keys if key not in level]
    return keys


@dataclass
class _Series:
    """The blocks of one state that are in the database."""

    #: By number, in order, how many entries it has.
    blocks: dict[int, int] = field(default_factory=dict)
    entries: int = 0
    #: Blocks below this number go when a capture taken after that with `after` is written.
    condemned: int = 0
    after: int | None = None
    #: Until a later capture is written, the clean level may lack entries that were encoded.
    lacking: int = -1

    def put(self, number: int, entries: int) -> None:
        self.entries += entries - self.blocks.get(number, 0)
        self.blocks[number] = entries


class Blocks:
    """Writes the blocks of one database, whose tables are all hot.

    Arguments:
        store: the database.
        codec: for keys and values.
        newest: tells the highest number of a capture that was taken.
    """

    def __init__(
        self, store: RocksStore, codec: ValueCodec, newest: Callable[[], int] = lambda: -1
    ) -> None:
        self._store = store
        self._codec = codec
        self._newest = newest
        self._series: dict[int, _Series] = {}
        self._next = 0
        # The first block that was written since the last capture was.
        self._interval_begin = 0

    def write(self, table: KeyedTable, keys: list[Any], values: list[Any]) -> None:
        """Writes dirty or captured entries of a table as one block, and makes them clean."""
        marked = not MARKS.isdisjoint(map(type, values))
        if not marked:
            self._put(table, keys, values, [])
        else:
            kept, kept_values, deleted = [], [], []
            for key, value in zip(keys, values, strict=True):
                if value is TOMBSTONE:
                    deleted.append(key)
                    continue
                kept.append(key)
                if type(value) in MARKS:
                    value = self._codec.decode_value(value.data)
                    self._series_of(table).lacking = self._newest()
                kept_values.append(value)
            self._put(table, kept, kept_values, deleted)
        table.absorb(keys, values, marked=marked)

    def tidy(
        self, table: KeyedTable, number: int, written: list[Container[Any]], timer: SliceTimer
    ) -> Work[None]:
        """After a capture was written: removes older blocks, and rewrites what lasts if it pays.

        Arguments:
            table: whose blocks; the map of the capture is still its first captured one.
            number: of the capture.
            written: levels whose keys were written since the capture before.
            timer: of the slice that is under way.
        """
        series = self._series_of(table)
        if series.after is not None:
            if number > series.after:
                self._drop(table, series)
            return
        if series.entries <= GARBAGE_FACTOR * len(table.clean) + SLACK_ENTRIES:
            return
        series.condemned = self._interval_begin
        complete = number > series.lacking
        # Nothing is evicted and nothing looked up from below, so the clean level keeps its keys.
        keys = iter(table.clean)
        while chunk := list(islice(keys, table.block_entries())):
            left = _without(chunk, written)
            # Taken anew each time: a capture may have been taken meanwhile.
            same = _without(left, (table.dirty, *table.captured[1:]))
            complete = complete and len(same) == len(left)
            if same:
                self._put(table, same, [table.clean[key] for key in same], [])
            if timer.is_over(len(chunk)):
                yield None
                timer.restart()
        if complete:
            self._drop(table, series)
        else:
            # A capture that was taken amid this may lack some of what was left out.
            series.after = self._newest()

    def end_interval(self) -> None:
        """A capture is written."""
        self._interval_begin = self._next

    # --- by position ---

    def begin_positions(self, table: KeyedTable) -> None:
        """Once a capture is written: the table may have one level from now on."""
        if table.positions is None:
            table.positions = start(table, self._next)

    def end_positions(self, table: KeyedTable) -> None:
        """At a capture: the table may have levels again, and all of it is dirty."""
        positions = table.positions
        if positions is not None and not goes_on(table, positions):
            table.positions = None
            # Later blocks of it shadow those that are written now.
            self._next = max(self._next, positions.end)

    def write_positions(
        self, table: KeyedTable, positions: Positions, values: list[Any], timer: SliceTimer
    ) -> Work[None]:
        """Writes what changed of a captured list of values.

        Arguments:
            table: whose values they are.
            positions: what it had when they were captured.
            values: all of them.
            timer: of the slice that is under way.
        """
        for block in positions.changes(values):
            if block is not None:
                self.write_block(table, positions, *block)
            if timer.is_over(0 if block is None else len(block[1])):
                yield None
                timer.restart()
        yield from self._write_overlay(table, positions, timer)
        if not positions.alone:
            # All that there is has been written anew.
            series = self._series_of(table)
            series.condemned = positions.first
            self._drop(table, series)
            positions.alone = True

    def _write_overlay(
        self, table: KeyedTable, positions: Positions, timer: SliceTimer
    ) -> Work[None]:
        encode, series = self._codec.encode_batch, self._series_of(table)
        keys, values = positions.overlay
        number, begin = positions.overlay_number, 0
        while begin < len(keys):
            end = begin + min(positions.size, table.block_entries())
            chunk, packed = keys[begin:end], encode(values[begin:end])
            self._put_columns(
                table, number, (encode(plain_keys(chunk)), packed, encode([])), len(chunk)
            )
            table.note_mean(len(packed) / len(chunk))
            number, begin = number + 1, end
            if timer.is_over(len(chunk)):
                yield None
                timer.restart()
        self._remove(table, [other for other in series.blocks if other >= number])
        positions.overlay, positions.overlaid = ([], []), len(keys)

    def write_block(
        self, table: KeyedTable, positions: Positions, begin: int, values: list[Any]
    ) -> None:
        """Writes the block that begins at a position."""
        encode = self._codec.encode_batch
        packed = encode(values)
        columns = positions.packed_keys(begin, len(values), encode), packed, encode([])
        number = positions.first + begin // positions.size
        self._put_columns(table, number, columns, len(values))
        table.note_mean(len(packed) / len(values))

    def load(self, tables: list[KeyedTable], timer: SliceTimer) -> Work[None]:
        """Reads all blocks of the database into the clean levels of new tables.

        Arguments:
            tables: in the order of their ids.
            timer: of the slice that is under way.

        Raises:
            StoreError: if a block is damaged.
        """
        for row_key, data in self._store.rows_of(BLOCKS):
            block = read_block(self._codec, row_key, data)
            _apply(block, tables[block.state].clean)
            entries = len(block.keys) + len(block.deleted)
            self._series.setdefault(block.state, _Series()).put(block.number, entries)
            self._next = max(self._next, block.number + 1)
            if timer.is_over(entries):
                yield None
                timer.restart()
        self.end_interval()

    def _series_of(self, table: KeyedTable) -> _Series:
        return self._series.setdefault(table.table_id, _Series())

    def _put(
        self, table: KeyedTable, keys: list[Any], values: list[Any], deleted: list[Any]
    ) -> None:
        encode = self._codec.encode_batch
        columns = encode(plain_keys(keys)), encode(values), encode(plain_keys(deleted))
        self._put_columns(table, self._next, columns, len(keys) + len(deleted))
        self._next += 1
        if values:
            table.note_mean(len(columns[1]) / len(values))

    def _put_columns(
        self, table: KeyedTable, number: int, columns: tuple[bytes, bytes, bytes], entries: int
    ) -> None:
        batch = new_batch()
        batch[_KEY.pack(_NO_GROUP, table.table_id, number)] = msgpack.packb(columns)
        self._store.write(batch)
        self._series_of(table).put(number, entries)

    def _drop(self, table: KeyedTable, series: _Series) -> None:
        self._remove(table, [number for number in series.blocks if number < series.condemned])
        series.after = None

    def _remove(self, table: KeyedTable, numbers: list[int]) -> None:
        series, batch = self._series_of(table), new_batch()
        for number in numbers:
            series.entries -= series.blocks.pop(number)
            del batch[_KEY.pack(_NO_GROUP, table.table_id, number)]
        if numbers:
            self._store.write(batch)

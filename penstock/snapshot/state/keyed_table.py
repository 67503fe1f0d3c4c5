"""One named state of a subtask: a map from key to value, in levels.

    dirty     newest writes, deletions among them as tombstones
    captured  maps sealed at a barrier and not yet written, newest last
    clean     entries that lie in RocksDB too (if it is open) and may be evicted
    cold      RocksDB, asked only if an entry may be nowhere else

A level shadows those below it, so a look-up goes from top to bottom. While nothing was evicted
or lazily restored `cold` is None, and what is in no hot level does not exist.

Invariants: a captured map never changes in meaning. A value that is not deeply immutable is never
handed out without its key being dirty; if a captured map holds the same object, that copy is
turned into bytes first. So what a user changes in place is neither lost nor seen by an older
snapshot. This holds for references used within the record they were looked up for; and one
mutable object belongs to one key of one table.

This module moves nothing between levels by itself, apart from what a look-up needs, and writes
nothing: that is `backend.py` and `capture.py`.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Protocol

from penstock.snapshot.state.dense_table import MAX_ENTRIES, Positions
from penstock.snapshot.state.entries import (
    ATOMS,
    MARKS,
    MISSING,
    TOMBSTONE,
    EncodedValue,
    ValueCodec,
)

__all__ = ["ColdLevel", "KeyedTable"]

# A hot entry costs about this much beyond its content: a slot in a dict (about 50 bytes), the
# headers of key and value objects, and the allocator's rounding.
ENTRY_OVERHEAD_BYTES = 200
# Python objects take about this many times their encoding: ('key123', 5) takes 250 bytes with its
# key and 12 encoded; strings are nearer 1, lists of small integers nearer 8.
OBJECT_FACTOR = 3
SAMPLE_ENTRIES = 32
# How many entries are encoded at once, and how many bytes of them, so that one step of a slice
# stays well below the length of the slice.
CHUNK_ENTRIES = 256
CHUNK_BYTES = 64 * 1024
# The same for blocks, which cost less per entry, and less still if they are long.
BLOCK_ENTRIES = 1024
BLOCK_BYTES = 256 * 1024


class ColdLevel(Protocol):
    """What a table asks when an entry may lie in RocksDB only."""

    def read(self, table_id: int, key: Any) -> Any:
        """The value, or `MISSING`."""


class KeyedTable:
    """One named state: key to value.

    The hot loops of operators use `dirty` directly: `value = table.dirty.get(key, MISSING)`, on
    `MISSING` `table.lookup(key)`, `TOMBSTONE` being no value; a write is `table.dirty[key] =
    value`, a deletion `table.dirty[key] = TOMBSTONE`. The dict is replaced at every capture, so a
    loop takes it anew for each batch.

    Arguments:
        name: the name of the state.
        table_id: its number, which is part of its keys in RocksDB.
        codec: for values that must be encoded before they are handed out.
    """

    __slots__ = (
        "_codec",
        "_is_immutable",
        "_sample_at",
        "captured",
        "clean",
        "cold",
        "dirty",
        "encoded_bytes",
        "name",
        "only_immutable",
        "positions",
        "table_id",
        "turned_over",
    )

    def __init__(self, name: str, table_id: int, codec: ValueCodec) -> None:
        self.name = name
        self.table_id = table_id
        self.dirty: dict[Any, Any] = {}
        self.captured: list[dict[Any, Any]] = []
        self.clean: dict[Any, Any] = {}
        self.cold: ColdLevel | None = None
        # With positions, all entries are dirty ones, and there are no other levels.
        self.positions: Positions | None = None
        # Nothing is deleted, and no value can change in place; see `expect_immutable`.
        self.only_immutable = False
        # The last capture had many of all entries.
        self.turned_over = False
        # Mean bytes of an encoded value, from samples.
        self.encoded_bytes = 0.0
        self._codec = codec
        self._is_immutable = codec.is_immutable
        self._sample_at = 1

    def lookup(self, key: Any) -> Any:
        """The value of `key`, which is not dirty, or `MISSING`.

        Each key that is in use comes here once per snapshot.
        """
        for entries in reversed(self.captured):
            value = entries.get(key, MISSING)
            if value is MISSING:
                continue
            if value is TOMBSTONE:
                return MISSING
            if type(value) not in ATOMS and not self._is_immutable(value):
                self._protect(key, value)
            return value
        clean = self.clean
        value = clean.get(key, MISSING)
        if value is not MISSING:
            if type(value) not in ATOMS and not self._is_immutable(value):
                self.dirty[key] = value
            elif self.cold is not None:
                # Oldest go first when memory is short, so what is in use becomes newest.
                clean[key] = clean.pop(key)
            return value
        if self.cold is None:
            return MISSING
        value = self.cold.read(self.table_id, key)
        if value is MISSING:
            return MISSING
        if type(value) in ATOMS or self._is_immutable(value):
            clean[key] = value
        else:
            self.dirty[key] = value
        return value

    def _protect(self, key: Any, value: Any) -> None:
        """Encodes a captured value that may change once it is given out."""
        # Its copies in the newest map and, when whole states were captured, in older ones.
        encoded = EncodedValue(self._codec.encode_value(value))
        for entries in self.captured:
            if entries.get(key, MISSING) is value:
                entries[key] = encoded
        self.dirty[key] = value

    def expect_immutable(self) -> None:
        """Whoever writes into it never deletes, and says at once when a value may change in place.

        By setting `only_immutable` to False. To be called before the first record.
        """
        few = len(self.clean) <= MAX_ENTRIES
        self.only_immutable = few and all(map(self._is_immutable, self.clean.values()))

    def get(self, key: Any, default: Any = MISSING) -> Any:
        """The value of `key`, or `default`."""
        value = self.dirty.get(key, MISSING)
        if value is MISSING:
            value = self.lookup(key)
            return default if value is MISSING else value
        return default if value is TOMBSTONE else value

    def put(self, key: Any, value: Any) -> None:
        """Makes `value` the value of `key`."""
        self.dirty[key] = value

    def delete(self, key: Any) -> None:
        """Removes the entry of `key`, if there is one."""
        self.dirty[key] = TOMBSTONE

    def seal(self, *, whole: bool) -> dict[Any, Any]:
        """Ends the epoch: the dirty map becomes a captured one, which is returned.

        Arguments:
            whole: the captured map is to hold the whole state, not only what changed. True as
                long as RocksDB isn't open, so that there is nowhere else for the rest to be.
        """
        entries, self.dirty = self.dirty, {}
        if whole:
            if self.captured:
                entries = {**self.captured[-1], **entries}
            elif self.clean:
                # Clean values would change with their dirty successors, captured ones can't.
                clean, self.clean = self.clean, {}
                entries = {**clean, **entries} if entries else clean
        if entries:
            self.captured.append(entries)
        return entries

    def absorb(self, keys: list[Any], values: list[Any], *, marked: bool) -> None:
        """Takes entries that are written, or need not be, into the clean level.

        Arguments:
            keys: their keys.
            values: their values as they stand in the dirty or captured map.
            marked: whether tombstones or encoded values may be among them.
        """
        clean = self.clean
        if not marked:
            clean.update(zip(keys, values, strict=True))
            return
        for key, value in zip(keys, values, strict=True):
            if type(value) in MARKS:
                # An encoded value's object is shadowed by a newer entry, which is written later;
                # an older clean value must not come to light meanwhile.
                clean.pop(key, None)
            else:
                clean[key] = value

    def evict(self, count: int) -> int:
        """Drops up to `count` of the oldest clean entries; returns how many."""
        oldest = list(islice(self.clean, count))
        for key in oldest:
            del self.clean[key]
        return len(oldest)

    def hot_entries(self) -> int:
        """How many entries the hot levels hold, shadowed ones included."""
        entries = len(self.dirty) + len(self.clean)
        if self.captured:
            entries += sum(map(len, self.captured))
        if self.positions is not None:
            entries += self.positions.held_entries()
        return entries

    def hot_bytes(self) -> int:
        """An estimate of the memory they take, in bytes."""
        entries = self.hot_entries()
        if entries >= self._sample_at:
            self._sample(entries)
        return int(entries * self.entry_bytes())

    def entry_bytes(self) -> float:
        """An estimate of the memory that one entry takes, in bytes."""
        return ENTRY_OVERHEAD_BYTES + OBJECT_FACTOR * self.encoded_bytes

    def chunk_entries(self) -> int:
        """How many entries to encode at once."""
        if not self.encoded_bytes:
            return SAMPLE_ENTRIES
        return max(1, min(CHUNK_ENTRIES, int(CHUNK_BYTES / self.encoded_bytes)))

    def block_entries(self) -> int:
        """How many entries to write as one block."""
        if not self.encoded_bytes:
            return SAMPLE_ENTRIES
        return max(1, min(BLOCK_ENTRIES, int(BLOCK_BYTES / self.encoded_bytes)))

    def note_encoded(self, sample: list[bytes]) -> None:
        """Corrects the mean size of a value by some that were just encoded."""
        if sample:
            self.note_mean(sum(map(len, sample)) / len(sample))

    def note_mean(self, mean: float) -> None:
        """Corrects the mean size of a value by that of some that were just encoded."""
        # A sample moves the mean by an eighth, so that it follows values that grow.
        self.encoded_bytes += (mean - self.encoded_bytes) * (1 / 8 if self.encoded_bytes else 1)

    def _sample(self, entries: int) -> None:
        # Taken again whenever the table has grown by half, else sizes come from what is written.
        self._sample_at = entries + entries // 2 + SAMPLE_ENTRIES
        for level in (self.dirty, self.clean):
            values = [
                value
                for value in islice(level.values(), SAMPLE_ENTRIES)
                if type(value) not in MARKS
            ]
            self.note_encoded(self._codec.encode_values(values))

"""One named state of a subtask: a map from key to value, in levels.

    dirty     newest writes, deletions among them as tombstones
    captured  maps sealed at a barrier and not yet written, newest last
    clean     entries that are in RocksDB too (if it is open) and may be evicted
    cold      RocksDB, asked only when entries have been evicted or lazily restored

A level shadows those below it, so a look-up goes from top to bottom. Until the first eviction,
an entry that is in no level in memory does not exist.

Invariants:

* A captured map never changes in meaning.
* A value that is not deeply immutable is handed out only while its key is dirty. If a captured map
  holds the same object, the captured copy is replaced by its bytes first. So a change in place
  is neither lost nor visible in an older snapshot.

They hold for references that are used within the record they were looked up for. A mutable object
belongs to one key of one table.

A table moves entries between levels only for look-ups. It writes nothing: snapshots, eager flushes
and evictions do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

from penstock.snapshot.state.entries import (
    ATOMS,
    MARKS,
    MISSING,
    TOMBSTONE,
    EncodedValue,
    StateCodec,
)
from penstock.snapshot.state.entry_size import EntrySize
from penstock.snapshot.state.settings import DEFAULT_SETTINGS, StateSettings

__all__ = ["ColdReader", "KeyedTable"]


class ColdReader(Protocol):
    """Reads entries that may be in RocksDB only."""

    def read(self, table_id: int, key: Any) -> Any:
        """Return the value of `key`, or `MISSING`."""


class _NothingCold:
    def read(self, table_id: int, key: Any) -> Any:
        del table_id, key
        return MISSING


_NOTHING_COLD = _NothingCold()


class KeyedTable:
    """One named state: key to value.

    The hot loops of operators read and write `dirty` directly:

    * read: `table.dirty.get(key, MISSING)`; on `MISSING` call `table.lookup(key)`; `TOMBSTONE`
      means that there is no value;
    * write: `table.dirty[key] = value`; delete: `table.dirty[key] = TOMBSTONE`.

    The dict is replaced at every capture, so a loop looks it up again for each batch.

    Arguments:
        name: the name of the state.
        table_id: its number, which is part of its keys in RocksDB.
        codec: encodes values before they are handed out.
        settings: thresholds of the backend.
    """

    __slots__ = (
        "_codec",
        "_cold",
        "_is_immutable",
        "_settings",
        "captured",
        "clean",
        "dirty",
        "has_cold",
        "name",
        "only_immutable",
        "size",
        "table_id",
    )

    def __init__(
        self,
        name: str,
        table_id: int,
        codec: StateCodec,
        settings: StateSettings = DEFAULT_SETTINGS,
    ) -> None:
        self.name = name
        self.table_id = table_id
        self.dirty: dict[Any, Any] = {}
        self.captured: list[dict[Any, Any]] = []
        self.clean: dict[Any, Any] = {}
        #: Whether an entry may be in RocksDB only.
        self.has_cold = False
        self._cold: ColdReader = _NOTHING_COLD
        #: No entry is deleted, and no value can change in place; see `declare_immutable`.
        self.only_immutable = False
        self.size = EntrySize(codec, settings)
        self._codec = codec
        self._is_immutable = codec.is_immutable
        self._settings = settings

    # --- records ---

    def lookup(self, key: Any) -> Any:
        """Return the value of `key`, which is not dirty, or `MISSING`.

        Each key in use comes here once per snapshot.
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
            elif self.has_cold:
                # Eviction drops the oldest entries, so an entry in use becomes the newest.
                clean[key] = clean.pop(key)
            return value
        if not self.has_cold:
            return MISSING
        value = self._cold.read(self.table_id, key)
        if value is MISSING:
            return MISSING
        if type(value) in ATOMS or self._is_immutable(value):
            clean[key] = value
        else:
            self.dirty[key] = value
        return value

    def _protect(self, key: Any, value: Any) -> None:
        """Replace the captured copies of a value that may change once it is handed out."""
        encoded = EncodedValue(self._codec.encode_value(value))
        # Not only in the newest map: maps that were captured as a whole share objects.
        for entries in self.captured:
            if entries.get(key, MISSING) is value:
                entries[key] = encoded
        self.dirty[key] = value

    def get(self, key: Any, default: Any = MISSING) -> Any:
        """Return the value of `key`, or `default`."""
        value = self.dirty.get(key, MISSING)
        if value is MISSING:
            value = self.lookup(key)
            return default if value is MISSING else value
        return default if value is TOMBSTONE else value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        self.dirty[key] = value

    def delete(self, key: Any) -> None:
        """Delete the entry of `key`, if there is one."""
        self.dirty[key] = TOMBSTONE

    def declare_immutable(self) -> None:
        """Promise that no entry will be deleted and no value changed in place.

        Call it before the first record. An operator that meets a mutable value calls
        `allow_mutable` before it stores that value.
        """
        few = len(self.clean) <= self._settings.max_dense_entries
        self.only_immutable = few and all(map(self._is_immutable, self.clean.values()))

    def allow_mutable(self) -> None:
        """Withdraw the promise of `declare_immutable`."""
        self.only_immutable = False

    # --- levels ---

    def seal(self, *, whole: bool) -> dict[Any, Any]:
        """End the epoch: turn the dirty map into a captured one, and return it.

        Arguments:
            whole: the captured map is to hold the whole state, not only what changed. True as
                long as RocksDB isn't open, since the rest is stored nowhere else.
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

    def release_oldest_capture(self) -> None:
        """Drop the oldest captured map, whose entries are written."""
        self.captured.pop(0)

    def absorb(self, keys: Sequence[Any], values: Sequence[Any], *, marked: bool) -> None:
        """Add entries that are written, or need not be, to the clean level.

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
                # A newer entry shadows an encoded value and is written later. Meanwhile an older
                # clean value must not become visible.
                clean.pop(key, None)
            else:
                clean[key] = value

    def add_restored(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Add entries of a snapshot to the clean level."""
        self.clean.update(entries)

    def remove_restored(self, keys: Iterable[Any]) -> None:
        """Remove entries of a snapshot that a later block deleted."""
        for key in keys:
            self.clean.pop(key, None)

    def forget_dirty(self, keys: Iterable[Any]) -> None:
        """Remove dirty entries that are written and clean now."""
        for key in keys:
            del self.dirty[key]

    def mark_all_dirty(self) -> None:
        """Make all clean entries dirty, since no open RocksDB holds them."""
        self.dirty, self.clean = {**self.clean, **self.dirty}, {}

    def merge_levels(self) -> None:
        """Make one level of the clean and dirty entries; no map may be captured.

        The clean entries come first and keep their order.
        """
        self.clean.update(self.dirty)
        self.dirty, self.clean = self.clean, {}

    def attach(self, reader: ColdReader) -> None:
        """From now on an entry may be in RocksDB only, where `reader` finds it."""
        self._cold, self.has_cold = reader, True

    def evict(self, count: int) -> int:
        """Drop up to `count` of the oldest clean entries, and return their number."""
        oldest = list(islice(self.clean, count))
        for key in oldest:
            del self.clean[key]
        return len(oldest)

    # --- memory ---

    def entries_in_memory(self) -> int:
        """Return how many entries the levels in memory hold, shadowed ones included."""
        entries = len(self.dirty) + len(self.clean)
        if self.captured:
            entries += sum(map(len, self.captured))
        return entries

    def memory_bytes(self, further_entries: int = 0) -> int:
        """Return an estimate of the memory that the entries take, in bytes.

        Arguments:
            further_entries: values that the table's layout holds.
        """
        entries = self.entries_in_memory() + further_entries
        self.size.sample(entries, (self.dirty, self.clean))
        return int(entries * self.size.memory_bytes())

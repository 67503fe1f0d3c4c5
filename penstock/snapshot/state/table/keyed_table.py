"""One named state of a subtask: a map from key to value, in levels.

    dirty     the newest writes; a deletion is a tombstone
    captured  the maps captured at barriers and not yet written, the newest last
    clean     entries that are also in the database (if it is open) and may be evicted
    cold      entries in the database; read only after entries were evicted or lazily restored

A look-up searches the levels from top to bottom, and takes the first entry of the key. Before the
first eviction, a key that is in no level in memory has no entry.

Invariants:

* The values in a captured map never change.
* A table returns a mutable value only while its key is dirty. If a captured map holds the same
  object, the table first replaces it there by its encoded bytes. So a change in place is never
  lost, and never visible in an older snapshot.
* Before the first eviction, each key in the database is clean, captured or *outdated*. An outdated
  key is not clean, since the value in the database is older than that of a level in memory. So
  `delete` knows whether the database may hold an entry, and needs a tombstone.

An operator may use a mutable value only while it processes the record for which it looked the value
up. It must not store a mutable object under several keys or in several tables.

A table moves entries between levels only for look-ups. It does not write to the cold store:
snapshots, eager flushes and evictions do that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state.entries import (
    ATOMS,
    MARKS,
    MISSING,
    TOMBSTONE,
    EncodedValue,
    StateCodec,
)
from penstock.snapshot.state.settings import DEFAULT_SETTINGS, StateSettings
from penstock.snapshot.state.table.entry_size import EntrySize


class ColdReader(Protocol):
    """Reads entries that may be in the database only."""

    def read(self, table: KeyedTable, key: object) -> object:
        """Return the value of `key` in a table, or `MISSING` if it is not in the database."""

    def read_all(self, table: KeyedTable, keys: Collection[object]) -> list[tuple[object, object]]:
        """Return each of the keys of a table that is in the database, with its value."""

    def entries_of(self, table: KeyedTable, key: object) -> Iterator[tuple[object, bytes]]:
        """Yield each composite key of `key` in a composite table, and its encoded value."""


class _NothingCold:
    def read(self, table: KeyedTable, key: object) -> object:
        del table, key
        return MISSING

    def read_all(self, table: KeyedTable, keys: Collection[object]) -> list[tuple[object, object]]:
        del table, keys
        return []

    def entries_of(self, table: KeyedTable, key: object) -> Iterator[tuple[object, bytes]]:
        del table, key
        return iter(())


_NOTHING_COLD = _NothingCold()

#: One in this number of calls of `read_ahead` reads nothing, to find out whether its keys are
#: looked up.
_PROBING_CALLS = 16
#: The share of the keys of a batch that must be looked up so that they are worth reading ahead.
_WORTH_READING = 1 / 4


class KeyedTable:
    """One named state of a subtask: a map from key to value.

    For speed, the loops of operators read and write the dict `dirty` directly:

    * To read, they look into `table.dirty`. If the key is not there, they call `table.lookup(key)`
      or `table.get(key)`. `TOMBSTONE` means that there is no value.
    * To write, they execute `table.dirty[key] = value`.
    * To delete, they call `table.delete(key)`, which writes `TOMBSTONE` where it is needed.

    Each capture replaces the dict, so a loop must read the attribute again for each batch.

    Arguments:
        name: the name of the state.
        table_id: the id of the table, which is part of its keys in the database.
        codec: the codec, which encodes captured values before they can change in place.
        settings: the thresholds of the backend.
    """

    __slots__ = (
        "_absent",
        "_calls",
        "_codec",
        "_cold",
        "_cold_reads",
        "_is_immutable",
        "_outdated",
        "_probed_keys",
        "_reads_ahead",
        "_settings",
        "_was_merged",
        "captured",
        "clean",
        "derived_values",
        "dirty",
        "expires",
        "has_cold",
        "has_expired",
        "is_late",
        "is_requested",
        "is_restored",
        "kind",
        "name",
        "only_immutable",
        "size",
        "table_id",
        "version",
    )

    #: Whether the keys of the table are composite; see `composite_table.py`.
    is_composite = False

    def __init__(
        self,
        name: str,
        table_id: int,
        codec: StateCodec,
        settings: StateSettings = DEFAULT_SETTINGS,
    ) -> None:
        self.name = name
        self.table_id = table_id
        #: The kind of the state, which readers of snapshots show.
        self.kind = StateKind.VALUE
        #: Whether the table was restored from a snapshot.
        self.is_restored = False
        #: Whether the program has requested the state. If not, it is only in the restored snapshot.
        self.is_requested = False
        #: Whether a program requested the state for the first time after it was opened.
        self.is_late = False
        #: Whether each value is a pair (value, time at which it expires).
        self.expires = False
        #: The version of the form of its values, which the program declares.
        self.version = 1
        #: Returns whether an entry, given as key and value, has expired. A snapshot that contains
        #: the whole table leaves out these entries. None keeps all entries.
        self.has_expired: Callable[[object, object], bool] | None = None
        self.dirty: dict[object, object] = {}
        self.captured: list[dict[object, object]] = []
        self.clean: dict[object, object] = {}
        #: The number of values that an operator has derived from entries and keeps in memory.
        self.derived_values = 0
        #: Whether some entries may be in the database only.
        self.has_cold = False
        self._cold: ColdReader = _NOTHING_COLD
        #: Keys that are in no level and not in the database, as `read_ahead` has found out.
        self._absent: set[object] = set()
        #: Whether `read_ahead` reads, and the number of its calls.
        self._reads_ahead, self._calls = False, 0
        #: The number of single reads of the database, and of keys that they could concern, since
        #: the last call of `read_ahead` that read nothing.
        self._cold_reads = self._probed_keys = 0
        #: Whether no entry is ever deleted and no value can change in place; see
        #: `declare_immutable`.
        self.only_immutable = False
        #: Keys that the database holds with a value that is older than the value in memory. All of
        #: them are dirty or captured.
        self._outdated: set[object] = set()
        #: Whether `merge_levels` was called, so that the database may hold any dirty entry.
        self._was_merged = False
        self.size = EntrySize(codec, settings)
        self._codec = codec
        self._is_immutable = codec.is_immutable
        self._settings = settings

    @staticmethod
    def key_of(entry: object) -> object:
        """Return the key of a program to which an entry belongs, from the key of the entry."""
        return entry

    # --- methods that operators call for records ---

    def lookup(self, key: object) -> object:
        """Return the value of a key that is not dirty, or `MISSING`.

        If the value is mutable, the key becomes dirty.
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
                # Eviction removes the oldest entries, so a used entry becomes the newest.
                clean[key] = clean.pop(key)
            return value
        if not self.has_cold or key in self._absent:
            return MISSING
        self._cold_reads += 1
        value = self._cold.read(self, key)
        if value is MISSING:
            return MISSING
        if type(value) in ATOMS or self._is_immutable(value):
            clean[key] = value
        else:
            self.dirty[key] = value
        return value

    def read_ahead(self, keys: Iterable[object]) -> None:
        """Read the entries of several keys from the database at once.

        Entries that are in memory are not read. An operator may call this before it looks up the
        keys of a batch, if `has_cold`. To read them together and in order takes less time. If few
        of the keys are looked up afterwards, the method soon reads nothing.
        """
        if self._probed_keys:
            self._reads_ahead = self._cold_reads >= self._probed_keys * _WORTH_READING
            self._probed_keys = 0
        missing = set(keys)
        for entries in (self.dirty, self.clean, *self.captured):
            # `missing.difference(...)` with several maps goes through all of their keys.
            missing = {key for key in missing if key not in entries}
        self._absent = set()
        if not missing:
            return
        self._calls += 1
        if not self._reads_ahead or self._calls % _PROBING_CALLS == 0:
            self._probed_keys, self._cold_reads = len(missing), 0
            return
        found = self._cold.read_all(self, missing)
        # Mutable values become dirty when they are looked up.
        self.clean.update(found)
        self._absent = missing.difference(self.clean)

    def _protect(self, key: object, value: object) -> None:
        """Encode a captured value before it can change in place, and make its key dirty."""
        encoded = EncodedValue(self._codec.encode_value(value))
        # All captured maps are searched, since captures of the whole state share value objects.
        for entries in self.captured:
            if entries.get(key, MISSING) is value:
                entries[key] = encoded
        self.dirty[key] = value

    def get(self, key: object, default: object = MISSING) -> object:
        """Return the value of `key`, or `default` if the key has no entry."""
        value = self.dirty.get(key, MISSING)
        if value is MISSING:
            value = self.lookup(key)
            return default if value is MISSING else value
        return default if value is TOMBSTONE else value

    def put(self, key: object, value: object) -> None:
        """Set the value of `key` to `value`."""
        self.dirty[key] = value

    def delete(self, key: object) -> None:
        """Delete the entry of `key`, if there is one.

        This writes a tombstone only if an older level or the database may have an entry of the key.
        Otherwise the tombstones of short-lived keys would fill the memory of a job without
        snapshots.
        """
        if self._is_only_dirty(key):
            self.dirty.pop(key, None)
        else:
            self.dirty[key] = TOMBSTONE

    def _is_only_dirty(self, key: object) -> bool:
        """Return whether neither an older level nor the database has an entry of the key."""
        return not (
            self.has_cold
            or self.captured
            or key in self.clean
            or key in self._outdated
            or self._was_merged
        )

    def hot_value(self, key: object) -> object:
        """Return the newest value or mark of `key` in memory, or `MISSING`.

        In contrast to `get`, this changes nothing. The caller must not change the value.
        """
        for entries in (self.dirty, *reversed(self.captured), self.clean):
            value = entries.get(key, MISSING)
            if value is not MISSING:
                return value
        return MISSING

    def peek(self, key: object) -> object:
        """Return the newest value of `key`, or `MISSING`.

        In contrast to `get`, this moves no entry and marks none as changed. The caller must not
        change the value.
        """
        value = self.hot_value(key)
        if value is MISSING and self.has_cold:
            return self._cold.read(self, key)
        if isinstance(value, EncodedValue):
            return self._codec.decode_value(value.data)
        return MISSING if value is TOMBSTONE else value

    def leave_out_expired(self, has_expired: Callable[[object, object], bool]) -> None:
        """Leave out entries that have expired of snapshots that contain the whole table.

        Arguments:
            has_expired: returns whether an entry, given as key and value, has expired.
        """
        self.has_expired = has_expired

    def declare_immutable(self) -> None:
        """Declare that no entry will be deleted, and that no value will change in place.

        An operator calls this method before its first record. It must call `allow_mutable` before
        it stores a mutable value.
        """
        few = len(self.clean) <= self._settings.max_dense_entries
        self.only_immutable = few and all(map(self._is_immutable, self.clean.values()))

    @property
    def form(self) -> tuple[StateKind, bool, int]:
        """The properties that must be equal if a table takes the values of another."""
        return self.kind, self.expires, self.version

    def allow_mutable(self) -> None:
        """Allow again that entries are deleted and values change in place.

        The declaration of `declare_immutable` then no longer holds.
        """
        self.only_immutable = False

    # --- methods that move entries between levels ---

    def seal(self, *, whole: bool) -> dict[object, object]:
        """Turn the dirty map into a captured map, and return it.

        Arguments:
            whole: whether the captured map must contain all entries, not only the changed ones. It
                is true while no database is open, because no other storage has the other entries.
        """
        entries, self.dirty = self.dirty, {}
        if whole:
            if self.captured:
                entries = {**self.captured[-1], **entries}
            elif self.clean:
                # The clean entries become captured ones, since `lookup` protects only captured
                # values against changes in place.
                clean, self.clean = self.clean, {}
                entries = {**clean, **entries} if entries else clean
        if entries:
            self.captured.append(entries)
        return entries

    def release_oldest_capture(self) -> None:
        """Drop the oldest captured map, after all its entries were written."""
        self.captured.pop(0)

    def absorb(self, keys: Sequence[object], values: Sequence[object], *, marked: bool) -> None:
        """Add entries to the clean level, after the cold store has processed them.

        Arguments:
            keys: the keys of the entries.
            values: the value of each key, from the dirty map or a captured map.
            marked: whether tombstones or encoded values may be among `values`.
        """
        clean, outdated = self.clean, self._outdated
        if not marked:
            clean.update(zip(keys, values, strict=True))
            if outdated:
                outdated.difference_update(keys)
            return
        for key, value in zip(keys, values, strict=True):
            if type(value) not in MARKS:
                clean[key] = value
                outdated.discard(key)
                continue
            # The key was deleted, or has a newer entry. In both cases the older clean value must
            # not become visible.
            clean.pop(key, None)
            if value is TOMBSTONE:
                outdated.discard(key)
            else:
                outdated.add(key)

    def add_restored(self, entries: Iterable[tuple[object, object]]) -> None:
        """Add entries of a restored snapshot to the clean level."""
        self.clean.update(entries)

    def remove_restored(self, keys: Iterable[object]) -> None:
        """Remove restored entries that a later block of the snapshot deletes."""
        for key in keys:
            self.clean.pop(key, None)

    def forget_dirty(self, keys: Iterable[object]) -> None:
        """Remove entries from the dirty map, after they were written and became clean."""
        for key in keys:
            del self.dirty[key]

    def mark_all_dirty(self) -> None:
        """Mark all clean entries as dirty, since the database of rows does not hold them."""
        self.dirty, self.clean = {**self.clean, **self.dirty}, {}
        self._outdated.clear()

    def merge_levels(self) -> None:
        """Move all clean entries to the dirty level. There must be no captured map.

        In the merged level, the keys of the clean entries come first and keep their order.
        """
        self.clean.update(self.dirty)
        self.dirty, self.clean = self.clean, {}
        self._was_merged = True

    def attach(self, reader: ColdReader) -> None:
        """Set the reader of the entries that are in the database only."""
        self._cold, self.has_cold = reader, True

    def evict(self, count: int) -> list[object]:
        """Evict up to `count` of the oldest clean entries, and return their keys."""
        self._absent = set()
        oldest = list(islice(self.clean, count))
        for key in oldest:
            del self.clean[key]
        return oldest

    def drop_entries(self) -> None:
        """Remove all entries, which are in memory only. There must be no captured map."""
        self.dirty, self.clean = {}, {}
        self._outdated.clear()

    # --- methods that measure memory ---

    def entries_in_memory(self) -> int:
        """Return how many entries all levels in memory hold together.

        A key that is in several levels counts several times.
        """
        entries = len(self.dirty) + len(self.clean)
        if self.captured:
            entries += sum(map(len, self.captured))
        return entries

    def memory_bytes(self, further_entries: int = 0) -> int:
        """Return an estimate of the memory that the entries take, in bytes.

        Arguments:
            further_entries: the number of values that the layout of the table holds in addition.
        """
        entries = self.entries_in_memory() + self.derived_values + further_entries
        self.size.sample(entries, (self.dirty, self.clean))
        return int(entries * self.size.memory_bytes())

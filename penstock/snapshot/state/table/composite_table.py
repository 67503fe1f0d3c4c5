"""A table in which a key has many entries, each with a composite key of its own.

A *composite key* is a tuple `(key, part, ...)`. The key decides the key group of the entry. The
parts identify the entry among the entries of the key. All levels, layouts and snapshots treat a
composite key like any other key. For example, a map state has the entry `("user", "page")` for the
page of a user, and only this entry is written when it changes.

`entries_of` lists the entries of one key. It finds the entries in memory with an *index*, which is
built when it is first needed. Operators write into the dict `dirty` directly, so the index gets
new entries later: a dict keeps the order of its insertions, so the entries that are not in the
index are the last ones of the dict. `entries_of` first adds them. So a write costs nothing more
than in other tables.

Invariants of the index:

* It has the first `_indexed` entries of the dirty level, all entries of each captured map except
  the last ones that `_unindexed` counts, and all entries of the clean level. Only entries that were
  read from the cold store may be missing. The cold store has them, too.
* A deleted entry stays in the index while the dirty level holds its tombstone. So the entry is in
  the index if it is put again.
* An entry of the index may have been deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import cast

from penstock.snapshot.state.entries import MISSING, StateCodec, in_order_of_bytes
from penstock.snapshot.state.settings import DEFAULT_SETTINGS, StateSettings
from penstock.snapshot.state.table.keyed_table import KeyedTable

# The estimated memory of an entry in the index, in bytes: a slot in a dict, and a share of the dict
# of its key.
_INDEXED_BYTES = 120
# From this number of entries on, one scan of the rows of a key costs less than single reads.
_FEWEST_TO_SCAN = 8

Entry = tuple[object, ...]


def _entries(keys: Iterable[object]) -> Iterable[Entry]:
    """Return keys of a composite table, whose type `KeyedTable` does not know."""
    return cast("Iterable[Entry]", keys)


class CompositeTable(KeyedTable):
    """A table whose keys are composite; see the docstring of this module.

    Arguments:
        name: the name of the state.
        table_id: the id of the table.
        codec: encodes captured values before they can change in place.
        settings: the thresholds of the backend.
    """

    __slots__ = ("_index", "_indexed", "_unindexed")

    is_composite = True

    def __init__(
        self,
        name: str,
        table_id: int,
        codec: StateCodec,
        settings: StateSettings = DEFAULT_SETTINGS,
    ) -> None:
        super().__init__(name, table_id, codec, settings)
        #: The entries in memory by their key, or None until they are first needed.
        self._index: dict[object, dict[Entry, None]] | None = None
        # How many entries of the dirty level are in the index.
        self._indexed = 0
        # Levels with entries that are not in the index, each with the number of these entries.
        self._unindexed: list[tuple[dict[object, object], int]] = []

    @staticmethod
    def key_of(entry: object) -> object:
        """Return the first part of a composite key."""
        assert isinstance(entry, tuple)
        return entry[0]

    # --- methods that list the entries of a key ---

    def entries_of(self, key: object) -> Iterator[tuple[Entry, object]]:
        """Yield the composite key and the value of each entry of `key`, in no order.

        The caller may change entries meanwhile. It may change a mutable value in place, as with
        `get`.
        """
        hot = list(self._current_index().get(key, ()))
        for entry in hot:
            value = self.get(entry)
            if value is not MISSING:
                yield entry, value
        if self.has_cold:
            yield from self._cold_entries_of(key, set(hot))

    def has_entries(self, key: object) -> bool:
        """Return whether `key` has at least one entry."""
        hot = self._current_index().get(key, {})
        # Entries are often deleted in the order in which they were put, or in the opposite order.
        # Then the tombstones are at one end of the index, so the search starts at both ends.
        half = (len(hot) + 1) // 2
        for pair in zip(islice(hot, half), islice(reversed(hot), half), strict=True):
            if any(self.get(entry) is not MISSING for entry in pair):
                return True
        return self.has_cold and any(True for _ in self._cold_entries_of(key, set(hot)))

    def warm(self, entries: Sequence[Entry]) -> None:
        """Read entries of one key from the cold store at once, unless most are in memory.

        Arguments:
            entries: the composite keys of the entries.
        """
        missing = {entry for entry in entries if not self._is_hot(entry)}
        if len(missing) < _FEWEST_TO_SCAN:
            return
        for entry, data in self._cold.entries_of(self, entries[0][0]):
            if entry in missing:
                value = self._codec.decode_value(data)
                level = self.clean if self._is_immutable(value) else self.dirty
                level[entry] = value

    def peek_cold(self, key: object) -> Iterator[tuple[Entry, object]]:
        """Yield the entries of `key` that are only in the database, without moving them."""
        if self.has_cold:
            for entry, data in cast(
                "Iterator[tuple[Entry, bytes]]", self._cold.entries_of(self, key)
            ):
                if self.hot_value(entry) is MISSING:
                    yield entry, self._codec.decode_value(data)

    def clear(self, key: object) -> None:
        """Delete all entries of `key`."""
        for entry in [entry for entry, _ in self.entries_of(key)]:
            self.delete(entry)

    def _cold_entries_of(self, key: object, listed: set[Entry]) -> Iterator[tuple[Entry, object]]:
        cold = self._cold.entries_of(self, key)
        for entry, data in cast("Iterator[tuple[Entry, bytes]]", cold):
            if entry in listed:
                continue
            if self._is_hot(entry):
                value = self.get(entry)
                if value is MISSING:
                    continue
            else:
                value = self._codec.decode_value(data)
                if not self._is_immutable(value):
                    self.dirty[entry] = value
            yield entry, value

    def _is_hot(self, entry: object) -> bool:
        return entry in self.dirty or entry in self.clean or self._is_captured(entry)

    def _is_captured(self, entry: object) -> bool:
        return any(entry in level for level in self.captured)

    # --- methods that maintain the index ---

    def delete(self, key: object) -> None:
        """Delete an entry, if it exists; see `KeyedTable.delete`."""
        if self._index is None or not self._is_only_dirty(key):
            super().delete(key)
            return
        self._current_index()
        if self.dirty.pop(key, MISSING) is not MISSING:
            self._indexed -= 1
            self._drop(_entries((key,)))

    def _current_index(self) -> dict[object, dict[Entry, None]]:
        """Return the index, with all entries in memory."""
        if self._index is None:
            self._index = {}
            self._indexed = 0
            self._unindexed = [(level, len(level)) for level in (self.clean, *self.captured)]
        for level, count in self._unindexed:
            self._add_last(level, count)
        self._unindexed.clear()
        self._add_last(self.dirty, len(self.dirty) - self._indexed)
        self._indexed = len(self.dirty)
        return self._index

    def _add_last(self, level: dict[object, object], count: int) -> None:
        """Add the last `count` entries of a level to the index, in their order."""
        if count:
            newest = list(islice(reversed(level), count))
            newest.reverse()
            self._add(_entries(newest))

    def _add(self, entries: Iterable[Entry]) -> None:
        index = self._index
        assert index is not None
        for entry in entries:
            found = index.get(entry[0])
            if found is None:
                index[entry[0]] = {entry: None}
            else:
                found[entry] = None

    def _drop(self, entries: Iterable[Entry]) -> None:
        """Remove entries from the index that are neither dirty nor clean.

        The caller checks the captured maps.
        """
        index = self._index
        assert index is not None
        for entry in entries:
            found = index.get(entry[0])
            if found is not None and entry not in self.dirty and entry not in self.clean:
                found.pop(entry, None)
                if not found:
                    del index[entry[0]]

    # --- methods that move entries between levels ---

    def seal(self, *, whole: bool) -> dict[object, object]:
        """Turn the dirty map into a captured map; see `KeyedTable.seal`."""
        count = len(self.dirty) - self._indexed
        entries = super().seal(whole=whole)
        if self._index is not None and count:
            # The map of a whole state begins with the entries of older levels. They are in the
            # index, or counted in `_unindexed`.
            self._unindexed.append((entries, count))
        self._indexed = 0
        return entries

    def release_oldest_capture(self) -> None:
        """Drop the oldest captured map, after all its entries were written."""
        oldest = self.captured[0]
        super().release_oldest_capture()
        self._unindexed = [(level, n) for level, n in self._unindexed if level is not oldest]

    def absorb(self, keys: Sequence[object], values: Sequence[object], *, marked: bool) -> None:
        """Add entries to the clean level; see `KeyedTable.absorb`."""
        super().absorb(keys, values, marked=marked)
        if self._index is not None:
            clean = self.clean
            self._add(entry for entry in _entries(keys) if entry in clean)
            if marked:
                # The entries come from the oldest captured map, or from the dirty level.
                newer = self.captured[1:]
                self._drop(e for e in _entries(keys) if not any(e in level for level in newer))

    def forget_dirty(self, keys: Iterable[object]) -> None:
        """Remove entries from the dirty map, after they were written and became clean."""
        forgotten = list(keys)
        if self._index is not None:
            self._current_index()
        super().forget_dirty(forgotten)
        if self._index is not None:
            self._indexed = len(self.dirty)
            self._drop(entry for entry in _entries(forgotten) if not self._is_captured(entry))

    def mark_all_dirty(self) -> None:
        """Mark all clean entries as dirty, since the database of rows does not hold them."""
        super().mark_all_dirty()
        self._indexed = 0

    def merge_levels(self) -> None:
        """Move all clean entries to the dirty level; see `KeyedTable.merge_levels`."""
        super().merge_levels()
        self._indexed = 0

    def drop_entries(self) -> None:
        """Remove all entries, and the index."""
        super().drop_entries()
        self._index, self._indexed, self._unindexed = None, 0, []

    def evict(self, count: int) -> list[object]:
        """Evict up to `count` of the oldest clean entries, and return their keys."""
        evicted = super().evict(count)
        if self._index is not None:
            self._drop(entry for entry in _entries(evicted) if not self._is_captured(entry))
        return evicted

    def memory_bytes(self, further_entries: int = 0) -> int:
        """Return an estimate of the memory that the entries and the index take, in bytes."""
        indexed = 0 if self._index is None else self.entries_in_memory() * _INDEXED_BYTES
        return super().memory_bytes(further_entries) + indexed


class OrderedCompositeTable(CompositeTable):
    """A composite table that lists entries in the order of their bytes.

    The order is the same after a restore, and whichever entries are in memory.
    """

    __slots__ = ()

    def entries_of(self, key: object) -> Iterator[tuple[Entry, object]]:
        """Yield the composite key and the value of each entry of `key`; see `CompositeTable`."""
        entries = [entry for entry, _ in super().entries_of(key)]
        for entry in in_order_of_bytes(self._codec, entries):
            value = self.get(entry)
            if value is not MISSING:
                yield entry, value

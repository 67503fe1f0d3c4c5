"""The map state, which stores each entry of a map as an entry of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.state import MapState
from penstock.runtime.operators.state.cells import Cells
from penstock.runtime.operators.state.scope import KeyScope, Scope
from penstock.snapshot.state import MISSING, TOMBSTONE, CompositeTable

# The types of which every value is allowed as a key. A key of another type is checked.
_ALLOWED = frozenset({str, int, bytes, bool, type(None)})


class CellMapState(MapState):
    """A map state, perhaps with a namespace, or whose values expire.

    Arguments:
        cells: the cells of its table.
        table: its table.
        scope: returns the composite keys of its entries.
    """

    def __init__(self, cells: Cells, table: CompositeTable, scope: Scope) -> None:
        self._cells = cells
        self._table = table
        self._scope = scope

    def get(self, key: Any) -> Any:
        """Return the value of `key` in the map, or None if the map has no such key."""
        value = self._cells.get(self._scope.entry(key))
        return None if value is MISSING else value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key` in the map.

        Raises:
            KeyRefusedError: if the type of `key` is not allowed for keys.
        """
        if type(key) not in _ALLOWED:
            canonical(key)
        self._cells.put(self._scope.entry(key), value)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Set the value of each key of a dict in the map."""
        for key, value in dict_value.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove `key` from the map, if it is there."""
        self._cells.delete(self._scope.entry(key))

    def contains(self, key: Any) -> bool:
        """Return whether the map has the key."""
        return self._cells.get(self._scope.entry(key)) is not MISSING

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return an iterator over the keys and values of the map, in no particular order."""
        for entry, value in self._entries():
            yield entry[-1], value

    def keys(self) -> Iterator[Any]:
        """Return an iterator over the keys of the map, in no particular order."""
        for entry, _ in self._entries():
            yield entry[-1]

    def values(self) -> Iterator[Any]:
        """Return an iterator over the values of the map, in no particular order."""
        for _, value in self._entries():
            yield value

    def is_empty(self) -> bool:
        """Return whether the map has no entry."""
        return next(self._entries(), None) is None

    def clear(self) -> None:
        """Remove all entries of the map."""
        for entry in [entry for entry, _ in self._stored()]:
            self._cells.delete(entry)

    def _entries(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield the composite key and the value of each entry that has not expired."""
        visible = self._cells.visible
        for entry, stored in self._stored():
            value = visible(entry, stored)
            if value is not MISSING:
                yield entry, value

    def _stored(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        example = self._scope.entry(None)
        namespace = example[1:-1]
        for entry, stored in self._table.entries_of(example[0]):
            if entry[1:-1] == namespace:
                yield entry, stored


class TableMapState(CellMapState):
    """A map state without namespace and expiry, as most are; see `CellMapState`."""

    def __init__(self, cells: Cells, table: CompositeTable, scope: KeyScope) -> None:
        super().__init__(cells, table, scope)
        self._current = scope.current

    def get(self, key: Any) -> Any:
        """Return the value of `key` in the map, or None if the map has no such key."""
        entry = (self._current.key, key)
        value = self._table.dirty.get(entry)
        if value is None:  # The entry has not changed, or its value is None.
            value = self._table.get(entry)
            return None if value is MISSING else value
        return None if value is TOMBSTONE else value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key` in the map.

        Raises:
            KeyRefusedError: if the type of `key` is not allowed for keys.
        """
        if type(key) not in _ALLOWED:
            canonical(key)
        self._table.dirty[self._current.key, key] = value

    def remove(self, key: Any) -> None:
        """Remove `key` from the map, if it is there."""
        self._table.delete((self._current.key, key))

    def contains(self, key: Any) -> bool:
        """Return whether the map has the key."""
        return self._table.get((self._current.key, key)) is not MISSING

    def is_empty(self) -> bool:
        """Return whether the map has no entry."""
        return not self._table.has_entries(self._current.key)

    def clear(self) -> None:
        """Remove all entries of the map."""
        self._table.clear(self._current.key)

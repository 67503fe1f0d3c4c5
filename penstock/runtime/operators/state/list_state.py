"""The list state, which stores each element as an entry of its own.

A list has an entry for each element, with the index of the element as its part, and one entry
with the *bounds* of the list, with None as its part. The bounds are the index of the first element
and the index behind the last one. They move when elements are added at the end, and when elements
at the beginning have expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.dataflow.state import ListState
from penstock.runtime.operators.state.cells import Cells
from penstock.runtime.operators.state.scope import KeyScope, Scope
from penstock.snapshot.state import MISSING, TOMBSTONE, CompositeTable

_EMPTY = (0, 0)


class CellListState(ListState):
    """A list state.

    Arguments:
        cells: the cells of its table.
        table: its table.
        scope: returns the composite keys of its elements.
    """

    def __init__(self, cells: Cells, table: CompositeTable, scope: Scope) -> None:
        self._cells = cells
        self._table = table
        self._scope = scope

    def get(self) -> list[Any]:
        """Return the elements of the current key, in their order; an empty list if it has none."""
        entry = self._scope.entry
        bounds: Any = self._table.get(entry(None), _EMPTY)
        begin, end = bounds
        keys = [entry(index) for index in range(begin, end)]
        if self._table.has_cold:
            self._table.warm(keys)
        values = list(map(self._cells.get, keys))
        live = [index for index, value in enumerate(values, begin) if value is not MISSING]
        if len(live) < len(values):
            # Elements have expired. Those between live elements leave gaps, which are skipped.
            self._set_bounds((live[0], live[-1] + 1) if live else _EMPTY)
            return [value for value in values if value is not MISSING]
        return values

    def add(self, value: Any) -> None:
        """Add an element to the end of the list of the current key."""
        entry = self._scope.entry
        key = entry(None)
        bounds: Any = self._table.get(key, _EMPTY)
        begin, end = bounds
        self._cells.put(entry(end), value)
        self._table.dirty[key] = (begin, end + 1)

    def add_all(self, values: Iterable[Any]) -> None:
        """Add all `values` to the end of the list of the current key."""
        entry, put = self._scope.entry, self._cells.put
        bounds: Any = self._table.get(entry(None), _EMPTY)
        begin, end = bounds
        first = end
        for value in _checked(values):
            put(entry(end), value)
            end += 1
        if end > first:
            self._set_bounds((begin, end))

    def update(self, values: Iterable[Any]) -> None:
        """Replace the elements of the current key by `values`."""
        elements = list(_checked(values))
        entry, put = self._scope.entry, self._cells.put
        bounds: Any = self._table.get(entry(None), _EMPTY)
        begin, end = bounds
        for index, value in enumerate(elements):
            put(entry(index), value)
        for index in range(max(begin, len(elements)), end):
            self._table.delete(entry(index))
        if elements or end:
            self._set_bounds((0, len(elements)))

    def clear(self) -> None:
        """Remove all elements of the current key."""
        entry, delete = self._scope.entry, self._table.delete
        bounds: Any = self._table.get(entry(None), _EMPTY)
        begin, end = bounds
        if end:
            for index in range(begin, end):
                delete(entry(index))
            delete(entry(None))

    def _set_bounds(self, bounds: tuple[int, int]) -> None:
        begin, end = bounds
        if end > begin:
            self._table.dirty[self._scope.entry(None)] = bounds
        else:
            self._table.delete(self._scope.entry(None))

    def take(self) -> Any:
        """Return the elements of the current key, and remove them; `MISSING` if there are none."""
        elements = self.get()
        self.clear()
        return elements or MISSING

    def put_merged(self, parts: Sequence[list[Any]]) -> None:
        """Set the elements of the current key to those of lists that `take` returned."""
        self.update([element for part in parts for element in part])


class TableListState(CellListState):
    """A list state without namespace and expiry, as most are; see `CellListState`."""

    def __init__(self, cells: Cells, table: CompositeTable, scope: KeyScope) -> None:
        super().__init__(cells, table, scope)
        self._current = scope.current

    def add(self, value: Any) -> None:
        """Add an element to the end of the list of the current key."""
        key, table = self._current.key, self._table
        ends = (key, None)
        bounds: Any = table.dirty.get(ends)
        if bounds is None or bounds is TOMBSTONE:
            bounds = table.get(ends, _EMPTY)
        begin, end = bounds
        table.dirty[key, end] = value
        table.dirty[ends] = (begin, end + 1)


def _checked(values: Iterable[Any]) -> Iterable[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"a list state takes an iterable of elements, not {values!r}")
    return values

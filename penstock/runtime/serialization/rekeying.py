"""Move the keyed state of an operator to other keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from penstock.dataflow.errors import GraphError
from penstock.runtime.serialization.entry_fields import is_bounds
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import MISSING, KeyedBackend, KeyedTable, run_at_once

#: Combines the values of two keys that become one: it gets the name of the state and both values.
Merge = Callable[[str, Any, Any], Any]


class Rekeying:
    """Moves entries into new tables, whose keys a function returns.

    Arguments:
        new_key: takes a key, and returns the new one.
        merge: combines the values of two keys that become one; None refuses that.
        table_of: returns the new table for a key, and its backend, from the key and the old table.
        is_wanted: returns whether the entries of a new key are moved; None moves all.
        hint: what to do if two keys become one and there is no function `merge`.
    """

    def __init__(
        self,
        new_key: Callable[[Any], Any],
        merge: Merge | None,
        table_of: Callable[[Any, KeyedTable], tuple[KeyedTable, KeyedBackend]],
        is_wanted: Callable[[Any], bool] | None = None,
        hint: str = "pass merge=, a function that combines them",
    ) -> None:
        self._new_key, self._merge, self._table_of = new_key, merge, table_of
        self._is_wanted, self._hint = is_wanted, hint
        self._moved = 0
        #: The former key of each new one, to name both keys of a conflict.
        self._former: dict[Any, Any] = {}

    def run(self, backends: Iterable[KeyedBackend]) -> int:
        """Move all entries, and return the number of those with another key."""
        for backend in backends:
            for table in backend.tables:
                for entry, stored in backend.scan(table.name):
                    if self._is_wanted and not self._is_wanted(self._new_key(table.key_of(entry))):
                        continue
                    if not table.kind.is_list:
                        self._move(table, entry, stored)
                    elif is_bounds(table.kind, entry):
                        self._move_list(table, entry, stored)
        return self._moved

    def _target(self, table: KeyedTable, entry: Any) -> tuple[KeyedTable, KeyedBackend, Any]:
        """Return the new table of an entry, its backend, and its new key."""
        key = table.key_of(entry)
        new = self._new_key(key)
        self._moved += new != key
        return *self._table_of(new, table), new

    def _move(self, table: KeyedTable, entry: Any, stored: Any) -> None:
        target, backend, key = self._target(table, entry)
        place = (key, *entry[1:]) if table.is_composite else key
        other = target.get(place)
        former = table.key_of(entry)
        if other is not MISSING and table.kind is not StateKind.TIMER:
            stored = self._merged(table, key, former, other, stored)
        if self._merge is None:
            self._former[key] = former
        target.put(place, stored)
        _keep_within_memory(backend)

    def _merged(self, table: KeyedTable, key: Any, former: Any, one: Any, other: Any) -> Any:
        if self._merge is None:
            raise GraphError(
                f"the two keys {self._former.get(key)!r} and {former!r} become {key!r}, and the "
                f"state {table.name!r} has values of both: {self._hint}"
            )
        if table.expires:
            (one, used), (other, used_too) = one, other
            return self._merge(table.name, one, other), max(used, used_too)
        return self._merge(table.name, one, other)

    def _move_list(self, table: KeyedTable, ends: Any, bounds: Any) -> None:
        """Append the elements of a list to those that its new key has."""
        target, backend, key = self._target(table, ends)
        place = (key, *ends[1:-1])
        begin, end = bounds
        default: Any = (0, 0)
        first, last = cast("tuple[int, int]", target.get((*place, None), default))
        for index in range(begin, end):
            element = table.get((*ends[:-1], index))
            if element is not MISSING:  # it may have expired
                target.put((*place, last), element)
                last += 1
                _keep_within_memory(backend)
        target.put((*place, None), (first, last))


def _keep_within_memory(backend: KeyedBackend) -> None:
    if backend.over_memory_limit:
        run_at_once(backend.evict())

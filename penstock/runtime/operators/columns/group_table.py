"""Keep the values of groups in arrays, and write them to keyed state at a snapshot.

A group has a *slot*: an index into arrays, one array for each part of the aggregates. An operator
changes the arrays, and records the slots that it has changed. At a barrier, only the changed groups
are written to the keyed state. Each key has one entry: the tuple of the values of its parts. So the
work of a snapshot depends only on the number of changed groups, and the state can be restored at
another parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from penstock.dataflow.columns.column_key import DistinctKeys
from penstock.dataflow.columns.key_index import KeyIndex
from penstock.runtime.operators.columns.accumulators import Part
from penstock.runtime.operators.columns.row_groups import Array

_FIRST_CAPACITY = 1024


class GroupTable:
    """The values of groups, by slot.

    Arguments:
        parts: the parts of the aggregates.
        load: a function that returns the saved values of a key, or None. None means that no values
            were saved.
    """

    def __init__(
        self, parts: Sequence[Part], load: Callable[[Any], Sequence[Any] | None] | None = None
    ) -> None:
        self._parts = list(parts)
        self._load = load
        self._index = KeyIndex(self._add_key)
        self._keys: list[Any] = []
        self._values: dict[Part, Array] = {
            part: self._filled(part, np.dtype(np.int64), _FIRST_CAPACITY) for part in parts
        }
        #: Whether the group of each slot has changed since its values were last saved.
        self._changed = np.zeros(_FIRST_CAPACITY, np.bool_)
        self._saved = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> list[Any]:
        """Return the keys, in the order of their slots."""
        return self._keys

    @property
    def saved_keys(self) -> list[Any]:
        """Return the keys whose values were saved before, and are entries of the state."""
        return self._keys[: self._saved]

    def slots_of(self, keys: DistinctKeys) -> Array:
        """Return the slots of distinct keys, and record that their groups change.

        New keys get slots, with their saved values.
        """
        before = len(self._keys)
        slots = self._index.lookup(keys)
        if len(self._keys) > before:
            self._load_from(before)
        self._changed[slots] = True
        return slots

    def values_of(self, part: Part) -> Array:
        """Return the values of a part, by slot. The caller may change them."""
        return self._values[part][: len(self._keys)]

    def widen(self, part: Part, dtype: np.dtype[Any]) -> None:
        """Convert the values of a part to floats if `dtype` is a float type."""
        values = self._values[part]
        if dtype.kind != "f" or values.dtype.kind == "f":
            return
        wide = self._filled(part, dtype, len(values))
        used = len(self._keys)
        has_values = self._values[Part("count", part.column)][:used] > 0
        wide[:used][has_values] = values[:used][has_values]
        self._values[part] = wide

    def take_changed(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """Return each key that has changed since the last call, with its values as a tuple."""
        used = self._saved = len(self._keys)
        changed = np.flatnonzero(self._changed[:used])
        self._changed[:used] = False
        columns = [self._values[part][changed].tolist() for part in self._parts]
        keys = self._keys
        if len(changed) < used:
            keys = [keys[slot] for slot in changed.tolist()]
        return zip(keys, zip(*columns, strict=True), strict=True)

    def restore(self, key: Any, saved: Sequence[Any]) -> None:
        """Add a key with its saved values, before the first rows."""
        slot = self._add_key(key)
        self._index.set(key, slot)
        self._grow(slot + 1)
        self._set(slot, saved)
        self._saved = slot + 1

    def _add_key(self, key: Any) -> int:
        self._keys.append(key)
        return len(self._keys) - 1

    def _load_from(self, first: int) -> None:
        """Load the values of the keys whose slots are `first` or higher."""
        self._grow(len(self._keys))
        if self._load is None:
            return
        for slot in range(first, len(self._keys)):
            saved = self._load(self._keys[slot])
            if saved is not None:
                self._set(slot, saved)

    def _set(self, slot: int, saved: Sequence[Any]) -> None:
        for part, value in zip(self._parts, saved, strict=True):
            if type(value) is float:
                self.widen(part, np.dtype(np.float64))
            self._values[part][slot] = value

    def _grow(self, size: int) -> None:
        capacity = len(self._changed)
        if size <= capacity:
            return
        capacity = max(size, capacity * 2)
        self._changed = np.concatenate(
            (self._changed, np.zeros(capacity - len(self._changed), np.bool_))
        )
        for part, values in self._values.items():
            more = self._filled(part, values.dtype, capacity - len(values))
            self._values[part] = np.concatenate((values, more))

    def _filled(self, part: Part, dtype: np.dtype[Any], size: int) -> Array:
        return np.full(size, part.identity(dtype), dtype)

"""Decide whether values can change, and copy those that can.

A record or a state that is deeply immutable may be referred to from several places. Any other one
is copied where a second reference would let a user's function see another one's changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.dataflow.object_reuse import IMMUTABLE
from penstock.runtime.serialization.columns import columns_of
from penstock.runtime.serialization.leaf_encoding import is_numpy_scalar
from penstock.runtime.serialization.record_serializers import (
    RecordSerializer,
    UnsupportedTypeError,
)
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_encoding import MAX_DEPTH

__all__ = ["Copier"]


class Copier:
    """Tells immutable values from others, and copies batches that hold others.

    Arguments:
        registry: the job's record classes.
        round_trip: encodes a batch and decodes it again.
    """

    def __init__(
        self, registry: TypeRegistry, round_trip: Callable[[list[Any]], list[Any]]
    ) -> None:
        self._registry = registry
        self._round_trip = round_trip

    def is_immutable(self, value: Any) -> bool:
        """Return whether a value that can be carried is deeply immutable."""
        # State is looked up one value at a time. Looking at the types of a tuple's items would
        # take six times as long, and looking at columns, which pays for batches, even longer.
        if self._registry.hash_implies_immutable:
            try:
                hash(value)
            except TypeError:
                pass
            else:
                return True
        return self._all_immutable((value,), MAX_DEPTH)

    def is_immutable_batch(self, batch: list[Any]) -> bool:
        """Return whether every record is deeply immutable."""
        return self._all_immutable(batch, MAX_DEPTH)

    def copy_mutable(self, batch: list[Any]) -> list[Any]:
        """Return the same list if every record is deeply immutable, else a list of copies.

        The copies are what a task in another process would receive. Raises
        `UnsupportedTypeError` for records that can't be carried.
        """
        if self._all_immutable(batch, MAX_DEPTH):
            return batch
        # All records are copied: to find out which ones are mutable would cost more.
        return self._round_trip(batch)

    def _all_immutable(self, values: Sequence[Any], depth: int) -> bool:
        kinds = list(map(type, values))
        kind = kinds[0] if kinds else type(None)
        if kinds.count(kind) != len(kinds):
            if IMMUTABLE.issuperset(kinds):
                return True
            return depth > 0 and all(self._all_immutable((v,), depth) for v in values)
        if kind in IMMUTABLE:
            return True
        if depth == 0:
            return False
        if kind is tuple:
            rows: Sequence[Sequence[Any]] = values
        elif kind is frozenset:
            rows = list(map(tuple, values))
        elif (serializer := self._registry.serializer_of(kind)) is not None and serializer.frozen:
            rows = _rows_or_none(serializer, values)
            if not rows:
                return False
        else:
            return is_numpy_scalar(kind)
        columns = columns_of(rows) or rows
        return all(self._all_immutable(column, depth - 1) for column in columns)


def _rows_or_none(serializer: RecordSerializer, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """Return the rows of the values; none if one holds more than its fields, and so may change."""
    try:
        return serializer.to_rows(values)
    except UnsupportedTypeError:
        return ()

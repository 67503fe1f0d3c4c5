"""Find out whether values are deeply immutable, and copy mutable ones.

A deeply immutable record or state value may be shared by several user functions. A mutable one is
copied, so that a user function does not see the changes of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.dataflow.object_reuse import IMMUTABLE
from penstock.dataflow.types.hash_probe import HashProbe
from penstock.runtime.serialization.columns import columns_of
from penstock.runtime.serialization.leaf_encoding import is_numpy_scalar
from penstock.runtime.serialization.record_serializers import (
    RecordSerializer,
    UnsupportedTypeError,
)
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_encoding import MAX_DEPTH

_PROBE = HashProbe()


class Copier:
    """Checks whether values are deeply immutable, and copies mutable records.

    Arguments:
        registry: the job's record classes.
        round_trip: a function that encodes a list of records, and returns them decoded again.
    """

    def __init__(
        self, registry: TypeRegistry, round_trip: Callable[[list[Any]], list[Any]]
    ) -> None:
        self._registry = registry
        self._round_trip = round_trip

    def is_immutable(self, value: Any) -> bool:
        """Return whether a value of a supported type is deeply immutable."""
        # This is called for each state value that is read. To check the types of a tuple's items
        # would take six times as long. To check by column, as for batches, would take even longer.
        if self._registry.hash_implies_immutable:
            try:
                value in _PROBE  # noqa: B015 - raises for mutable values
            except TypeError:
                pass
            else:
                return True
        return self._all_immutable((value,), MAX_DEPTH)

    def is_immutable_batch(self, batch: list[Any]) -> bool:
        """Return whether every record of a batch is deeply immutable."""
        return self._all_immutable(batch, MAX_DEPTH)

    def copy_mutable(self, batch: list[Any]) -> list[Any]:
        """Return the same list if every record is deeply immutable, else a list of copies.

        A copy equals the record that a task in another process would receive. Raises
        `UnsupportedTypeError` for a record of an unsupported type.
        """
        if self._all_immutable(batch, MAX_DEPTH):
            return batch
        # All records are copied, since a search for the mutable ones would take longer.
        return self._round_trip(batch)

    def _all_immutable(self, values: Sequence[Any], depth: int) -> bool:
        kinds = set(map(type, values))
        if len(kinds) != 1:
            return IMMUTABLE.issuperset(kinds) or self._each_kind_immutable(values, depth)
        (kind,) = kinds
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

    def _each_kind_immutable(self, values: Sequence[Any], depth: int) -> bool:
        """Return whether values of several types are immutable, which is checked by type."""
        by_kind: dict[type, list[Any]] = {}
        for value in values:
            by_kind.setdefault(type(value), []).append(value)
        return all(self._all_immutable(of_kind, depth) for of_kind in by_kind.values())


def _rows_or_none(serializer: RecordSerializer, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """Return the rows of instances, or no rows if one of them may be mutable.

    An instance may be mutable if it has attributes that are not fields of its class.
    """
    try:
        return serializer.to_rows(values)
    except UnsupportedTypeError:
        return ()

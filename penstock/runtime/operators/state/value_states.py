"""The states that store one value per key: value, reducing and aggregating states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.state import AggregatingState, ReducingState, ValueState
from penstock.runtime.operators.state.cells import Cells
from penstock.runtime.operators.state.scope import CurrentKey, Scope
from penstock.snapshot.state import MISSING, TOMBSTONE, KeyedTable


class TableValueState(ValueState):
    """A value state without namespace and expiry, as most are.

    Arguments:
        table: the table of the state.
        current: knows the current key.
    """

    __slots__ = ("_current", "_table")

    def __init__(self, table: KeyedTable, current: CurrentKey) -> None:
        self._table = table
        self._current = current

    # Methods run once per record, so the most frequent case is first and needs only one look-up.

    def value(self) -> Any:
        """Return the value of the current key, or None if the key has no value."""
        value = self._table.dirty.get(self._current.key)
        if value is None:  # The key has no changed entry, because this state never stores None.
            value = self._table.lookup(self._current.key)
            return None if value is MISSING else value
        return None if value is TOMBSTONE else value

    def update(self, value: Any) -> None:
        """Set the value of the current key. If `value` is None, remove the key's value."""
        if value is None:
            self._table.delete(self._current.key)
        else:
            self._table.dirty[self._current.key] = value

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._table.delete(self._current.key)


class CellValueState(ValueState):
    """A value state with a namespace, or whose values expire.

    Arguments:
        cells: the cells of its table.
        scope: returns the key of its value.
    """

    def __init__(self, cells: Cells, scope: Scope) -> None:
        self._cells = cells
        self._scope = scope

    def value(self) -> Any:
        """Return the value of the current key, or None if the key has no value."""
        value = self._cells.get(self._scope.single())
        return None if value is MISSING else value

    def update(self, value: Any) -> None:
        """Set the value of the current key. If `value` is None, remove the key's value."""
        if value is None:
            self.clear()
        else:
            self._cells.put(self._scope.single(), value)

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._cells.delete(self._scope.single())


class CellReducingState(ReducingState):
    """A reducing state, which stores the combined value.

    Arguments:
        cells: the cells of its table.
        scope: returns the key of its value.
        combine: combines two values.
    """

    def __init__(self, cells: Cells, scope: Scope, combine: Callable[[Any, Any], Any]) -> None:
        self._cells = cells
        self._scope = scope
        self._combine = combine

    def get(self) -> Any:
        """Return the combined value of the current key, or None if no value was added."""
        value = self._cells.get(self._scope.single())
        return None if value is MISSING else value

    def add(self, value: Any) -> None:
        """Combine a value with the value of the current key.

        If the value of the key is None, because the function has returned None, the key has no
        value.
        """
        key = self._scope.single()
        old = self._cells.peek(key)
        is_first = old is MISSING or old is None
        self._cells.put(key, value if is_first else self._combine(old, value))

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._cells.delete(self._scope.single())

    def take(self) -> Any:
        """Return the combined value of the current key, and remove it; `MISSING` if none."""
        return _take(self._cells, self._scope.single())

    def put_merged(self, parts: Sequence[Any]) -> None:
        """Set the value of the current key to the combination of values that `take` returned."""
        values = [part for part in parts if part is not None]
        if values:
            self._cells.put(self._scope.single(), reduce(self._combine, values))


class CellAggregatingState(AggregatingState):
    """An aggregating state, which stores the accumulator.

    Arguments:
        cells: the cells of its table.
        scope: returns the key of its accumulator.
        function: the `AggregateFunction`.
    """

    def __init__(self, cells: Cells, scope: Scope, function: Any) -> None:
        self._cells = cells
        self._scope = scope
        self._function = function

    def get(self) -> Any:
        """Return the result of the accumulator of the current key, or None if there is none."""
        accumulator = self._cells.get(self._scope.single())
        if accumulator is MISSING or accumulator is None:
            return None
        return self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value to the accumulator of the current key. None removes the accumulator.

        If the accumulator is None, because the function has returned None, the key has none.
        """
        key = self._scope.single()
        if value is None:
            self._cells.delete(key)
            return
        accumulator = self._cells.peek(key)
        if accumulator is MISSING or accumulator is None:
            accumulator = self._function.create_accumulator()
        self._cells.put(key, self._function.add(value, accumulator))

    def clear(self) -> None:
        """Remove the accumulator of the current key."""
        self._cells.delete(self._scope.single())

    def take(self) -> Any:
        """Return the accumulator of the current key, and remove it; `MISSING` if none."""
        return _take(self._cells, self._scope.single())

    def put_merged(self, parts: Sequence[Any]) -> None:
        """Merge accumulators that `take` returned into the accumulator of the current key."""
        merge = self._function.merge
        if merge is None:
            raise JobError(
                f"windows were merged, so that {type(self._function).__name__} needs a method "
                f"merge(self, a, b)"
            )
        accumulators = [part for part in parts if part is not None]
        if accumulators:
            self._cells.put(self._scope.single(), reduce(merge, accumulators))


def _take(cells: Cells, key: Any) -> Any:
    value = cells.peek(key)
    if value is not MISSING:
        cells.delete(key)
    return value

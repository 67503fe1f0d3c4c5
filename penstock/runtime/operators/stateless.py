"""Operators without state: map, flat map, filter and process functions.

What a user's function emits must not change when the function goes on. `EmissionGuard` decides
how each batch is processed for that; see `penstock.dataflow.reuse`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.dataflow.functions import ProcessFunction, method_of
from penstock.dataflow.reuse import EmissionGuard, own
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator, batched
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.record_batch import Columns, Records

__all__ = [
    "FilterOperator",
    "FlatMapOperator",
    "MapOperator",
    "ProcessOperator",
]


class MapOperator(RecordLoopOperator):
    """Emit one record for each."""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self.called = method_of(function, "map")
        self._guard = EmissionGuard(self.called)
        self._probe = context.mutability_probe()
        self._set_loop(loops.map_records, function=self.called)

    def process(self, records: Records) -> list[Any]:
        """Return the mapped records."""
        guard = self._guard
        if not (guard.watching or guard.changes):
            return guard.seen(self._run_loop(records))
        rows = records.rows() if isinstance(records, Columns) else records
        self.iterator = iterator = iter(rows)
        if guard.watching:
            return guard.seen(guard.map(self.called, iterator, rows))
        return guard.seen(loops.own_map_records(self.called, iterator, self._probe))


class FlatMapOperator(RecordLoopOperator):
    """Emit any number of records for each."""

    emits = "flat_map"

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self.called = method_of(function, "flat_map")
        self._set_loop(loops.flat_map_records, function=self.called)
        self._guard = EmissionGuard(self.called)
        self._probe = context.mutability_probe()

    def process(self, records: Records) -> list[Any]:
        """Return all records that the function returned, in order."""
        guard = self._guard
        if not (guard.watching or guard.changes):
            return guard.seen(self._run_loop(records))
        rows = records.rows() if isinstance(records, Columns) else records
        self.iterator = iterator = iter(rows)
        probe = None if guard.watching else self._probe
        return guard.seen(loops.emit_records(self.called, iterator, (), probe, guard.items))


class FilterOperator(RecordLoopOperator):
    """Emit some of the records."""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self._set_loop(loops.filter_records, function=method_of(function, "filter"))

    def process(self, records: list[Any]) -> list[Any]:
        """Return the records for which the function is true."""
        return self._run_loop(records)


class ProcessOperator(RunningOperator):
    """Run a `ProcessFunction`."""

    emits = "process_element"

    class _Context(ProcessFunction.Context):
        pass

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self._guard = EmissionGuard(function.process_element)
        self._probe = context.mutability_probe()

    def process(self, records: list[Any]) -> list[Any]:
        """Return all records that the function emitted."""
        self.iterator = iterator = iter(records)
        guard, call, shown = self._guard, self.function.process_element, self._Context()
        if not (guard.watching or guard.changes):
            return guard.seen([out for record in iterator for out in call(record, shown) or ()])
        probe = None if guard.watching else self._probe
        return guard.seen(loops.emit_records(call, iterator, (shown,), probe, guard.items))

    def _end_input(self) -> Iterator[list[Any]]:
        return batched(map(own, self.function.end_input(self._Context()) or ()))

"""Operators without state: map, flat map, filter and process functions.

The user's function might change a record after it has emitted the record. The operator must copy
such records. An `EmissionPolicy` decides how thoroughly the operator checks each batch; see
`penstock.dataflow.object_reuse`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

from penstock.dataflow.functions import method_of
from penstock.dataflow.object_reuse import (
    Check,
    EmissionPolicy,
    copy_if_shared,
    map_and_copy_if_shared,
)
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator, batched
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.time.timer_contexts import ElementContext
from penstock.runtime.serialization.record_batch import RecordBatch


class MapOperator(RecordLoopOperator):
    """Emits one record for each input record: the result of the user's function.

    If the function and the key selector behind it are small, `columnar_fusion.py` runs this
    operator and its partitioner as one.
    """

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self.called = method_of(function, "map")
        self._policy = EmissionPolicy(self.called)
        self._probe = context.mutability_probe()
        self._set_loop(loops.map_records, function=self.called)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return the result of the user's function for each record."""
        policy = self._policy
        if policy.check is Check.NOTHING:
            return RecordBatch(policy.after_batch(self._run_loop(batch)), None, batch.timestamps)
        rows = batch.rows()
        self.iterator = iterator = iter(rows)
        if policy.check is Check.EVERY_RECORD:
            out = map_and_copy_if_shared(self.called, iterator, rows)
        else:
            out = loops.map_and_copy_records(self.called, iterator, self._probe)
        return RecordBatch(policy.after_batch(out), None, batch.timestamps)


class FlatMapOperator(RecordLoopOperator):
    """Emits any number of records for each input record."""

    emits = "flat_map"

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self.called = method_of(function, "flat_map")
        self._set_timed_loop(loops.flat_map_records, function=self.called)
        self._policy = EmissionPolicy(self.called)
        self._probe = context.mutability_probe()

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return all records that the user's function returned, in order."""
        policy, timestamps = self._policy, batch.timestamps
        if policy.check is Check.NOTHING:
            if timestamps is None:
                return RecordBatch(policy.after_batch(self._run_loop(batch)))
            made = self._process_with_loop(batch)
            return made.with_rows(policy.after_batch(made.rows()))
        self.iterator = iterator = iter(batch.rows())
        probe = None if policy.check is Check.EVERY_RECORD else self._probe
        if timestamps is None:
            out = loops.emit_records(self.called, iterator, (), probe)
            return RecordBatch(policy.after_batch(out))
        times: list[int] = []
        out = loops.emit_timed_records(
            self.called, iterator, (), probe, self.context, timestamps, times
        )
        return RecordBatch(policy.after_batch(out), None, times)


class FilterOperator(RecordLoopOperator):
    """Emits the input records for which the user's function returns a true value."""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self._called = method_of(function, "filter")
        # A coroutine is true, so that a filter that calls an async function keeps all records. The
        # first batch is checked, and later ones are not.
        self._unchecked = True
        self._use(partial(_checked, self._called))

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return the records for which the user's function returns a true value."""
        kept = self._kept(batch)
        if self._unchecked:
            self._unchecked = False
            self._use(self._called)
        return kept

    def _use(self, function: Any) -> None:
        self._set_loop(loops.filter_records, loops.filter_timed_records, function=function)

    def _kept(self, batch: RecordBatch) -> RecordBatch:
        if batch.timestamps is None:
            return RecordBatch(self._run_loop(batch))
        return self._process_with_loop(batch)


def _checked(function: Any, record: Any) -> Any:
    """Return the result of a filter. Raise a `TypeError` if it is a coroutine."""
    kept = function(record)
    if isinstance(kept, Coroutine):
        kept.close()  # Python would also warn that it was never awaited.
        raise TypeError(
            "filter got a coroutine, because the function calls an async function. The engine does "
            "not await it: use AsyncDataStream.unordered_wait or ordered_wait before the filter"
        )
    return kept


class ProcessOperator(RunningOperator):
    """Runs a `ProcessFunction` of the user."""

    emits = "process_element"

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self._policy = EmissionPolicy(function.process_element)
        self._probe = context.mutability_probe()
        self._shown = ElementContext(context)
        self._call, self._hook = function.process_element, function.end_input

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Process a batch, and return all records that the function emitted."""
        self.iterator = iterator = iter(batch.rows())
        policy, call, shown = self._policy, self._call, self._shown
        if batch.timestamps is not None:
            times: list[int] = []
            out = loops.emit_timed_records(
                call, iterator, (shown,), None, self.context, batch.timestamps, times
            )
            return self.side_outputs.divided(RecordBatch(out, None, times))
        self.context.timestamp = NO_TIMESTAMP
        if policy.check is Check.NOTHING:
            out = [emitted for record in iterator for emitted in call(record, shown) or ()]
        else:
            probe = None if policy.check is Check.EVERY_RECORD else self._probe
            out = loops.emit_records(call, iterator, (shown,), probe)
        return self.side_outputs.divided(RecordBatch(policy.after_batch(out)))

    def _end_input(self) -> Iterator[list[Any]]:
        self.context.timestamp = NO_TIMESTAMP
        return batched(map(copy_if_shared, self._hook(self._shown) or ()))

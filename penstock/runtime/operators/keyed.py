"""Operators with keyed state: reduce, count and keyed process functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from penstock.dataflow.functions import has_on_timer, method_of
from penstock.dataflow.object_reuse import copy_if_shared, copy_local_if_shared
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.base import RecordLoopOperator, batched
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.time.timer_contexts import KeyedElementContext, TimerContext
from penstock.runtime.operators.time.timer_firing import MakeTimerContext, TimerFiring
from penstock.runtime.serialization.record_batch import RecordBatch


class KeyedOperator(RecordLoopOperator):
    """An operator with keyed state, which is always the first operator of its chain.

    Its subclasses read and write one table, or the states of the user's function.

    Arguments:
        function: the user's function.
        context: the operator's place in the job.
        key_of: a function that returns the key of a record.
    """

    STATE = "value"

    def __init__(self, function: Any, context: OperatorContext, key_of: Callable[[Any], Any]):
        super().__init__(function, context)
        assert context.backend is not None
        self.backend = context.backend
        self._key_of = key_of
        self._probe = context.mutability_probe()

    def keys_of(self, batch: RecordBatch) -> list[Any]:
        """Return the keys of the records of a batch; none if the key selector fails.

        The loop of the operator then fails in the same way, and says with which record.
        """
        try:
            return list(map(self._key_of, batch.rows()))
        except Exception:
            return []


class KeyedReduceOperator(KeyedOperator):
    """Reduces the records of each key, and emits the new value for each record.

    A record that it emits is also in the state. If the record is mutable, the loop emits a copy of
    it. The loop checks each record before the function can use it again.
    """

    def open(self) -> None:
        """Open the user's function, and get the table of the restored state."""
        self._table = self.backend.table(self.STATE)
        self._table.declare_immutable()
        super().open()
        combine = method_of(self.function, "reduce")
        self._set_loop(loops.reduce_records, key_of=self._key_of, combine=combine)

    def copy_emitted(self, record: Any) -> Any:
        """Return a copy of a mutable record, because the record itself is in the state."""
        self._table.allow_mutable()
        return self.context.codec.copy_mutable([record])[0]

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Reduce a batch, and return the new value of the key for each record."""
        table = self._table
        if table.has_cold:
            table.read_ahead(self.keys_of(batch))
        arguments = table.dirty, table.get, self._probe, self.copy_emitted
        return RecordBatch(self._run_loop(batch, *arguments), None, batch.timestamps)


class KeyedCountOperator(KeyedOperator):
    """Counts the records of each key, and emits the new count for each record."""

    def open(self) -> None:
        """Get the table of the restored state."""
        self._table = self.backend.table(self.STATE)
        self._table.declare_immutable()
        self._set_loop(loops.count_records, key_of=self._key_of)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Count the records of a batch, and return a pair (key, new count) for each record."""
        if self._table.has_cold:
            self._table.read_ahead(self.keys_of(batch))
        out = self._run_loop(batch, self._table.dirty, self._table.get)
        return RecordBatch(out, None, batch.timestamps)


class KeyedProcessOperator(KeyedOperator):
    """Runs a `KeyedProcessFunction` of the user."""

    emits = "process_element"
    #: Whether the function may emit records to side outputs.
    has_side_outputs = True

    def __init__(self, function: Any, context: OperatorContext, key_of: Callable[[Any], Any]):
        super().__init__(function, context, key_of)
        #: Whether the function handles timers. Otherwise restored timers are lost state.
        self.has_timers = has_on_timer(function)

    def open(self) -> None:
        """Open the function and restore its timers, and set up the loop that calls the function."""
        context = self.context
        if self.has_timers:
            context.timers.restore()
        super().open()
        self._shown, make_timer_context = self._contexts()
        function, hook, on_timer = self._methods()
        self._hook = hook
        divided = self.side_outputs.divided
        self._firing = TimerFiring(context, on_timer, divided, make_timer_context)
        self._set_timed_loop(loops.process_records, key_of=self._key_of, function=function)

    def _contexts(self) -> tuple[KeyedElementContext, MakeTimerContext]:
        """Return the context of records, and a function that returns the context of a timer."""
        return KeyedElementContext(self.context), TimerContext

    def _methods(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        """Return the methods for records, for the end of the input, and for timers."""
        function = self.function
        return function.process_element, function.end_input, function.on_timer

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Process a batch, and return all records that the function emitted."""
        shown, context = self._shown, self.context
        if batch.timestamps is None:
            context.timestamp = NO_TIMESTAMP
        context.states.clean_up()
        if context.states.has_cold:
            context.states.read_ahead(self.keys_of(batch))
        out = self._process_with_loop(batch, context, shown, self._probe, copy_local_if_shared)
        return self.side_outputs.divided(out) if self.has_side_outputs else out

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Call `on_timer` for the event-time timers that are due."""
        return self._firing.advance_watermark(timestamp)

    def next_processing_time(self) -> int | None:
        """Return the time at which the first processing-time timer is due, or None."""
        return self._firing.next_processing_time()

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch]:
        """Call `on_timer` for the processing-time timers that are due."""
        return self._firing.advance_processing_time(now)

    def _end_input(self) -> Iterator[list[Any]]:
        """Call the end-of-input hook for each key that has state, and yield its records."""
        context, shown = self.context, self._shown
        context.timestamp = NO_TIMESTAMP
        for keys in batched(self.backend.keys()):
            out: list[Any] = []
            if context.states.has_cold:
                context.states.read_ahead(keys)
            for context.key in keys:
                out += map(copy_if_shared, self._hook(shown) or ())
            yield out


class KeyedFunctionOperator(KeyedProcessOperator):
    """Runs a map, flat map or filter function that may use keyed state.

    (PyFlink also runs such functions as keyed process functions.)
    """

    has_side_outputs = False

    def _methods(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        return self._method(), _nothing, _nothing

    @abstractmethod
    def _method(self) -> Callable[[Any, Any], Any]:
        """Return a function `(record, context)` that returns the emitted records."""


class KeyedMapOperator(KeyedFunctionOperator):
    """Runs a map function that may use keyed state."""

    emits = "map"

    def _method(self) -> Callable[[Any, Any], Any]:
        call = self.function.map
        return lambda value, _: (call(value),)


class KeyedFlatMapOperator(KeyedFunctionOperator):
    """Runs a flat map function that may use keyed state."""

    emits = "flat_map"

    def _method(self) -> Callable[[Any, Any], Any]:
        call = self.function.flat_map
        return lambda value, _: call(value)


class KeyedFilterOperator(KeyedFunctionOperator):
    """Runs a filter function that may use keyed state."""

    emits = "filter"

    def _method(self) -> Callable[[Any, Any], Any]:
        call = self.function.filter
        return lambda value, _: (value,) if call(value) else ()


def _nothing(*_: Any) -> None:
    """Emit nothing when the input ends or a timer fires, because these functions have no hooks."""

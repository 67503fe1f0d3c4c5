"""The sides of an operator with two inputs: operators that call one method of its function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from inspect import isgeneratorfunction
from typing import Any

from penstock.dataflow.functions import has_on_timer
from penstock.dataflow.object_reuse import Check
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.keyed import KeyedProcessOperator
from penstock.runtime.operators.stateless import FlatMapOperator, MapOperator, ProcessOperator
from penstock.runtime.operators.time.timer_contexts import ElementContext, KeyedElementContext
from penstock.runtime.operators.time.timer_firing import MakeTimerContext
from penstock.runtime.operators.two_inputs.broadcast import (
    BROADCAST_KEY,
    BroadcastContext,
    BroadcastStates,
    BroadcastTimerContext,
    KeyedReadOnlyContext,
)
from penstock.runtime.serialization.record_batch import RecordBatch

Method = Callable[..., Any]


class _OneMethod:
    """Shows one method of a function with two inputs as a function with one input.

    It is not a rich function. So it is not opened, which the operator with two inputs does.

    Arguments:
        function: the function with two inputs.
        method: the method that processes a record.
    """

    def __init__(self, function: Any, method: Method) -> None:
        self.function = function
        self.process_element = method
        self.end_input = getattr(function, "end_input", _nothing)
        self.on_timer = getattr(function, "on_timer", _nothing)


class MapSide(MapOperator):
    """Emits the result of a method for each record, unless it is None. (PyFlink: `CoMapFunction`.)

    Arguments:
        function: the function with two inputs.
        context: the operator's place in the job.
        method: the name of the method.
    """

    def __init__(self, function: Any, context: OperatorContext, method: str) -> None:
        super().__init__(getattr(function, method), context)
        self._set_timed_loop(loops.map_some_records, function=self.called)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return the results of the method that are not None."""
        policy = self._policy
        if policy.check is Check.NOTHING:
            out = self._process_with_loop(batch)
            return out.with_rows(policy.after_batch(out.rows()))
        out = super().process(batch)
        return out.select([at for at, made in enumerate(out.rows()) if made is not None])


class FlatMapSide(FlatMapOperator):
    """Emits the items of the result of a method, unless it is None; see `MapSide`."""

    def __init__(self, function: Any, context: OperatorContext, method: str) -> None:
        call = getattr(function, method)
        # A generator function never returns None, so its loop needs no check.
        super().__init__(call if isgeneratorfunction(call) else _or_nothing(call), context)
        self.emits = method


class ProcessSide(ProcessOperator):
    """Runs a method of a process function.

    Arguments:
        function: the function with two inputs.
        context: the operator's place in the job.
        method: the name of the method.
        shown: the context that the method gets; None for the usual one.
    """

    def __init__(
        self,
        function: Any,
        context: OperatorContext,
        method: str,
        shown: ElementContext | None = None,
    ) -> None:
        super().__init__(_OneMethod(function, getattr(function, method)), context)
        self.emits = method
        if shown is not None:
            self._shown = shown


class KeyedSide(KeyedProcessOperator):
    """Runs a method of a function that has keyed state.

    Arguments:
        function: the function with two inputs.
        context: the operator's place in the job.
        key_of: a function that returns the key of a record.
        method: the name of the method.
        adapted: turns the method into one that gets a record and its context; None for a method
            of a process function.
    """

    def __init__(
        self,
        function: Any,
        context: OperatorContext,
        key_of: Callable[[Any], Any],
        method: str,
        adapted: Callable[[Method], Method] | None = None,
    ) -> None:
        call = getattr(function, method)
        one = _OneMethod(function, call if adapted is None else adapted(call))
        super().__init__(one, context, key_of)
        self.emits = method
        self.has_side_outputs = adapted is None
        self.has_timers = has_on_timer(function)


class KeyedReadOnlySide(KeyedSide):
    """Runs `process_element` of a function that has keyed state and broadcast state.

    Arguments:
        function: the function with two inputs.
        context: the operator's place in the job.
        key_of: a function that returns the key of a record.
        states: the broadcast states of the operator.
    """

    def __init__(
        self,
        function: Any,
        context: OperatorContext,
        key_of: Callable[[Any], Any],
        states: BroadcastStates,
    ) -> None:
        super().__init__(function, context, key_of, "process_element")
        self._states = states

    def _contexts(self) -> tuple[KeyedElementContext, MakeTimerContext]:
        return KeyedReadOnlyContext(self.context, self._states), partial(
            BroadcastTimerContext, states=self._states
        )


class BroadcastSide(ProcessSide):
    """Runs `process_broadcast_element` of a function with broadcast state.

    Arguments:
        function: the function with two inputs.
        context: the operator's place in the job.
        states: the broadcast states of the operator.
    """

    def __init__(self, function: Any, context: OperatorContext, states: BroadcastStates) -> None:
        shown = BroadcastContext(context, states)
        super().__init__(function, context, "process_broadcast_element", shown)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Process a batch of broadcast records, which have no key."""
        self.context.key = BROADCAST_KEY
        return super().process(batch)


def as_map(method: Method) -> Method:
    """Return a method of a process function that emits the result of a map method, if any."""
    return lambda value, _: () if (made := method(value)) is None else (made,)


def as_flat_map(method: Method) -> Method:
    """Return a method of a process function that emits the result of a flat map method."""
    return lambda value, _: method(value)


def _or_nothing(method: Method) -> Method:
    """Return a method that returns no records instead of None."""

    def items_of(value: Any) -> Any:
        items = method(value)
        return () if items is None else items

    return items_of


def _nothing(*_: Any) -> Iterable[Any]:
    return ()

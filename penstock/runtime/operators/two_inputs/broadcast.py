"""The broadcast states of an operator, and the contexts through which functions use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from penstock.dataflow.state import (
    BroadcastState,
    MapStateDescriptor,
    ReadOnlyBroadcastState,
    StateDescriptor,
)
from penstock.dataflow.time import TimeDomain
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.state.operator_states import (
    ReadOnlyView,
    WritableBroadcastState,
    broadcast_entries,
)
from penstock.runtime.operators.state.scope import NoKey
from penstock.runtime.operators.time.timer_contexts import (
    ElementContext,
    KeyedElementContext,
    TimerContext,
)
from penstock.snapshot.state.entries import in_order_of_bytes

#: The current key while a broadcast record is processed.
BROADCAST_KEY = NoKey(
    "a broadcast record has no key, so process_broadcast_element cannot use keyed state: call "
    "ctx.apply_to_keyed_state(descriptor, function), which is called for each key"
)


class BroadcastStates:
    """The broadcast states of one operator.

    Arguments:
        context: the operator's place in the job.
        descriptors: the descriptors that the program has passed to `broadcast`.
    """

    def __init__(self, context: OperatorContext, descriptors: Sequence[MapStateDescriptor]) -> None:
        self._context, self._descriptors = context, descriptors
        self._views: dict[str, ReadOnlyView] = {}
        self._states: dict[str, WritableBroadcastState] = {}

    def open(self) -> None:
        """Get the states, which are restored.

        All of them are registered, so that every snapshot contains the states of all subtasks.
        """
        backend = self._context.operator_state
        assert backend is not None
        for one in self._descriptors:
            entries = broadcast_entries(backend, one)
            self._views[one.name] = ReadOnlyView(entries)
            self._states[one.name] = WritableBroadcastState(entries)

    def view(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Return a state for reading."""
        view = self._views.get(state_descriptor.name)
        if view is None:
            raise self._unknown(state_descriptor)
        return view

    def state(self, state_descriptor: MapStateDescriptor) -> BroadcastState:
        """Return a state for reading and writing."""
        state = self._states.get(state_descriptor.name)
        if state is None:
            raise self._unknown(state_descriptor)
        return state

    def _unknown(self, state_descriptor: MapStateDescriptor) -> GraphError:
        known = ", ".join(repr(one.name) for one in self._descriptors)
        return GraphError(
            f"operator {self._context.name!r} asked for broadcast state "
            f"{state_descriptor.name!r}, and has only {known}: pass the descriptor to "
            f"broadcast(...)"
        )


class ReadOnlyContext(ElementContext, BroadcastProcessFunction.ReadOnlyContext):
    """The context of a record of a stream without keys.

    Arguments:
        context: the operator's place in the job.
        states: the broadcast states of the operator.
    """

    def __init__(self, context: OperatorContext, states: BroadcastStates) -> None:
        super().__init__(context)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Return the broadcast state with the descriptor's name, for reading."""
        return self._states.view(state_descriptor)


class BroadcastContext(ElementContext, KeyedBroadcastProcessFunction.Context):
    """The context of a broadcast record; the arguments are those of `ReadOnlyContext`."""

    def __init__(self, context: OperatorContext, states: BroadcastStates) -> None:
        super().__init__(context)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState:
        """Return the broadcast state with the descriptor's name."""
        return self._states.state(state_descriptor)

    def apply_to_keyed_state(
        self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], object]
    ) -> None:
        """Call a function for each key that has a keyed state.

        A task that repeats its steps takes the keys in the order of their bytes: the function may
        collect what the task emits then.
        """
        context = self._context
        state = context.states.of_descriptor(state_descriptor)
        backend = context.backend
        assert backend is not None
        keys = backend.keys(state_descriptor.name)
        if backend.in_order:
            keys = iter(in_order_of_bytes(backend.codec, list(keys)))
        try:
            for context.key in keys:
                function(context.key, state)
        finally:
            context.key = BROADCAST_KEY


class KeyedReadOnlyContext(KeyedElementContext, KeyedBroadcastProcessFunction.ReadOnlyContext):
    """The context of a record of a keyed stream; the arguments are those of `ReadOnlyContext`."""

    def __init__(self, context: OperatorContext, states: BroadcastStates) -> None:
        super().__init__(context)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Return the broadcast state with the descriptor's name, for reading."""
        return self._states.view(state_descriptor)


class BroadcastTimerContext(TimerContext, KeyedBroadcastProcessFunction.OnTimerContext):
    """The context of a timer that fires.

    Arguments:
        context: the operator's place in the job.
        domain: whether the timer fires by event time or by processing time.
        states: the broadcast states of the operator.
    """

    def __init__(
        self, context: OperatorContext, domain: TimeDomain, states: BroadcastStates
    ) -> None:
        super().__init__(context, domain)
        self._states = states

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """Return the broadcast state with the descriptor's name, for reading."""
        return self._states.view(state_descriptor)

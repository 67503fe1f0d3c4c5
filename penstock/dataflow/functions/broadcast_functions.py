"""Define the functions of a stream and a broadcast stream, with the names of PyFlink.

Every subtask receives all records of the broadcast stream, and keeps them in broadcast state. The
other stream is divided among the subtasks, and its records read the broadcast state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic

from penstock.dataflow.functions.co_functions import TwoInputProcessFunction
from penstock.dataflow.functions.process_functions import KeyedProcessFunction, ProcessFunction
from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.state import (
    BroadcastState,
    MapStateDescriptor,
    ReadOnlyBroadcastState,
    StateDescriptor,
)
from penstock.dataflow.type_variables import (
    IN1_contra,
    IN2_contra,
    K,
    K_co,
    KEY_contra,
    OUT_co,
    S,
    UserValue,
    V,
)


class BroadcastProcessFunction(
    TwoInputProcessFunction, ABC, Generic[IN1_contra, IN2_contra, OUT_co]
):
    """Processes a stream without keys together with a broadcast stream.

    RULES = MapStateDescriptor("rules")

    (Flink: `BroadcastProcessFunction`.)

    Examples:
        >>> LIMITS = MapStateDescriptor("limits")
        >>> class Above(BroadcastProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         for name, limit in ctx.get_broadcast_state(LIMITS).items():
        ...             if value > limit:
        ...                 yield name, value
        ...     def process_broadcast_element(self, value, ctx):
        ...         ctx.get_broadcast_state(LIMITS).put(*value)
        >>> limits = env.from_collection([("high", 100)]).broadcast(LIMITS)
        >>> above = env.from_collection([20, 200]).connect(limits).process(Above())
    """

    class ReadOnlyContext(ProcessFunction.Context, ABC):
        """The context of a record of the stream that is not broadcast."""

        @abstractmethod
        def get_broadcast_state(
            self, state_descriptor: MapStateDescriptor[K, V]
        ) -> ReadOnlyBroadcastState[K, V]:
            """Return the broadcast state with the descriptor's name, for reading.

            Raises:
                GraphError: if the descriptor was not passed to `broadcast`.
            """

    class Context(ProcessFunction.Context, ABC):
        """The context of a record of the broadcast stream."""

        @abstractmethod
        def get_broadcast_state(
            self, state_descriptor: MapStateDescriptor[K, V]
        ) -> BroadcastState[K, V]:
            """Return the broadcast state with the descriptor's name.

            Raises:
                GraphError: if the descriptor was not passed to `broadcast`.
            """

    @abstractmethod
    def process_element(
        self, value: IN1_contra, ctx: BroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the stream that is not broadcast.

        This is a generator, another iterable, or None.
        """

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2_contra, ctx: BroadcastProcessFunction.Context
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the broadcast stream.

        Every subtask is called with every record, and must change the state in the same way.
        """


class KeyedBroadcastProcessFunction(
    TwoInputProcessFunction, ABC, Generic[KEY_contra, IN1_contra, IN2_contra, OUT_co]
):
    """Processes a keyed stream together with a broadcast stream, and has keyed state.

    (Flink: `KeyedBroadcastProcessFunction`.)

    Examples:
        >>> LIMITS = MapStateDescriptor("limits")
        >>> class Above(KeyedBroadcastProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         if value[1] > (ctx.get_broadcast_state(LIMITS).get(ctx.get_current_key()) or 0):
        ...             yield value
        ...     def process_broadcast_element(self, value, ctx):
        ...         ctx.get_broadcast_state(LIMITS).put(*value)
        >>> limits = env.from_collection([("ann", 3_000)]).broadcast(LIMITS)
        >>> above = clicks.key_by(lambda click: click[0]).connect(limits).process(Above())
    """

    class ReadOnlyContext(KeyedProcessFunction.Context[K_co], ABC):
        """The context of a record of the keyed stream."""

        @abstractmethod
        def get_broadcast_state(
            self, state_descriptor: MapStateDescriptor[K, V]
        ) -> ReadOnlyBroadcastState[K, V]:
            """Return the broadcast state with the descriptor's name, for reading.

            Raises:
                GraphError: if the descriptor was not passed to `broadcast`.
            """

    class OnTimerContext(ReadOnlyContext[K_co], KeyedProcessFunction.OnTimerContext[K_co], ABC):
        """The context of a timer that fires."""

    class Context(BroadcastProcessFunction.Context, ABC):
        """The context of a record of the broadcast stream, which has no key."""

        @abstractmethod
        def apply_to_keyed_state(
            self, state_descriptor: StateDescriptor[S], function: Callable[[UserValue, S], object]
        ) -> None:
            """Call a function for each key that has a keyed state.

            Arguments:
                state_descriptor: the descriptor of the keyed state, which `open` has used, too.
                function: a function that is called as `function(key, state)`. The state is that of
                    the key, and the function may change it.
            """

    @abstractmethod
    def process_element(
        self, value: IN1_contra, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the keyed stream.

        This is a generator, another iterable, or None.
        """

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2_contra, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the broadcast stream.

        Every subtask is called with every record, and must change the broadcast state in the same
        way. There is no current key; `ctx.apply_to_keyed_state` reads and changes keyed state.
        """

    def on_timer(
        self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit when a timer fires; see `KeyedProcessFunction.on_timer`."""
        del timestamp, ctx
        return None

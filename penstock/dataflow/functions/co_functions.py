"""Define the functions of operators with two inputs, with the names of PyFlink.

Both methods of a function are called in the same task, one record at a time. So they may share
attributes and state. The records of the two inputs arrive in any order relative to each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeAlias

from penstock.dataflow.functions.function import Function
from penstock.dataflow.functions.process_functions import KeyedProcessFunction, ProcessFunction
from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.type_variables import (
    IN1_contra,
    IN2_contra,
    KEY_contra,
    OUT_co,
    UserValue,
)


class CoMapFunction(Function, ABC, Generic[IN1_contra, IN2_contra, OUT_co]):
    """Emits at most one record for each record of two streams. (Flink: `CoMapFunction`.)

    A method that returns None emits nothing, as in PyFlink.

    Examples:
        >>> class Both(CoMapFunction):
        ...     def map1(self, value):
        ...         return f"number {value}"
        ...     def map2(self, value):
        ...         return f"word {value}"
        >>> numbers, words = env.from_collection([1]), env.from_collection(["a"])
        >>> sorted(numbers.connect(words).map(Both()).execute_and_collect())
        ['number 1', 'word a']
    """

    @abstractmethod
    def map1(self, value: IN1_contra) -> OUT_co | None:
        """Return the record to emit for `value` of the first stream; None for no record."""

    @abstractmethod
    def map2(self, value: IN2_contra) -> OUT_co | None:
        """Return the record to emit for `value` of the second stream; None for no record."""


class CoFlatMapFunction(Function, ABC, Generic[IN1_contra, IN2_contra, OUT_co]):
    """Emits any number of records for each record of two streams.

    (Flink: `CoFlatMapFunction`.)

    Examples:
        >>> class Both(CoFlatMapFunction):
        ...     def flat_map1(self, value):
        ...         yield f"number {value}"
        ...     def flat_map2(self, value):
        ...         yield f"word {value}"
        >>> numbers, words = env.from_collection([1]), env.from_collection(["a"])
        >>> sorted(numbers.connect(words).flat_map(Both()).execute_and_collect())
        ['number 1', 'word a']
    """

    @abstractmethod
    def flat_map1(self, value: IN1_contra) -> Iterable[OUT_co] | None:
        """Return the records to emit for `value` of the first stream.

        This is a generator, another iterable, or None for no record, as in PyFlink.
        """

    @abstractmethod
    def flat_map2(self, value: IN2_contra) -> Iterable[OUT_co] | None:
        """Return the records to emit for `value` of the second stream; see `flat_map1`."""


class TwoInputProcessFunction(Function):
    """The base class of all process functions with two inputs."""

    def end_input(self, ctx: UserValue) -> Iterable[UserValue] | None:
        """Return the records to emit when both inputs have ended; by default none.

        Called as `ProcessFunction.end_input` is, and for a function with keyed state as
        `KeyedProcessFunction.end_input` is. A function with broadcast state gets its read-only
        context.
        """
        del ctx
        return None


class CoProcessFunction(TwoInputProcessFunction, ABC, Generic[IN1_contra, IN2_contra, OUT_co]):
    """Emits any number of records for each record of two streams, and when both have ended.

    (Flink: `CoProcessFunction`.)

    Examples:
        >>> class Both(CoProcessFunction):
        ...     def process_element1(self, value, ctx):
        ...         yield f"number {value}"
        ...     def process_element2(self, value, ctx):
        ...         yield f"word {value}"
        >>> numbers, words = env.from_collection([1]), env.from_collection(["a"])
        >>> sorted(numbers.connect(words).process(Both()).execute_and_collect())
        ['number 1', 'word a']
    """

    Context: TypeAlias = ProcessFunction.Context

    @abstractmethod
    def process_element1(
        self, value: IN1_contra, ctx: CoProcessFunction.Context
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the first stream.

        This is a generator, another iterable, or None.
        """

    @abstractmethod
    def process_element2(
        self, value: IN2_contra, ctx: CoProcessFunction.Context
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the second stream."""


class KeyedCoProcessFunction(
    TwoInputProcessFunction, ABC, Generic[KEY_contra, IN1_contra, IN2_contra, OUT_co]
):
    """Emits any number of records for each record of two keyed streams, and has keyed state.

    Records of both streams with equal keys share one state.

    (Flink: `KeyedCoProcessFunction`.)

    Examples:
        >>> class Names(KeyedCoProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.name = runtime_context.get_state(ValueStateDescriptor("name"))
        ...     def process_element1(self, value, ctx):
        ...         yield self.name.value(), value[1]
        ...     def process_element2(self, value, ctx):
        ...         self.name.update(value[1])
        >>> names = env.from_collection([("ann", "Ann Lee")])
        >>> named = clicks.connect(names).key_by(lambda click: click[0], lambda name: name[0])
        >>> named = named.process(Names())
    """

    Context: TypeAlias = KeyedProcessFunction.Context
    OnTimerContext: TypeAlias = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(
        self, value: IN1_contra, ctx: KeyedProcessFunction.Context[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the first stream.

        This is a generator, another iterable, or None.
        """

    @abstractmethod
    def process_element2(
        self, value: IN2_contra, ctx: KeyedProcessFunction.Context[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value` of the second stream."""

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit when a timer fires; see `KeyedProcessFunction.on_timer`."""
        del timestamp, ctx
        return None

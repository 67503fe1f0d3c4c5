"""Define process functions, which can also use the key, keyed state and the end of the input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic

from penstock.dataflow.functions.function import Function
from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.time.time_domain import TimeDomain
from penstock.dataflow.time.timer_service import TimerService
from penstock.dataflow.type_variables import IN_contra, K_co, KEY_contra, OUT_co


class ProcessFunction(Function, ABC, Generic[IN_contra, OUT_co]):
    """Emits any number of records for each input record, and at the end of the input.

    (Flink: `ProcessFunction`.)

    Examples:
        >>> class Split(ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         if value >= 0:
        ...             yield value
        >>> list(env.from_collection([1, -1, 2]).process(Split()).execute_and_collect())
        [1, 2]
    """

    class Context(ABC):
        """The context of the record that is being processed."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the event time of the record in milliseconds; None if it has none."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the service that gives the current times. It registers no timers here."""

    @abstractmethod
    def process_element(
        self, value: IN_contra, ctx: ProcessFunction.Context
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value`: a generator, another iterable, or None."""

    def end_input(self, ctx: ProcessFunction.Context) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit when the input has ended. By default there are none.

        The engine calls this method once in each subtask. In a loop, the engine calls it when no
        record is left in the loop. If an `end_input` then emits records into the loop, the engine
        calls every `end_input` of the loop again after these records are processed. (Flink:
        `BoundedOneInput.endInput`, which Flink's loops do not support.)
        """
        del ctx
        return None


class KeyedProcessFunction(Function, ABC, Generic[KEY_contra, IN_contra, OUT_co]):
    """Emits any number of records for each record of a keyed stream, and uses keyed state.

    A state object always refers to the key of the current record:

        class Count(KeyedProcessFunction):
            def open(self, runtime_context):
                self.count = runtime_context.get_state(ValueStateDescriptor("count"))

            def process_element(self, value, ctx):
                self.count.update((self.count.value() or 0) + 1)
                yield ctx.get_current_key(), self.count.value()

    Timers let a function act later, for example when a key has been silent for a minute:

        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), timestamp

    (Flink: `KeyedProcessFunction`.)

    Examples:
        >>> class Waits(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        ...     def process_element(self, value, ctx):
        ...         if self.last.value() is not None:
        ...             yield value[0], value[1] - self.last.value()
        ...         self.last.update(value[1])
        >>> list(clicks.key_by(lambda click: click[0]).process(Waits()).execute_and_collect())
        [('ann', 3000), ('ann', 8000)]
    """

    class Context(ABC, Generic[K_co]):
        """The context of the record that is being processed."""

        @abstractmethod
        def get_current_key(self) -> K_co:
            """Return the key of the record that is being processed, or of the timer that fires."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the event time of the record in milliseconds; None if it has none.

            In `on_timer`, return the time of the timer.
            """

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the service that gives the current times and registers timers."""

    class OnTimerContext(Context[K_co]):
        """The context of a timer that fires."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return whether the timer fires by event time or by processing time."""

    @abstractmethod
    def process_element(
        self, value: IN_contra, ctx: KeyedProcessFunction.Context[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for `value`: a generator, another iterable, or None."""

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit when a timer fires. By default there are none.

        The current key is the key of the timer. The records have the time of the timer, if it
        fires by event time.

        Arguments:
            timestamp: the time for which the timer was registered, in milliseconds.
            ctx: the context of the timer.
        """
        del timestamp, ctx
        return None

    def end_input(
        self, ctx: KeyedProcessFunction.Context[KEY_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit when the input has ended. By default there are none.

        The engine calls this method once for every key that has state. The current key is then that
        key. In a loop, the engine may call it several times, as `ProcessFunction.end_input`
        describes.
        """
        del ctx
        return None

"""Define the functions that make results of windows, with the names of PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Generic

from penstock.dataflow.functions import Function
from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.state import KeyedStateStore
from penstock.dataflow.type_variables import ACC, IN_contra, KEY_contra, OUT_co
from penstock.dataflow.windows.window import W_co, W_contra


class AggregateFunction(Function, ABC, Generic[IN_contra, ACC, OUT_co]):
    """Combines records to a result that may have another type. (Flink: `AggregateFunction`.)

    A window keeps only the accumulator, not the records.

    Attributes:
        merges_panes: whether sliding windows share accumulators. Each record is then added to one
            pane, and a window merges its panes with `merge` when it fires. Otherwise a record is
            added once for each window that it belongs to, as in Flink. Set it to True if results
            do not depend on the order in which accumulators are merged.

    Examples:
        >>> class Average(AggregateFunction):
        ...     def create_accumulator(self):
        ...         return 0, 0
        ...     def add(self, value, accumulator):
        ...         return accumulator[0] + value, accumulator[1] + 1
        ...     def get_result(self, accumulator):
        ...         return accumulator[0] / accumulator[1]
        ...     def merge(self, a, b):
        ...         return a[0] + b[0], a[1] + b[1]
        >>> windows = env.from_sequence(1, 4).key_by(lambda n: "all").count_window(4)
        >>> list(windows.aggregate(Average()).execute_and_collect())
        [2.5]
    """

    merges_panes: ClassVar[bool] = False

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return a new accumulator, without records."""

    @abstractmethod
    def add(self, value: IN_contra, accumulator: ACC) -> ACC:
        """Return an accumulator with one more record. It may be the given object, changed."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT_co:
        """Return the result of an accumulator."""

    #: A method `merge(self, a, b)` that returns an accumulator with the records of two others; None
    #: if a class does not define it. Sessions need it, and sliding windows whose panes are shared.
    merge: Callable[[ACC, ACC], ACC] | None = None


class WindowContext(ABC, Generic[W_co]):
    """Gives a window function access to its window, time and state."""

    @abstractmethod
    def window(self) -> W_co:
        """Return the window."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the current watermark; `MIN_WATERMARK` before the first one."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """Return access to state that belongs to this key and window.

        The function removes it in `clear`.
        """

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """Return access to state that belongs to this key and all its windows."""


class ProcessWindowFunction(Function, ABC, Generic[IN_contra, OUT_co, KEY_contra, W_contra]):
    """Makes the results of a window from its records. (Flink: `ProcessWindowFunction`.)

    Examples:
        >>> class Count(ProcessWindowFunction):
        ...     def process(self, key, context, elements):
        ...         yield key, context.window().start, len(list(elements))
        >>> windows = clicks.key_by(lambda c: c[0]).window(TumblingEventTimeWindows.of(10_000))
        >>> sorted(windows.process(Count()).execute_and_collect())
        [('ann', 0, 2), ('ann', 10000, 1), ('bob', 0, 1)]
    """

    class Context(WindowContext[W_co]):
        """Gives the function access to its window, time and state."""

    @abstractmethod
    def process(
        self,
        key: KEY_contra,
        context: ProcessWindowFunction.Context[W_contra],
        elements: Iterable[IN_contra],
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the results of a window: a generator, another iterable, or None.

        Arguments:
            key: the key of the records.
            context: the window, time and state.
            elements: the records; only the result if the stream has a reduce or aggregate function.
        """

    def clear(self, context: ProcessWindowFunction.Context[W_contra]) -> None:
        """Remove the state of a window, because the window is removed."""
        del context


class ProcessAllWindowFunction(Function, ABC, Generic[IN_contra, OUT_co, W_contra]):
    """Makes the results of a window of a stream without keys.

    (Flink: `ProcessAllWindowFunction`.)

    Examples:
        >>> class Count(ProcessAllWindowFunction):
        ...     def process(self, context, elements):
        ...         yield context.window().start, len(list(elements))
        >>> windows = clicks.window_all(TumblingEventTimeWindows.of(10_000))
        >>> list(windows.process(Count()).execute_and_collect())
        [(0, 3), (10000, 1)]
    """

    class Context(WindowContext[W_co]):
        """Gives the function access to its window, time and state."""

    @abstractmethod
    def process(
        self, context: ProcessAllWindowFunction.Context[W_contra], elements: Iterable[IN_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the results of a window; see `ProcessWindowFunction.process`."""

    def clear(self, context: ProcessAllWindowFunction.Context[W_contra]) -> None:
        """Remove the state of a window, because the window is removed."""
        del context


class WindowFunction(Function, ABC, Generic[IN_contra, OUT_co, KEY_contra, W_contra]):
    """Makes the results of a window from its records. (Flink: `WindowFunction`.)

    Examples:
        >>> class Count(WindowFunction):
        ...     def apply(self, key, window, inputs):
        ...         yield key, window.start, len(list(inputs))
        >>> windows = clicks.key_by(lambda c: c[0]).window(TumblingEventTimeWindows.of(10_000))
        >>> sorted(windows.apply(Count()).execute_and_collect())
        [('ann', 0, 2), ('ann', 10000, 1), ('bob', 0, 1)]
    """

    @abstractmethod
    def apply(
        self, key: KEY_contra, window: W_contra, inputs: Iterable[IN_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the results of a window: a generator, another iterable, or None.

        Arguments:
            key: the key of the records.
            window: the window.
            inputs: the records; only the result if the stream has a reduce or aggregate function.
        """


class AllWindowFunction(Function, ABC, Generic[IN_contra, OUT_co, W_contra]):
    """Makes the results of a window of a stream without keys. (Flink: `AllWindowFunction`.)

    Examples:
        >>> class Count(AllWindowFunction):
        ...     def apply(self, window, inputs):
        ...         yield window.start, len(list(inputs))
        >>> windows = clicks.window_all(TumblingEventTimeWindows.of(10_000))
        >>> list(windows.apply(Count()).execute_and_collect())
        [(0, 3), (10000, 1)]
    """

    @abstractmethod
    def apply(
        self, window: W_contra, inputs: Iterable[IN_contra]
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the results of a window; see `WindowFunction.apply`."""

"""Define the functions that make results of windows, with the names of PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from penstock.dataflow.functions import Function
from penstock.dataflow.state import KeyedStateStore

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "ProcessAllWindowFunction",
    "ProcessWindowFunction",
    "WindowContext",
    "WindowFunction",
]


class AggregateFunction(Function, ABC):
    """Combines records to a result that may have another type. (Flink: `AggregateFunction`.)

        class Average(AggregateFunction):
            def create_accumulator(self):
                return 0, 0

            def add(self, value, accumulator):
                return accumulator[0] + value, accumulator[1] + 1

            def get_result(self, accumulator):
                return accumulator[0] / accumulator[1]

            def merge(self, a, b):
                return a[0] + b[0], a[1] + b[1]

    A window keeps only the accumulator, not the records.
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return a new accumulator, without records."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return an accumulator with one more record. It may be the given object, changed."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of an accumulator."""

    def merge(self, a: Any, b: Any) -> Any:
        """Return an accumulator with the records of two others.

        Sessions need it, and sliding windows whose panes are shared.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method merge(self, a, b)")


class WindowContext(ABC):
    """What a window function can see besides the records."""

    @abstractmethod
    def window(self) -> Any:
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


class ProcessWindowFunction(Function, ABC):
    """Makes the results of a window from its records. (Flink: `ProcessWindowFunction`.)"""

    class Context(WindowContext):
        """What the function can see besides the key and the records."""

    @abstractmethod
    def process(
        self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]
    ) -> Iterable[Any] | None:
        """Return the results of a window: a generator, another iterable, or None.

        Arguments:
            key: the key of the records.
            context: the window, time and state.
            elements: the records; only the result if the stream has a reduce or aggregate function.
        """

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Remove the state of a window, because the window is removed."""
        del context


class ProcessAllWindowFunction(Function, ABC):
    """Makes the results of a window of a stream without keys.

    (Flink: `ProcessAllWindowFunction`.)
    """

    class Context(WindowContext):
        """What the function can see besides the records."""

    @abstractmethod
    def process(
        self, context: ProcessAllWindowFunction.Context, elements: Iterable[Any]
    ) -> Iterable[Any] | None:
        """Return the results of a window; see `ProcessWindowFunction.process`."""

    def clear(self, context: ProcessAllWindowFunction.Context) -> None:
        """Remove the state of a window, because the window is removed."""
        del context


class WindowFunction(Function, ABC):
    """Makes the results of a window from its records. (Flink: `WindowFunction`.)"""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Return the results of a window: a generator, another iterable, or None.

        Arguments:
            key: the key of the records.
            window: the window.
            inputs: the records; only the result if the stream has a reduce or aggregate function.
        """


class AllWindowFunction(Function, ABC):
    """Makes the results of a window of a stream without keys. (Flink: `AllWindowFunction`.)"""

    @abstractmethod
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Return the results of a window; see `WindowFunction.apply`."""

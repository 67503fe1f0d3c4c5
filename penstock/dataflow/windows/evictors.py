"""Define evictors, which remove records from a window when it fires.

With an evictor a window keeps all its records, even if the stream has a reduce or aggregate
function: this function then sees the records that are left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.errors import GraphError
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.dataflow.type_variables import R, T, UserValue
from penstock.dataflow.windows.window import W_contra


class TimestampedValue(NamedTuple, Generic[T]):
    """A record of a window, with its timestamp. (Flink: `TimestampedValue`.)

    Arguments:
        value: the record.
        timestamp: milliseconds since the epoch; `NO_TIMESTAMP` if the record has none.

    Examples:
        >>> TimestampedValue("a", 1_000).get_timestamp()
        1000
    """

    value: T
    timestamp: int

    def get_value(self) -> T:
        """Return the record."""
        return self.value

    def get_timestamp(self) -> int:
        """Return the timestamp, in milliseconds since the epoch."""
        return self.timestamp

    def has_timestamp(self) -> bool:
        """Return whether the record has a timestamp."""
        return self.timestamp != NO_TIMESTAMP


class Evictor(ABC, Generic[T, W_contra]):
    """Removes records from a window when it fires. (Flink: `Evictor`.)

    Examples:
        >>> class OnlyLast(Evictor):
        ...     def evict_before(self, elements, size, window, evictor_context):
        ...         del elements[:-1]
        ...     def evict_after(self, elements, size, window, evictor_context):
        ...         pass
        >>> issubclass(CountEvictor, Evictor)
        True
    """

    class EvictorContext(ABC):
        """Gives an evictor access to time."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the time of the clock, in milliseconds since the epoch."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the current watermark; `MIN_WATERMARK` before the first one."""

    @abstractmethod
    def evict_before(
        self,
        elements: list[TimestampedValue[T]],
        size: int,
        window: W_contra,
        evictor_context: Evictor.EvictorContext,
    ) -> None:
        """Remove records before the window function is called.

        Arguments:
            elements: the records of the window in the order of their arrival. The method removes
                items from this list.
            size: the number of records.
            window: the window.
            evictor_context: gives access to time.
        """

    @abstractmethod
    def evict_after(
        self,
        elements: list[TimestampedValue[T]],
        size: int,
        window: W_contra,
        evictor_context: Evictor.EvictorContext,
    ) -> None:
        """Remove records after the window function was called; see `evict_before`."""


class _OneSidedEvictor(Evictor[T, UserValue]):
    """Removes records either before or after the window function.

    Arguments:
        do_evict_after: whether to remove them after it.
    """

    def __init__(self, do_evict_after: bool) -> None:
        self.do_evict_after = do_evict_after

    @abstractmethod
    def evict(self, elements: list[TimestampedValue[T]]) -> None:
        """Remove records from the list. It has at least one record."""

    def evict_before(
        self,
        elements: list[TimestampedValue[T]],
        size: int,
        window: UserValue,
        evictor_context: Evictor.EvictorContext,
    ) -> None:
        """Remove records before the window function, if the evictor is set to do so."""
        del size, window, evictor_context
        if not self.do_evict_after and elements:
            self.evict(elements)

    def evict_after(
        self,
        elements: list[TimestampedValue[T]],
        size: int,
        window: UserValue,
        evictor_context: Evictor.EvictorContext,
    ) -> None:
        """Remove records after the window function, if the evictor is set to do so."""
        del size, window, evictor_context
        if self.do_evict_after and elements:
            self.evict(elements)


class CountEvictor(_OneSidedEvictor[UserValue]):
    """Keeps the last records of a window, up to a number. (Flink: `CountEvictor`.)

    Arguments:
        max_count: the largest number of records to keep.
        do_evict_after: whether to remove records after the window function instead of before it.

    Examples:
        >>> numbers = env.from_sequence(1, 4).key_by(lambda n: "all")
        >>> windows = numbers.window(GlobalWindows.create()).trigger(CountTrigger.of(2))
        >>> windows = windows.evictor(CountEvictor.of(3))
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[1, 2], [2, 3, 4]]
    """

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.max_count = whole_number("the count of a CountEvictor", max_count)

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Return an evictor that keeps the last `max_count` records."""
        return CountEvictor(max_count, do_evict_after)

    def evict(self, elements: list[TimestampedValue[UserValue]]) -> None:
        """Remove the first records."""
        del elements[: max(0, len(elements) - self.max_count)]


class TimeEvictor(_OneSidedEvictor[UserValue]):
    """Keeps the records whose timestamps are near the highest timestamp of the window.

    It removes records with a timestamp of `highest - window_size` or less. It does nothing if the
    first record has no timestamp. (Flink: `TimeEvictor`.)

    Arguments:
        window_size: the length of time for which records are kept.
        do_evict_after: whether to remove records after the window function instead of before it.

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(TumblingEventTimeWindows.of(10_000))
        >>> windows = windows.evictor(TimeEvictor.of(2_000))
        >>> list(windows.apply(lambda user, window, clicks: [list(clicks)]).execute_and_collect())
        [[('ann', 4000)], [('bob', 2000)], [('ann', 12000)]]
    """

    def __init__(self, window_size: DurationLike, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.window_size = milliseconds_of("the size of a TimeEvictor", window_size)

    @staticmethod
    def of(window_size: DurationLike, do_evict_after: bool = False) -> TimeEvictor:
        """Return an evictor that keeps the records of the last `window_size`."""
        return TimeEvictor(window_size, do_evict_after)

    def evict(self, elements: list[TimestampedValue[UserValue]]) -> None:
        """Remove the records that are too old."""
        if elements[0].has_timestamp():
            limit = max(element.timestamp for element in elements) - self.window_size
            elements[:] = [element for element in elements if element.timestamp > limit]


class DeltaEvictor(_OneSidedEvictor[T]):
    """Keeps the records that differ little from the last record. (Flink: `DeltaEvictor`.)

    Arguments:
        threshold: a record is removed if its difference is this much or more.
        delta_function: a function `(record, last record)` that returns their difference.
        do_evict_after: whether to remove records after the window function instead of before it.

    Examples:
        >>> numbers = env.from_collection([1, 9, 10]).key_by(lambda n: "all")
        >>> windows = numbers.window(GlobalWindows.create()).trigger(CountTrigger.of(3))
        >>> windows = windows.evictor(DeltaEvictor.of(5, lambda record, last: abs(last - record)))
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[9, 10]]
    """

    def __init__(
        self,
        threshold: float,
        delta_function: Callable[[T, T], float],
        do_evict_after: bool = False,
    ) -> None:
        super().__init__(do_evict_after)
        if not isinstance(threshold, int | float) or isinstance(threshold, bool):
            raise GraphError(f"the threshold of a DeltaEvictor is a number, not {threshold!r}")
        check_argument_count("DeltaEvictor", delta_function, 2, "(record, last_record)")
        self.threshold, self.delta_function = threshold, delta_function

    @staticmethod
    def of(
        threshold: float, delta_function: Callable[[R, R], float], do_evict_after: bool = False
    ) -> DeltaEvictor[R]:
        """Return an evictor that keeps records whose difference is less than `threshold`."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def evict(self, elements: list[TimestampedValue[T]]) -> None:
        """Remove the records whose difference from the last one is too large."""
        delta, last = self.delta_function, elements[-1].value
        elements[:] = [e for e in elements if delta(e.value, last) < self.threshold]

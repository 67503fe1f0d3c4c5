"""Define the functions that join the records of two streams, with the names of Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic

from penstock.dataflow.functions.function import Function
from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.type_variables import IN1_contra, IN2_contra, OUT_co


class JoinFunction(Function, ABC, Generic[IN1_contra, IN2_contra, OUT_co]):
    """Emits exactly one record for each pair of records that match. (Flink: `JoinFunction`.)

    Examples:
        >>> class Times(JoinFunction):
        ...     def join(self, first, second):
        ...         return first[1], second[1]
        >>> pairs = clicks.join(clicks).where(lambda c: c[0]).equal_to(lambda c: c[0])
        >>> joined = pairs.window(TumblingEventTimeWindows.of(10_000)).apply(Times())
        >>> sorted(joined.execute_and_collect())
        [(1000, 1000), (1000, 4000), (2000, 2000), (4000, 1000), (4000, 4000), (12000, 12000)]
    """

    @abstractmethod
    def join(self, first: IN1_contra, second: IN2_contra) -> OUT_co:
        """Return the record to emit for a pair.

        Arguments:
            first: the record of the first stream.
            second: the record of the second stream.
        """


class FlatJoinFunction(Function, ABC, Generic[IN1_contra, IN2_contra, OUT_co]):
    """Emits any number of records for each pair of records that match.

    (Flink: `FlatJoinFunction`.)

    Examples:
        >>> class Later(FlatJoinFunction):
        ...     def join(self, first, second):
        ...         if first[1] < second[1]:
        ...             yield first[0], first[1], second[1]
        >>> pairs = clicks.join(clicks).where(lambda c: c[0]).equal_to(lambda c: c[0])
        >>> results = pairs.window(TumblingEventTimeWindows.of(10_000)).apply(Later())
        >>> list(results.execute_and_collect())
        [('ann', 1000, 4000)]
    """

    @abstractmethod
    def join(self, first: IN1_contra, second: IN2_contra) -> Iterable[OUT_co] | None:
        """Return the records to emit for a pair: a generator, another iterable, or None."""


class CoGroupFunction(Function, ABC, Generic[IN1_contra, IN2_contra, OUT_co]):
    """Emits any number of records for two groups of records with one key.

    (Flink: `CoGroupFunction`.)

    Examples:
        >>> class Counts(CoGroupFunction):
        ...     def co_group(self, first, second):
        ...         yield len(list(first)), len(list(second))
        >>> pairs = clicks.co_group(clicks).where(lambda c: c[0]).equal_to(lambda c: c[0])
        >>> groups = pairs.window(TumblingEventTimeWindows.of(10_000)).apply(Counts())
        >>> sorted(groups.execute_and_collect())
        [(1, 1), (1, 1), (2, 2)]
    """

    @abstractmethod
    def co_group(
        self, first: Iterable[IN1_contra], second: Iterable[IN2_contra]
    ) -> Iterable[OUT_co] | None:
        """Return the records to emit: a generator, another iterable, or None.

        Arguments:
            first: the records of the first stream; it may be empty.
            second: the records of the second stream; it may be empty.
        """


class ProcessJoinFunction(Function, ABC, Generic[IN1_contra, IN2_contra, OUT_co]):
    """Emits any number of records for each pair of an interval join.

    (Flink: `ProcessJoinFunction`.) It emits a record to a side output with `yield tag, record`.

    Examples:
        >>> class Waits(ProcessJoinFunction):
        ...     def process_element(self, left, right, ctx):
        ...         yield left[0], right[1] - left[1]
        >>> users = clicks.key_by(lambda click: click[0])
        >>> waits = users.interval_join(users).between(1, 5_000).process(Waits())
        >>> list(waits.execute_and_collect())
        [('ann', 3000)]
    """

    class Context(ABC):
        """Gives access to the timestamps of a pair."""

        @abstractmethod
        def get_left_timestamp(self) -> int:
            """Return the timestamp of the left record, in milliseconds since the epoch."""

        @abstractmethod
        def get_right_timestamp(self) -> int:
            """Return the timestamp of the right record, in milliseconds since the epoch."""

        @abstractmethod
        def get_timestamp(self) -> int:
            """Return the later one of both timestamps, which the emitted records have."""

    @abstractmethod
    def process_element(
        self, left: IN1_contra, right: IN2_contra, ctx: ProcessJoinFunction.Context
    ) -> Iterable[OUT_co | SideOutput] | None:
        """Return the records to emit for a pair: a generator, another iterable, or None.

        Arguments:
            left: the record of the first stream.
            right: the record of the second stream.
            ctx: the timestamps of the records.
        """

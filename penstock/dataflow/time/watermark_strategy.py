"""Define `WatermarkStrategy`: how a stream gets timestamps and watermarks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.errors import GraphError
from penstock.dataflow.time.watermark_generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
)
from penstock.dataflow.type_variables import R, T_contra


class TimestampAssigner(ABC, Generic[T_contra]):
    """Returns the event time of a record. (Flink: `TimestampAssigner`.)

    Examples:
        >>> class ClickTime(TimestampAssigner):
        ...     def extract_timestamp(self, value, record_timestamp):
        ...         return value[1]
        >>> strategy = WatermarkStrategy.for_monotonous_timestamps()
        >>> strategy = strategy.with_timestamp_assigner(ClickTime())
    """

    @abstractmethod
    def extract_timestamp(self, value: T_contra, record_timestamp: int) -> int:
        """Return the event time of a record, in milliseconds since the epoch.

        Arguments:
            value: the record.
            record_timestamp: the timestamp that the record has so far, for example from the source;
                `NO_TIMESTAMP` if it has none.
        """


@dataclass(frozen=True)
class WatermarkAlignment:
    """Settings that keep the sources of a group from running ahead of each other.

    Arguments:
        group: the name of the group.
        max_drift_ms: a split is paused while its watermark is ahead of the lowest watermark of the
            group by more than this, in milliseconds.
        update_interval_ms: the period in which the lowest watermark is found, in milliseconds.
    """

    group: str
    max_drift_ms: int
    update_interval_ms: int


@dataclass(frozen=True)
class WatermarkStrategy(Generic[T_contra]):
    """Describes how records get timestamps and how watermarks are generated.

        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)) \\
            .with_timestamp_assigner(lambda event, _: event.time_ms)

    A strategy never changes: each method returns a new one. (Flink: `WatermarkStrategy`.)

    Arguments:
        create_generator: a function that returns a new watermark generator.
        extract_timestamp: a function `(record, timestamp so far) -> timestamp in milliseconds since
            the epoch`. With None, records keep the timestamps that they have.
        idle_timeout_ms: the time without records after which an input counts as idle, in
            milliseconds. None switches this off.
        alignment: how sources wait for each other; None if they do not.

    Examples:
        >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(5_000)
        >>> strategy = strategy.with_timestamp_assigner(lambda click, _: click[1])
        >>> timed = env.from_collection([("ann", 1_000)]).assign_timestamps_and_watermarks(strategy)
    """

    create_generator: Callable[[], WatermarkGenerator[T_contra]] = field(default=NoWatermarks)
    extract_timestamp: Callable[[T_contra, int], int] | None = None
    idle_timeout_ms: int | None = None
    alignment: WatermarkAlignment | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Return a strategy for timestamps that never descend.

        The watermark is the highest timestamp so far, less 1 ms.
        """
        return WatermarkStrategy(AscendingTimestampsWatermarks)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: DurationLike) -> WatermarkStrategy:
        """Return a strategy for records that are out of order by a limited time.

        Arguments:
            max_out_of_orderness: the largest difference between the timestamp of a record and the
                highest timestamp before it. Records with a larger difference may be late. With a
                limit of 5 s, for example, a record at 12:00:00 can be late after a record at
                12:00:06.
        """
        limit = milliseconds_of("max_out_of_orderness", max_out_of_orderness)
        return WatermarkStrategy(partial(BoundedOutOfOrdernessWatermarks, limit))

    @staticmethod
    def for_generator(
        generator_supplier: Callable[[], WatermarkGenerator[R]],
    ) -> WatermarkStrategy[R]:
        """Return a strategy with a user-defined watermark generator.

        Arguments:
            generator_supplier: a class, or a function without arguments. It returns a new
                `WatermarkGenerator` for each split or subtask.
        """
        if isinstance(generator_supplier, WatermarkGenerator):
            raise GraphError(
                f"for_generator takes a class or function that makes a WatermarkGenerator, because "
                f"each split has its own: write for_generator(lambda: {generator_supplier!r})"
            )
        check_argument_count("for_generator", generator_supplier, 0, "()")
        return WatermarkStrategy(generator_supplier)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Return a strategy that generates no watermarks before the end of the input."""
        return WatermarkStrategy(NoWatermarks)

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner[R] | Callable[[R, int], int]
    ) -> WatermarkStrategy[R]:
        """Return this strategy with a timestamp assigner.

        Arguments:
            timestamp_assigner: a `TimestampAssigner`, or a function `(record, timestamp so far)`
                that returns milliseconds since the epoch.
        """
        if isinstance(timestamp_assigner, TimestampAssigner):
            return self._with_extractor(timestamp_assigner.extract_timestamp)
        if isinstance(timestamp_assigner, type):
            raise GraphError(
                f"with_timestamp_assigner takes an object, not the class: write "
                f"with_timestamp_assigner({timestamp_assigner.__name__}())"
            )
        check_argument_count(
            "with_timestamp_assigner", timestamp_assigner, 2, "(record, record_timestamp)"
        )
        return self._with_extractor(timestamp_assigner)

    def with_idleness(self, idle_timeout: DurationLike) -> WatermarkStrategy[T_contra]:
        """Return this strategy with a time after which an input without records counts as idle.

        Operators do not wait for the watermark of an idle input.
        """
        timeout = milliseconds_of("idle_timeout", idle_timeout, least=1)
        return replace(self, idle_timeout_ms=timeout)

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: DurationLike,
        update_interval: DurationLike | None = None,
    ) -> WatermarkStrategy[T_contra]:
        """Return this strategy with a limit on how far a source runs ahead of others.

        Arguments:
            watermark_group: the name of the group of sources that wait for each other.
            max_allowed_watermark_drift: a split is paused while its watermark is ahead of the
                lowest watermark of the group by more than this.
            update_interval: the period in which the lowest watermark is found; 1 s if None.
        """
        if not isinstance(watermark_group, str) or not watermark_group:
            raise GraphError(f"a watermark group is a non-empty string, not {watermark_group!r}")
        drift = milliseconds_of("max_allowed_watermark_drift", max_allowed_watermark_drift)
        interval = 1000 if update_interval is None else update_interval
        every = milliseconds_of("update_interval", interval, least=1)
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift, every))

    def _with_extractor(self, extract_timestamp: Callable[[R, int], int]) -> WatermarkStrategy[R]:
        strategy: WatermarkStrategy = self
        return replace(strategy, extract_timestamp=extract_timestamp)

    @property
    def max_out_of_orderness_ms(self) -> int | None:
        """The limit of a strategy with bounded out-of-orderness, in ms; None for the others.

        For monotonous timestamps it is 0.
        """
        if self.create_generator is AscendingTimestampsWatermarks:
            return 0
        made = self.create_generator
        if isinstance(made, partial) and made.func is BoundedOutOfOrdernessWatermarks:
            return int(made.args[0])
        return None

    @property
    def has_watermarks(self) -> bool:
        """Whether the strategy may generate watermarks before the end of the input."""
        return self.create_generator is not NoWatermarks

    @property
    def has_known_generator(self) -> bool:
        """Whether the generator is one of Penstock's, whose state is a part of snapshots."""
        return not self.has_watermarks or self.max_out_of_orderness_ms is not None


def check_watermark_strategy(strategy: object, method: str = "from_source") -> None:
    """Check that an argument is None or a watermark strategy.

    Raises:
        GraphError: if it is something else.
    """
    if isinstance(strategy, str):
        raise GraphError(
            f"the second argument of {method} is a watermark strategy, not the name "
            f"{strategy!r}: write {method}(source, None, {strategy!r})"
        )
    if strategy is not None and not isinstance(strategy, WatermarkStrategy):
        raise GraphError(
            f"{method} takes a WatermarkStrategy, not {strategy!r}: begin with "
            f"WatermarkStrategy.for_bounded_out_of_orderness(...) or another of its methods"
        )

"""Define the interval join of two keyed streams.

orders.key_by(lambda o: o.id).interval_join(payments.key_by(lambda p: p.order)) \\
        .between(Time.minutes(0), Time.minutes(10)) \\
        .process(lambda order, payment: (order.id, payment.amount))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, Self

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    JoinFunction,
    ProcessJoinFunction,
    check_function,
    check_methods,
)
from penstock.dataflow.joins.operations import IntervalJoinOperation
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.building import add_interval_join
from penstock.dataflow.streams.window_settings import own
from penstock.dataflow.type_variables import R, T1_co, T2_co, UserValue
from penstock.dataflow.types import check_type_info

if TYPE_CHECKING:
    from penstock.dataflow.streams.data_stream import DataStream
    from penstock.dataflow.streams.keyed_stream import KeyedStream

#: The greatest bound, in milliseconds: 36 million years.
_MOST = 2**60


class IntervalJoin(PyFlinkNames, Generic[T1_co, T2_co]):
    """Two keyed streams, before the interval of their join is set.

    (Flink: `KeyedStream.IntervalJoin`.)

    Arguments:
        left: the left stream.
        right: the right stream.

    Examples:
        >>> users = clicks.key_by(lambda click: click[0])
        >>> pairs = users.interval_join(users).between(1, 5_000)
        >>> list(pairs.process(lambda left, right: (left[1], right[1])).execute_and_collect())
        [(1000, 4000)]
    """

    _missing: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("process", "lower_bound_exclusive", "upper_bound_exclusive"),
            "an interval join first needs its bounds: call between(lower, upper)",
        ),
        "in_processing_time": "an interval join works by event time only, as in Flink",
    }

    def __init__(
        self, left: KeyedStream[UserValue, T1_co], right: KeyedStream[UserValue, T2_co]
    ) -> None:
        self._left, self._right = left, right

    def in_event_time(self) -> Self:
        """Join by event time. (An interval join always uses event time.)"""
        return self

    def between(
        self, lower_bound: DurationLike, upper_bound: DurationLike
    ) -> IntervalJoined[T1_co, T2_co]:
        """Set which right records a left record is joined with.

        A right record matches if its timestamp is from the left timestamp plus `lower_bound` to the
        left timestamp plus `upper_bound`. Both bounds are inclusive, unless a method changes that.

        Arguments:
            lower_bound: a time in milliseconds, as a `timedelta` or as a `Time`. It may be
                negative: right records may then be earlier than the left record.
            upper_bound: the same, and at least `lower_bound`.

        Raises:
            GraphError: if `lower_bound` is greater than `upper_bound`.
        """
        lower = milliseconds_of("the lower bound of an interval join", lower_bound, None)
        upper = milliseconds_of("the upper bound of an interval join", upper_bound, None)
        if lower > upper:
            raise GraphError(
                f"between({lower}, {upper}) has its bounds the wrong way round: the lower bound "
                f"comes first, and the difference is the right timestamp minus the left one; "
                f"write between({upper}, {lower})"
            )
        if max(abs(lower), abs(upper)) > _MOST:
            raise GraphError(f"between({lower}, {upper}) has a bound of more than {_MOST} ms")
        return IntervalJoined(self._left, self._right, lower, upper)


class IntervalJoined(Generic[T1_co, T2_co]):
    """Two keyed streams with the bounds of their join. (Flink: `KeyedStream.IntervalJoined`.)

    Arguments:
        left: the left stream.
        right: the right stream.
        lower: the lower bound, in milliseconds.
        upper: the upper bound, in milliseconds.

    Examples:
        >>> users = clicks.key_by(lambda click: click[0])
        >>> pairs = users.interval_join(users).between(0, 5_000).lower_bound_exclusive()
        >>> list(pairs.process(lambda left, right: (left[1], right[1])).execute_and_collect())
        [(1000, 4000)]
    """

    def __init__(
        self,
        left: KeyedStream[UserValue, T1_co],
        right: KeyedStream[UserValue, T2_co],
        lower: int,
        upper: int,
    ) -> None:
        self._left, self._right = left, right
        self._lower, self._upper = lower, upper
        self._excludes_lower = self._excludes_upper = False
        self._late_tags: list[OutputTag | None] = [None, None]

    def lower_bound_exclusive(self) -> Self:
        """Exclude the lower bound itself."""
        self._excludes_lower = True
        return self

    def upper_bound_exclusive(self) -> Self:
        """Exclude the upper bound itself."""
        self._excludes_upper = True
        return self

    def side_output_left_late_data(self, output_tag: OutputTag[T1_co]) -> Self:
        """Emit late records of the left stream to a side output, instead of dropping them.

        A record is late if its timestamp is smaller than the current watermark.

        Raises:
            GraphError: if `output_tag` is not an `OutputTag`.
        """
        return self._set_late_tag("side_output_left_late_data", 0, output_tag)

    def side_output_right_late_data(self, output_tag: OutputTag[T2_co]) -> Self:
        """Emit late records of the right stream to a side output, as for the left stream."""
        return self._set_late_tag("side_output_right_late_data", 1, output_tag)

    def process(
        self,
        process_join_function: ProcessJoinFunction[T1_co, T2_co, R] | Callable[[T1_co, T2_co], R],
        output_type: object = None,
    ) -> DataStream[R]:
        """Add the operator that joins the records.

        A result has the later one of the timestamps of the two records.

        Arguments:
            process_join_function: a `ProcessJoinFunction`, or a function `(left, right)` that
                returns one record for each pair.
            output_type: ignored; accepted for compatibility with Flink.

        Raises:
            GraphError: if the function has the wrong class, or if no time difference lies between
                the bounds.
        """
        check_type_info("output_type", output_type)
        lower, upper = self._lower + self._excludes_lower, self._upper - self._excludes_upper
        if lower > upper:
            raise GraphError(
                f"an interval join between {self._lower} ms and {self._upper} ms has no results if "
                f"its bounds are exclusive: no whole number of milliseconds lies between them"
            )
        function = own(_checked(process_join_function))
        late_left, late_right = self._late_tags
        operation = IntervalJoinOperation(lower, upper, function, (late_left, late_right))
        output = add_interval_join(self._left._input, self._right._input, operation)
        return self._left._emitting(output, output_type)

    def _set_late_tag(self, method: str, side: int, output_tag: OutputTag) -> Self:
        if not isinstance(output_tag, OutputTag):
            raise GraphError(
                f"{method} takes an OutputTag, not {output_tag!r}: write "
                f"OutputTag({str(output_tag)!r})"
            )
        self._late_tags[side] = output_tag
        return self


def _checked(function: object) -> UserValue:
    if isinstance(function, ProcessJoinFunction):
        check_methods(function)
        return function
    method = "process of an interval join"
    if inspect.isgeneratorfunction(function) or isinstance(function, JoinFunction):
        raise GraphError(
            f"{method} takes a ProcessJoinFunction, or a function that returns one record; define "
            f"a ProcessJoinFunction to emit any number of records"
        )
    if isinstance(function, type) and issubclass(function, ProcessJoinFunction):
        raise GraphError(
            f"{method} takes a ProcessJoinFunction (an instance, not the class), and got "
            f"{function!r}"
        )
    return check_function(function, JoinFunction, method)

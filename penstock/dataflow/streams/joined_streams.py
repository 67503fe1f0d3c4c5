"""Define joins and co-groups of two streams in windows.

    orders.join(payments).where(lambda o: o.id).equal_to(lambda p: p.order) \\
        .window(TumblingEventTimeWindows.of(Time.minutes(5))) \\
        .apply(lambda order, payment: (order.id, payment.amount))

As in Flink, each method returns an object with the next method of the chain. The classes of a join
and of a co-group differ in the function that `apply` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, overload

from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.functions import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    KeySelector,
)
from penstock.dataflow.joins.key_types import check_key_types
from penstock.dataflow.joins.window_functions import (
    co_group_window_function,
    join_window_function,
)
from penstock.dataflow.streams.building import OperatorInput, add_window_join
from penstock.dataflow.streams.key_selectors import KeyFields, check_key_selector
from penstock.dataflow.streams.window_settings import WindowSettings, own
from penstock.dataflow.type_variables import K, K_co, R, T1_co, T2_co, UserValue
from penstock.dataflow.types import check_type_info
from penstock.dataflow.windows import WindowAssigner, WindowFunction
from penstock.dataflow.windows.window import W

if TYPE_CHECKING:
    from penstock.dataflow.streams.data_stream import DataStream

_BEFORE_WHERE = dict.fromkeys(
    ("equal_to", "window", "apply", "trigger", "evictor", "allowed_lateness"),
    "a join first needs the keys of both streams: call where(key of the first stream)"
    ".equal_to(key of the second stream).window(...).apply(...)",
)
_BEFORE_EQUAL_TO = dict.fromkeys(
    ("window", "apply", "trigger", "evictor", "allowed_lateness"),
    "the key of the second stream is missing: call equal_to(...) behind where(...)",
)
_BEFORE_WINDOW = dict.fromkeys(
    ("apply", "trigger", "evictor", "allowed_lateness"),
    "streams are joined in windows: call window(TumblingEventTimeWindows.of(size)) before it",
)


@dataclass(frozen=True)
class _Pair:
    """Two streams that are joined.

    Arguments:
        stream: the first stream.
        first, second: the records of both streams, with their keys as soon as these are known.
        first_type: the declared type of the first stream's keys.
    """

    stream: DataStream
    first: OperatorInput
    second: OperatorInput
    first_type: object = None

    def where(self, key_selector: object, key_type: object) -> _Pair:
        """Return the pair with the key of the first stream."""
        selector = check_key_selector(key_selector, key_type=key_type, method="where")
        return replace(self, first=self.first.key_by(selector), first_type=key_type)

    def equal_to(self, key_selector: object, key_type: object) -> _Pair:
        """Return the pair with the key of the second stream."""
        selector = check_key_selector(key_selector, key_type=key_type, method="equal_to")
        check_key_types(self.first.key_selector, selector, (self.first_type, key_type))
        return replace(self, second=self.second.key_by(selector))


# ---- joins


class JoinedStreams(PyFlinkNames, Generic[T1_co, T2_co]):
    """Two streams that `join` has paired. (Flink: `JoinedStreams`.)

    Arguments:
        first: the first stream.
        second: the second stream.

    Examples:
        >>> pairs = clicks.join(clicks).where(lambda c: c[0]).equal_to(lambda c: c[0])
        >>> pairs = pairs.window(TumblingEventTimeWindows.of(10_000))
        >>> times = pairs.apply(lambda first, second: (first[1], second[1]))
        >>> sorted(times.execute_and_collect())
        [(1000, 1000), (1000, 4000), (2000, 2000), (4000, 1000), (4000, 4000), (12000, 12000)]
    """

    _missing = _BEFORE_WHERE

    def __init__(self, first: DataStream[T1_co], second: DataStream[T2_co]) -> None:
        self._pair = _Pair(first, first._input, second._input)

    @overload
    def where(
        self, key_selector: Callable[[T1_co], K] | KeySelector[T1_co, K], key_type: object = None
    ) -> JoinedStreamsWhere[T1_co, T2_co, K]: ...

    @overload
    def where(
        self, key_selector: KeyFields, key_type: object = None
    ) -> JoinedStreamsWhere[T1_co, T2_co, UserValue]: ...

    def where(
        self,
        key_selector: Callable[[T1_co], UserValue] | KeySelector[T1_co, UserValue] | KeyFields,
        key_type: object = None,
    ) -> JoinedStreamsWhere[T1_co, T2_co, UserValue]:
        """Set the key of the first stream.

        Arguments:
            key_selector: a function that returns the key of a record, or a field; see `key_by`.
            key_type: the type of the keys, such as `Types.STRING()`; it is compared with the type
                of the second stream's keys.

        Raises:
            GraphError: if `key_selector` is not a function or a field.
        """
        return JoinedStreamsWhere(self._pair.where(key_selector, key_type))


class JoinedStreamsWhere(PyFlinkNames, Generic[T1_co, T2_co, K_co]):
    """Two streams; the first has a key. (Flink: `JoinedStreams.Where`.)

    Arguments:
        pair: the streams.
    """

    _missing = _BEFORE_EQUAL_TO

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def equal_to(
        self,
        key_selector: Callable[[T2_co], K_co] | KeySelector[T2_co, K_co] | KeyFields,
        key_type: object = None,
    ) -> JoinedStreamsEqualTo[T1_co, T2_co]:
        """Set the key of the second stream.

        Arguments:
            key_selector: a function that returns the key of a record, or a field; see `key_by`.
            key_type: the type of the keys; see `where`.

        Raises:
            GraphError: if `key_selector` is not a function or a field, or if the declared key types
                of the two streams differ.
        """
        return JoinedStreamsEqualTo(self._pair.equal_to(key_selector, key_type))


class JoinedStreamsEqualTo(PyFlinkNames, Generic[T1_co, T2_co]):
    """Two streams with keys. (Flink: `JoinedStreams.Where.EqualTo`.)

    Arguments:
        pair: the streams.
    """

    _missing = _BEFORE_WINDOW

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def window(
        self, window_assigner: WindowAssigner[UserValue, W]
    ) -> JoinedStreamsInWindows[T1_co, T2_co, W]:
        """Set the windows in which records are joined.

        Arguments:
            window_assigner: chooses the windows of a record. A user-defined assigner gets pairs
                `(side, record)`; the side is 0 for the first stream and 1 for the second one.

        Raises:
            GraphError: if `window_assigner` is not a window assigner.
        """
        return JoinedStreamsInWindows(self._pair, window_assigner)


class _PairInWindows(WindowSettings[UserValue, W], Generic[W]):
    """Two streams with keys and windows.

    User-defined triggers and evictors get pairs `(side, record)`.

    Arguments:
        pair: the streams.
        assigner: chooses the windows of a record.
    """

    def __init__(self, pair: _Pair, assigner: WindowAssigner[UserValue, W]) -> None:
        super().__init__(pair.first.environment, assigner)
        self._pair = pair

    def _add(self, name: str, function: WindowFunction, result_type: object) -> DataStream:
        operation = self._operation(window_function=function)
        output = add_window_join(self._pair.first, self._pair.second, name, operation)
        return self._pair.stream._emitting(output, result_type)


class JoinedStreamsInWindows(_PairInWindows[W], Generic[T1_co, T2_co, W]):
    """Two streams with keys and windows. (Flink: `JoinedStreams.WithWindow`.)

    User-defined triggers and evictors get pairs `(side, record)`.

    Arguments:
        pair: the streams.
        assigner: chooses the windows of a record.
    """

    @overload
    def apply(
        self,
        function: FlatJoinFunction[T1_co, T2_co, R] | Callable[[T1_co, T2_co], Iterator[R]],
        result_type: object = None,
    ) -> DataStream[R]: ...

    @overload
    def apply(
        self,
        function: JoinFunction[T1_co, T2_co, R] | Callable[[T1_co, T2_co], R],
        result_type: object = None,
    ) -> DataStream[R]: ...

    def apply(self, function: object, result_type: object = None) -> DataStream:
        """Add the operator that joins the records of each key and window.

        A result has the last timestamp of its window. If the window fires earlier or later, it has
        the time of the record or timer that fires it. Records that are late for all their windows
        are dropped, as in Flink.

        Arguments:
            function: a `JoinFunction`, or a function `(first, second)` that returns the result for
                a pair of records; or a `FlatJoinFunction`, or a generator function, which returns
                any number of results for a pair.
            result_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if the function has the wrong class or the wrong number of arguments.
        """
        check_type_info("result_type", result_type)
        return self._add("Window Join", join_window_function(own(function)), result_type)


# ---- co-groups


class CoGroupedStreams(PyFlinkNames, Generic[T1_co, T2_co]):
    """Two streams that `co_group` has paired. (Flink: `CoGroupedStreams`.)

    Arguments:
        first: the first stream.
        second: the second stream.

    Examples:
        >>> groups = clicks.co_group(clicks).where(lambda c: c[0]).equal_to(lambda c: c[0])
        >>> groups = groups.window(TumblingEventTimeWindows.of(10_000))
        >>> counts = groups.apply(lambda first, second: [(len(list(first)), len(list(second)))])
        >>> sorted(counts.execute_and_collect())
        [(1, 1), (1, 1), (2, 2)]
    """

    _missing = _BEFORE_WHERE

    def __init__(self, first: DataStream[T1_co], second: DataStream[T2_co]) -> None:
        self._pair = _Pair(first, first._input, second._input)

    @overload
    def where(
        self, key_selector: Callable[[T1_co], K] | KeySelector[T1_co, K], key_type: object = None
    ) -> CoGroupedStreamsWhere[T1_co, T2_co, K]: ...

    @overload
    def where(
        self, key_selector: KeyFields, key_type: object = None
    ) -> CoGroupedStreamsWhere[T1_co, T2_co, UserValue]: ...

    def where(
        self,
        key_selector: Callable[[T1_co], UserValue] | KeySelector[T1_co, UserValue] | KeyFields,
        key_type: object = None,
    ) -> CoGroupedStreamsWhere[T1_co, T2_co, UserValue]:
        """Set the key of the first stream; see `JoinedStreams.where`."""
        return CoGroupedStreamsWhere(self._pair.where(key_selector, key_type))


class CoGroupedStreamsWhere(PyFlinkNames, Generic[T1_co, T2_co, K_co]):
    """Two streams; the first has a key. (Flink: `CoGroupedStreams.Where`.)

    Arguments:
        pair: the streams.
    """

    _missing = _BEFORE_EQUAL_TO

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def equal_to(
        self,
        key_selector: Callable[[T2_co], K_co] | KeySelector[T2_co, K_co] | KeyFields,
        key_type: object = None,
    ) -> CoGroupedStreamsEqualTo[T1_co, T2_co]:
        """Set the key of the second stream; see `JoinedStreamsWhere.equal_to`."""
        return CoGroupedStreamsEqualTo(self._pair.equal_to(key_selector, key_type))


class CoGroupedStreamsEqualTo(PyFlinkNames, Generic[T1_co, T2_co]):
    """Two streams with keys. (Flink: `CoGroupedStreams.Where.EqualTo`.)

    Arguments:
        pair: the streams.
    """

    _missing = _BEFORE_WINDOW

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def window(
        self, window_assigner: WindowAssigner[UserValue, W]
    ) -> CoGroupedStreamsInWindows[T1_co, T2_co, W]:
        """Set the windows of the records; see `JoinedStreamsEqualTo.window`."""
        return CoGroupedStreamsInWindows(self._pair, window_assigner)


class CoGroupedStreamsInWindows(_PairInWindows[W], Generic[T1_co, T2_co, W]):
    """Two streams with keys and windows. (Flink: `CoGroupedStreams.WithWindow`.)

    User-defined triggers and evictors get pairs `(side, record)`.

    Arguments:
        pair: the streams.
        assigner: chooses the windows of a record.
    """

    def apply(
        self,
        function: CoGroupFunction[T1_co, T2_co, R]
        | Callable[[Iterable[T1_co], Iterable[T2_co]], Iterable[R]],
        result_type: object = None,
    ) -> DataStream[R]:
        """Add the operator that groups the records of each key and window.

        The timestamps of results, and late records, are those of `JoinedStreamsInWindows.apply`.

        Arguments:
            function: a `CoGroupFunction`, or a function of two lists of records that returns an
                iterable of results.
            result_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if the function has the wrong class or the wrong number of arguments.
        """
        check_type_info("result_type", result_type)
        return self._add("Window Co-Group", co_group_window_function(own(function)), result_type)

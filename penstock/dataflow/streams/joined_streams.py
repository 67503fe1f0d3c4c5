"""Define joins and co-groups of two streams in windows.

    orders.join(payments).where(lambda o: o.id).equal_to(lambda p: p.order) \\
        .window(TumblingEventTimeWindows.of(Time.minutes(5))) \\
        .apply(lambda order, payment: (order.id, payment.amount))

As in Flink, each method returns an object with the next method of the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.joins.key_types import check_key_types
from penstock.dataflow.joins.window_functions import (
    co_group_window_function,
    join_window_function,
)
from penstock.dataflow.streams.building import OperatorInput, add_window_join
from penstock.dataflow.streams.connected_streams import StreamOf
from penstock.dataflow.streams.key_selectors import check_key_selector
from penstock.dataflow.streams.operator_settings import declare_type
from penstock.dataflow.type_variables import K_co, T1_co, T2_co
from penstock.dataflow.types import check_type_info
from penstock.dataflow.windows import WindowAssigner, WindowFunction
from penstock.dataflow.windows.window import W
from penstock.dataflow.windows.window_settings import WindowSettings, own

__all__ = ["CoGroupedStreams", "JoinedStreams", "JoinedStreamsInWindows"]


@dataclass(frozen=True)
class _Pair:
    """Two streams that are joined.

    Arguments:
        name: the name of the kind of join, for users.
        first, second: the streams.
        stream_of: a function that returns a stream with these outputs.
        make_function: returns the window function for the argument of `apply`.
        first_type, second_type: the declared types of the keys.
    """

    name: str
    first: OperatorInput
    second: OperatorInput
    stream_of: StreamOf
    make_function: Callable[[Any], WindowFunction]
    first_type: Any = None
    second_type: Any = None


class _BeforeWhere(PyFlinkNames, Generic[T1_co, T2_co]):
    """Two streams whose keys are not set yet.

    Arguments:
        pair: the streams.
    """

    _missing = dict.fromkeys(
        ("equal_to", "window", "apply", "trigger", "evictor", "allowed_lateness"),
        "a join first needs the keys of both streams: call where(key of the first stream)"
        ".equal_to(key of the second stream).window(...).apply(...)",
    )

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def where(self, key_selector: Any, key_type: Any = None) -> JoinedStreamsWhere:
        """Set the key of the first stream.

        Arguments:
            key_selector: a function that returns the key of a record, or a field; see `key_by`.
            key_type: the type of the keys, such as `Types.STRING()`; it is compared with the type
                of the second stream's keys.

        Raises:
            GraphError: if `key_selector` is not a function or a field.
        """
        pair = self._pair
        first = pair.first.key_by(
            check_key_selector(key_selector, key_type=key_type, method="where")
        )
        return JoinedStreamsWhere(replace(pair, first=first, first_type=key_type))


class JoinedStreams(_BeforeWhere[T1_co, T2_co]):
    """Two streams that `join` has paired. (Flink: `JoinedStreams`.)"""


class CoGroupedStreams(_BeforeWhere[T1_co, T2_co]):
    """Two streams that `co_group` has paired. (Flink: `CoGroupedStreams`.)"""


class JoinedStreamsWhere(PyFlinkNames, Generic[T1_co, T2_co, K_co]):
    """Two streams; the first has a key. (Flink: `JoinedStreams.Where`.)

    Arguments:
        pair: the streams.
    """

    _missing = dict.fromkeys(
        ("window", "apply", "trigger", "evictor", "allowed_lateness"),
        "the key of the second stream is missing: call equal_to(...) behind where(...)",
    )

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def equal_to(self, key_selector: Any, key_type: Any = None) -> JoinedStreamsEqualTo:
        """Set the key of the second stream.

        Arguments:
            key_selector: a function that returns the key of a record, or a field; see `key_by`.
            key_type: the type of the keys; see `where`.

        Raises:
            GraphError: if `key_selector` is not a function or a field, or if the declared key types
                of the two streams differ.
        """
        pair = self._pair
        selector = check_key_selector(key_selector, key_type=key_type, method="equal_to")
        check_key_types(pair.first.key_selector, selector, (pair.first_type, key_type))
        return JoinedStreamsEqualTo(replace(pair, second=pair.second.key_by(selector)))


class JoinedStreamsEqualTo(PyFlinkNames, Generic[T1_co, T2_co]):
    """Two streams with keys. (Flink: `JoinedStreams.Where.EqualTo`.)

    Arguments:
        pair: the streams.
    """

    _missing = dict.fromkeys(
        ("apply", "trigger", "evictor", "allowed_lateness"),
        "streams are joined in windows: call window(TumblingEventTimeWindows.of(size)) before it",
    )

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def window(self, window_assigner: WindowAssigner) -> JoinedStreamsInWindows:
        """Set the windows in which records are joined.

        Arguments:
            window_assigner: chooses the windows of a record. A user-defined assigner gets pairs
                `(side, record)`; the side is 0 for the first stream and 1 for the second one.

        Raises:
            GraphError: if `window_assigner` is not a window assigner.
        """
        return JoinedStreamsInWindows(self._pair, window_assigner)


class JoinedStreamsInWindows(WindowSettings, Generic[T1_co, T2_co, W]):
    """Two streams with keys and windows. (Flink: `JoinedStreams.WithWindow`.)

    User-defined triggers and evictors get pairs `(side, record)`.

    Arguments:
        pair: the streams.
        assigner: chooses the windows of a record.
    """

    def __init__(self, pair: _Pair, assigner: WindowAssigner) -> None:
        super().__init__(pair.first.environment, assigner)
        self._pair = pair

    def apply(self, function: Any, result_type: Any = None) -> Any:
        """Add the operator that joins the records of each key and window.

        A result has the last timestamp of its window. If the window fires earlier or later, it has
        the time of the record or timer that fires it. Records that are late for all their windows
        are dropped, as in Flink.

        Arguments:
            function: for `join`, a `JoinFunction`, or a function `(first, second)` that returns the
                result for a pair of records; or a `FlatJoinFunction`, or a generator function,
                which returns any number of results for a pair. For `co_group`, a `CoGroupFunction`,
                or a function of two lists of records that returns an iterable of results.
            result_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if the function has the wrong class or the wrong number of arguments.
        """
        check_type_info("result_type", result_type)
        pair = self._pair
        operation = self._operation(window_function=pair.make_function(own(function)))
        output = add_window_join(pair.first, pair.second, pair.name, operation)
        return declare_type(pair.stream_of([output]), result_type)


def joined_streams(
    first: OperatorInput, second: OperatorInput, stream_of: StreamOf
) -> JoinedStreams:
    """Return two streams to be joined; see `_Pair` for the arguments."""
    name = "Window Join"
    return JoinedStreams(_Pair(name, first, second, stream_of, join_window_function))


def co_grouped_streams(
    first: OperatorInput, second: OperatorInput, stream_of: StreamOf
) -> CoGroupedStreams:
    """Return two streams whose records are to be grouped; see `_Pair` for the arguments."""
    name = "Window Co-Group"
    return CoGroupedStreams(_Pair(name, first, second, stream_of, co_group_window_function))

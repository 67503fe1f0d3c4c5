"""Define `KeyedStream`, a stream that is partitioned by key."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Generic, Literal, NoReturn, overload

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.arguments.fields import value_of
from penstock.dataflow.arguments.pyflink_names import KEYED_STREAM
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    JoinFunction,
    KeyedProcessFunction,
    KeySelectorLike,
    ReduceFunction,
    check_function,
)
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.joins.key_types import check_key_types
from penstock.dataflow.operators import specs
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.aggregations import FieldAggregation, FieldChoice
from penstock.dataflow.streams.building import (
    add_as_of_join,
    add_count,
    add_keyed_process,
    add_map,
    add_reduce,
)
from penstock.dataflow.streams.data_stream import DataStream
from penstock.dataflow.streams.history_join import HistoryJoin
from penstock.dataflow.streams.interval_join import IntervalJoin
from penstock.dataflow.streams.join_arguments import as_of_join_operation
from penstock.dataflow.streams.record_functions import StatefulMap, TopK
from penstock.dataflow.streams.state_tracking import StateTracking
from penstock.dataflow.streams.windowed_stream import WindowedStream, count_windows, time_windows
from penstock.dataflow.time import TimeDomain
from penstock.dataflow.type_variables import K_co, R, T_co, UserValue, V
from penstock.dataflow.types import check_type_info
from penstock.dataflow.windows import CountWindow, WindowAssigner
from penstock.dataflow.windows.window import W


class KeyedStream(DataStream[T_co], Generic[K_co, T_co]):
    """A stream that is partitioned by key. (Flink: `KeyedStream`.)

    Operators on this stream have keyed state. The aggregations are rolling: they emit the updated
    result for each record. A sink, `print` and `execute_and_collect` get the records, without keys.

    The records of a key belong to one subtask, which holds the state of the key. So methods that
    change the partitioning raise an error, as in PyFlink: operators would silently have no keys.

    `KeyedStream[K, T]` has keys of type `K` and records of type `T`.

    Arguments:
        environment: the environment that the stream belongs to.
        outputs: the outputs of operators that form the stream.
        selector: the function that returns the key of a record.
        key_type: the declared type of the keys, which joins compare; None if it is not declared.

    Examples:
        >>> users = clicks.key_by(lambda click: click[0])
        >>> list(users.count().execute_and_collect())
        [('ann', 1), ('bob', 1), ('ann', 2), ('ann', 3)]
    """

    _missing = KEYED_STREAM

    def __init__(
        self,
        environment: BaseEnvironment,
        outputs: Sequence[OperatorOutput],
        selector: KeySelectorLike,
        key_type: object = None,
    ) -> None:
        super().__init__(environment, outputs)
        self._selector, self._key_type = selector, key_type

    # ---- functions with keyed state

    def process(  # type: ignore[override]
        self, func: KeyedProcessFunction[K_co, T_co, R], output_type: object = None
    ) -> DataStream[R]:
        """Add an operator that runs a `KeyedProcessFunction`, which has keyed state.

        Raises:
            GraphError: if `func` is not a `KeyedProcessFunction`.
        """
        check_type_info("output_type", output_type)
        if not isinstance(func, KeyedProcessFunction):
            raise GraphError(
                f"process on a keyed stream takes a KeyedProcessFunction, not {func!r}"
            )
        return self._emitting(add_keyed_process(self._input, "Keyed Process", func), output_type)

    def map_with_state(
        self, func: Callable[[V, T_co], tuple[V | None, R]], initial: V | Callable[[], V]
    ) -> DataStream[R]:
        """Map each record with the state of its key.

            numbers = stream.key_by("user").map_with_state(lambda n, visit: (n + 1, (n, visit)), 0)

        Arguments:
            func: a function `(state, record)` that returns a pair (next state, result). If the next
                state is None, the state of the key is removed.
            initial: the first state; each key gets a copy. Or a function without arguments that
                returns it.

        Raises:
            GraphError: if `func` is not a function of two arguments, or if `initial` is None.
        """
        check_argument_count("map_with_state", func, 2, "(state, record)")
        if initial is None:
            raise GraphError(
                "map_with_state needs an initial state other than None, which means that a key has "
                "no state"
            )
        if callable(initial):
            check_argument_count("map_with_state (initial)", initial, 0, "()")
        return self._emitting(add_map(self._input, "Map With State", StatefulMap(func, initial)))

    def track(
        self,
        initialize: Callable[[K_co, T_co], V | None],
        update: Callable[[K_co, V, T_co], V | None],
        timeout: DurationLike | None = None,
        time_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> DataStream[tuple[K_co, V | None]]:
        """Track a state of each key from event to event, and emit (key, state) after each event.

            sessions = events.key_by("user").track(
                lambda user, event: 1,
                lambda user, count, event: None if event.kind == "exit" else count + 1,
                timeout=Time.minutes(30),
            )

        When a state ends, (key, None) is emitted. The next event of the key begins another state.
        (Discretized Streams, section 3.3: `track`.)

        Arguments:
            initialize: a function `(key, event)` that returns the first state. If it returns None,
                the event is ignored.
            update: a function `(key, state, event)` that returns the next state. If it returns
                None, the state ends.
            timeout: the state ends when its key has had no event for this time. With None, there is
                no timeout.
            time_domain: whether the timeout is by event time or by processing time.

        Raises:
            GraphError: if an argument is wrong, or if the timeout is by event time and the records
                have no event times.
        """
        check_argument_count("track (initialize)", initialize, 2, "(key, event)")
        check_argument_count("track (update)", update, 3, "(key, state, event)")
        if not isinstance(time_domain, TimeDomain):
            raise GraphError(f"time_domain is a TimeDomain, not {time_domain!r}")
        timeout_ms = None if timeout is None else milliseconds_of("timeout", timeout, least=1)
        by_event_time = time_domain is TimeDomain.EVENT_TIME
        function = StateTracking(initialize, update, timeout_ms, by_event_time)
        timed = timeout_ms is not None and by_event_time
        spec = specs.keyed_process(StateTracking.in_batch_mode, by_event_time=timed)
        return self._emitting(add_keyed_process(self._input, "Track", function, spec))

    # ---- rolling aggregations

    def reduce(
        self, func: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co], output_type: object = None
    ) -> DataStream[T_co]:
        """Combine the records of each key with `func`, and emit the result after each record.

        stream.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
        """
        check_type_info("output_type", output_type)
        function = check_function(func, ReduceFunction, "reduce")
        return self._emitting(add_reduce(self._input, "Reduce", function), output_type)

    def sum(self, position_to_sum: int | str | None = 0) -> DataStream[T_co]:
        """Sum up one field for each key, and emit the updated sum for each record.

        The other fields of an emitted record are taken from the first record of the key.

        Arguments:
            position_to_sum: the position or name of the field. If the records are numbers, it is
                left out, or None.
        """
        function = FieldAggregation(position_to_sum, operator.add)
        return self._emitting(add_reduce(self._input, "Sum", function))

    def min(self, position_to_min: int | str | None = 0) -> DataStream[T_co]:
        """Emit, for each record, the smallest value of a field among the records of the key.

        The other fields of an emitted record are taken from the first record of the key.
        """
        function = FieldAggregation(position_to_min, min)
        return self._emitting(add_reduce(self._input, "Min", function))

    def max(self, position_to_max: int | str | None = 0) -> DataStream[T_co]:
        """Emit, for each record, the largest value of a field among the records of the key.

        The other fields of an emitted record are taken from the first record of the key.
        """
        function = FieldAggregation(position_to_max, max)
        return self._emitting(add_reduce(self._input, "Max", function))

    def min_by(self, position_to_min_by: int | str | None = 0) -> DataStream[T_co]:
        """Emit, for each record, the record of its key that has the smallest field so far.

        If two records have equal fields, the first record is emitted. Without a position, field 0
        of a tuple, list or `Row` is compared, and other records as a whole. None always compares
        whole records.
        """
        function = FieldChoice(position_to_min_by, operator.lt)
        return self._emitting(add_reduce(self._input, "Min By", function))

    def max_by(self, position_to_max_by: int | str | None = 0) -> DataStream[T_co]:
        """Emit, for each record, the record of its key that has the largest field so far.

        If two records have equal fields, the first record is emitted. Without a position, field 0
        of a tuple, list or `Row` is compared, and other records as a whole. None always compares
        whole records.
        """
        function = FieldChoice(position_to_max_by, operator.gt)
        return self._emitting(add_reduce(self._input, "Max By", function))

    def count(self) -> DataStream[tuple[K_co, int]]:
        """Count the records of each key, and emit a pair (key, count so far) for each record."""
        return self._emitting(add_count(self._input))

    def top_k(self, k: int, by: object = None) -> DataStream[tuple[K_co, list[T_co]]]:
        """Emit (key, its `k` best records) whenever these have changed. The best one comes first.

        If two records have equal values, the earlier one is better.

        Arguments:
            k: the number of records, at least 1.
            by: the value by which records are compared, where the largest is best: a function of
                one record, or the position or name of a field. With None, it is the record itself.

        Raises:
            GraphError: if `k` or `by` is not one of these values.
        """
        function = TopK(whole_number("k", k, least=1), value_of("top_k", by))
        spec = specs.keyed_process(TopK.in_batch_mode)
        return self._emitting(add_keyed_process(self._input, "Top K", function, spec))

    # ---- windows

    def window(self, window_assigner: WindowAssigner[T_co, W]) -> WindowedStream[K_co, T_co, W]:
        """Group the records of each key by windows.

            stream.key_by(lambda visit: visit.user) \\
                .window(EventTimeSessionWindows.with_gap(Time.minutes(30))) \\
                .reduce(lambda first, second: first.joined(second))

        Arguments:
            window_assigner: chooses the windows of a record.
        """
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream[K_co, T_co, CountWindow]:
        """Group the records of each key by windows of `size` records.

        A window emits its result when it is full.

        Arguments:
            size: the number of records of a window.
            slide: the number of records between the starts of two windows. With 0, windows do not
                overlap.
        """
        return self.window(count_windows(size, slide))

    def reduce_by_window(
        self,
        func: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co],
        size: DurationLike,
        slide: DurationLike | None = None,
        inverse: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co] | None = None,
    ) -> DataStream[T_co]:
        """Combine the records of each key and event-time window into one record.

        The arguments are those of `DataStream.reduce_by_window`.
        """
        return self.window(time_windows(size, slide)).reduce(func, inverse=inverse)

    # ---- joins

    def interval_join(self, other_stream: KeyedStream[UserValue, R]) -> IntervalJoin[T_co, R]:
        """Join each record with records of another stream whose event times are near its own.

            orders.key_by(lambda o: o.id).interval_join(payments.key_by(lambda p: p.order)) \\
                .between(Time.minutes(0), Time.minutes(10)) \\
                .process(lambda order, payment: (order.id, payment.amount))

        Arguments:
            other_stream: the right stream, which has keys of the same type.

        Returns:
            An object with the method `between`, and so on, as in Flink's Java API.

        Raises:
            GraphError: if `other_stream` is not a keyed stream, belongs to another environment, or
                has keys of another declared type.
        """
        self._check_keyed("interval_join", other_stream)
        return IntervalJoin(self, other_stream)

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[UserValue, V],
        *,
        how: Literal["inner", "left"] = "inner",
        function: None = None,
        late_tag: OutputTag[T_co] | None = None,
    ) -> DataStream[tuple[T_co, V]]: ...

    @overload
    def as_of_join(
        self,
        versions: KeyedStream[UserValue, V],
        *,
        how: Literal["inner", "left"] = "inner",
        function: JoinFunction[T_co, V, R] | Callable[[T_co, V], R],
        late_tag: OutputTag[T_co] | None = None,
    ) -> DataStream[R]: ...

    def as_of_join(
        self,
        versions: KeyedStream[UserValue, UserValue],
        *,
        how: Literal["inner", "left"] = "inner",
        function: object = None,
        late_tag: OutputTag[T_co] | None = None,
    ) -> DataStream:
        """Join each record with the version of its key that is valid at its event time.

            orders.key_by(lambda o: o.currency).as_of_join(
                rates.key_by(lambda r: r.currency),
                function=lambda order, rate: order.amount * rate.value,
            )

        Each record of `versions` is the valid version of its key from its event time on, until the
        next one. A record is emitted when the watermark has reached its time, with that time. Older
        versions are removed, and the newest one of each key is kept. (Flink: temporal join.)

        Arguments:
            versions: a keyed stream of versions, which has keys of the same type. If two versions
                of a key have the same time, the one that comes later in the stream is valid.
            how: "inner" drops a record without a version; "left" keeps it, with the version None.
            function: a `JoinFunction`, or a function `(record, version)` that returns the result.
                By default, the result is the pair `(record, version)`.
            late_tag: the tag of the side output for late records, whose timestamps are smaller
                than the watermark. Without it, they are dropped.

        Raises:
            GraphError: if `versions` is not a keyed stream of the same environment, or if another
                argument is wrong.
        """
        self._check_keyed("as_of_join", versions)
        operation = as_of_join_operation(how, function, late_tag)
        return self._emitting(add_as_of_join(self._input, versions._input, operation))

    @overload
    def join_history(
        self, past: DurationLike, func: None = None, late_tag: OutputTag[T_co] | None = None
    ) -> DataStream[tuple[T_co, list[T_co]]]: ...

    @overload
    def join_history(
        self,
        past: DurationLike,
        func: Callable[[T_co, list[T_co]], R],
        late_tag: OutputTag[T_co] | None = None,
    ) -> DataStream[R]: ...

    def join_history(
        self, past: DurationLike, func: UserValue = None, late_tag: OutputTag[T_co] | None = None
    ) -> DataStream:
        """Join each record with the earlier records of its key, and emit the result of `func`.

            payments.key_by("card").join_history(
                Time.hours(1), lambda payment, earlier: (payment, sum(p.amount for p in earlier))
            )

        Records are joined in the order of their event times. So a record is emitted when the
        watermark has reached its time.

        Arguments:
            past: the maximum difference between the event times of a record and of an earlier
                record with which it is joined. The limit itself is included.
            func: a function `(record, earlier records)`. The earlier records are in the order of
                their times. With None, the pair (record, earlier records) is emitted.
            late_tag: the side output for late records, which arrive after the watermark. With None,
                they are dropped.

        Raises:
            GraphError: if an argument is wrong, or if the records have no event times.
        """
        past_ms = milliseconds_of("past", past)
        if func is not None:
            check_argument_count("join_history", func, 2, "(record, earlier records)")
        if late_tag is not None and not isinstance(late_tag, OutputTag):
            raise GraphError(f"late_tag is an OutputTag, not {late_tag!r}")
        function = HistoryJoin(past_ms, _pair if func is None else func, late_tag)
        spec = specs.keyed_process(
            HistoryJoin.in_batch_mode, by_event_time=True, late_tags=(late_tag,)
        )
        return self._emitting(add_keyed_process(self._input, "Join History", function, spec))

    # ---- methods that a keyed stream refuses

    def forward(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("forward")

    def rebalance(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("rebalance")

    def rescale(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("rescale")

    def shuffle(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("shuffle")

    def global_(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("global_")

    def broadcast(self, *state_descriptors: object) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        del state_descriptors
        _refuse("broadcast")

    def partition_custom(self, partitioner: object, key_selector: object) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        del partitioner, key_selector
        _refuse("partition_custom")

    def _check_keyed(self, method: str, other: object) -> None:
        """Raise a `GraphError` unless this stream can be joined with `other` by key."""
        if not isinstance(other, KeyedStream):
            hint = ": call key_by on it" if hasattr(other, "key_by") else ""
            raise GraphError(f"{method} takes a keyed stream, not {other!r}{hint}")
        self._check_other(method, other)
        check_key_types(self._selector, other._selector, (self._key_type, other._key_type))


def _refuse(method: str) -> NoReturn:
    raise GraphError(
        f"{method} cannot change the partitioning of a keyed stream: call it on the stream before "
        f"key_by, or on the result of an operator"
    )


def _pair(record: UserValue, earlier: list[UserValue]) -> tuple[UserValue, list[UserValue]]:
    return record, earlier

"""Define the streams that `window` and `window_all` return: records grouped by windows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeAlias, overload

from penstock.dataflow.arguments.durations import DurationLike, whole_number
from penstock.dataflow.arguments.fields import value_of
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import Function, ReduceFunction, check_function
from penstock.dataflow.output_tag import OutputTag, check_output_tag
from penstock.dataflow.streams.aggregations import FieldAggregation, FieldChoice
from penstock.dataflow.streams.building import add_window, add_window_of_all
from penstock.dataflow.streams.record_functions import TopKAggregate
from penstock.dataflow.streams.window_settings import WindowSettings, own
from penstock.dataflow.type_variables import K, K_co, R, T_co, UserValue
from penstock.dataflow.types import check_type_info
from penstock.dataflow.windows import (
    AggregateFunction,
    AllWindowFunction,
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CountWindow,
    MergingWindowAssigner,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowFunction,
)
from penstock.dataflow.windows.window import W

if TYPE_CHECKING:
    from penstock.dataflow.streams.data_stream import DataStream

Field = int | str | None

_Reducer: TypeAlias = Callable[[T_co, T_co], T_co] | ReduceFunction[T_co]
_ApplyWindow: TypeAlias = (
    WindowFunction[T_co, R, K, W] | Callable[[K, W, Iterable[T_co]], Iterable[R]]
)
_ApplyAllWindow: TypeAlias = (
    AllWindowFunction[T_co, R, W] | Callable[[W, Iterable[T_co]], Iterable[R]]
)
# Not made of `_ApplyWindow`: mypy does not look for a lambda's type in a union of unions.
_AnyWindow: TypeAlias = (
    WindowFunction[T_co, R, K, W]
    | ProcessWindowFunction[T_co, R, K, W]
    | Callable[[K, W, Iterable[T_co]], Iterable[R]]
)
_AnyAllWindow: TypeAlias = (
    AllWindowFunction[T_co, R, W]
    | ProcessAllWindowFunction[T_co, R, W]
    | Callable[[W, Iterable[T_co]], Iterable[R]]
)

_INVERTIBLE = (
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)


class BaseWindowedStream(PyFlinkNames, WindowSettings[T_co, W], Generic[T_co, W]):
    """The base class of windowed streams, with the methods that need no function.

    Arguments:
        stream: the stream whose records are grouped.
        assigner: chooses the windows of a record.
    """

    _missing: ClassVar[Mapping[str, str]] = {
        "get_input_type": "call get_type() on the stream before window(...)"
    }

    #: The classes of window functions.
    _process_class: ClassVar[type[Function]]
    _window_class: ClassVar[type[Function]]
    _keyed: ClassVar[bool]

    def __init__(self, stream: DataStream[T_co], assigner: WindowAssigner[T_co, W]) -> None:
        super().__init__(stream._environment, assigner)
        self._stream = stream
        self._late_tag: OutputTag[T_co] | None = None

    def side_output_late_data(self, output_tag: OutputTag[T_co]) -> Self:
        """Emit records that are too late for their windows to a side output.

        Without a side output, they are dropped. Call `get_side_output(output_tag)` on the result of
        the window.

        Raises:
            GraphError: if `output_tag` is not an `OutputTag`.
        """
        self._late_tag = check_output_tag("side_output_late_data", output_tag)
        return self

    def sum(self, position_to_sum: Field = 0) -> DataStream[T_co]:
        """Sum up one field of the records of each window.

        The other fields are taken from the first record of the window.

        Arguments:
            position_to_sum: the position or name of the field. If the records are numbers, it is
                left out, or None.
        """
        return self._add(FieldAggregation(position_to_sum, operator.add))

    def min(self, position_to_min: Field = 0) -> DataStream[T_co]:
        """Emit the smallest value of one field; see `sum`."""
        return self._add(FieldAggregation(position_to_min, min))

    def max(self, position_to_max: Field = 0) -> DataStream[T_co]:
        """Emit the largest value of one field; see `sum`."""
        return self._add(FieldAggregation(position_to_max, max))

    def min_by(self, position_to_min_by: Field = 0) -> DataStream[T_co]:
        """Emit the record with the smallest field; the first one if fields are equal."""
        return self._add(FieldChoice(position_to_min_by, operator.lt))

    def max_by(self, position_to_max_by: Field = 0) -> DataStream[T_co]:
        """Emit the record with the largest field; the first one if fields are equal."""
        return self._add(FieldChoice(position_to_max_by, operator.gt))

    def top_k(self, k: int, by: object = None) -> DataStream[list[T_co]]:
        """Emit a list of the `k` best records of each window, the best one first.

        If two records have equal values, the earlier one is better.

        Arguments:
            k: the number of records, at least 1.
            by: the value by which records are compared, where the largest is best: a function of
                one record, or the position or name of a field. With None, it is the record itself.

        Raises:
            GraphError: if an argument is something else.
        """
        return self._add(TopKAggregate(whole_number("k", k, least=1), value_of("top_k", by)))

    # ---- methods whose types the subclasses have

    def _reduce(
        self, reduce_function: object, window_function: object, output_type: object, inverse: object
    ) -> DataStream:
        check_type_info("output_type", output_type)
        combine = check_function(reduce_function, ReduceFunction, "reduce")
        if inverse is not None:
            self._check_inverse(inverse)
        return self._add(combine, window_function, output_type, inverse)

    def _aggregate(
        self,
        aggregate_function: object,
        window_function: object,
        accumulator_type: object,
        output_type: object,
    ) -> DataStream:
        check_type_info("accumulator_type", accumulator_type)
        check_type_info("output_type", output_type)
        if not isinstance(aggregate_function, AggregateFunction):
            raise GraphError(
                f"aggregate takes an object of class AggregateFunction, not {aggregate_function!r}"
            )
        if isinstance(self._assigner, MergingWindowAssigner) and aggregate_function.merge is None:
            raise GraphError(
                f"the windows of {type(self._assigner).__name__} merge, so that "
                f"{type(aggregate_function).__name__} needs a method merge(self, a, b)"
            )
        if aggregate_function.merges_panes and aggregate_function.merge is None:
            raise GraphError(
                f"{type(aggregate_function).__name__} says merges_panes = True, so that it needs a "
                f"method merge(self, a, b)"
            )
        return self._add(aggregate_function, window_function, output_type)

    def _process(self, process_window_function: object, output_type: object) -> DataStream:
        check_type_info("output_type", output_type)
        if not isinstance(process_window_function, self._process_class):
            raise GraphError(
                f"process on {_a(type(self).__name__)} takes an object of class "
                f"{self._process_class.__name__}, not {process_window_function!r}"
            )
        return self._add(None, process_window_function, output_type)

    def _apply(self, window_function: object, output_type: object) -> DataStream:
        check_type_info("output_type", output_type)
        if isinstance(window_function, self._process_class):
            raise GraphError(
                f"apply takes {_a(self._window_class.__name__)}; give "
                f"{type(window_function).__name__} to process(...)"
            )
        checked = self._checked_window_function("apply", window_function)
        return self._add(None, checked, output_type)

    def _add(
        self,
        aggregator: object,
        window_function: object = None,
        output_type: object = None,
        inverse: object = None,
    ) -> DataStream:
        """Add the operator of the window, and return the stream of its results."""
        if window_function is not None:
            window_function = self._checked_window_function("the window function", window_function)
        operation = self._operation(
            aggregator=own(aggregator),
            inverse=own(inverse),
            window_function=own(window_function),
            late_tag=self._late_tag,
            keyed=self._keyed,
        )
        add = add_window if self._keyed else add_window_of_all
        return self._stream._emitting(add(self._stream._input, operation), output_type)

    def _checked_window_function(self, method: str, function: object) -> UserValue:
        if isinstance(function, self._process_class):
            return function
        return check_function(function, self._window_class, method)

    def _check_inverse(self, inverse: object) -> None:
        check_function(inverse, ReduceFunction, "inverse")
        if not isinstance(self._assigner, _INVERTIBLE):
            raise GraphError(
                f"inverse is for sliding windows, and not for {type(self._assigner).__name__}"
            )
        if self._trigger is not None or self._evictor is not None:
            raise GraphError("inverse works without an evictor and with the default trigger only")


class WindowedStream(BaseWindowedStream[T_co, W], Generic[K_co, T_co, W]):
    """A keyed stream whose records are grouped by key and window. (Flink: `WindowedStream`.)

    `WindowedStream[K, T, W]` has keys of type `K`, records of type `T`, and windows of type `W`.

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(TumblingEventTimeWindows.of(10_000))
        >>> counts = windows.apply(lambda user, window, clicks: [(user, window.start, len(clicks))])
        >>> sorted(counts.execute_and_collect())
        [('ann', 0, 2), ('ann', 10000, 1), ('bob', 0, 1)]
    """

    _process_class = ProcessWindowFunction
    _window_class = WindowFunction
    _keyed = True

    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: None = None,
        output_type: object = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[T_co]: ...

    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: _AnyWindow[T_co, R, K_co, W],
        output_type: object = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[R]: ...

    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: object = None,
        output_type: object = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream:
        """Combine the records of each window to one record.

        Arguments:
            reduce_function: a function that combines two records. The window keeps only the result.
            window_function: a window function that gets the result; see `process` and `apply`. With
                None, the result itself is emitted.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.
            inverse: for sliding windows, a function `(result, leaving)` that returns the result
                without the part that leaves the window: for a sum, `lambda a, b: a - b`. A window
                of any size is then computed from the window before it. (Discretized Streams:
                `reduceByWindow`.)

        Raises:
            GraphError: if an argument is not a function of this kind, or if `inverse` is given for
                windows that do not slide, or with a trigger or an evictor.
        """
        return self._reduce(reduce_function, window_function, output_type, inverse)

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, UserValue, R],
        window_function: None = None,
        accumulator_type: object = None,
        output_type: object = None,
    ) -> DataStream[R]: ...

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, UserValue, K],
        window_function: _AnyWindow[K, R, K_co, W],
        accumulator_type: object = None,
        output_type: object = None,
    ) -> DataStream[R]: ...

    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, UserValue, UserValue],
        window_function: object = None,
        accumulator_type: object = None,
        output_type: object = None,
    ) -> DataStream:
        """Combine the records of each window in an accumulator.

        Arguments:
            aggregate_function: adds records to the accumulator, and makes the result.
            window_function: a window function that gets the result; see `process` and `apply`. With
                None, the result itself is emitted.
            accumulator_type: ignored.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if an argument is not a function of this kind, or if windows can merge and
                the aggregate function has no method `merge`.
        """
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type)

    def process(
        self,
        process_window_function: ProcessWindowFunction[T_co, R, K_co, W],
        output_type: object = None,
    ) -> DataStream[R]:
        """Call a function with all records of each window, and with its context.

        Arguments:
            process_window_function: a `ProcessWindowFunction`.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if the function is of another class.
        """
        return self._process(process_window_function, output_type)

    def apply(
        self, window_function: _ApplyWindow[T_co, R, K_co, W], output_type: object = None
    ) -> DataStream[R]:
        """Call a function with all records of each window.

        Arguments:
            window_function: a `WindowFunction`, or a function `(key, window, records)`. It returns
                an iterable of results.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if the function is of another class, or takes other arguments.
        """
        return self._apply(window_function, output_type)


class AllWindowedStream(BaseWindowedStream[T_co, W], Generic[T_co, W]):
    """A stream without keys whose records are grouped by windows, by one subtask.

    (Flink: `AllWindowedStream`.)

    `AllWindowedStream[T, W]` has records of type `T` and windows of type `W`.

    Examples:
        >>> windows = clicks.window_all(TumblingEventTimeWindows.of(10_000))
        >>> results = windows.apply(lambda window, clicks: [(window.start, len(clicks))])
        >>> list(results.execute_and_collect())
        [(0, 3), (10000, 1)]
    """

    _process_class = ProcessAllWindowFunction
    _window_class = AllWindowFunction
    _keyed = False

    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: None = None,
        output_type: object = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[T_co]: ...

    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: _AnyAllWindow[T_co, R, W],
        output_type: object = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[R]: ...

    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: object = None,
        output_type: object = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream:
        """Combine the records of each window to one record; see `WindowedStream.reduce`."""
        return self._reduce(reduce_function, window_function, output_type, inverse)

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, UserValue, R],
        window_function: None = None,
        accumulator_type: object = None,
        output_type: object = None,
    ) -> DataStream[R]: ...

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, UserValue, K],
        window_function: _AnyAllWindow[K, R, W],
        accumulator_type: object = None,
        output_type: object = None,
    ) -> DataStream[R]: ...

    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, UserValue, UserValue],
        window_function: object = None,
        accumulator_type: object = None,
        output_type: object = None,
    ) -> DataStream:
        """Combine the records of each window in an accumulator; see `WindowedStream.aggregate`."""
        return self._aggregate(aggregate_function, window_function, accumulator_type, output_type)

    def process(
        self,
        process_window_function: ProcessAllWindowFunction[T_co, R, W],
        output_type: object = None,
    ) -> DataStream[R]:
        """Call a `ProcessAllWindowFunction` with all records of each window, and its context.

        The other argument and the errors are those of `WindowedStream.process`.
        """
        return self._process(process_window_function, output_type)

    def apply(
        self, window_function: _ApplyAllWindow[T_co, R, W], output_type: object = None
    ) -> DataStream[R]:
        """Call a function with all records of each window.

        The function is an `AllWindowFunction`, or a function `(window, records)`. It returns an
        iterable of results. The other argument and the errors are those of `WindowedStream.apply`.
        """
        return self._apply(window_function, output_type)


def count_windows(size: int, slide: int) -> WindowAssigner[UserValue, CountWindow]:
    """Return the assigner for windows of a number of records."""
    if slide == 0:
        return CountTumblingWindowAssigner(size)
    return CountSlidingWindowAssigner(size, slide)


def time_windows(
    size: DurationLike, slide: DurationLike | None
) -> WindowAssigner[UserValue, TimeWindow]:
    """Return the assigner of event-time windows that slide, or that tumble if `slide` is None."""
    if slide is None:
        return TumblingEventTimeWindows.of(size)
    return SlidingEventTimeWindows.of(size, slide)


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"

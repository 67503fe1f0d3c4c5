"""The methods of the streams that `window` and `window_all` return: records grouped by windows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Self

from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.arguments.fields import value_of
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import Function, ReduceFunction, check_function
from penstock.dataflow.output_tag import OutputTag, check_output_tag
from penstock.dataflow.streams.aggregations import FieldAggregation, FieldChoice
from penstock.dataflow.streams.operator_settings import declare_type
from penstock.dataflow.streams.ranking import TopKAggregate
from penstock.dataflow.type_variables import S_co, T_co
from penstock.dataflow.types import check_type_info
from penstock.dataflow.windows import (
    AggregateFunction,
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowOperation,
)
from penstock.dataflow.windows.window import W
from penstock.dataflow.windows.window_settings import WindowSettings, own

__all__ = ["BaseWindowedStream"]

Field = int | str | None

_INVERTIBLE = (
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)


class BaseWindowedStream(PyFlinkNames, WindowSettings[T_co, W], Generic[T_co, W, S_co]):
    """The methods of a stream that is grouped by windows.

    Arguments:
        environment: the environment that the stream belongs to.
        assigner: chooses the windows of a record.
        add: a function that adds the operator of the window to the program, and returns its output.
    """

    _missing: ClassVar[Mapping[str, str]] = {
        "get_input_type": "call get_type() on the stream before window(...)"
    }

    #: The classes of window functions.
    _process_class: ClassVar[type[Function]]
    _window_class: ClassVar[type[Function]]
    _keyed: ClassVar[bool]

    def __init__(
        self,
        environment: BaseEnvironment,
        assigner: WindowAssigner[Any, Any],
        add: Callable[[WindowOperation], Any],
    ) -> None:
        super().__init__(environment, assigner)
        self._add = add
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

    # ---- results

    def reduce(
        self,
        reduce_function: Callable[[Any, Any], Any] | ReduceFunction,
        window_function: Any = None,
        output_type: Any = None,
        *,
        inverse: Callable[[Any, Any], Any] | ReduceFunction | None = None,
    ) -> Any:
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
        check_type_info("output_type", output_type)
        combine = check_function(reduce_function, ReduceFunction, "reduce")
        if inverse is not None:
            self._check_inverse(inverse)
        return declare_type(self._build(combine, window_function, inverse), output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: Any = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> Any:
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
        return declare_type(self._build(aggregate_function, window_function), output_type)

    def process(self, process_window_function: Any, output_type: Any = None) -> Any:
        """Call a function with all records of each window, and with its context.

        Arguments:
            process_window_function: a `ProcessWindowFunction`; for a stream without keys a
                `ProcessAllWindowFunction`.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if the function is of another class.
        """
        check_type_info("output_type", output_type)
        if not isinstance(process_window_function, self._process_class):
            raise GraphError(
                f"process on {_a(type(self).__name__)} takes an object of class "
                f"{self._process_class.__name__}, not {process_window_function!r}"
            )
        return declare_type(self._build(None, process_window_function), output_type)

    def apply(self, window_function: Any, output_type: Any = None) -> Any:
        """Call a function with all records of each window.

        Arguments:
            window_function: a `WindowFunction`, or a function `(key, window, records)`. For a
                stream without keys it is an `AllWindowFunction`, or a function
                `(window, records)`. It returns an iterable of results.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if the function is of another class, or takes other arguments.
        """
        check_type_info("output_type", output_type)
        if isinstance(window_function, self._process_class):
            raise GraphError(
                f"apply takes {_a(self._window_class.__name__)}; give "
                f"{type(window_function).__name__} to process(...)"
            )
        return declare_type(
            self._build(None, self._checked_window_function("apply", window_function)), output_type
        )

    def sum(self, position_to_sum: Field = 0) -> S_co:
        """Sum up one field of the records of each window.

        The other fields are taken from the first record of the window.

        Arguments:
            position_to_sum: the position or name of the field. If the records are numbers, it is
                left out, or None.
        """
        return self._combine(FieldAggregation(position_to_sum, operator.add))

    def min(self, position_to_min: Field = 0) -> S_co:
        """Emit the smallest value of one field; see `sum`."""
        return self._combine(FieldAggregation(position_to_min, min))

    def max(self, position_to_max: Field = 0) -> S_co:
        """Emit the largest value of one field; see `sum`."""
        return self._combine(FieldAggregation(position_to_max, max))

    def min_by(self, position_to_min_by: Field = 0) -> S_co:
        """Emit the record with the smallest field; the first one if fields are equal."""
        return self._combine(FieldChoice(position_to_min_by, operator.lt))

    def max_by(self, position_to_max_by: Field = 0) -> S_co:
        """Emit the record with the largest field; the first one if fields are equal."""
        return self._combine(FieldChoice(position_to_max_by, operator.gt))

    def top_k(self, k: int, by: Any = None) -> Any:
        """Emit a list of the `k` best records of each window, the best one first.

        If two records have equal values, the earlier one is better.

        Arguments:
            k: the number of records, at least 1.
            by: the value by which records are compared, where the largest is best: a function of
                one record, or the position or name of a field. With None, it is the record itself.

        Raises:
            GraphError: if an argument is something else.
        """
        return self._build(TopKAggregate(whole_number("k", k, least=1), value_of("top_k", by)))

    # ---- building

    def _combine(self, aggregator: Any) -> S_co:
        stream: S_co = self._build(aggregator)
        return stream

    def _build(self, aggregator: Any, window_function: Any = None, inverse: Any = None) -> Any:
        if window_function is not None:
            window_function = self._checked_window_function("the window function", window_function)
        return self._add(
            self._operation(
                aggregator=own(aggregator),
                inverse=own(inverse),
                window_function=own(window_function),
                late_tag=self._late_tag,
                keyed=self._keyed,
            )
        )

    def _checked_window_function(self, method: str, function: Any) -> Any:
        if isinstance(function, self._process_class):
            return function
        return check_function(function, self._window_class, method)

    def _check_inverse(self, inverse: Any) -> None:
        check_function(inverse, ReduceFunction, "inverse")
        if not isinstance(self._assigner, _INVERTIBLE):
            raise GraphError(
                f"inverse is for sliding windows, and not for {type(self._assigner).__name__}"
            )
        if self._trigger is not None or self._evictor is not None:
            raise GraphError("inverse works without an evictor and with the default trigger only")


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"

"""Define streams: `DataStream`, `KeyedStream`, and the streams that form loops.

Names and semantics are the same as in PyFlink. A stream is a tuple of operator outputs, each with a
partitioning. A method that transforms a stream adds an operator to the job graph, and returns a
stream with the operator's output. Nothing runs before the program calls `execute`.

Methods of these classes return objects of the other classes. So they share one module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.arguments.pyflink_names import KEYED_STREAM, STREAM, PyFlinkNames
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    check_function,
)
from penstock.dataflow.graph.job_graph import (
    Chaining,
    OperatorKind,
    OperatorOutput,
    Partitioning,
)
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.aggregations import projection
from penstock.dataflow.streams.connecting import StreamConnecting
from penstock.dataflow.streams.derived import DerivedStreams, KeyedDerivedStreams
from penstock.dataflow.streams.feedback import Feedback, names_of
from penstock.dataflow.streams.joins.stream_joins import KeyedStreamJoins, StreamJoins
from penstock.dataflow.streams.key_selectors import (
    KeyFields,
    check_key_selector,
    declared_key_type,
)
from penstock.dataflow.streams.rolling_aggregations import RollingAggregations
from penstock.dataflow.streams.side_output import side_output_of
from penstock.dataflow.streams.stream_partitioning import FixedPartitioning, StreamPartitioning
from penstock.dataflow.streams.stream_results import StreamResults
from penstock.dataflow.streams.stream_windows import (
    KeyedStreamWindows,
    StreamWindows,
    name_of_window,
    no_key,
)
from penstock.dataflow.streams.windowed_streams import WindowedStream
from penstock.dataflow.types import check_type_info
from penstock.dataflow.windows import WindowAssigner, WindowOperation

__all__ = ["DataStream", "FeedbackStream", "IterativeStream", "KeyedStream"]


class DataStream(
    PyFlinkNames,
    StreamResults,
    StreamPartitioning["DataStream"],
    StreamWindows["DataStream"],
    StreamConnecting["DataStream"],
    StreamJoins["DataStream"],
    DerivedStreams["DataStream"],
):
    """A stream of records in a program. (Flink: `DataStream`.)

    If a method takes an object of a function class, it also takes a plain function or lambda. Only
    `process` needs an object. The arguments `output_type` and `key_type` are ignored. They are
    accepted for compatibility with PyFlink programs.
    """

    _missing = STREAM

    def get_execution_environment(self) -> BaseEnvironment:
        """Return the environment that the stream belongs to."""
        return self._environment

    def get_name(self) -> str:
        """Return the name of the operator that was added last."""
        return self._operator("get_name()").name

    def start_new_chain(self) -> DataStream:
        """Begin a new operator chain: do not chain the operator to the operators before it."""
        self._operator("chaining").chaining = Chaining.HEAD
        return self

    # ---- methods that transform the records

    def map(self, func: Callable[[Any], Any] | MapFunction, output_type: Any = None) -> DataStream:
        """Add an operator that emits the result of `func` for each record."""
        check_type_info("output_type", output_type)
        return self._transform(OperatorKind.MAP, "Map", check_function(func, MapFunction, "map"))

    def flat_map(
        self, func: Callable[[Any], Any] | FlatMapFunction, output_type: Any = None
    ) -> DataStream:
        """Add an operator that calls `func` for each record. `func` returns an iterable.

        The operator emits the items of the iterable.
        """
        check_type_info("output_type", output_type)
        function = check_function(func, FlatMapFunction, "flat_map")
        return self._transform(OperatorKind.FLAT_MAP, "Flat Map", function)

    def filter(self, func: Callable[[Any], Any] | FilterFunction) -> DataStream:
        """Add an operator that keeps only the records for which `func` returns a true value."""
        function = check_function(func, FilterFunction, "filter")
        return self._transform(OperatorKind.FILTER, "Filter", function)

    def project(self, *field_indexes: int) -> DataStream:
        """Add an operator that emits tuples of some fields of each record, which is a tuple.

        Arguments:
            field_indexes: the positions of the fields.

        Raises:
            GraphError: if a position is not a whole number of at least 0, or if there is none.
        """
        fields = [whole_number("the position of a field", index) for index in field_indexes]
        if not fields:
            raise GraphError("project takes the positions of fields: project(0, 2)")
        function = projection(fields)
        return self._transform(OperatorKind.MAP, "Projection", function)

    def process(self, func: ProcessFunction, output_type: Any = None) -> DataStream:
        """Add an operator that runs a `ProcessFunction`.

        The function emits any number of records for each input record, and at the end of the input.

        Raises:
            GraphError: if `func` is not a `ProcessFunction`.
        """
        check_type_info("output_type", output_type)
        if not isinstance(func, ProcessFunction):
            raise GraphError(
                f"process on a stream without keys takes a ProcessFunction, not {func!r}"
            )
        return self._transform(OperatorKind.PROCESS, "Process", func)

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """Return the stream of the records that the operator emits with `output_tag`."""
        return DataStream(self._environment, [side_output_of(self._outputs, output_tag)])

    def key_by(
        self,
        key_selector: Callable[[Any], Any] | KeySelector | KeyFields,
        *more_fields: Any,
        key_type: Any = None,
    ) -> KeyedStream:
        """Partition the records by key: records with equal keys go to the same subtask.

            stream.key_by(lambda record: record[0])
            stream.key_by(0)
            stream.key_by("user", "day")

        Arguments:
            key_selector: a function that returns the key of a record; or a field by its position or
                name, or a tuple of these. `docs/types.md` lists the allowed types of keys.
            more_fields: more fields. The key is then a tuple with the values of all fields.
            key_type: the type of the keys, such as `Types.STRING()`. Only joins use it: they refuse
                streams with keys of different types. It may also be the second argument.

        Raises:
            GraphError: if an argument is something else.
        """
        selector = check_key_selector(key_selector, *more_fields, key_type=key_type)
        outputs = self._partitioned(Partitioning.HASH, selector)
        declared = declared_key_type(more_fields, key_type)
        return KeyedStream(self._environment, outputs, selector, declared)

    def union(self, *streams: DataStream) -> DataStream:
        """Return a stream with the records of this stream and of other streams, in any order.

        Raises:
            GraphError: if an argument is not a stream, or belongs to another environment.
        """
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise GraphError(f"union takes streams, not {stream!r}")
            if stream._environment is not self._environment:
                raise GraphError("union takes streams of one environment, and got one of another")
        outputs = [output for stream in (self, *streams) for output in stream._outputs]
        return DataStream(self._environment, outputs)

    def iterate(self, max_wait_time_millis: float | None = None) -> IterativeStream:
        """Begin a loop: return a union of this stream and the records that are fed back.

            loop = numbers.iterate()
            smaller = loop.map(lambda n: n - 1)
            loop.close_with(smaller.filter(lambda n: n > 0))

        The loop ends when this stream has ended and no record is left in the loop.

        Arguments:
            max_wait_time_millis: an argument of PyFlink, which Penstock ignores. In Flink, a loop
                ends when it has received no record for this time.
        """
        del max_wait_time_millis
        return IterativeStream(self, self._environment._add_iteration())

    # ---- methods that build the graph

    def _transform(
        self, kind: OperatorKind, name: str, function: Any, key_selector: Any = None
    ) -> DataStream:
        """Add an operator that reads this stream, and return a stream with its output."""
        output = self._add_operator(kind, name, function, key_selector)
        return DataStream(self._environment, [output])

    def _repartition(
        self, partitioning: Partitioning, selector: Any = None, partitioner: Any = None
    ) -> DataStream:
        outputs = self._partitioned(partitioning, selector, partitioner)
        return DataStream(self._environment, outputs)

    def _add_window_of_all(self, operation: WindowOperation) -> DataStream:
        gathered = self._repartition(Partitioning.GLOBAL)
        name = name_of_window(operation)
        stream = gathered._transform(OperatorKind.KEYED_WINDOW, name, operation, no_key)
        operator = stream._outputs[0].operator
        operator.parallelism = 1
        operator.non_parallel_reason = "a window of all records has one subtask"
        return stream

    def _filter_keyed(self, key_of: Any, name: str, function: Any) -> DataStream:
        return self.key_by(key_of)._transform(OperatorKind.FILTER, name, function)

    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> DataStream:
        return DataStream(self._environment, outputs)

    def _partitioned(
        self, partitioning: Partitioning, selector: Any = None, partitioner: Any = None
    ) -> list[OperatorOutput]:
        return [
            replace(output, partitioning=partitioning, selector=selector, partitioner=partitioner)
            for output in self._outputs
        ]


class KeyedStream(
    FixedPartitioning,
    DataStream,
    RollingAggregations["DataStream"],
    KeyedStreamWindows["DataStream"],
    KeyedDerivedStreams["DataStream"],
    KeyedStreamJoins["DataStream"],
):
    """A stream that is partitioned by key. (Flink: `KeyedStream`.)

    Operators on this stream have keyed state. The aggregations are rolling: they emit the updated
    result for each record. A sink, `print` and `execute_and_collect` get the records, without keys.

    Arguments:
        environment, outputs: the same as for `OperatorSettings`.
        selector: the function that returns the key of a record.
        key_type: the declared type of the keys, which joins compare; None if it is not declared.
    """

    _missing = KEYED_STREAM

    def __init__(
        self,
        environment: BaseEnvironment,
        outputs: Sequence[OperatorOutput],
        selector: Any,
        key_type: Any = None,
    ) -> None:
        super().__init__(environment, outputs)
        self._selector, self._key_type = selector, key_type

    def process(self, func: Any, output_type: Any = None) -> DataStream:
        """Add an operator that runs a `KeyedProcessFunction`, which has keyed state.

        Raises:
            GraphError: if `func` is not a `KeyedProcessFunction`.
        """
        check_type_info("output_type", output_type)
        if not isinstance(func, KeyedProcessFunction):
            raise GraphError(
                f"process on a keyed stream takes a KeyedProcessFunction, not {func!r}"
            )
        return self._keyed(OperatorKind.KEYED_PROCESS, "Keyed Process", func)

    def key_by(
        self,
        key_selector: Callable[[Any], Any] | KeySelector | KeyFields,
        *more_fields: Any,
        key_type: Any = None,
    ) -> KeyedStream:
        """Partition the records by another key, as `DataStream.key_by` does."""
        stream = DataStream(self._environment, self._outputs)
        return stream.key_by(key_selector, *more_fields, key_type=key_type)

    def union(self, *streams: DataStream) -> DataStream:
        """Return the union of this stream and other streams, as `DataStream.union` does.

        The union is not a keyed stream.
        """
        return DataStream(self._environment, self._outputs).union(*streams)

    def _transform(
        self, kind: OperatorKind, name: str, function: Any, key_selector: Any = None
    ) -> DataStream:
        if isinstance(function, Function) and type(function).open is not Function.open:
            # The function may get state in `open`, so it needs the keys of the records.
            with_keys = kind.with_keys
            if with_keys is not None:
                kind, key_selector = with_keys, self._selector
        return super()._transform(kind, name, function, key_selector)

    def _windowed(self, assigner: WindowAssigner) -> WindowedStream[DataStream]:
        return self.window(assigner)

    def _keyed(self, kind: OperatorKind, name: str, function: Any) -> DataStream:
        return self._transform(kind, name, function, self._selector)

    def _add_window(self, operation: WindowOperation) -> DataStream:
        return self._keyed(OperatorKind.KEYED_WINDOW, name_of_window(operation), operation)


class FeedbackStream(DataStream):
    """A stream whose records are defined later, with `close_with`.

    It can be used like any other stream. If the program sets a partitioning on it, for example with
    `key_by`, this overrides the partitioning of the stream that closes it.
    """

    def close_with(self, stream: DataStream) -> DataStream:
        """Feed the records of `stream` back into the loop, and return `stream`.

        To feed back several streams, pass their union.

        Raises:
            GraphError: if the feedback is closed already, or if `stream` is not a stream of the
                same environment.
        """
        feedback = Feedback(self._environment._graph, self._outputs[0].operator)
        feedback.close(_outputs_for(feedback, self, stream))
        return stream


class IterativeStream(DataStream):
    """The union of a stream and the records that are fed back. (Flink: `IterativeStream`.)

    Arguments:
        stream: the stream of the records that enter the loop from outside.
        feedback: the output of the feedback.
    """

    def __init__(self, stream: DataStream, feedback: OperatorOutput) -> None:
        super().__init__(stream._environment, [*stream._outputs, feedback])
        self._feedback = Feedback(stream._environment._graph, feedback.operator)
        self._initial = stream._outputs[0]

    def close_with(self, feedback_stream: DataStream) -> DataStream:
        """Feed the records of `feedback_stream` back into the loop, and return that stream.

        These records are partitioned like the stream that enters the loop. If the program sets a
        partitioning on `feedback_stream` or on this stream, that partitioning is used instead. To
        feed back several streams, pass their union.

        Raises:
            GraphError: if the loop is closed already, or if `feedback_stream` does not depend on
                this stream.
        """
        outputs = _outputs_for(self._feedback, self, feedback_stream)
        self._feedback.require_downstream(outputs)
        self._feedback.close(
            replace(self._initial, operator=output.operator, tag=output.tag)
            if output.partitioning is None
            else output
            for output in outputs
        )
        return feedback_stream


def _outputs_for(
    feedback: Feedback, stream: DataStream, closing: DataStream
) -> tuple[OperatorOutput, ...]:
    """Return the outputs of the stream that closes a feedback.

    Raises:
        GraphError: if the feedback cannot be closed with this stream.
    """
    if not isinstance(closing, DataStream):
        raise GraphError(
            f"feedback {feedback.name!r} is closed with a stream, not with {closing!r}"
        )
    if closing._environment is not stream._environment:
        raise GraphError(
            f"feedback {feedback.name!r} is closed with a stream of its own environment, and "
            f"{names_of(closing._outputs)} belongs to another"
        )
    feedback.require_open()
    return closing._outputs

"""The methods of a stream that transform, partition and unite records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.async_io.async_operation import AsyncOperation
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    check_function,
)
from penstock.dataflow.graph.job_graph import (
    Chaining,
    OperatorOutput,
    Partitioning,
)
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.aggregations import projection
from penstock.dataflow.streams.building import (
    add_async_wait,
    add_filter,
    add_flat_map,
    add_map,
    add_process,
    partitioned,
)
from penstock.dataflow.streams.key_selectors import (
    KeyFields,
    check_key_selector,
    declared_key_type,
)
from penstock.dataflow.streams.operator_settings import declare_type
from penstock.dataflow.streams.side_output import side_output_of
from penstock.dataflow.streams.stream_results import StreamResults
from penstock.dataflow.type_variables import T_co
from penstock.dataflow.types import check_type_info

__all__ = ["StreamTransformations"]


class StreamTransformations(StreamResults[T_co]):
    """Methods that return a stream of other records, or with another partitioning."""

    def get_execution_environment(self) -> BaseEnvironment:
        """Return the environment that the stream belongs to."""
        return self._environment

    def get_name(self) -> str:
        """Return the name of the operator that was added last."""
        return self._operator("get_name()").name

    def start_new_chain(self) -> Self:
        """Begin a new operator chain: do not chain the operator to the operators before it."""
        self._operator("chaining").chaining = Chaining.HEAD
        return self

    # ---- methods that transform the records

    def map(self, func: Callable[[Any], Any] | MapFunction, output_type: Any = None) -> Any:
        """Add an operator that emits the result of `func` for each record."""
        check_type_info("output_type", output_type)
        return declare_type(
            self._transform(add_map, "Map", check_function(func, MapFunction, "map")),
            output_type,
        )

    def flat_map(
        self, func: Callable[[Any], Any] | FlatMapFunction, output_type: Any = None
    ) -> Any:
        """Add an operator that calls `func` for each record. `func` returns an iterable.

        The operator emits the items of the iterable.
        """
        check_type_info("output_type", output_type)
        function = check_function(func, FlatMapFunction, "flat_map")
        return declare_type(self._transform(add_flat_map, "Flat Map", function), output_type)

    def filter(self, func: Callable[[Any], Any] | FilterFunction) -> Any:
        """Add an operator that keeps only the records for which `func` returns a true value."""
        function = check_function(func, FilterFunction, "filter")
        return self._transform(add_filter, "Filter", function)

    def project(self, *field_indexes: int) -> Any:
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
        return self._transform(add_map, "Projection", function)

    def process(self, func: Any, output_type: Any = None) -> Any:
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
        return declare_type(self._transform(add_process, "Process", func), output_type)

    def _wait_for(self, operation: AsyncOperation) -> Any:
        """Add an operator with asynchronous requests; see `AsyncDataStream`."""
        return self._transform(add_async_wait, operation)

    def get_side_output(self, output_tag: OutputTag) -> Any:
        """Return the stream of the records that the operator emits with `output_tag`."""
        return self._stream_of([side_output_of(self._outputs, output_tag)])

    def key_by(
        self,
        key_selector: Callable[[Any], Any] | KeySelector | KeyFields,
        *more_fields: Any,
        key_type: Any = None,
    ) -> Any:
        """Partition the records by key: records with equal keys go to the same subtask.

            stream.key_by(lambda record: record[0])
            stream.key_by(0)
            stream.key_by("user", "day")

        Arguments:
            key_selector: a function that returns the key of a record; or a field by its position or
                name, or a tuple of these. `docs/guides/types.md` lists the allowed types of keys.
            more_fields: more fields. The key is then a tuple with the values of all fields.
            key_type: the type of the keys, such as `Types.STRING()`. Only joins use it: they refuse
                streams with keys of different types. It may also be the second argument.

        Raises:
            GraphError: if an argument is something else.
        """
        selector = check_key_selector(key_selector, *more_fields, key_type=key_type)
        outputs = self._partitioned(Partitioning.HASH, selector)
        return self._keyed_stream_of(outputs, selector, declared_key_type(more_fields, key_type))

    def union(self, *streams: Any) -> Any:
        """Return a stream with the records of this stream and of other streams, in any order.

        The union of keyed streams is not keyed.

        Raises:
            GraphError: if an argument is not a stream, or belongs to another environment.
        """
        for stream in streams:
            if not isinstance(stream, StreamTransformations):
                raise GraphError(f"union takes streams, not {stream!r}")
            if stream._environment is not self._environment:
                raise GraphError("union takes streams of one environment, and got one of another")
        return self._stream_of(
            [output for stream in (self, *streams) for output in stream._outputs]
        )

    def iterate(self, max_wait_time_millis: float | None = None) -> Any:
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
        return self._iterative_stream_of(self._environment._add_iteration())

    # ---- methods that build the graph

    def _partitioned(
        self, partitioning: Partitioning, selector: Any = None, partitioner: Any = None
    ) -> list[OperatorOutput]:
        return [*partitioned(self._outputs, partitioning, selector, partitioner)]

    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""
        return self._stream_of([add(self._input, *arguments)])

    def _repartition(
        self, partitioning: Partitioning, selector: Any = None, partitioner: Any = None
    ) -> Any:
        """Return a stream of the same records with another partitioning."""
        return self._stream_of(self._partitioned(partitioning, selector, partitioner))

    @abstractmethod
    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> Any:
        """Return a stream of the same environment, which is not keyed, with these outputs."""

    @abstractmethod
    def _keyed_stream_of(
        self, outputs: Sequence[OperatorOutput], selector: Any, key_type: Any
    ) -> Any:
        """Return a keyed stream of the same environment with these outputs."""

    @abstractmethod
    def _iterative_stream_of(self, feedback: OperatorOutput) -> Any:
        """Return the union of this stream and the output of a feedback."""

"""`DataStream` and `KeyedStream`: how a program is written.

Names and semantics are PyFlink's. A stream is a list of ends (operators that produce it, each
with the partitioning chosen so far); every method that transforms it adds an operator to the
job graph and returns a new stream.
"""

from __future__ import annotations

import copy
import operator as op
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from penstock.dataflow.aggregations import FieldAggregation, FieldChoice
from penstock.dataflow.arguments.pyflink_names import KEYED_STREAM, STREAM, PyFlinkNames
from penstock.dataflow.config import check_parallelism
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
)
from penstock.dataflow.graph.job_graph import Chaining, Edge, Operator, OperatorKind, Partitioning
from penstock.dataflow.sink import Sink

if TYPE_CHECKING:
    from penstock.dataflow.environment import StreamExecutionEnvironment
    from penstock.dataflow.feedback import IterativeStream

__all__ = ["CloseableIterator", "DataStream", "DataStreamSink", "KeyedStream"]


@dataclass(frozen=True)
class End:
    """An operator that produces a stream, and how its records are to be spread next."""

    operator: Operator
    partitioning: Partitioning | None = None
    selector: Any = None
    partitioner: Any = None


class _Named:
    """The setters that streams and sinks share; they change the operator made last."""

    def __init__(self, environment: StreamExecutionEnvironment, ends: Sequence[End]) -> None:
        self._environment = environment
        self._ends = tuple(ends)

    def _operator(self, what: str) -> Operator:
        if len(self._ends) != 1 or self._ends[0].partitioning not in (None, Partitioning.FORWARD):
            raise GraphError(
                f"{what} belongs right after the operator that it is for, not after a union, a "
                f"key_by or another change of partitioning"
            )
        operator = self._ends[0].operator
        if operator.kind is OperatorKind.FEEDBACK:
            raise GraphError(
                f"{what} is for an operator, and feedback {operator.name!r} is none: say it of "
                f"those that read it or that it is closed with"
            )
        return operator

    def _set_name(self, name: str) -> None:
        self._operator("name(...)").name = str(name)

    def _set_uid(self, uid: str) -> None:
        if not isinstance(uid, str) or not uid:
            raise GraphError(f"a uid is a non-empty string, not {uid!r}")
        self._operator("uid(...)").uid = uid

    def _set_parallelism(self, parallelism: int) -> None:
        operator = self._operator("set_parallelism(...)")
        check_parallelism(parallelism, 32768, f"operator {operator.name!r}")
        if operator.non_parallel_reason and parallelism > 1:
            raise GraphError(
                f"operator {operator.name!r} cannot run in parallel: {operator.non_parallel_reason}"
            )
        operator.parallelism = parallelism

    def _set_chaining(self, chaining: Chaining) -> None:
        self._operator("chaining").chaining = chaining


class DataStream(PyFlinkNames, _Named):
    """A stream of records of one program."""

    _missing = STREAM

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment that the stream belongs to."""
        return self._environment

    # ---- properties of the operator made last

    def name(self, name: str) -> DataStream:
        """Name the operator; shown in plans, reports and errors."""
        self._set_name(name)
        return self

    def get_name(self) -> str:
        """The name of the operator made last."""
        return self._operator("get_name()").name

    def uid(self, uid: str) -> DataStream:
        """Give the operator an id that its state is found by after the program changed."""
        self._set_uid(uid)
        return self

    def set_parallelism(self, parallelism: int) -> DataStream:
        """Run the operator in so many subtasks."""
        self._set_parallelism(parallelism)
        return self

    def disable_chaining(self) -> DataStream:
        """Never fuse the operator with its neighbours."""
        self._set_chaining(Chaining.NEVER)
        return self

    def start_new_chain(self) -> DataStream:
        """Do not fuse the operator with the one before it."""
        self._set_chaining(Chaining.HEAD)
        return self

    # ---- transformations

    def map(self, func: Callable[[Any], Any] | MapFunction, output_type: Any = None) -> DataStream:
        """One record for each record."""
        del output_type
        return self._transform(OperatorKind.MAP, "Map", _checked(func, MapFunction, "map"))

    def flat_map(
        self, func: Callable[[Any], Any] | FlatMapFunction, output_type: Any = None
    ) -> DataStream:
        """Any number of records for each record; `func` returns an iterable."""
        del output_type
        function = _checked(func, FlatMapFunction, "flat_map")
        return self._transform(OperatorKind.FLAT_MAP, "Flat Map", function)

    def filter(self, func: Callable[[Any], Any] | FilterFunction) -> DataStream:
        """The records for which `func` is true."""
        return self._transform(
            OperatorKind.FILTER, "Filter", _checked(func, FilterFunction, "filter")
        )

    def process(self, func: ProcessFunction, output_type: Any = None) -> DataStream:
        """Any number of records for each record, with a context."""
        del output_type
        if not isinstance(func, ProcessFunction):
            raise GraphError(
                f"process on a stream without keys takes a ProcessFunction, not {func!r}"
            )
        return self._transform(OperatorKind.PROCESS, "Process", func)

    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: Any = None
    ) -> KeyedStream:
        """The same records, those with equal keys in one subtask."""
        del key_type
        if isinstance(key_selector, int | str):
            raise GraphError(
                f"key_by takes a function, not a position or the name of a field: write "
                f"key_by(lambda record: record[{key_selector!r}])"
            )
        selector = _checked(key_selector, KeySelector, "key_by")
        return KeyedStream(self._environment, self._spread(Partitioning.HASH, selector), selector)

    def union(self, *streams: DataStream) -> DataStream:
        """The records of this and all the other streams."""
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise GraphError(f"union takes streams, not {stream!r}")
            if stream._environment is not self._environment:
                raise GraphError("union takes streams of one environment, and got one of another")
        ends = [end for stream in (self, *streams) for end in stream._ends]
        return DataStream(self._environment, ends)

    def iterate(self, max_wait_time_millis: float | None = None) -> IterativeStream:
        """This stream united with what is fed back into it; close it with `close_with`.

        The time is accepted since Flink has it, and ignored: there a loop ends when nothing has
        come for so long, here when this stream has ended and no record is left in the loop.
        """
        del max_wait_time_millis
        # `feedback` is built on this module.
        from penstock.dataflow.feedback import IterativeStream

        return IterativeStream(self, self._environment._create_iteration())

    # ---- partitioning

    def forward(self) -> DataStream:
        """Subtask i to subtask i; both operators must have the same parallelism."""
        return DataStream(self._environment, self._spread(Partitioning.FORWARD))

    def rebalance(self) -> DataStream:
        """Round robin over all subtasks."""
        return DataStream(self._environment, self._spread(Partitioning.REBALANCE))

    def rescale(self) -> DataStream:
        """Round robin over a share of the subtasks, so that fewer channels are needed."""
        return DataStream(self._environment, self._spread(Partitioning.RESCALE))

    def shuffle(self) -> DataStream:
        """To subtasks at random, uniformly."""
        return DataStream(self._environment, self._spread(Partitioning.SHUFFLE))

    def broadcast(self) -> DataStream:
        """Every record to every subtask."""
        return DataStream(self._environment, self._spread(Partitioning.BROADCAST))

    def global_(self) -> DataStream:
        """Every record to the first subtask."""
        return DataStream(self._environment, self._spread(Partitioning.GLOBAL))

    def partition_custom(
        self,
        partitioner: Callable[[Any, int], int] | Partitioner,
        key_selector: Callable[[Any], Any] | KeySelector,
    ) -> DataStream:
        """To the subtask that `partitioner(key, number_of_subtasks)` says."""
        partitioner = _checked(partitioner, Partitioner, "partition_custom")
        selector = _checked(key_selector, KeySelector, "partition_custom")
        ends = self._spread(Partitioning.CUSTOM, selector, partitioner)
        return DataStream(self._environment, ends)

    # ---- ends

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Write the records to a sink."""
        if not isinstance(sink, Sink):
            raise GraphError(f"sink_to takes a Sink, not {sink!r}; for a function use add_sink")
        sink.validate()
        stream = self._transform(OperatorKind.SINK, f"Sink: {type(sink).__name__}", sink)
        return DataStreamSink(self._environment, stream._ends)

    def add_sink(self, sink_func: Callable[[Any], Any] | SinkFunction | Sink) -> DataStreamSink:
        """Call a function with each record: at least once, so after a crash some come again."""
        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        # The API names connectors for convenience; a function-level import keeps the layers.
        from penstock.connectors import FunctionSink

        return self.sink_to(FunctionSink(_checked(sink_func, SinkFunction, "add_sink")))

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print the records, with the subtask in front if there are several."""
        from penstock.connectors import PrintSink

        return self.sink_to(PrintSink(sink_identifier)).name("Print to Std. Out")

    def execute_and_collect(
        self,
        job_execution_name: str | None = None,
        limit: int | None = None,
        *,
        in_process: bool | None = None,
    ) -> Any:
        """Run the program and iterate over this stream's records.

        Returns a `CloseableIterator`, or a list if a `limit` is given. With `in_process` the job
        runs inside this process, and goes on only while the next record is waited for.
        """
        return self._environment._execute_and_collect(self, job_execution_name, limit, in_process)

    # ---- inside

    def _transform(
        self, kind: OperatorKind, name: str, function: Any, key_selector: Any = None
    ) -> DataStream:
        if isinstance(function, Function):
            # A rich function is the program's own object: what happens to it later (another
            # use, another open) must not reach this operator.
            function = copy.copy(function)
        operator = self._environment._add_operator(kind, name, function, key_selector)
        self._connect(operator)
        return DataStream(self._environment, [End(operator)])

    def _connect(self, operator: Operator) -> None:
        """Let an operator read this stream."""
        self._environment._graph.edges += self._edges_to(operator)

    def _edges_to(self, operator: Operator) -> list[Edge]:
        return [
            Edge(end.operator.id, operator.id, 0, end.partitioning, end.selector, end.partitioner)
            for end in self._ends
        ]

    def _spread(
        self, partitioning: Partitioning, selector: Any = None, partitioner: Any = None
    ) -> list[End]:
        return [
            replace(end, partitioning=partitioning, selector=selector, partitioner=partitioner)
            for end in self._ends
        ]


class KeyedStream(DataStream):
    """A stream in which all records of one key come to the same subtask, with keyed state."""

    _missing = KEYED_STREAM

    def __init__(
        self, environment: StreamExecutionEnvironment, ends: Sequence[End], selector: Any
    ) -> None:
        super().__init__(environment, ends)
        self._selector = selector

    def reduce(
        self, func: Callable[[Any, Any], Any] | ReduceFunction, output_type: Any = None
    ) -> DataStream:
        """The running combination of each key's records, emitted for each record."""
        del output_type
        return self._keyed(
            OperatorKind.KEYED_REDUCE, "Reduce", _checked(func, ReduceFunction, "reduce")
        )

    def sum(self, position_to_sum: int | str | None = 0) -> DataStream:
        """The running sum of one field; the record's other fields are those of the first."""
        return self._reduce_field("Sum", FieldAggregation(position_to_sum, op.add))

    def min(self, position_to_min: int | str | None = 0) -> DataStream:
        """The running minimum of one field."""
        return self._reduce_field("Min", FieldAggregation(position_to_min, min))

    def max(self, position_to_max: int | str | None = 0) -> DataStream:
        """The running maximum of one field."""
        return self._reduce_field("Max", FieldAggregation(position_to_max, max))

    def min_by(self, position_to_min_by: int | str | None = 0) -> DataStream:
        """The record with the smallest field so far; the first of equal ones."""
        return self._reduce_field("Min By", FieldChoice(position_to_min_by, op.lt))

    def max_by(self, position_to_max_by: int | str | None = 0) -> DataStream:
        """The record with the largest field so far; the first of equal ones."""
        return self._reduce_field("Max By", FieldChoice(position_to_max_by, op.gt))

    def count(self) -> DataStream:
        """A pair (key, number of its records so far) for each record."""
        return self._keyed(OperatorKind.KEYED_COUNT, "Count", None)

    def process(self, func: Any, output_type: Any = None) -> DataStream:
        """Any number of records for each record, with keyed state."""
        del output_type
        if not isinstance(func, KeyedProcessFunction):
            raise GraphError(
                f"process on a keyed stream takes a KeyedProcessFunction, not {func!r}"
            )
        return self._keyed(OperatorKind.KEYED_PROCESS, "Keyed Process", func)

    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: Any = None
    ) -> KeyedStream:
        """Another key for the same records."""
        return DataStream(self._environment, self._ends).key_by(key_selector, key_type)

    def union(self, *streams: DataStream) -> DataStream:
        """The records of this and all the other streams; no longer keyed."""
        return DataStream(self._environment, self._ends).union(*streams)

    def _reduce_field(self, name: str, function: ReduceFunction) -> DataStream:
        return self._keyed(OperatorKind.KEYED_REDUCE, name, function)

    def _keyed(self, kind: OperatorKind, name: str, function: Any) -> DataStream:
        return self._transform(kind, name, function, self._selector)


class DataStreamSink(_Named):
    """The end of a stream."""

    def name(self, name: str) -> DataStreamSink:
        """Name the sink."""
        self._set_name(name)
        return self

    def uid(self, uid: str) -> DataStreamSink:
        """Give the sink an id that its uncommitted output is found by."""
        self._set_uid(uid)
        return self

    def set_parallelism(self, parallelism: int) -> DataStreamSink:
        """Run the sink in so many subtasks."""
        self._set_parallelism(parallelism)
        return self

    def disable_chaining(self) -> DataStreamSink:
        """Never fuse the sink with the operator before it."""
        self._set_chaining(Chaining.NEVER)
        return self


class CloseableIterator:
    """Iterates over the records of a running job; closing it stops the job.

    Arguments:
        records: an iterator over the records.
        close: stops the job.
    """

    def __init__(self, records: Any, close: Callable[[], None]) -> None:
        self._records = records
        self._close = close

    def __iter__(self) -> CloseableIterator:
        return self

    def __next__(self) -> Any:
        return next(self._records)

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(self, *exc: object) -> Literal[False]:
        self.close()
        return False

    def close(self) -> None:
        """Stop the job, if it still runs."""
        self._close()


def _checked(func: Any, base: type[Function], method: str) -> Any:
    """`func` if it can be called or is a `base`; else a `GraphError` that says what is expected."""
    # Any other class is a function too: map(int).
    forgotten = isinstance(func, type) and issubclass(func, Function)
    if isinstance(func, base) or (
        callable(func) and not forgotten and not isinstance(func, Function)
    ):
        return func
    hint = "an instance, not the class" if forgotten else "a function"
    raise GraphError(f"{method} takes a function or a {base.__name__} ({hint}), and got {func!r}")

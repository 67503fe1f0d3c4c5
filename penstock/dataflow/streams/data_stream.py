"""Define the classes of streams: the results of their methods, and the types of the records.

Names and semantics are the same as in PyFlink. A stream is a tuple of operator outputs, each with a
partitioning. A method that transforms a stream adds an operator to the job graph, and returns a
stream with the operator's output. Nothing runs before the program calls `execute`.

The base classes define and document the methods. A method of one class returns an object of
another, so the classes themselves share this module. The stub `data_stream.pyi` says which types of
records a stream has behind each method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic

from penstock.dataflow.arguments.pyflink_names import KEYED_STREAM, STREAM, PyFlinkNames
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.graph.cached_streams import StoredRecords
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.streams.building import OperatorInput, add_filter
from penstock.dataflow.streams.connected_streams import (
    BaseBroadcastConnectedStream,
    BaseConnectedStreams,
)
from penstock.dataflow.streams.connecting import StreamConnecting
from penstock.dataflow.streams.derived import DerivedStreams, KeyedDerivedStreams
from penstock.dataflow.streams.feedback import Feedback, outputs_to_close_with
from penstock.dataflow.streams.grouped_stream import StreamColumns
from penstock.dataflow.streams.joins.stream_joins import KeyedStreamJoins, StreamJoins
from penstock.dataflow.streams.methods.keyed_transformations import KeyedTransformations
from penstock.dataflow.streams.methods.rolling_aggregations import RollingAggregations
from penstock.dataflow.streams.methods.transformations import StreamTransformations
from penstock.dataflow.streams.stream_partitioning import FixedPartitioning, StreamPartitioning
from penstock.dataflow.streams.stream_windows import KeyedStreamWindows, StreamWindows
from penstock.dataflow.streams.windowed_stream import BaseWindowedStream
from penstock.dataflow.type_variables import K_co, T1_co, T2_co, T_co
from penstock.dataflow.windows import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowAssigner,
    WindowFunction,
)
from penstock.dataflow.windows.window import W

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "CachedDataStream",
    "ConnectedStreams",
    "DataStream",
    "IterativeStream",
    "KeyedStream",
    "WindowedStream",
]


class DataStream(
    PyFlinkNames,
    StreamTransformations,
    StreamColumns,
    StreamPartitioning,
    StreamWindows,
    StreamConnecting,
    StreamJoins,
    DerivedStreams,
    Generic[T_co],
):
    """A stream of records in a program. (Flink: `DataStream`.)

    If a method takes an object of a function class, it also takes a plain function or lambda. Only
    `process` needs an object. Types need not be declared. If `output_type` is given, the emitted
    records are checked and converted (`docs/guides/types.md`). The argument `key_type` is ignored.

    `DataStream[T]` has records of type `T`.
    """

    _missing = STREAM

    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> DataStream[Any]:
        return DataStream(self._environment, outputs)

    def _keyed_stream_of(
        self, outputs: Sequence[OperatorOutput], selector: Any, key_type: Any
    ) -> KeyedStream[Any, T_co]:
        return KeyedStream(self._environment, outputs, selector, key_type)

    def _iterative_stream_of(self, feedback: OperatorOutput) -> IterativeStream[T_co]:
        return IterativeStream(self, feedback)

    def _window_all_of(self, window_assigner: WindowAssigner) -> AllWindowedStream[T_co, Any]:
        return AllWindowedStream(self._environment, window_assigner, self._add_window_of_all)

    def _connected_streams_of(
        self, first: OperatorInput, second: OperatorInput
    ) -> ConnectedStreams[T_co, Any]:
        return ConnectedStreams(first, second, self._stream_of)

    def _broadcast_connected_stream_of(
        self, first: OperatorInput, second: OperatorInput, states: tuple[MapStateDescriptor, ...]
    ) -> BroadcastConnectedStream[T_co, Any]:
        return BroadcastConnectedStream(first, second, states, self._stream_of)

    def _cached_stream_of(
        self, output: OperatorOutput, records: StoredRecords
    ) -> CachedDataStream[T_co]:
        return CachedDataStream(self._environment, output, records)

    def _filter_keyed(self, key_of: Any, name: str, function: Any) -> DataStream[T_co]:
        return self.key_by(key_of)._transform(add_filter, name, function)


class CachedDataStream(DataStream[T_co]):
    """A stream whose records are stored when it is first executed. (PyFlink: `CachedDataStream`.)

    Arguments:
        environment: the environment that the stream belongs to.
        output: the output of the cached operator.
        records: the stored records.
    """

    def __init__(
        self, environment: BaseEnvironment, output: OperatorOutput, records: StoredRecords
    ) -> None:
        super().__init__(environment, [output])
        self._records = records

    def invalidate(self) -> None:
        """Forget the stored records. The next execution computes and stores them again."""
        self._records.invalidate()


class KeyedStream(
    FixedPartitioning,
    KeyedTransformations,
    DataStream,
    RollingAggregations,
    KeyedStreamWindows,
    KeyedDerivedStreams,
    KeyedStreamJoins,
    Generic[K_co, T_co],
):
    """A stream that is partitioned by key. (Flink: `KeyedStream`.)

    Operators on this stream have keyed state. The aggregations are rolling: they emit the updated
    result for each record. A sink, `print` and `execute_and_collect` get the records, without keys.

    `KeyedStream[K, T]` has keys of type `K` and records of type `T`.

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

    def _window_of(self, window_assigner: WindowAssigner) -> WindowedStream[K_co, T_co, Any]:
        return WindowedStream(self._environment, window_assigner, self._add_window)

    def _windowed(self, assigner: WindowAssigner) -> WindowedStream[K_co, T_co, Any]:
        return self._window_of(assigner)


class WindowedStream(BaseWindowedStream, Generic[K_co, T_co, W]):
    """A keyed stream whose records are grouped by key and window. (Flink: `WindowedStream`.)

    `WindowedStream[K, T, W]` has keys of type `K`, records of type `T`, and windows of type `W`.
    """

    _process_class = ProcessWindowFunction
    _window_class = WindowFunction
    _keyed = True


class AllWindowedStream(BaseWindowedStream, Generic[T_co, W]):
    """A stream without keys whose records are grouped by windows, by one subtask.

    (Flink: `AllWindowedStream`.)

    `AllWindowedStream[T, W]` has records of type `T` and windows of type `W`.
    """

    _process_class = ProcessAllWindowFunction
    _window_class = AllWindowFunction
    _keyed = False


class ConnectedStreams(BaseConnectedStreams, Generic[T1_co, T2_co]):
    """Two streams whose records are processed by one operator. (Flink: `ConnectedStreams`.)

        orders.connect(customers).key_by(lambda o: o.customer, lambda c: c.id).process(Join())

    The records of the streams may have different types: `T1` and `T2` for
    `ConnectedStreams[T1, T2]`. The operator has keyed state if both streams are keyed, before or
    after they are connected.
    """


class BroadcastConnectedStream(BaseBroadcastConnectedStream, Generic[T1_co, T2_co]):
    """A stream that is connected with a broadcast stream. (Flink: `BroadcastConnectedStream`.)

    `BroadcastConnectedStream[T1, T2]` has records of type `T1`, and broadcast ones of type `T2`.
    """


class IterativeStream(DataStream[T_co]):
    """The union of a stream and the records that are fed back. (Flink: `IterativeStream`.)

    Arguments:
        stream: the stream of the records that enter the loop from outside.
        feedback: the output of the feedback.
    """

    def __init__(self, stream: DataStream[T_co], feedback: OperatorOutput) -> None:
        super().__init__(stream._environment, [*stream._outputs, feedback])
        self._feedback = Feedback(stream._environment._graph, feedback.operator)
        self._initial = stream._outputs[0]

    def close_with(self, feedback_stream: DataStream[T_co]) -> DataStream[T_co]:
        """Feed the records of `feedback_stream` back into the loop, and return that stream.

        These records are partitioned like the stream that enters the loop. If the program sets a
        partitioning on `feedback_stream` or on this stream, that partitioning is used instead. To
        feed back several streams, pass their union.

        Raises:
            GraphError: if the loop is closed already, or if `feedback_stream` does not depend on
                this stream.
        """
        outputs = outputs_to_close_with(self._feedback, self, feedback_stream)
        self._feedback.require_downstream(outputs)
        self._feedback.close(
            replace(self._initial, operator=output.operator, tag=output.tag)
            if output.partitioning is None
            else output
            for output in outputs
        )
        return feedback_stream

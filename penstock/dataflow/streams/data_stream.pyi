# The types of the streams: which records, keys and windows a stream has behind each method. Type
# checkers and editors read this file instead of `data_stream.py`, which joins the classes. The base
# classes of the streams say what the methods do.
#
# A method of one class returns an object of another, in circles. So these types cannot be in the
# modules of the base classes: stubs may have such circles, and modules may not. A test in
# `tests/typing` compares this file with the classes.

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeAlias, overload

from penstock.dataflow.arguments.durations import DurationLike
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.columns.batch_function import BatchFunction
from penstock.dataflow.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from penstock.dataflow.graph.cached_streams import StoredRecords
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.streams.building import OperatorInput
from penstock.dataflow.streams.connected_streams import (
    BaseBroadcastConnectedStream,
    BaseConnectedStreams,
    BroadcastStream,
)
from penstock.dataflow.streams.connecting import StreamConnecting
from penstock.dataflow.streams.derived import DerivedStreams, KeyedDerivedStreams
from penstock.dataflow.streams.grouped_stream import StreamColumns
from penstock.dataflow.streams.interval_join import IntervalJoin
from penstock.dataflow.streams.joined_streams import CoGroupedStreams, JoinedStreams
from penstock.dataflow.streams.joins.stream_joins import KeyedStreamJoins, StreamJoins
from penstock.dataflow.streams.key_selectors import KeyFields
from penstock.dataflow.streams.methods.keyed_transformations import KeyedTransformations
from penstock.dataflow.streams.methods.rolling_aggregations import RollingAggregations
from penstock.dataflow.streams.methods.transformations import StreamTransformations
from penstock.dataflow.streams.stream_partitioning import FixedPartitioning, StreamPartitioning
from penstock.dataflow.streams.stream_windows import KeyedStreamWindows, StreamWindows
from penstock.dataflow.streams.windowed_stream import BaseWindowedStream
from penstock.dataflow.time import TimeDomain
from penstock.dataflow.type_variables import K, K_co, R, T1_co, T2_co, T_co, V
from penstock.dataflow.windows import (
    AggregateFunction,
    AllWindowFunction,
    CountWindow,
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

_Selector: TypeAlias = Callable[[T_co], K] | KeySelector[T_co, K]
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

class DataStream(
    PyFlinkNames,
    StreamTransformations[T_co],
    StreamColumns["DataStream[Any]"],
    StreamPartitioning[T_co, "DataStream[T_co]"],
    StreamWindows[T_co, "DataStream[T_co]"],
    StreamConnecting,
    StreamJoins,
    DerivedStreams[T_co, "DataStream[T_co]"],
    Generic[T_co],
):
    def cache(self) -> CachedDataStream[T_co]: ...
    def _cached_stream_of(
        self, output: OperatorOutput, records: StoredRecords
    ) -> CachedDataStream[T_co]: ...
    def map(
        self, func: Callable[[T_co], R] | MapFunction[T_co, R], output_type: Any = None
    ) -> DataStream[R]: ...
    def flat_map(
        self,
        func: Callable[[T_co], Iterable[R]] | FlatMapFunction[T_co, R],
        output_type: Any = None,
    ) -> DataStream[R]: ...
    def filter(self, func: Callable[[T_co], object] | FilterFunction[T_co]) -> DataStream[T_co]: ...
    def project(self, *field_indexes: int) -> DataStream[tuple[Any, ...]]: ...
    def process(self, func: ProcessFunction[T_co, R], output_type: Any = None) -> DataStream[R]: ...
    def get_side_output(self, output_tag: OutputTag[R]) -> DataStream[R]: ...
    @overload
    def key_by(
        self, key_selector: _Selector[T_co, K], *more_fields: Any, key_type: Any = None
    ) -> KeyedStream[K, T_co]: ...
    @overload
    def key_by(
        self, key_selector: KeyFields, *more_fields: Any, key_type: Any = None
    ) -> KeyedStream[Any, T_co]: ...
    def union(self, *streams: DataStream[R]) -> DataStream[T_co | R]: ...
    def iterate(self, max_wait_time_millis: float | None = None) -> IterativeStream[T_co]: ...
    def window_all(
        self, window_assigner: WindowAssigner[T_co, W]
    ) -> AllWindowedStream[T_co, W]: ...
    def count_window_all(
        self, size: int, slide: int = 0
    ) -> AllWindowedStream[T_co, CountWindow]: ...
    @overload
    def connect(self, ds: DataStream[R]) -> ConnectedStreams[T_co, R]: ...
    @overload
    def connect(self, ds: BroadcastStream[R]) -> BroadcastConnectedStream[T_co, R]: ...
    @overload
    def broadcast(self) -> DataStream[T_co]: ...
    @overload
    def broadcast(
        self, state_descriptor: MapStateDescriptor, /, *state_descriptors: MapStateDescriptor
    ) -> BroadcastStream[T_co]: ...
    @overload  # type: ignore[override]
    def map_batches(
        self,
        func: Callable[[list[T_co]], Iterable[R]],
        format: Literal["rows"],
        *,
        keep_rows: bool = False,
        timestamps: str | None = None,
        schema: Any = None,
    ) -> DataStream[R]: ...
    @overload
    def map_batches(
        self,
        func: Callable[[Any], Any] | BatchFunction,
        format: Literal["arrow", "pandas", "polars"] = "arrow",
        *,
        keep_rows: bool = False,
        timestamps: str | None = None,
        schema: Any = None,
    ) -> DataStream[Any]: ...
    def join(self, other_stream: DataStream[R]) -> JoinedStreams[T_co, R]: ...
    def co_group(self, other_stream: DataStream[R]) -> CoGroupedStreams[T_co, R]: ...
    @overload
    def join_table(
        self,
        table: Any,
        on: Callable[[T_co], Any] | KeySelector[T_co, Any] | KeyFields,
        *,
        key: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        function: None = None,
        many: bool = False,
        reload_every: DurationLike | None = None,
        reload_on: DataStream[Any] | None = None,
    ) -> DataStream[tuple[T_co, Any]]: ...
    @overload
    def join_table(
        self,
        table: Any,
        on: Callable[[T_co], Any] | KeySelector[T_co, Any] | KeyFields,
        *,
        key: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        function: JoinFunction[T_co, Any, R] | Callable[[T_co, Any], R],
        many: bool = False,
        reload_every: DurationLike | None = None,
        reload_on: DataStream[Any] | None = None,
    ) -> DataStream[R]: ...
    def _filter_keyed(self, key_of: Any, name: str, function: Any) -> DataStream[T_co]: ...
    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> DataStream[Any]: ...
    def _keyed_stream_of(
        self, outputs: Sequence[OperatorOutput], selector: Any, key_type: Any
    ) -> KeyedStream[Any, T_co]: ...
    def _iterative_stream_of(self, feedback: OperatorOutput) -> IterativeStream[T_co]: ...
    def _window_all_of(
        self, window_assigner: WindowAssigner[T_co, W]
    ) -> AllWindowedStream[T_co, W]: ...
    def _connected_streams_of(
        self, first: OperatorInput, second: OperatorInput
    ) -> ConnectedStreams[T_co, Any]: ...
    def _broadcast_connected_stream_of(
        self, first: OperatorInput, second: OperatorInput, states: tuple[MapStateDescriptor, ...]
    ) -> BroadcastConnectedStream[T_co, Any]: ...

class CachedDataStream(DataStream[T_co]):
    def __init__(
        self, environment: BaseEnvironment, output: OperatorOutput, records: StoredRecords
    ) -> None: ...
    def invalidate(self) -> None: ...

class KeyedStream(
    FixedPartitioning,
    KeyedTransformations[T_co],
    DataStream[T_co],
    RollingAggregations[T_co, DataStream[T_co]],
    KeyedStreamWindows,
    KeyedDerivedStreams,
    KeyedStreamJoins,
    Generic[K_co, T_co],
):
    def __init__(
        self,
        environment: BaseEnvironment,
        outputs: Sequence[OperatorOutput],
        selector: Any,
        key_type: Any = None,
    ) -> None: ...
    def process(  # type: ignore[override]
        self, func: KeyedProcessFunction[K_co, T_co, R], output_type: Any = None
    ) -> DataStream[R]: ...
    def count(self) -> DataStream[tuple[K_co, int]]: ...
    def window(self, window_assigner: WindowAssigner[T_co, W]) -> WindowedStream[K_co, T_co, W]: ...
    def count_window(
        self, size: int, slide: int = 0
    ) -> WindowedStream[K_co, T_co, CountWindow]: ...
    def interval_join(self, other_stream: KeyedStream[Any, R]) -> IntervalJoin[T_co, R]: ...
    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        *,
        how: Literal["inner", "left"] = "inner",
        function: None = None,
        late_tag: OutputTag[T_co] | None = None,
    ) -> DataStream[tuple[T_co, V]]: ...
    @overload
    def as_of_join(
        self,
        versions: KeyedStream[Any, V],
        *,
        how: Literal["inner", "left"] = "inner",
        function: JoinFunction[T_co, V, R] | Callable[[T_co, V], R],
        late_tag: OutputTag[T_co] | None = None,
    ) -> DataStream[R]: ...
    def map_with_state(
        self, func: Callable[[V, T_co], tuple[V | None, R]], initial: V | Callable[[], V]
    ) -> DataStream[R]: ...
    def track(
        self,
        initialize: Callable[[K_co, T_co], V | None],
        update: Callable[[K_co, V, T_co], V | None],
        timeout: DurationLike | None = None,
        time_domain: TimeDomain = ...,
    ) -> DataStream[tuple[K_co, V | None]]: ...
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
    def top_k(self, k: int, by: Any = None) -> DataStream[tuple[K_co, list[T_co]]]: ...
    def _windowed(self, assigner: WindowAssigner[T_co, W]) -> WindowedStream[K_co, T_co, W]: ...
    def _window_of(
        self, window_assigner: WindowAssigner[T_co, W]
    ) -> WindowedStream[K_co, T_co, W]: ...

class WindowedStream(BaseWindowedStream[T_co, W, DataStream[T_co]], Generic[K_co, T_co, W]):
    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: None = None,
        output_type: Any = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[T_co]: ...
    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: _AnyWindow[T_co, R, K_co, W],
        output_type: Any = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[R]: ...
    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, Any, R],
        window_function: None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream[R]: ...
    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, Any, K],
        window_function: _AnyWindow[K, R, K_co, W],
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream[R]: ...
    def process(
        self,
        process_window_function: ProcessWindowFunction[T_co, R, K_co, W],
        output_type: Any = None,
    ) -> DataStream[R]: ...
    def apply(
        self, window_function: _ApplyWindow[T_co, R, K_co, W], output_type: Any = None
    ) -> DataStream[R]: ...

class AllWindowedStream(BaseWindowedStream[T_co, W, DataStream[T_co]], Generic[T_co, W]):
    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: None = None,
        output_type: Any = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[T_co]: ...
    @overload
    def reduce(
        self,
        reduce_function: _Reducer[T_co],
        window_function: _AnyAllWindow[T_co, R, W],
        output_type: Any = None,
        *,
        inverse: _Reducer[T_co] | None = None,
    ) -> DataStream[R]: ...
    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, Any, R],
        window_function: None = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream[R]: ...
    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T_co, Any, K],
        window_function: _AnyAllWindow[K, R, W],
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream[R]: ...
    def process(
        self,
        process_window_function: ProcessAllWindowFunction[T_co, R, W],
        output_type: Any = None,
    ) -> DataStream[R]: ...
    def apply(
        self, window_function: _ApplyAllWindow[T_co, R, W], output_type: Any = None
    ) -> DataStream[R]: ...

class ConnectedStreams(BaseConnectedStreams, Generic[T1_co, T2_co]):
    def key_by(
        self,
        key_selector1: _Selector[T1_co, K] | KeyFields,
        key_selector2: _Selector[T2_co, K] | KeyFields | None = None,
        key_type: Any = None,
    ) -> ConnectedStreams[T1_co, T2_co]: ...
    def map(
        self, func: CoMapFunction[T1_co, T2_co, R], output_type: Any = None
    ) -> DataStream[R]: ...
    def flat_map(
        self, func: CoFlatMapFunction[T1_co, T2_co, R], output_type: Any = None
    ) -> DataStream[R]: ...
    def process(
        self,
        func: CoProcessFunction[T1_co, T2_co, R] | KeyedCoProcessFunction[Any, T1_co, T2_co, R],
        output_type: Any = None,
    ) -> DataStream[R]: ...

class BroadcastConnectedStream(BaseBroadcastConnectedStream, Generic[T1_co, T2_co]):
    def process(
        self,
        func: BroadcastProcessFunction[T1_co, T2_co, R]
        | KeyedBroadcastProcessFunction[Any, T1_co, T2_co, R],
        output_type: Any = None,
    ) -> DataStream[R]: ...

class IterativeStream(DataStream[T_co]):
    def __init__(self, stream: DataStream[T_co], feedback: OperatorOutput) -> None: ...
    def close_with(self, feedback_stream: DataStream[T_co]) -> DataStream[T_co]: ...

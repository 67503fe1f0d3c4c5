"""Penstock: stateful stream processing in pure Python, exactly once.

Programs import all public names from this module. The module that defines a name is imported when
the name is first used. So a worker process imports only the modules that it needs.

Start reading at `penstock.dataflow.environment`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.connectors import (
        CollectionSource,
        CsvRows,
        FileSink,
        FileSource,
        FunctionSink,
        GeneratorSource,
        IterableSource,
        JsonLines,
        PrintSink,
        SequenceSource,
        SocketSource,
        TextLines,
    )
    from penstock.connectors.bases import (
        Batch,
        BatchSink,
        PollingSource,
        SplitPoller,
        TransactionalSink,
    )
    from penstock.connectors.columns import ArrowSource, ParquetSink, ParquetSource
    from penstock.dataflow.columns import BatchFunction, ColumnTimestamps
    from penstock.dataflow.config import (
        CheckpointConfig,
        CheckpointingMode,
        Configuration,
        ExecutionConfig,
        JobConfig,
        RestartStrategies,
        RuntimeExecutionMode,
    )
    from penstock.dataflow.environment import (
        StreamExecutionEnvironment,
    )
    from penstock.dataflow.errors import (
        GraphError,
        JobError,
        PenstockError,
        ProtocolError,
        Recoverability,
        StoreError,
    )
    from penstock.dataflow.functions import (
        BroadcastProcessFunction,
        CoFlatMapFunction,
        CoGroupFunction,
        CoMapFunction,
        CoProcessFunction,
        FilterFunction,
        FlatJoinFunction,
        FlatMapFunction,
        Function,
        JoinFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        KeySelector,
        MapFunction,
        Partitioner,
        ProcessFunction,
        ProcessJoinFunction,
        ReduceFunction,
        SinkFunction,
    )
    from penstock.dataflow.graph.keys import (
        KeyRefusedError,
    )
    from penstock.dataflow.operator_state import (
        BroadcastState,
        CheckpointedFunction,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        OperatorStateStore,
        ReadOnlyBroadcastState,
    )
    from penstock.dataflow.output_tag import (
        OutputTag,
    )
    from penstock.dataflow.program import (
        JobExecutionResult,
    )
    from penstock.dataflow.source import (
        Split,
    )
    from penstock.dataflow.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        KeyedStateStore,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        RuntimeContext,
        StateTtlConfig,
        ValueState,
        ValueStateDescriptor,
    )
    from penstock.dataflow.streams import (
        AllWindowedStream,
        BroadcastConnectedStream,
        BroadcastStream,
        CachedDataStream,
        ConnectedStreams,
        DataStream,
        FeedbackStream,
        IterativeStream,
        KeyedStream,
        WindowedStream,
    )
    from penstock.dataflow.streams.joins.interval_joins import (
        IntervalJoin,
        IntervalJoined,
    )
    from penstock.dataflow.streams.joins.window_joins import (
        CoGroupedStreams,
        JoinedStreams,
    )
    from penstock.dataflow.streams.operator_settings import (
        DataStreamSink,
    )
    from penstock.dataflow.time import (
        MAX_WATERMARK,
        MIN_WATERMARK,
        NO_TIMESTAMP,
        AscendingTimestampsWatermarks,
        BoundedOutOfOrdernessWatermarks,
        Duration,
        Instant,
        NoWatermarks,
        Time,
        TimeCharacteristic,
        TimeDomain,
        TimerService,
        TimestampAssigner,
        Watermark,
        WatermarkGenerator,
        WatermarkOutput,
        WatermarkStrategy,
    )
    from penstock.dataflow.types import (
        Row,
        RowKind,
        TypeInformation,
        Types,
    )
    from penstock.dataflow.windows import (
        AggregateFunction,
        AllWindowFunction,
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        CountEvictor,
        CountSlidingWindowAssigner,
        CountTrigger,
        CountTumblingWindowAssigner,
        CountWindow,
        CountWindowSerializer,
        DeltaEvictor,
        DynamicEventTimeSessionWindows,
        DynamicProcessingTimeSessionWindows,
        EventTimeSessionWindows,
        EventTimeTrigger,
        Evictor,
        GlobalWindow,
        GlobalWindows,
        GlobalWindowSerializer,
        MergingWindowAssigner,
        NeverTrigger,
        ProcessAllWindowFunction,
        ProcessingTimeSessionWindows,
        ProcessingTimeTrigger,
        ProcessWindowFunction,
        PurgingTrigger,
        SessionWindowTimeGapExtractor,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TimeEvictor,
        TimestampedValue,
        TimeWindow,
        TimeWindowSerializer,
        Trigger,
        TriggerResult,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        Window,
        WindowAssigner,
        WindowFunction,
    )
    from penstock.runtime.serialization.record_serializers import (
        UnsupportedTypeError,
    )

__version__ = VERSION

_WHERE = {
    "penstock.connectors": (
        "CollectionSource CsvRows FileSink FileSource FunctionSink GeneratorSource "
        "IterableSource JsonLines PrintSink SequenceSource SocketSource TextLines"
    ),
    "penstock.connectors.bases": "Batch BatchSink PollingSource SplitPoller TransactionalSink",
    "penstock.connectors.columns": "ArrowSource ParquetSink ParquetSource",
    "penstock.dataflow.columns": "BatchFunction ColumnTimestamps",
    "penstock.dataflow.config": (
        "CheckpointConfig CheckpointingMode Configuration ExecutionConfig JobConfig "
        "RestartStrategies RuntimeExecutionMode"
    ),
    "penstock.dataflow.environment": "StreamExecutionEnvironment",
    "penstock.dataflow.errors": (
        "GraphError JobError PenstockError ProtocolError Recoverability StoreError"
    ),
    "penstock.dataflow.functions": (
        "BroadcastProcessFunction CoFlatMapFunction CoGroupFunction CoMapFunction "
        "CoProcessFunction FilterFunction FlatJoinFunction FlatMapFunction Function "
        "JoinFunction KeySelector KeyedBroadcastProcessFunction "
        "KeyedCoProcessFunction KeyedProcessFunction MapFunction Partitioner ProcessFunction "
        "ProcessJoinFunction ReduceFunction SinkFunction"
    ),
    "penstock.dataflow.graph.keys": "KeyRefusedError",
    "penstock.dataflow.operator_state": (
        "BroadcastState CheckpointedFunction FunctionInitializationContext "
        "FunctionSnapshotContext OperatorStateStore ReadOnlyBroadcastState"
    ),
    "penstock.dataflow.output_tag": "OutputTag",
    "penstock.dataflow.program": "JobExecutionResult",
    "penstock.dataflow.source": "Split",
    "penstock.dataflow.state": (
        "AggregatingState AggregatingStateDescriptor KeyedStateStore ListState "
        "ListStateDescriptor MapState MapStateDescriptor ReducingState "
        "ReducingStateDescriptor RuntimeContext StateTtlConfig ValueState "
        "ValueStateDescriptor"
    ),
    "penstock.dataflow.streams": (
        "AllWindowedStream BroadcastConnectedStream BroadcastStream CachedDataStream "
        "ConnectedStreams DataStream FeedbackStream IterativeStream KeyedStream WindowedStream"
    ),
    "penstock.dataflow.streams.joins.interval_joins": "IntervalJoin IntervalJoined",
    "penstock.dataflow.streams.joins.window_joins": "CoGroupedStreams JoinedStreams",
    "penstock.dataflow.streams.operator_settings": "DataStreamSink",
    "penstock.dataflow.time": (
        "AscendingTimestampsWatermarks BoundedOutOfOrdernessWatermarks Duration Instant "
        "MAX_WATERMARK MIN_WATERMARK NO_TIMESTAMP NoWatermarks Time TimeCharacteristic "
        "TimeDomain TimerService TimestampAssigner Watermark WatermarkGenerator "
        "WatermarkOutput WatermarkStrategy"
    ),
    "penstock.dataflow.types": "Row RowKind TypeInformation Types",
    "penstock.dataflow.windows": (
        "AggregateFunction AllWindowFunction ContinuousEventTimeTrigger "
        "ContinuousProcessingTimeTrigger CountEvictor CountSlidingWindowAssigner CountTrigger "
        "CountTumblingWindowAssigner CountWindow CountWindowSerializer DeltaEvictor "
        "DynamicEventTimeSessionWindows DynamicProcessingTimeSessionWindows "
        "EventTimeSessionWindows EventTimeTrigger Evictor GlobalWindow GlobalWindowSerializer "
        "GlobalWindows MergingWindowAssigner NeverTrigger ProcessAllWindowFunction "
        "ProcessWindowFunction ProcessingTimeSessionWindows ProcessingTimeTrigger "
        "PurgingTrigger SessionWindowTimeGapExtractor SlidingEventTimeWindows "
        "SlidingProcessingTimeWindows TimeEvictor TimeWindow TimeWindowSerializer "
        "TimestampedValue Trigger TriggerResult TumblingEventTimeWindows "
        "TumblingProcessingTimeWindows Window WindowAssigner WindowFunction"
    ),
    "penstock.runtime.serialization.record_serializers": "UnsupportedTypeError",
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowFunction",
    "AllWindowedStream",
    "ArrowSource",
    "AscendingTimestampsWatermarks",
    "Batch",
    "BatchFunction",
    "BatchSink",
    "BoundedOutOfOrdernessWatermarks",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CachedDataStream",
    "CheckpointConfig",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoGroupedStreams",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectionSource",
    "ColumnTimestamps",
    "Configuration",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "CountWindowSerializer",
    "CsvRows",
    "DataStream",
    "DataStreamSink",
    "DeltaEvictor",
    "Duration",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "ExecutionConfig",
    "FeedbackStream",
    "FileSink",
    "FileSource",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSink",
    "FunctionSnapshotContext",
    "GeneratorSource",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "GlobalWindows",
    "GraphError",
    "Instant",
    "IntervalJoin",
    "IntervalJoined",
    "IterableSource",
    "IterativeStream",
    "JobConfig",
    "JobError",
    "JobExecutionResult",
    "JoinFunction",
    "JoinedStreams",
    "JsonLines",
    "KeyRefusedError",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MergingWindowAssigner",
    "NO_TIMESTAMP",
    "NeverTrigger",
    "NoWatermarks",
    "OperatorStateStore",
    "OutputTag",
    "ParquetSink",
    "ParquetSource",
    "Partitioner",
    "PenstockError",
    "PollingSource",
    "PrintSink",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProtocolError",
    "PurgingTrigger",
    "ReadOnlyBroadcastState",
    "Recoverability",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "Row",
    "RowKind",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SequenceSource",
    "SessionWindowTimeGapExtractor",
    "SinkFunction",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SocketSource",
    "Split",
    "SplitPoller",
    "StateTtlConfig",
    "StoreError",
    "StreamExecutionEnvironment",
    "TextLines",
    "Time",
    "TimeCharacteristic",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimeWindowSerializer",
    "TimerService",
    "TimestampAssigner",
    "TimestampedValue",
    "TransactionalSink",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TypeInformation",
    "Types",
    "UnsupportedTypeError",
    "ValueState",
    "ValueStateDescriptor",
    "Watermark",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
    "__version__",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(module), name)

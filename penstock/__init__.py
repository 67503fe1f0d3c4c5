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
    from penstock.dataflow.config import (
        CheckpointConfig,
        CheckpointingMode,
        JobConfig,
        RestartStrategies,
    )
    from penstock.dataflow.environment import StreamExecutionEnvironment
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
        CoMapFunction,
        CoProcessFunction,
        FilterFunction,
        FlatMapFunction,
        Function,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        KeySelector,
        MapFunction,
        Partitioner,
        ProcessFunction,
        ReduceFunction,
        SinkFunction,
    )
    from penstock.dataflow.graph.keys import KeyRefusedError
    from penstock.dataflow.graph.type_info import Types
    from penstock.dataflow.operator_state import (
        BroadcastState,
        CheckpointedFunction,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        OperatorStateStore,
        ReadOnlyBroadcastState,
    )
    from penstock.dataflow.output_tag import OutputTag
    from penstock.dataflow.program import JobExecutionResult
    from penstock.dataflow.state import (
        ListState,
        ListStateDescriptor,
        MapStateDescriptor,
        RuntimeContext,
        ValueState,
        ValueStateDescriptor,
    )
    from penstock.dataflow.streams import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
        DataStream,
        FeedbackStream,
        IterativeStream,
        KeyedStream,
    )
    from penstock.dataflow.streams.operator_settings import DataStreamSink
    from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
    from penstock.runtime.serialization.record_serializers import UnsupportedTypeError

__version__ = VERSION

_WHERE = {
    "penstock.connectors": (
        "CollectionSource CsvRows FileSink FileSource FunctionSink GeneratorSource IterableSource "
        "JsonLines PrintSink SequenceSource SocketSource TextLines"
    ),
    "penstock.dataflow.config": "CheckpointConfig CheckpointingMode JobConfig RestartStrategies",
    "penstock.dataflow.environment": "StreamExecutionEnvironment",
    "penstock.dataflow.errors": "GraphError JobError PenstockError ProtocolError Recoverability "
    "StoreError",
    "penstock.dataflow.functions": (
        "BroadcastProcessFunction CoFlatMapFunction CoMapFunction CoProcessFunction FilterFunction "
        "FlatMapFunction Function KeyedBroadcastProcessFunction KeyedCoProcessFunction "
        "KeyedProcessFunction KeySelector MapFunction Partitioner ProcessFunction ReduceFunction "
        "SinkFunction"
    ),
    "penstock.dataflow.graph.keys": "KeyRefusedError",
    "penstock.dataflow.output_tag": "OutputTag",
    "penstock.dataflow.operator_state": (
        "BroadcastState CheckpointedFunction FunctionInitializationContext FunctionSnapshotContext "
        "OperatorStateStore ReadOnlyBroadcastState"
    ),
    "penstock.dataflow.state": (
        "ListState ListStateDescriptor MapStateDescriptor RuntimeContext ValueState "
        "ValueStateDescriptor"
    ),
    "penstock.dataflow.streams.operator_settings": "DataStreamSink",
    "penstock.dataflow.program": "JobExecutionResult",
    "penstock.dataflow.streams": (
        "BroadcastConnectedStream BroadcastStream ConnectedStreams DataStream FeedbackStream "
        "IterativeStream KeyedStream"
    ),
    "penstock.dataflow.graph.type_info": "Types",
    "penstock.dataflow.time.watermark_strategy": "WatermarkStrategy",
    "penstock.runtime.serialization.record_serializers": "UnsupportedTypeError",
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectionSource",
    "ConnectedStreams",
    "CsvRows",
    "DataStream",
    "DataStreamSink",
    "FeedbackStream",
    "FileSink",
    "FileSource",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSink",
    "FunctionSnapshotContext",
    "GeneratorSource",
    "GraphError",
    "IterableSource",
    "IterativeStream",
    "JobConfig",
    "JobError",
    "JobExecutionResult",
    "JsonLines",
    "KeyRefusedError",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "OperatorStateStore",
    "OutputTag",
    "Partitioner",
    "PenstockError",
    "PrintSink",
    "ProcessFunction",
    "ProtocolError",
    "ReadOnlyBroadcastState",
    "Recoverability",
    "ReduceFunction",
    "RestartStrategies",
    "RuntimeContext",
    "SequenceSource",
    "SinkFunction",
    "SocketSource",
    "StoreError",
    "StreamExecutionEnvironment",
    "TextLines",
    "Types",
    "UnsupportedTypeError",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "__version__",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(module), name)

"""Map each public name of Penstock to the module that defines it."""

from __future__ import annotations

_WHERE = {
    "penstock.connectors": (
        "CollectionSource CsvRows FileSink FileSource FunctionSink GeneratorSource "
        "IterableSource JsonLines NumberSequenceSource PrintSink SequenceSource "
        "SocketSource TextLines"
    ),
    "penstock.connectors.asyncio_bridge": ("AsyncioBridge BridgeTask"),
    "penstock.connectors.bridge_queue": "BridgeClosedError BridgeQueue",
    "penstock.connectors.bad_messages": "BAD_MESSAGES BadMessage",
    "penstock.connectors.batch_sink": "Batch BatchSink TransactionalSink",
    "penstock.connectors.columns": "ArrowSource ParquetSink ParquetSource",
    "penstock.connectors.formats": (
        "Avro AvroFiles AvroRowDeserializationSchema AvroRowSerializationSchema ByteArraySchema "
        "CsvRowDeserializationSchema CsvRowSerializationSchema Debezium DebeziumChange "
        "DeserializationSchema Json JsonRowDeserializationSchema JsonRowSerializationSchema "
        "MessageLines Protobuf Registered SchemaRegistry SerializationSchema SimpleStringSchema"
    ),
    "penstock.connectors.kafka": (
        "DeliveryGuarantee KafkaOffsetResetStrategy KafkaOffsetsInitializer KafkaRecord "
        "KafkaRecordDeserializationSchema KafkaRecordSerializationSchema "
        "KafkaRecordSerializationSchemaBuilder KafkaSink KafkaSinkBuilder KafkaSource "
        "KafkaSourceBuilder KafkaTopicPartition"
    ),
    "penstock.connectors.polling_source": "PollingSource SplitPoller",
    "penstock.dataflow.async_io": (
        "AsyncFunction AsyncRetryPredicate AsyncRetryStrategy BatchedFunction RequestCache "
        "async_retry_predicates"
    ),
    "penstock.dataflow.streams.async_data_stream": "AsyncDataStream",
    "penstock.dataflow.columns": "BatchFunction ColumnTimestamps",
    "penstock.dataflow.config": (
        "CheckpointConfig CheckpointStorage CheckpointingMode Configuration "
        "EmbeddedRocksDBStateBackend EmbeddedSQLiteStateBackend ExecutionConfig ExecutionMode "
        "ExternalizedCheckpointCleanup ExternalizedCheckpointRetention "
        "FileSystemCheckpointStorage HashMapStateBackend "
        "JobConfig JobManagerCheckpointStorage MemorySize PredefinedOptions "
        "RecoveryClaimMode RestartStrategies "
        "RestartStrategyConfiguration RuntimeExecutionMode SlotSharingGroup StateBackend"
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
        "ProcessJoinFunction ReduceFunction SinkFunction VersionedKeySelector"
    ),
    "penstock.dataflow.graph.keys": "KeyRefusedError",
    "penstock.dataflow.job_client": "JobClient JobID JobStatus StateAnswer",
    "penstock.dataflow.metrics": "Counter Distribution Meter Metric MetricGroup",
    "penstock.dataflow.output_tag": "OutputTag",
    "penstock.dataflow.program": ("CloseableIterator JobExecutionResult"),
    "penstock.dataflow.sink": "Sink",
    "penstock.dataflow.source": "Source Split",
    "penstock.dataflow.state": (
        "AggregatingState AggregatingStateDescriptor BroadcastState CheckpointedFunction "
        "FunctionInitializationContext FunctionSnapshotContext KeyedStateStore ListState "
        "ListStateDescriptor MapState MapStateDescriptor OperatorStateStore "
        "ReadOnlyBroadcastState ReducingState ReducingStateDescriptor RuntimeContext "
        "StateTtlConfig ValueState ValueStateDescriptor"
    ),
    "penstock.dataflow.streams": (
        "AllWindowedStream BroadcastConnectedStream BroadcastStream CachedDataStream "
        "ConnectedStreams DataStream FeedbackStream IterativeStream KeyedStream WindowedStream"
    ),
    "penstock.dataflow.streams.interval_join": "IntervalJoin IntervalJoined",
    "penstock.dataflow.streams.joined_streams": "CoGroupedStreams JoinedStreams",
    "penstock.dataflow.streams.sink": "DataStreamSink",
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
    "penstock.saved.entries": "InFlightElement SavedState SourcePosition StateEntry",
    "penstock.saved.operator_writer": "OperatorWriter",
    "penstock.saved.snapshot": "SavedSnapshot open_snapshot",
    "penstock.saved.writer": "SnapshotWriter",
}
#: The module of each public name.
MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}

"""List the names of `pyflink.common` and `pyflink.datastream` that Penstock does not have.

Each has a sentence that names the alternative. An import of such a name raises an error with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from penstock.dataflow.errors import GraphError
from penstock.dataflow.tracebacks import install
from penstock.public_names import MODULE_OF


class MissingNameError(GraphError, ImportError):
    """Raised when a program imports a name of PyFlink that Penstock does not have."""


_FORMAT = (
    "files are read and written with TextLines, JsonLines and CsvRows (`penstock docs connectors`)"
)
_PARQUET = "use ParquetSource and ParquetSink"
_SERIALIZATION = (
    "records are encoded by their Python types (`penstock docs types`); decode and encode bytes of "
    "an external system in a map function, or in a Source or Sink of your own"
)
_SYSTEM = (
    "there is no connector for {}: write a PollingSource, BatchSink or TransactionalSink of your "
    "own (`penstock docs own-connectors`)"
)
_STATE = (
    "use HashMapStateBackend() or EmbeddedRocksDBStateBackend(), and set_checkpoint_storage_dir"
)
_FILES = "use FileSource(path, TextLines()) and FileSink(folder, JsonLines())"


def _same(names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


#: The advice for each name: the reason, and another way.
REFUSED_NAMES: Mapping[str, str] = {
    # pyflink.common
    "AssignerWithPeriodicWatermarksWrapper": (
        "it wraps an object of the JVM; use WatermarkStrategy.for_generator(...) with a "
        "WatermarkGenerator"
    ),
    "CompletableFuture": "the methods of a JobClient return a concurrent.futures.Future",
    "InputDependencyConstraint": "it schedules batch jobs of Flink 1; leave it out",
    "InputFormat": "use a Source: env.from_source(...)",
    "JavaObjectWrapper": "there is no JVM",
    **_same("ConfigOption ConfigOptions", "use the key as a text: Configuration().set(key, value)"),
    **_same(
        "RowFieldExtractorSchema TypeSerializer",
        _SERIALIZATION,
    ),
    "Encoder": _FORMAT,
    "BulkWriterFactory": _PARQUET,
    # pyflink.datastream
    "SourceFunction": "use env.from_source with an IterableSource, a GeneratorSource, or your own",
    "CustomStateBackend": "it wraps an object of the JVM; Penstock chooses the state backend",
    "CustomCheckpointStorage": "it wraps an object of the JVM; use FileSystemCheckpointStorage",
    **_same("FsStateBackend MemoryStateBackend RocksDBStateBackend", _STATE),
    "BaseBroadcastProcessFunction": (
        "use BroadcastProcessFunction or KeyedBroadcastProcessFunction"
    ),
    **_same(
        "RetryPredicate "
        "NoRetryStrategy FixedDelayRetryStrategy ExponentialBackoffDelayRetryStrategy",
        "use AsyncRetryStrategy.no_restart, fixed_delay or exponential_backoff",
    ),
    "AsyncFunctionDescriptor": "give the AsyncFunction itself to AsyncDataStream",
    "ResultTypeQueryable": "types need not be declared; leave it out",
    # connectors and formats
    **_same("StreamTransformer SupportsPreprocessing", "transform the stream before sink_to(...)"),
    **_same(
        "BucketAssigner BulkFormat FileCompactStrategy FileCompactor FileEnumeratorProvider "
        "FileSourceBuilder FileSplitAssignerProvider OutputFileConfig RollingPolicy StreamFormat "
        "StreamingFileSink",
        _FILES,
    ),
    **_same("HybridSource HybridSourceBuilder", "read both sources, and join them with union"),
    **_same(
        "JdbcConnectionOptions JdbcExecutionOptions JdbcSink",
        "write a BatchSink of your own (`penstock docs own-connectors`), or use Spark "
        "(`penstock docs spark`)",
    ),
    **_same(
        "FlinkKafkaConsumer FlinkKafkaProducer Semantic",
        "use KafkaSource and KafkaSink (`penstock docs connectors/kafka`)",
    ),
    "KafkaTopicSelector": "give set_topic_selector a function",
    **_same(
        "DynamicKafkaSource DynamicKafkaSourceBuilder KafkaMetadataService "
        "KafkaStreamSetSubscriber KafkaStreamSubscriber SingleClusterTopicMetadataService "
        "StreamPatternSubscriber",
        "use a KafkaSource for each cluster, with a topic pattern",
    ),
    **_same(
        "FlinkKinesisConsumer KinesisDeserializationSchema KinesisFirehoseSink "
        "KinesisFirehoseSinkBuilder KinesisShardAssigner KinesisStreamsSink "
        "KinesisStreamsSinkBuilder PartitionKeyGenerator WatermarkTracker",
        _SYSTEM.format("Kinesis"),
    ),
    **_same(
        "MessageDelayer PulsarSink PulsarSinkBuilder PulsarSource PulsarSourceBuilder "
        "RangeGenerator StartCursor StopCursor TopicRoutingMode",
        _SYSTEM.format("Pulsar"),
    ),
    **_same("RMQConnectionConfig RMQSink RMQSource", _SYSTEM.format("RabbitMQ")),
    **_same(
        "CassandraCommitter CassandraFailureHandler CassandraSink ClusterBuilder ConsistencyLevel "
        "MapperOptions",
        _SYSTEM.format("Cassandra"),
    ),
    **_same(
        "Elasticsearch6SinkBuilder Elasticsearch7SinkBuilder ElasticsearchEmitter "
        "ElasticsearchSink FlushBackoffType",
        _SYSTEM.format("Elasticsearch"),
    ),
    **_same("CsvBulkWriters CsvReaderFormat CsvSchema CsvSchemaBuilder", "use CsvRows()"),
    **_same(
        "AvroBulkWriters AvroInputFormat AvroSchema GenericRecordAvroTypeInfo",
        "use the format Avro(schema) (`penstock docs formats`)",
    ),
    **_same(
        "AvroParquetReaders AvroParquetWriters ParquetBulkWriters ParquetColumnarRowInputFormat",
        _PARQUET,
    ),
    "OrcBulkWriters": _PARQUET,
}


def refuse_name(name: str) -> None:
    """Raise a `MissingNameError` if PyFlink has a name, or if the name resembles a public one.

    Names that begin with a capital are names of classes. Others may be names of modules: an import
    of a module first looks for an attribute.
    """
    install()
    if name in REFUSED_NAMES:
        # An AttributeError would be replaced by an error of the import, without this text.
        raise MissingNameError(f"Penstock has no {name}: {REFUSED_NAMES[name]}")
    if name[:1].isupper() and (close := _similar(name)):
        raise MissingNameError(f"Penstock has no {name}: did you mean {' or '.join(close)}?")


def _similar(name: str) -> list[str]:
    """Return at most four public names that have all words of a name, or a similar spelling."""
    words = re.findall("[A-Z][a-z0-9]+", name)
    with_words = [one for one in MODULE_OF if words and all(word in one for word in words)]
    similar = with_words or get_close_matches(name, MODULE_OF, 3, 0.75)
    return sorted(similar, key=len)[:4]

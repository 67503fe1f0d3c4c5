"""Define `KafkaSource`, which reads topics of Kafka."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.formats.schemas import DeserializationSchema
from penstock.connectors.kafka.client import KafkaConnection, confluent_kafka
from penstock.connectors.kafka.deserializers import (
    KafkaRecordDeserializationSchema,
    MessagesDecoder,
)
from penstock.connectors.kafka.enumerator import KafkaEnumerator
from penstock.connectors.kafka.offsets import KafkaOffsetsInitializer
from penstock.connectors.kafka.partition_consumer import AssignedPartition, PartitionConsumer
from penstock.connectors.kafka.records import KafkaRecord, KafkaTopicPartition
from penstock.dataflow.errors import GraphError
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.dataflow.type_variables import PlainValue, T_co

_DISCOVERY_SECONDS = 300.0
#: Properties of Flink's source that are no properties of a client.
_DISCOVERY_PROPERTY = "partition.discovery.interval.ms"
_COMMIT_PROPERTY = "commit.offsets.on.checkpoint"


class KafkaSource(Source[T_co]):
    """Reads topics of Kafka, exactly once. (Flink: `KafkaSource`.)

    Each partition is a split. The offsets are in the snapshots of the job, and not in a consumer
    group. So a record is neither lost nor read twice, whatever the group does. Only committed
    records are read, unless the property `isolation.level` says otherwise. The event time of a
    record is its timestamp in Kafka. `KafkaSource.builder()` has the methods of PyFlink.

    Arguments:
        bootstrap_servers: the addresses of some brokers, such as `"host:9092"`, separated by
            commas.
        topics: the name of a topic, or several names.
        deserializer: a schema for values, such as `Json()`; or a
            `KafkaRecordDeserializationSchema`, which makes records of other parts of a message,
            too. With None, the records are `KafkaRecord`s.
        topic_pattern: a regular expression that matches whole names of topics, instead of `topics`.
        partitions: partitions to read, instead of `topics`.
        group_id: the group whose offsets are committed when a snapshot is complete, for tools that
            show lag; None commits no offsets.
        starting_offsets: where to begin. A job that goes on from a snapshot goes on at its offsets.
        stopping_offsets: where to end; None reads without an end.
        discovery_seconds: the time after which new partitions and topics are looked for, in
            seconds; None does not look. New partitions are read from their first records. A source
            that ends does not look for them.
        on_lost_position: "fail" or "earliest": what to do if the retention of a topic has removed
            records that the job must read next. "earliest" goes on at the first record that is
            there, logs the loss, and counts it in the metric `numRecordsLost`.
        properties: further settings of the client, by their names in librdkafka.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> source = KafkaSource("localhost:9092", "orders", Json())
        >>> same = (
        ...     KafkaSource.builder()
        ...     .set_bootstrap_servers("localhost:9092")
        ...     .set_topics("orders")
        ...     .set_value_only_deserializer(Json())
        ...     .build()
        ... )
        >>> orders = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: str | Sequence[str] = (),
        deserializer: KafkaRecordDeserializationSchema | DeserializationSchema[Any] | None = None,
        *,
        topic_pattern: str | None = None,
        partitions: Iterable[KafkaTopicPartition] | None = None,
        group_id: str | None = None,
        starting_offsets: KafkaOffsetsInitializer | None = None,
        stopping_offsets: KafkaOffsetsInitializer | None = None,
        discovery_seconds: float | None = _DISCOVERY_SECONDS,
        on_lost_position: str = "fail",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        confluent_kafka()
        given = dict(properties or {})
        self.commits_offsets = _is_true(given.pop(_COMMIT_PROPERTY, True))
        if (interval := given.pop(_DISCOVERY_PROPERTY, None)) is not None:
            discovery_seconds = int(interval) / 1000 if int(interval) > 0 else None
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.topic_pattern = topic_pattern
        self.partitions = None if partitions is None else _partitions(partitions)
        self.group_id = group_id if group_id is not None else given.pop("group.id", None)
        self.starting_offsets = starting_offsets or KafkaOffsetsInitializer.earliest()
        self.stopping_offsets = stopping_offsets
        self.discovery_seconds = discovery_seconds
        self.on_lost_position = on_lost_position
        self.bounded = stopping_offsets is not None
        self._check(bootstrap_servers)
        self.connection = KafkaConnection(bootstrap_servers, given)
        if isinstance(deserializer, DeserializationSchema):
            deserializer = KafkaRecordDeserializationSchema.value_only(deserializer)
        elif deserializer is None:
            deserializer = KafkaRecordDeserializationSchema.records()
        elif not isinstance(deserializer, KafkaRecordDeserializationSchema):
            raise GraphError(
                f"the deserializer of a KafkaSource is a schema such as Json(), or a "
                f"KafkaRecordDeserializationSchema, not {deserializer!r}"
            )
        self.deserializer = deserializer
        #: The class of the records, which tasks must be able to send.
        self.record_classes = (KafkaRecord,) if deserializer.whole else ()
        self._consumers: dict[tuple[str, int], PartitionConsumer] = {}
        self._lock = threading.Lock()

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        """Return a builder with the methods of PyFlink."""
        return KafkaSourceBuilder()

    def _check(self, bootstrap_servers: str) -> None:
        if not bootstrap_servers or not isinstance(bootstrap_servers, str):
            raise GraphError(
                f"bootstrap_servers of a KafkaSource is a text such as 'host:9092', not "
                f"{bootstrap_servers!r}"
            )
        given = [bool(self.topics), self.topic_pattern is not None, self.partitions is not None]
        if sum(given) != 1:
            raise GraphError(
                "a KafkaSource reads topics, or a topic_pattern, or partitions: give one of them"
            )
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise GraphError(
                    f"the topic pattern {self.topic_pattern!r} is not valid: {error}"
                ) from None
        if self.on_lost_position not in ("fail", "earliest"):
            raise GraphError(
                f'on_lost_position is "fail" or "earliest", not {self.on_lost_position!r}'
            )
        if self.starting_offsets.needs_group and self.group_id is None:
            raise GraphError("committed offsets are those of a group: give the source a group_id")

    @property
    def discovers(self) -> bool:
        """Whether new partitions are looked for."""
        return not self.bounded and self.partitions is None and self.discovery_seconds is not None

    @property
    def reads_in_turns(self) -> bool:
        """Whether a task reads all its partitions at once: they have the same event times."""
        return True

    @property
    def side_output_tags(self) -> tuple[OutputTag[Any], ...]:
        """The tag of messages that could not be decoded."""
        return side_output_tags(self.deserializer.on_error)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of the partitions."""
        del parallelism
        return KafkaEnumerator(self)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader for one partition. The readers of a subtask share a client."""
        place = (context.uid, context.subtask)
        with self._lock:
            consumer = self._consumers.get(place)
            if consumer is None or consumer.metrics is not context.metrics:
                consumer = self._consumers[place] = self._create_consumer(context)
        return KafkaReader(self, consumer)

    def _create_consumer(self, context: ReaderContext) -> PartitionConsumer:
        consumer = PartitionConsumer(
            self.connection,
            context.metrics,
            restart_at_earliest=context.goes_on_at_earliest(self.on_lost_position),
            bounded=self.bounded,
            group=self.group_id,
        )
        with suppress(GraphError):  # Tests use one group of metrics for several sources.
            context.metrics.gauge("pendingRecords", consumer.pending_records)
            context.metrics.gauge("records-lag-max", consumer.highest_lag)
        return consumer

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_consumers": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class KafkaReader(SourceReader):
    """Reads one partition.

    Arguments:
        source: the source.
        consumer: receives the messages of all partitions of the subtask.
    """

    def __init__(self, source: KafkaSource[Any], consumer: PartitionConsumer) -> None:
        self._source, self._consumer = source, consumer
        self._wake: Callable[[], None] = lambda: None
        self._assigned: AssignedPartition | None = None
        self._decoder: MessagesDecoder | None = None
        self._position = 0
        self._stop: int | None = None

    def use_wake(self, wake: Callable[[], None]) -> None:
        """Get the function that makes the engine read again."""
        self._wake = wake

    def open(self, split: Split, position: PlainValue) -> None:
        """Begin to receive the messages of a partition from an offset on."""
        self.close()
        payload: Any = split.payload
        at: Any = position
        topic, partition, start, self._stop = payload
        self._position = start if at is None else at
        self._decoder = self._source.deserializer.open(topic, self._consumer.metrics)
        if self._stop is None or self._position < self._stop:
            place = KafkaTopicPartition(topic, partition)
            self._assigned = self._consumer.open(place, self._position, self._wake)

    def read(self, max_records: int) -> Read:
        """Return the records of messages that have arrived."""
        assigned, decoder, stop = self._assigned, self._decoder, self._stop
        if assigned is None or decoder is None:
            return Read([], self._position, True)
        # It is read before the messages, since the thread may add messages and then move the end.
        end = assigned.end
        messages = self._consumer.take(assigned, max_records)
        if not messages:
            # The last offsets before the end may be those of transaction markers.
            if stop is None or max(self._position, end) < stop:
                return Read([], self._position, False, math.inf)
            return self._finish(Read([], stop, True))
        last = messages[-1].offset() or 0
        finished = stop is not None and last >= stop - 1
        if stop is not None and last >= stop:
            messages = [message for message in messages if (message.offset() or 0) < stop]
        self._position = last + 1
        decoded = decoder.decode(messages)
        side_output = decoder.take_side_output()
        if finished:
            self._position = stop or 0
        times = decoded.pick([message.timestamp()[1] for message in messages])
        if len(times) and min(times) < 0:
            times = [time if time >= 0 else NO_TIMESTAMP for time in times]
        read = Read(decoded.records, self._position, finished, 0.0, side_output)
        return self._finish(TimedRead(read, list(times)))

    def _finish(self, read: Read) -> Read:
        if read.finished:
            self.close()
        return read

    def close(self) -> None:
        """End to receive the messages of the partition."""
        assigned, self._assigned = self._assigned, None
        if assigned is not None:
            self._consumer.close(assigned)
            if self._decoder is not None:
                topic, partition = assigned.partition
                self._decoder.close(f"partition {partition} of topic {topic!r}")


class KafkaSourceBuilder:
    """Builds a `KafkaSource`. (PyFlink: `KafkaSourceBuilder`.)

    Examples:
        >>> source = (
        ...     KafkaSource.builder()
        ...     .set_bootstrap_servers("localhost:9092")
        ...     .set_topics("orders", "returns")
        ...     .set_group_id("shop")
        ...     .set_starting_offsets(KafkaOffsetsInitializer.latest())
        ...     .set_value_only_deserializer(SimpleStringSchema())
        ...     .set_property("client.id", "penstock")
        ...     .build()
        ... )
    """

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}
        self._properties: dict[str, Any] = {}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        """Set the addresses of some brokers, separated by commas."""
        return self._set(bootstrap_servers=bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """Set the group whose offsets are committed when a snapshot is complete."""
        return self._set(group_id=group_id)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        """Set the names of the topics."""
        return self._set(topics=topics)

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """Set a regular expression that matches whole names of topics."""
        return self._set(topic_pattern=topic_pattern)

    def set_partitions(self, partitions: Iterable[KafkaTopicPartition]) -> KafkaSourceBuilder:
        """Set the partitions."""
        return self._set(partitions=partitions)

    def set_starting_offsets(
        self, starting_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder:
        """Set where to begin."""
        return self._set(starting_offsets=starting_offsets_initializer)

    def set_bounded(
        self, stopping_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder:
        """Set where to end."""
        return self._set(stopping_offsets=stopping_offsets_initializer)

    def set_unbounded(
        self, stopping_offsets_initializer: KafkaOffsetsInitializer | None = None
    ) -> KafkaSourceBuilder:
        """Set where to end. Without an argument, the source reads without an end."""
        return self._set(stopping_offsets=stopping_offsets_initializer)

    def set_value_only_deserializer(
        self, deserialization_schema: DeserializationSchema[Any]
    ) -> KafkaSourceBuilder:
        """Set the schema that decodes values, which are then the records."""
        schema = KafkaRecordDeserializationSchema.value_only(deserialization_schema)
        return self._set(deserializer=schema)

    def set_deserializer(self, schema: KafkaRecordDeserializationSchema) -> KafkaSourceBuilder:
        """Set what the records have of messages."""
        return self._set(deserializer=schema)

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        """Set the name of the clients, which the logs of the brokers show."""
        return self.set_property("client.id", prefix)

    def set_on_lost_position(self, on_lost_position: str) -> KafkaSourceBuilder:
        """Set what to do if records are gone that the job must read next; see `KafkaSource`."""
        return self._set(on_lost_position=on_lost_position)

    def set_property(self, key: str, value: Any) -> KafkaSourceBuilder:
        """Set a property of the client."""
        return self.set_properties({key: value})

    def set_properties(self, props: Mapping[str, Any]) -> KafkaSourceBuilder:
        """Set properties of the client."""
        self._properties.update(props)
        return self

    def build(self) -> KafkaSource[Any]:
        """Return the source.

        Raises:
            GraphError: if something is missing or wrong.
        """
        arguments, properties = dict(self._arguments), dict(self._properties)
        servers = arguments.pop("bootstrap_servers", properties.pop("bootstrap.servers", ""))
        return KafkaSource(servers, properties=properties, **arguments)

    def _set(self, **arguments: Any) -> KafkaSourceBuilder:
        self._arguments.update(arguments)
        return self


def _partitions(given: Iterable[KafkaTopicPartition]) -> tuple[KafkaTopicPartition, ...]:
    partitions = tuple(sorted({KafkaTopicPartition(*one) for one in given}))
    if not partitions:
        raise GraphError("the partitions of a KafkaSource are empty")
    return partitions


def _is_true(value: object) -> bool:
    return str(value).lower() != "false"

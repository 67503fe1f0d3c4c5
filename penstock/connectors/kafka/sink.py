"""Define `KafkaSink`, which writes to topics of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, get_args

from penstock.connectors.formats.schemas import SerializationSchema
from penstock.connectors.kafka.batch_producer import BatchProducer, require_size
from penstock.connectors.kafka.client import KafkaConnection, confluent_kafka
from penstock.connectors.kafka.direct_committer import DirectCommitter, transactional_prefix
from penstock.connectors.kafka.direct_writer import DirectWriter
from penstock.connectors.kafka.serializers import KafkaRecordSerializationSchema
from penstock.connectors.kafka.staged_target import MARKER_SECONDS, KafkaTarget
from penstock.connectors.kafka.transaction_client import kafka_python, translate_properties
from penstock.connectors.staged_sink import SinkPlace, StagedSink, Target
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.sink import Committer, SinkWriter, WriterContext
from penstock.dataflow.type_variables import PlainValue, T_contra


class DeliveryGuarantee(Enum):
    """Chooses how often a `KafkaSink` writes a record. (PyFlink: `DeliveryGuarantee`.)

    EXACTLY_ONCE: once, for readers of committed records. They see the output of a snapshot when the
        snapshot is complete.
    AT_LEAST_ONCE: at once, and again after a failure. A snapshot is complete only when the brokers
        have all records before it.
    NONE: at once. Nothing waits for the brokers, so that records may be lost, too.

    Examples:
        >>> DeliveryGuarantee.AT_LEAST_ONCE.value
        'at-least-once'
    """

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    NONE = "none"


#: The ways to write exactly once: stage output in files until its snapshot is complete, or write it
#: at once in a transaction that stays open until then.
ExactlyOnceMode = Literal["staged", "direct"]


class KafkaSink(StagedSink[T_contra]):
    """Writes records to topics of Kafka, exactly once. (Flink: `KafkaSink`.)

    Until a snapshot is complete, its output is staged in files. Then the JobManager writes it in
    one transaction, together with the number of the snapshot. So no transaction is open while the
    job is down, and a broker's time-out of transactions loses nothing. The topics must exist.
    `KafkaSink.builder()` has the methods of PyFlink.

    With `exactly_once_mode="direct"`, records are written once and at once, as by Flink: in a
    transaction that is open until the snapshot is complete. It then must not expire. The guide says
    when this is better.

    Arguments:
        bootstrap_servers: the addresses of some brokers, such as `"host:9092"`, separated by
            commas.
        topic: the name of the topic, or a `KafkaRecordSerializationSchema`.
        serializer: encodes values, if `topic` is a name.
        guarantee: how often a record is written.
        exactly_once_mode: `"staged"` or `"direct"`; it matters only for the guarantee EXACTLY_ONCE.
        transactional_id_prefix: the beginning of the sink's transactional id, for access control
            lists. The rest is the lineage of the job and the uid of the sink.
        marker_topic: the topic under which the number of the snapshot is kept. It is needed only if
            the topic is a function of the record.
        marker_seconds: `offsets.retention.minutes` of the brokers, in seconds. A job that was down
            for longer is refused, because it is unknown whether its last output is there.
        properties: further settings of the client, by their names in librdkafka.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> sink = KafkaSink("localhost:9092", "totals", Json())
        >>> same = (
        ...     KafkaSink.builder()
        ...     .set_bootstrap_servers("localhost:9092")
        ...     .set_record_serializer(KafkaRecordSerializationSchema("totals", Json()))
        ...     .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        ...     .build()
        ... )
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str | KafkaRecordSerializationSchema,
        serializer: SerializationSchema[Any] | None = None,
        *,
        guarantee: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE,
        exactly_once_mode: ExactlyOnceMode = "staged",
        transactional_id_prefix: str = "penstock",
        marker_topic: str | None = None,
        marker_seconds: float = MARKER_SECONDS,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        confluent_kafka()
        if not bootstrap_servers or not isinstance(bootstrap_servers, str):
            raise GraphError(
                f"bootstrap_servers of a KafkaSink is a text such as 'host:9092', not "
                f"{bootstrap_servers!r}"
            )
        if isinstance(topic, KafkaRecordSerializationSchema):
            if serializer is not None:
                raise GraphError("a KafkaSink has two serializers: give one of them")
            self.serializer = topic
        elif serializer is None:
            raise GraphError("a KafkaSink needs a schema that encodes records, such as Json()")
        else:
            self.serializer = KafkaRecordSerializationSchema(topic, serializer)
        if not isinstance(guarantee, DeliveryGuarantee):
            raise GraphError(f"the guarantee is a DeliveryGuarantee, not {guarantee!r}")
        self.guarantee = guarantee
        self.exactly_once = guarantee is DeliveryGuarantee.EXACTLY_ONCE
        if exactly_once_mode not in get_args(ExactlyOnceMode):
            raise GraphError(
                f"exactly_once_mode of a KafkaSink is 'staged' or 'direct', not "
                f"{exactly_once_mode!r}"
            )
        self._direct = self.exactly_once and exactly_once_mode == "direct"
        self.leaves_open = self._direct
        fixed = self.serializer.topic
        self._fixed_topic = fixed if isinstance(fixed, str) else None
        self._marker_topic = marker_topic or self._fixed_topic
        if self.exactly_once and not self._direct and self._marker_topic is None:
            raise GraphError(
                "the topic of the KafkaSink is a function, so give it a marker_topic: the number "
                "of the newest published snapshot is kept as an offset of that topic"
            )
        self.transactional_id_prefix = transactional_id_prefix
        self._marker_seconds = marker_seconds
        self.connection = KafkaConnection(bootstrap_servers, properties or {})
        if self._direct:
            kafka_python()
            translate_properties(self.connection.properties)

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        """Return a builder with the methods of PyFlink."""
        return KafkaSinkBuilder()

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that encodes a batch of records as messages."""
        serialize = self.serializer.open(context.metrics)
        properties = self.connection.properties

        def encode(records: list[Any]) -> PlainValue:
            batches = serialize(records)
            require_size(batches, properties)
            return [batch.to_plain() for batch in batches]

        return encode

    def connect(self, place: SinkPlace) -> Target:
        """Return a connection that publishes the output of one sink of one lineage."""
        assert self._marker_topic is not None
        name = f"{self.transactional_id_prefix}/{place.key}"
        return KafkaTarget(self.connection, name, self._marker_topic, self._marker_seconds)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that stages records, or one that sends them at once."""
        if self._direct:
            place = SinkPlace(context.lineage, context.uid, context.name)
            prefix = transactional_prefix(self.transactional_id_prefix, place)
            return DirectWriter(self.connection, self.serializer, prefix, context)
        return super().create_writer(context) if self.exactly_once else _Sender(self, context)

    def create_committer(self) -> Committer | None:  # type: ignore[override]
        """Return the committer that publishes output; None if there is none."""
        if self._direct:
            return DirectCommitter(self.connection, self.transactional_id_prefix, self._fixed_topic)
        return super().create_committer() if self.exactly_once else None


class _Sender(SinkWriter):
    """Sends the records of one subtask at once."""

    def __init__(self, sink: KafkaSink[Any], context: WriterContext) -> None:
        self._sink = sink
        self._serialize = sink.serializer.open(context.metrics)
        self._checks = sink.guarantee is DeliveryGuarantee.AT_LEAST_ONCE
        self._lost = context.metrics.counter("numRecordsSendErrors")
        self._producer: BatchProducer | None = None

    def open(self) -> None:
        self._producer = BatchProducer(self._sink.connection)

    def write(self, batch: list[Any]) -> None:
        assert self._producer is not None
        batches = self._serialize(batch)
        require_size(batches, self._sink.connection.properties)
        try:
            self._producer.send(batches)
        except JobError:
            if self._checks:
                raise
            self._producer.forget_failure()
            self._lost.inc()

    def prepare(self, snapshot: int) -> Callable[[], list[PlainValue]] | None:
        del snapshot
        producer = self._producer
        if producer is None or not self._checks:
            return None

        def finish() -> list[PlainValue]:
            producer.flush()
            return []

        return finish

    def flush(self) -> None:
        if self._producer is not None:
            self._producer.serve(0)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            if not self._checks:
                producer.serve(10, until_empty=True)
            producer.close()


class KafkaSinkBuilder:
    """Builds a `KafkaSink`. (PyFlink: `KafkaSinkBuilder`.)

    Examples:
        >>> sink = (
        ...     KafkaSink.builder()
        ...     .set_bootstrap_servers("localhost:9092")
        ...     .set_record_serializer(KafkaRecordSerializationSchema("totals", Json()))
        ...     .set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE)
        ...     .set_property("compression.type", "zstd")
        ...     .build()
        ... )
    """

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}
        self._properties: dict[str, Any] = {}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder:
        """Set the addresses of some brokers, separated by commas."""
        return self._set(bootstrap_servers=bootstrap_servers)

    def set_record_serializer(
        self, record_serializer: KafkaRecordSerializationSchema
    ) -> KafkaSinkBuilder:
        """Set the serializer, which chooses the topic, key and value of each message."""
        return self._set(topic=record_serializer)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder:
        """Set how often a record is written. Here the default is exactly once."""
        return self._set(guarantee=delivery_guarantee)

    def set_exactly_once_mode(self, exactly_once_mode: ExactlyOnceMode) -> KafkaSinkBuilder:
        """Set how records are written exactly once: `"staged"` or `"direct"`. (Not in PyFlink.)"""
        return self._set(exactly_once_mode=exactly_once_mode)

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder:
        """Set the beginning of the transactional id."""
        return self._set(transactional_id_prefix=transactional_id_prefix)

    def set_marker_topic(self, marker_topic: str) -> KafkaSinkBuilder:
        """Set the topic under which the number of the newest snapshot is kept."""
        return self._set(marker_topic=marker_topic)

    def set_property(self, key: str, value: Any) -> KafkaSinkBuilder:
        """Set a property of the client."""
        self._properties[key] = value
        return self

    def build(self) -> KafkaSink[Any]:
        """Return the sink.

        Raises:
            GraphError: if something is missing or wrong.
        """
        arguments, properties = dict(self._arguments), dict(self._properties)
        servers = arguments.pop("bootstrap_servers", properties.pop("bootstrap.servers", ""))
        if "topic" not in arguments:
            raise GraphError("a KafkaSink needs set_record_serializer(...)")
        return KafkaSink(servers, properties=properties, **arguments)

    def _set(self, **arguments: Any) -> KafkaSinkBuilder:
        self._arguments.update(arguments)
        return self

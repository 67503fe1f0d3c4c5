"""Turn records into the messages of Kafka, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.connectors.formats.messages import MessageEncoder
from penstock.connectors.formats.schemas import (
    SchemaContext,
    SerializationSchema,
    check_serialization_schema,
)
from penstock.connectors.kafka.records import KafkaRecord
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.type_variables import PlainValue


class MessageBatch(NamedTuple):
    """Messages for one topic, by columns. A column that no message has is None.

    Arguments:
        topic: the name of the topic.
        values: the values; None is a tombstone.
        keys: the keys.
        partitions: the numbers of the partitions.
        timestamps: the times, in milliseconds since the epoch.
        headers: lists of a name and a value.
    """

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    partitions: Sequence[int] | None = None
    timestamps: Sequence[int] | None = None
    headers: Sequence[list[list[Any]]] | None = None

    def to_plain(self) -> list[PlainValue]:
        """Return the batch as a list that a staged file can contain."""
        return list(self)


#: A function of a worker that turns records into messages.
BatchSerializer = Callable[[list[Any]], list[MessageBatch]]


class KafkaRecordSerializationSchema:
    """Turns records into messages. (PyFlink: `KafkaRecordSerializationSchema`.)

    Arguments:
        topic: the name of the topic, or a function that returns the topic of a record.
        value: encodes values.
        key: encodes keys; None writes none. It gets what `key_of` returns.
        key_of: a function that returns the key of a record; by default, the record itself.
        partition_of: a function that returns the number of the partition of a record. By default,
            records with a key go to the partition that Java clients choose, and others to any.
        headers_of: a function that returns the headers of a record: pairs of a name and bytes.
        timestamp_of: a function that returns the time of a record, in milliseconds since the epoch.
            By default, it is the time at which the record is published.

    Examples:
        >>> schema = KafkaRecordSerializationSchema("totals", Json())
        >>> same = (
        ...     KafkaRecordSerializationSchema.builder()
        ...     .set_topic("totals")
        ...     .set_value_serialization_schema(Json())
        ...     .build()
        ... )
    """

    def __init__(
        self,
        topic: str | Callable[[Any], str],
        value: SerializationSchema[Any],
        *,
        key: SerializationSchema[Any] | None = None,
        key_of: Callable[[Any], Any] | None = None,
        partition_of: Callable[[Any], int] | None = None,
        headers_of: Callable[[Any], Sequence[tuple[str, bytes | None]]] | None = None,
        timestamp_of: Callable[[Any], int] | None = None,
    ) -> None:
        if not topic or not (isinstance(topic, str) or callable(topic)):
            raise GraphError(
                f"the topic of a KafkaSink is a name, or a function of a record, not {topic!r}"
            )
        check_serialization_schema("the schema of values", value)
        if key is not None:
            check_serialization_schema("the schema of keys", key)
        elif key_of is not None:
            raise GraphError("a KafkaSink needs a schema for the keys that key_of returns: key=")
        self.topic = topic
        self.value, self.key, self.key_of = value, key, key_of
        self.partition_of, self.headers_of = partition_of, headers_of
        self.timestamp_of = timestamp_of

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        """Return a builder with the methods of PyFlink."""
        return KafkaRecordSerializationSchemaBuilder()

    @staticmethod
    def records(
        topic: str | None = None,
        value: SerializationSchema[Any] | None = None,
        key: SerializationSchema[Any] | None = None,
    ) -> KafkaRecordSerializationSchema:
        """Return a schema for a stream of `KafkaRecord`s.

        A record's key, headers, time (if it is not negative) and partition (if it is not negative)
        are written, too.

        Arguments:
            topic: the topic of all records; None is the topic that each record has.
            value: encodes values; None if they are bytes.
            key: encodes keys; None if they are bytes.
        """
        return _KafkaRecords(topic, value, key)

    def open(self, metrics: MetricGroup) -> BatchSerializer:
        """Return a function that turns records into messages, in a worker."""
        topic = self.topic if isinstance(self.topic, str) else ""
        encode = MessageEncoder(self.value, SchemaContext(topic, metrics=metrics)).encode
        encode_keys = None
        if self.key is not None:
            context = SchemaContext(topic, is_key=True, metrics=metrics)
            encode_keys = MessageEncoder(self.key, context).encode
        key_of, topic_of = self.key_of, self.topic
        columns: tuple[Any, ...] = (self.partition_of, self.timestamp_of, self.headers_of)

        def serialize(records: list[Any]) -> list[MessageBatch]:
            keys = None
            if encode_keys is not None:
                keyed = records if key_of is None else list(map(key_of, records))
                keys = encode_keys(keyed)
            partitions, timestamps, headers = (
                None if one is None else list(map(one, records)) for one in columns
            )
            if headers is not None:
                headers = [[list(pair) for pair in pairs or ()] for pairs in headers]
            batch = MessageBatch(topic, encode(records), keys, partitions, timestamps, headers)
            if isinstance(topic_of, str):
                return [batch]
            return split_by_topic(batch, list(map(topic_of, records)))

        return serialize


class _KafkaRecords(KafkaRecordSerializationSchema):
    """Encodes `KafkaRecord`s."""

    def __init__(
        self,
        topic: str | None,
        value: SerializationSchema[Any] | None,
        key: SerializationSchema[Any] | None,
    ) -> None:
        self.topic = topic if topic is not None else _topic_of
        self._value, self._key = value, key

    def open(self, metrics: MetricGroup) -> BatchSerializer:
        topic = self.topic if isinstance(self.topic, str) else ""
        encoders = [
            None
            if schema is None
            else MessageEncoder(schema, SchemaContext(topic, is_key, metrics=metrics)).encode
            for schema, is_key in ((self._value, False), (self._key, True))
        ]
        topic_of = self.topic

        def serialize(records: list[KafkaRecord]) -> list[MessageBatch]:
            values, keys = (
                _encode_some(column, encode)
                for column, encode in zip(
                    ([one.value for one in records], [one.key for one in records]),
                    encoders,
                    strict=True,
                )
            )
            timestamps = headers = None
            if any(one.timestamp >= 0 for one in records):
                timestamps = [max(0, one.timestamp) for one in records]
            if any(one.headers for one in records):
                headers = [[list(pair) for pair in one.headers] for one in records]
            batch = MessageBatch(
                topic,
                values,
                keys,
                [one.partition for one in records],
                timestamps,
                headers,
            )
            if isinstance(topic_of, str):
                return [batch]
            return split_by_topic(batch, list(map(topic_of, records)))

        return serialize


def _topic_of(record: KafkaRecord) -> str:
    return record.topic


def _encode_some(
    column: list[Any], encode: Callable[[Sequence[Any]], list[bytes]] | None
) -> list[bytes | None]:
    """Encode values among which None may be, which stays."""
    if encode is None:
        for value in column:
            if value is not None and not isinstance(value, bytes):
                raise JobError(
                    f"a KafkaRecord has a {type(value).__name__} where bytes are written: give "
                    f"KafkaRecordSerializationSchema.records a schema for it",
                    record=repr(value)[:200],
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
        return column
    encoded = iter(encode([value for value in column if value is not None]))
    return [None if value is None else next(encoded) for value in column]


def split_by_topic(batch: MessageBatch, topics: Sequence[str]) -> list[MessageBatch]:
    """Return a batch for each topic. The messages of a topic stay in their order.

    Arguments:
        batch: the messages.
        topics: the topic of each message.
    """
    indices: dict[str, list[int]] = {}
    for index, topic in enumerate(topics):
        indices.setdefault(topic, []).append(index)
    for topic in indices:
        if not isinstance(topic, str) or not topic:
            raise JobError(
                f"the topic of a record is a name, not {topic!r}",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
    return [
        MessageBatch(
            topic,
            *(
                None if column is None else [column[index] for index in chosen]
                for column in batch[1:]
            ),  # type: ignore[arg-type]
        )
        for topic, chosen in indices.items()
    ]


class KafkaRecordSerializationSchemaBuilder:
    """Builds a `KafkaRecordSerializationSchema`. (PyFlink has a class of this name.)

    Examples:
        >>> schema = (
        ...     KafkaRecordSerializationSchema.builder()
        ...     .set_topic_selector(lambda order: f"orders-{order['country']}")
        ...     .set_key_serialization_schema(SimpleStringSchema())
        ...     .set_key_selector(lambda order: order["customer"])
        ...     .set_value_serialization_schema(Json())
        ...     .build()
        ... )
    """

    def __init__(self) -> None:
        self._arguments: dict[str, Any] = {}

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder:
        """Set the topic of all records."""
        return self._set(topic=topic)

    def set_topic_selector(
        self, topic_selector: Callable[[Any], str]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function that returns the topic of a record, or an object with `apply`."""
        return self._set(topic=getattr(topic_selector, "apply", topic_selector))

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema[Any]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set the schema that encodes values."""
        return self._set(value=value_serialization_schema)

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema[Any]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set the schema that encodes keys. Without a key selector, it gets the whole record."""
        return self._set(key=key_serialization_schema)

    def set_key_selector(
        self, key_selector: Callable[[Any], Any]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function that returns the key of a record."""
        return self._set(key_of=key_selector)

    def set_partitioner(
        self, partitioner: Callable[[Any], int]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function that returns the number of the partition of a record."""
        return self._set(partition_of=partitioner)

    def set_header_provider(
        self, header_provider: Callable[[Any], Sequence[tuple[str, bytes | None]]]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function that returns the headers of a record."""
        return self._set(headers_of=header_provider)

    def set_timestamp_selector(
        self, timestamp_selector: Callable[[Any], int]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Set a function that returns the time of a record, in milliseconds since the epoch."""
        return self._set(timestamp_of=timestamp_selector)

    def build(self) -> KafkaRecordSerializationSchema:
        """Return the schema.

        Raises:
            GraphError: if the topic or the schema of values is missing, or something is wrong.
        """
        arguments = dict(self._arguments)
        for name, method in (("topic", "set_topic"), ("value", "set_value_serialization_schema")):
            if name not in arguments:
                raise GraphError(f"a KafkaRecordSerializationSchema needs {method}(...)")
        return KafkaRecordSerializationSchema(**arguments)

    def _set(self, **arguments: Any) -> KafkaRecordSerializationSchemaBuilder:
        self._arguments.update(arguments)
        return self

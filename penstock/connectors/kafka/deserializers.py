"""Turn the messages of Kafka into records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.connectors.formats.messages import Decoded, MessageDecoder
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    SchemaContext,
    check_deserialization_schema,
)
from penstock.connectors.kafka.records import KafkaRecord
from penstock.dataflow.errors import GraphError
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.output_tag import SideOutput

if TYPE_CHECKING:
    from confluent_kafka import Message


class MessagesDecoder(ABC):
    """Decodes batches of messages of one partition, in a worker."""

    @abstractmethod
    def decode(self, messages: Sequence[Message]) -> Decoded:
        """Return the records of messages."""

    def take_side_output(self) -> list[SideOutput]:
        """Remove and return the bad messages for the side output."""
        return []

    def close(self, partition: str) -> None:
        """Log how many messages of a partition were skipped."""


class KafkaRecordDeserializationSchema:
    """Turns messages into records. (Flink has a class of this name.)

    Examples:
        >>> values = KafkaRecordDeserializationSchema.value_only(Json())
        >>> whole = KafkaRecordDeserializationSchema.records(Json(), key=SimpleStringSchema())
    """

    def __init__(
        self,
        value: DeserializationSchema[Any] | None,
        key: DeserializationSchema[Any] | None,
        *,
        whole: bool,
    ) -> None:
        self._value, self._key, self.whole = value, key, whole

    @staticmethod
    def value_only(schema: DeserializationSchema[Any]) -> KafkaRecordDeserializationSchema:
        """Return a schema whose records are the decoded values of messages.

        Arguments:
            schema: decodes values.
        """
        check_deserialization_schema("the schema of values", schema)
        return KafkaRecordDeserializationSchema(schema, None, whole=False)

    @staticmethod
    def records(
        value: DeserializationSchema[Any] | None = None,
        key: DeserializationSchema[Any] | None = None,
    ) -> KafkaRecordDeserializationSchema:
        """Return a schema whose records are `KafkaRecord`s.

        Arguments:
            value: decodes values; None leaves them bytes.
            key: decodes keys; None leaves them bytes.
        """
        for what, schema in (("values", value), ("keys", key)):
            if schema is not None:
                check_deserialization_schema(f"the schema of {what}", schema)
                if not schema.one_to_one:
                    raise GraphError(
                        f"a KafkaRecord has one value and one key, and {type(schema).__name__} "
                        f"makes any number of records of a message: use value_only"
                    )
        return KafkaRecordDeserializationSchema(value, key, whole=True)

    @property
    def on_error(self) -> str:
        """How the source handles a bad message; see `DeserializationSchema.on_error`."""
        modes = {one.on_error for one in (self._value, self._key) if one is not None}
        return "side_output" if "side_output" in modes else (modes.pop() if modes else "fail")

    def open(self, topic: str, metrics: MetricGroup) -> MessagesDecoder:
        """Return a decoder for the messages of a partition, in a worker."""
        value = key = None
        if self._value is not None:
            value = MessageDecoder(self._value, SchemaContext(topic, metrics=metrics))
        if self._key is not None:
            key = MessageDecoder(self._key, SchemaContext(topic, is_key=True, metrics=metrics))
        if self.whole:
            return _WholeRecords(value, key)
        assert value is not None
        return _Values(value)


class _Values(MessagesDecoder):
    def __init__(self, decoder: MessageDecoder) -> None:
        from confluent_kafka import Message

        self._decoder, self._value = decoder, Message.value

    def take_side_output(self) -> list[SideOutput]:
        return self._decoder.take_side_output()

    def close(self, partition: str) -> None:
        self._decoder.end_split(partition)

    def decode(self, messages: Sequence[Message]) -> Decoded:
        return self._decoder.decode(list(map(self._value, messages)), _place(messages, "value"))


class _WholeRecords(MessagesDecoder):
    def __init__(self, value: MessageDecoder | None, key: MessageDecoder | None) -> None:
        self._value, self._key = value, key

    def decode(self, messages: Sequence[Message]) -> Decoded:
        indices: Sequence[int] = range(len(messages))
        keys: Sequence[Any] = [message.key() for message in messages]
        if self._key is not None:
            found = self._key.decode(keys, _place(messages, "key"))
            keys, indices = found.records, found.pick(indices)
        values: Sequence[Any] = [messages[index].value() for index in indices]
        if self._value is not None:
            kept = [messages[index] for index in indices]
            found = self._value.decode(values, _place(kept, "value"))
            values, keys, indices = found.records, found.pick(keys), found.pick(indices)
        records = [
            _record(messages[index], key, value)
            for index, key, value in zip(indices, keys, values, strict=True)
        ]
        return Decoded(records, None if len(records) == len(messages) else list(indices))

    def take_side_output(self) -> list[SideOutput]:
        decoders = (one for one in (self._key, self._value) if one is not None)
        return [item for decoder in decoders for item in decoder.take_side_output()]

    def close(self, partition: str) -> None:
        for decoder in (self._key, self._value):
            if decoder is not None:
                decoder.end_split(partition)


def _record(message: Message, key: Any, value: Any) -> KafkaRecord:
    headers: Any = message.headers() or ()
    return KafkaRecord(
        value,
        key,
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        tuple(headers),
    )


def _place(messages: Sequence[Message], part: str) -> Callable[[int], str]:
    def place(index: int) -> str:
        message = messages[index]
        return (
            f"topic {message.topic()!r}, partition {message.partition()}, offset "
            f"{message.offset()}, {part}"
        )

    return place

"""Define the interfaces of formats: schemas that decode messages to records, and encode records.

Sources and sinks of messages, such as Kafka, NATS and Redis, take a schema. A schema works on
batches: it gets a list of messages, and returns a list of records. A program makes a schema, the
workers get copies of it, and each copy is opened once before its first batch.

Sources do not call a schema themselves. They use `MessageDecoder`, which handles messages that do
not fit, and sinks use `MessageEncoder`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from penstock.connectors.bad_messages import check_on_error
from penstock.dataflow.errors import GraphError
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.type_variables import T_co, T_contra


@dataclass(frozen=True)
class SchemaContext:
    """Describes where a schema is used. (Flink: `InitializationContext`.)

    Arguments:
        topic: the name of the topic, stream or subject; empty if there is none, or if there are
            several.
        is_key: whether the schema is for the keys of messages, and not for their values.
        metrics: the metrics of the source or sink in its subtask.

    Examples:
        >>> SchemaContext("orders").is_key
        False
    """

    topic: str = ""
    is_key: bool = False
    metrics: MetricGroup = field(default_factory=MetricGroup, compare=False)


class DeserializationSchema(ABC, Generic[T_co]):
    """Decodes messages to records. (Flink: `DeserializationSchema`.)

    A schema is sent to the workers, so its `__init__` opens nothing. Objects that decoding needs
    are made in `open`.

    Attributes:
        on_error: how a source handles a message that does not fit. "fail" fails the job, and shows
            the place and the message. "skip" leaves it out, counts it, and logs a warning.
            "side_output" emits a `BadMessage` to the side output `BAD_MESSAGES` of the source.
        one_to_one: whether each message is one record. If it is False, `deserialize` returns a list
            of records for each message, and a message may also be None: a tombstone, which has a
            key and no value. Otherwise a tombstone is the record None.

    Examples:
        >>> class Numbers(DeserializationSchema[int]):
        ...     def deserialize(self, messages):
        ...         return list(map(int, messages))
        >>> Numbers().deserialize([b"1", b"22"])
        [1, 22]
    """

    on_error: str = "fail"
    one_to_one: bool = True

    def open(self, context: SchemaContext) -> None:
        """Prepare the schema in a worker, before the first call of `deserialize`."""

    @abstractmethod
    def deserialize(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Return the record of each message.

        Arguments:
            messages: the messages, as bytes.

        Raises:
            ValueError: if a message does not fit. The messages are then decoded one by one, to find
                the bad ones. Other errors fail the job.
        """


class SerializationSchema(ABC, Generic[T_contra]):
    """Encodes records as messages. (Flink: `SerializationSchema`.)

    Examples:
        >>> class Numbers(SerializationSchema[int]):
        ...     def serialize(self, records):
        ...         return [b"%d" % number for number in records]
        >>> Numbers().serialize([1, 22])
        [b'1', b'22']
    """

    def open(self, context: SchemaContext) -> None:
        """Prepare the schema in a worker, before the first call of `serialize`."""

    @abstractmethod
    def serialize(self, records: Sequence[T_contra]) -> Sequence[bytes]:
        """Return the message of each record.

        If this method raises an exception, the job fails with a `JobError` that shows the
        exception's message and the record.
        """


class MessageFormat(DeserializationSchema[T_co], SerializationSchema[Any]):
    """The base of formats that decode and encode, such as `Json`.

    Arguments:
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Raises:
        GraphError: if `on_error` is unknown.
    """

    def __init__(self, *, on_error: str = "fail") -> None:
        check_on_error(type(self).__name__, on_error)
        self.on_error = on_error


def check_deserialization_schema(where: str, schema: object) -> DeserializationSchema[Any]:
    """Return the schema that a program passes to a source.

    Arguments:
        where: the source and its argument, for the error message.
        schema: the argument.

    Raises:
        GraphError: if it is not a `DeserializationSchema`, or its `on_error` is unknown.
    """
    if not isinstance(schema, DeserializationSchema):
        raise GraphError(
            f"{where} is a DeserializationSchema such as Json() or SimpleStringSchema(), not "
            f"{_shown(schema)}"
        )
    check_on_error(type(schema).__name__, schema.on_error)
    return schema


def check_serialization_schema(where: str, schema: object) -> SerializationSchema[Any]:
    """Return the schema that a program passes to a sink.

    Arguments:
        where: the sink and its argument, for the error message.
        schema: the argument.

    Raises:
        GraphError: if it is not a `SerializationSchema`.
    """
    if not isinstance(schema, SerializationSchema):
        raise GraphError(
            f"{where} is a SerializationSchema such as Json() or SimpleStringSchema(), not "
            f"{_shown(schema)}"
        )
    return schema


def _shown(schema: object) -> str:
    if isinstance(schema, type):
        return f"the class {schema.__name__}: write {schema.__name__}(...)"
    return repr(schema)

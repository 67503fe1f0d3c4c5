"""Append records to a stream of Redis, exactly once: `RedisStreamSink`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.connectors.formats.messages import MessageEncoder
from penstock.connectors.formats.schemas import (
    SchemaContext,
    SerializationSchema,
    check_serialization_schema,
)
from penstock.connectors.redis.connection import RedisConnection
from penstock.connectors.redis.ledger import RedisCommand, RedisTarget, RedisWriting
from penstock.connectors.redis.values import LARGEST_COMMAND, as_bytes, bad_record
from penstock.connectors.staged_sink import SinkPlace, StagedSink, Target
from penstock.dataflow.errors import GraphError
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.type_variables import PlainValue, T_contra


class RedisStreamSink(StagedSink[T_contra]):
    """Appends records to a Redis stream, exactly once and in order.

    The entries of a snapshot are written when the snapshot is complete, so their ids have the time
    of that moment. The entries of a large snapshot are written in several steps, and readers may
    see a part of them for a moment.

    Arguments:
        stream: the key of the stream.
        connection: the URL of the server, or a `RedisConnection`.
        encode: returns the fields of a record: a dict of str, bytes, int or float. By default, the
            record is this dict.
        schema: a `SerializationSchema` such as `Json()`, instead of `encode`. An entry then has one
            field.
        field: the name of this field.
        max_length: the number of entries to which the stream is trimmed, about. None keeps all.
        script_records: the number of records that are written in one step. The server serves no
            other client during a step.
        patience_seconds: how long to try to reach the server, before the job restarts and tries
            again.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> from penstock.connectors.redis import RedisStreamSink
        >>> sink = RedisStreamSink("totals", "redis://localhost:6379/0")
        >>> _ = env.from_collection([{"product": "tea", "total": 5}]).sink_to(sink)
    """

    def __init__(
        self,
        stream: str,
        connection: str | RedisConnection = "redis://localhost:6379/0",
        *,
        encode: Callable[[T_contra], Mapping[str, str | bytes | int | float]] | None = None,
        schema: SerializationSchema[T_contra] | None = None,
        field: str = "value",
        max_length: int | None = None,
        script_records: int = 500,
        patience_seconds: float = 60.0,
    ) -> None:
        if schema is not None:
            check_serialization_schema("schema of RedisStreamSink", schema)
            if encode is not None:
                raise GraphError("a RedisStreamSink has either encode or a schema")
        if max_length is not None and max_length < 1:
            raise GraphError(f"max_length is a number of entries, or None, and got {max_length!r}")
        if script_records < 1:
            raise GraphError(f"script_records is a number of records, and got {script_records!r}")
        self.stream, self.connection = stream, RedisConnection.of(connection)
        self.encode, self.schema, self.field = encode, schema, field
        self.max_length = max_length
        self.script_records, self.patience_seconds = script_records, patience_seconds

    @property
    def location(self) -> object:
        """The address of the server, and the stream."""
        return f"{self.connection.place} {self.stream}"

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that returns names and values of fields by turns, for each record."""
        if self.schema is not None:
            encoder = MessageEncoder(
                self.schema, SchemaContext(self.stream, False, context.metrics)
            )
            name = self.field.encode()
            return lambda records: [[name, value] for value in encoder.encode(records)]
        encode = self.encode
        return lambda records: [_entry(record, encode) for record in records]

    def connect(self, place: SinkPlace) -> Target:
        """Return a connection for the committer."""
        writing = RedisWriting(
            self.connection,
            self.stream,
            self._commands,
            self.script_records,
            self.patience_seconds,
        )
        return RedisTarget(writing, place)

    def _commands(self, entries: Any) -> Iterable[list[RedisCommand]]:
        trim = [] if self.max_length is None else ["MAXLEN", "~", str(self.max_length)]
        start = ["XADD", self.stream.encode(), *trim, "*"]
        return ([start + entry] for entry in entries)


def _entry(record: Any, encode: Callable[[Any], Any] | None) -> list[bytes]:
    what = "RedisStreamSink cannot write a record"
    try:
        fields = record if encode is None else encode(record)
        if not isinstance(fields, Mapping):
            raise TypeError(f"its fields are a {type(fields).__name__}, and not a dict: set encode")
        if not 0 < 2 * len(fields) < LARGEST_COMMAND:
            raise ValueError(f"it has {len(fields)} fields")
        return [as_bytes(part) for item in fields.items() for part in item]
    except Exception as error:
        raise bad_record(what, error, record) from error

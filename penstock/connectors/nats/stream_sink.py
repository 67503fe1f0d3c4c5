"""Append records to a stream of NATS JetStream, exactly once: `NatsStreamSink`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from penstock.connectors.formats.messages import MessageEncoder
from penstock.connectors.formats.schemas import (
    SchemaContext,
    SerializationSchema,
    check_serialization_schema,
)
from penstock.connectors.formats.text import SimpleStringSchema
from penstock.connectors.nats.connection import NatsConnection
from penstock.connectors.nats.target import NatsTarget, NatsWriting
from penstock.connectors.staged_sink import SinkPlace, StagedSink, Target
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.type_variables import PlainValue, T_contra


class NatsStreamSink(StagedSink[T_contra]):
    """Appends records to a JetStream stream, exactly once and in order.

    The messages of a snapshot are published when the snapshot is complete, so readers of a large
    snapshot may see a part of it for a moment.

    The sink must be the only one that writes to the stream while the job runs. With
    `alone_in="subject"`, it must be the only one that writes to its subject, and each message waits
    for the one before, which is slower.

    Arguments:
        stream: the name of the stream, which must exist.
        subject: the subject of the messages, or a function that returns that of a record.
        connection: the URL of a server, or a `NatsConnection`.
        schema: a `SerializationSchema` such as `Json()` for the content; by default, the text of
            the record.
        headers: returns the headers of a record, a dict of str. They may not begin with `Nats-`.
        alone_in: the part to which only this sink writes: "stream" or "subject".
        ledger: the name of the key-value bucket that has the markers of all sinks. It is made if it
            does not exist.
        patience_seconds: how long to try to reach the server, before the job restarts and tries
            again.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> from penstock.connectors.nats import NatsStreamSink
        >>> sink = NatsStreamSink("TOTALS", "totals.tea", "nats://localhost:4222")
        >>> _ = env.from_collection(["5"]).sink_to(sink)
    """

    def __init__(
        self,
        stream: str,
        subject: str | Callable[[T_contra], str],
        connection: str | NatsConnection = "nats://localhost:4222",
        *,
        schema: SerializationSchema[T_contra] | None = None,
        headers: Callable[[T_contra], Mapping[str, str]] | None = None,
        alone_in: Literal["stream", "subject"] = "stream",
        ledger: str = "penstock-ledger",
        patience_seconds: float = 60.0,
    ) -> None:
        if not stream or any(mark in stream for mark in " .*>"):
            raise GraphError(
                f"a NatsStreamSink writes to a stream, whose name has no blanks or dots, and got "
                f"{stream!r}"
            )
        if alone_in not in ("stream", "subject"):
            raise GraphError(f'alone_in is "stream" or "subject", and got {alone_in!r}')
        if alone_in == "subject" and not isinstance(subject, str):
            raise GraphError('alone_in="subject" needs one subject, and not a function')
        if isinstance(subject, str) and _is_wrong(subject):
            raise GraphError(f"messages cannot be published to the subject {subject!r}")
        if schema is not None:
            check_serialization_schema("schema of NatsStreamSink", schema)
        self.stream, self.subject = stream, subject
        self.connection = NatsConnection.of(connection)
        self.schema: SerializationSchema[Any] = schema or SimpleStringSchema()
        self.headers, self.alone_in, self.ledger = headers, alone_in, ledger
        self.patience_seconds = patience_seconds

    @property
    def location(self) -> object:
        """The address of the server, and the stream."""
        return f"{self.connection.place} {self.stream}"

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that returns subject, content and headers of each record."""
        encode = MessageEncoder(self.schema, SchemaContext(self.stream, False, context.metrics))
        subject, headers = self.subject, self.headers

        def encode_batch(records: list[Any]) -> PlainValue:
            contents = encode.encode(records)
            staged: list[PlainValue] = []
            for record, content in zip(records, contents, strict=True):
                to = subject if isinstance(subject, str) else _subject_of(subject, record)
                staged.append([to, content, _headers_of(headers, record)])
            return staged

        return encode_batch

    def connect(self, place: SinkPlace) -> Target:
        """Return a connection for the committer."""
        subject = self.subject if isinstance(self.subject, str) else None
        writing = NatsWriting(
            self.stream,
            subject,
            self.alone_in == "stream",
            self.connection,
            self.ledger,
            self.patience_seconds,
        )
        return NatsTarget(writing, place)


def _is_wrong(subject: object) -> bool:
    """Return whether messages cannot be published to a subject."""
    if not isinstance(subject, str):
        return True
    parts = subject.split(".")
    return any(not part or part in "*>" or not part.isprintable() or " " in part for part in parts)


def _subject_of(function: Callable[[Any], str], record: Any) -> str:
    subject = function(record)
    if _is_wrong(subject):
        raise JobError(
            f"NatsStreamSink cannot publish to the subject {subject!r}", record=repr(record)[:200]
        )
    return subject


def _headers_of(function: Callable[[Any], Mapping[str, str]] | None, record: Any) -> Any:
    if function is None:
        return None
    headers = dict(function(record))
    for name, value in headers.items():
        plain = isinstance(name, str) and isinstance(value, str)
        if not plain or name.startswith("Nats-") or "\n" in name + value or ":" in name:
            raise JobError(
                f"NatsStreamSink cannot write the header {name!r}: {value!r}: both are str without "
                f"line ends, and the name does not begin with Nats-",
                record=repr(record)[:200],
            )
    return headers

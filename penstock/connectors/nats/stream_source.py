"""Read streams of NATS JetStream by the sequence of messages: `NatsStreamSource`.

The sequence of a message is a position. Durable consumers are not used: their positions are in the
server, and would not go back with a snapshot.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Literal

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.enumerators import NamesEnumerator
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    check_deserialization_schema,
)
from penstock.connectors.nats.connection import NatsClient, NatsConnection, library
from penstock.connectors.nats.fetcher import StreamState, stream_state
from penstock.connectors.nats.message import NatsMessage, data_as_text
from penstock.connectors.nats.offsets import NatsOffsets
from penstock.connectors.nats.stream_reader import NatsReader, NatsReading, logger
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import ReaderContext, Source, SourceReader, Split, SplitEnumerator
from penstock.dataflow.type_variables import T_co

OnLostPosition = Literal["fail", "earliest"]
#: The filter of the split that reads all subjects.
_ALL = ">"


class NatsStreamSource(Source[T_co]):
    """Reads the messages of a JetStream stream.

    The whole stream is one split, or each subject is. The messages of a split come in their order.
    The event time of a message is the time at which the stream has stored it.

    If messages were removed before the job has read them, the job fails, and the error describes
    the loss. The job also fails if the server has lost its data, or if the stream was deleted and
    made again.

    Arguments:
        stream: the name of the stream.
        connection: the URL of a server, or a `NatsConnection`.
        subjects: filters, such as `["orders.eu", "orders.us.*"]`. Each is a split, so they can be
            read in parallel. No message should match two of them. By default, the stream is read
            as a whole.
        start: where to begin without a snapshot; by default at the first message.
        decode: returns the record for a `NatsMessage`. By default, a record is the content as text.
        schema: a `DeserializationSchema` such as `Json(Order)` for the content, instead of
            `decode`.
        bounded: whether to end at the last message that the stream has when the job is started.
        on_lost_position: "fail" if messages are lost, or "earliest" to go on with the first one
            that is left. That is counted in the metric `numPositionsLost`, and logged.
        fetch_size: the number of messages that are requested at once.
        patience_seconds: how long a reader tries to reach the server, before the job restarts and
            tries again.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> from penstock.connectors.nats import NatsStreamSource
        >>> source = NatsStreamSource("ORDERS", "nats://localhost:4222")
        >>> orders = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps())
    """

    def __init__(
        self,
        stream: str,
        connection: str | NatsConnection = "nats://localhost:4222",
        *,
        subjects: Iterable[str] | None = None,
        start: NatsOffsets | None = None,
        decode: Callable[[NatsMessage], T_co] | None = None,
        schema: DeserializationSchema[T_co] | None = None,
        bounded: bool = False,
        on_lost_position: OnLostPosition = "fail",
        fetch_size: int = 1_000,
        patience_seconds: float = 60.0,
    ) -> None:
        if not stream or any(mark in stream for mark in " .*>"):
            raise GraphError(
                f"a NatsStreamSource reads a stream, whose name has no blanks or dots, and got "
                f"{stream!r}: subjects are given as subjects=[...]"
            )
        self.subjects = [_ALL] if subjects is None else list(subjects)
        if isinstance(subjects, str) or not self.subjects:
            raise GraphError(f"subjects is a list of subjects, and got {subjects!r}")
        if len(set(self.subjects)) < len(self.subjects):
            raise GraphError(f"the subjects of a NatsStreamSource are different: {self.subjects}")
        if on_lost_position not in ("fail", "earliest"):
            raise GraphError(
                f'on_lost_position is "fail" or "earliest", and got {on_lost_position!r}'
            )
        if fetch_size < 1:
            raise GraphError(f"fetch_size is the number of messages of a request: {fetch_size!r}")
        if schema is not None:
            check_deserialization_schema("schema of NatsStreamSource", schema)
            if decode is not None or not schema.one_to_one:
                raise GraphError(
                    "a NatsStreamSource has either decode or a schema, and the schema makes one "
                    "record of each message: use flat_map for more of them"
                )
        self.stream = stream
        self.connection = NatsConnection.of(connection)
        self.start = start or NatsOffsets.earliest()
        self.decode: Callable[[NatsMessage], Any] = decode or data_as_text
        self.schema = schema
        self.bounded = bounded
        self.on_lost_position = on_lost_position
        self.fetch_size = fetch_size
        self.patience_seconds = patience_seconds

    @property
    def location(self) -> object:
        """The address of the server, and the stream."""
        return f"{self.connection.place} {self.stream}"

    @property
    def side_output_tags(self) -> tuple[OutputTag[Any], ...]:
        """The side output of the messages that the schema cannot decode, if it wants one."""
        return () if self.schema is None else side_output_tags(self.schema.on_error)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns the subjects."""
        del parallelism
        return _StreamEnumerator(self)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of one split at a time."""
        reading = NatsReading(
            self.stream,
            self.subjects,
            self.connection,
            self.decode,
            self.schema,
            self.on_lost_position,
            self.fetch_size,
            self.patience_seconds,
        )
        return NatsReader(reading, context)


class _StreamEnumerator(NamesEnumerator):
    """Assigns the subjects, with the place where each begins and, if it is bounded, ends."""

    def __init__(self, source: NatsStreamSource[Any]) -> None:
        super().__init__(source.subjects)
        self._source = source

    def find(self, names: list[str]) -> list[Split]:
        source = self._source
        what = f"read the stream {source.stream!r}"
        try:
            with closing(source.connection.open("penstock-nats-start")) as client:
                state = client.call(self._state(client))
                after = client.call(self._start(client, state))
        except Exception as error:
            raise source.connection.explain(error, what) from error
        payload = {
            "after": after,
            "created": state.created,
            "end": state.last if source.bounded else None,
        }
        return [Split(subject, dict(payload)) for subject in names]

    async def _state(self, client: NatsClient) -> StreamState:
        source = self._source
        state = await stream_state(client.streams, source.stream)
        info = await client.streams.stream_info(source.stream)
        retention = str(getattr(info.config.retention, "value", info.config.retention))
        if retention != "limits":
            raise JobError(
                f"the stream {source.stream!r} at {source.connection.place} removes messages when "
                f"they are acknowledged (retention {retention}), so a job cannot read them again: "
                f"use a stream with the retention limits, such as one with this stream as source",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return state

    async def _start(self, client: NatsClient, state: StreamState) -> int:
        """Return the sequence behind which a new run begins."""
        source, start = self._source, self._source.start
        if start.kind == "latest":
            return state.last
        if start.kind == "timestamp":
            return await self._sequence_before(client, start.value)
        first = state.first - 1
        if start.kind == "earliest" or start.value > first:
            return first if start.kind == "earliest" else start.value - 1
        what = (
            f"the stream {source.stream!r} at {source.connection.place} is to be read from the "
            f"sequence {start.value} on, and its first message is {state.first}: those before it "
            f"were removed"
        )
        if source.on_lost_position == "fail":
            raise JobError(
                f'{what}. Choose another sequence, or on_lost_position="earliest"',
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        logger.warning("%s: reading from there", what)
        return first

    async def _sequence_before(self, client: NatsClient, milliseconds: int) -> int:
        """Return the sequence of the last message that was stored before a time."""
        api, streams = library("nats.js.api"), client.streams
        moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_TIME,
            opt_start_time=moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            ack_policy=api.AckPolicy.NONE,
            mem_storage=True,
        )
        info = await streams.add_consumer(self._source.stream, config)
        await streams.delete_consumer(self._source.stream, info.name)
        sequence: int = info.delivered.stream_seq
        return sequence

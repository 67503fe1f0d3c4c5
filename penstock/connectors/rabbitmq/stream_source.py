"""Define `RabbitStreamSource`, which reads RabbitMQ streams by their offsets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.connectors.asyncio_bridge import AsyncioBridge
from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.bridge_queue import BridgeClosedError, BridgeQueue
from penstock.connectors.formats.messages import MessageDecoder
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    SchemaContext,
    check_deserialization_schema,
)
from penstock.connectors.rabbitmq.amqp_body import decode_message
from penstock.connectors.rabbitmq.stream_connection import (
    RabbitBroker,
    StreamConnection,
    StreamLostError,
    naming,
    require_rstream,
)
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)
from penstock.dataflow.type_variables import T_co

logger = logging.getLogger("penstock.connectors")

#: The number of chunks that wait to be read, and that the broker may send at a time.
_CHUNKS = 16
_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class RabbitMessage:
    """A message of a RabbitMQ stream.

    Arguments:
        body: the content.
        offset: the offset in the stream.
        timestamp: the time at which the broker has stored it, in milliseconds since the epoch.
        properties: the application properties.
        stream: the name of the stream.

    Examples:
        >>> RabbitMessage(b"21.5", 7, 0).offset
        7
    """

    body: bytes
    offset: int
    timestamp: int
    properties: dict[str, Any] = field(default_factory=dict)
    stream: str = ""


class RabbitStreamSource(Source[T_co]):
    """Reads RabbitMQ streams by their offsets.

    Each stream is a split. The position in a snapshot is the offset of the next message, so the
    source can be read again, and is exactly once in state. The source never ends. It stores no
    offsets at the broker.

    Event times are the times at which the broker has stored the messages, unless a watermark
    strategy has a timestamp assigner.

    Arguments:
        broker: the broker, or the name of its host.
        streams: the name of a stream, or a list of them, for example the partitions of a super
            stream.
        format: how to decode bodies to records, such as `Json()`. None emits `RabbitMessage`s.
        start: where a new job begins: "first" is the oldest message, "next" the next one to come,
            "last" the newest chunk; an offset; or a time. With a time, the first chunk may have
            some older messages.
        on_lost_position: "fail" ends the job if messages behind its position were removed by the
            retention of the stream, or if the stream was created again. "earliest" logs a warning,
            and goes on with the oldest message.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> source = RabbitStreamSource("localhost", "orders", Json(), start="next")
        >>> source.rewindable
        True
    """

    bounded = False

    def __init__(
        self,
        broker: RabbitBroker | str,
        streams: str | Iterable[str],
        format: DeserializationSchema[T_co] | None = None,
        *,
        start: str | int | datetime = "first",
        on_lost_position: str = "fail",
    ) -> None:
        self.broker = RabbitBroker(broker) if isinstance(broker, str) else broker
        self.streams = (streams,) if isinstance(streams, str) else tuple(streams)
        self.format = format
        self.start, self.on_lost_position = start, on_lost_position
        if format is not None:
            check_deserialization_schema("the format of a RabbitStreamSource", format)
        if not self.streams or not all(self.streams) or len(set(self.streams)) < len(self.streams):
            raise GraphError(f"a RabbitStreamSource needs different streams, not {self.streams!r}")
        named = start in ("first", "last", "next")
        numbered = isinstance(start, int) and not isinstance(start, bool) and start >= 0
        if not (named or numbered or isinstance(start, datetime)):
            raise GraphError(
                f'start is "first", "last", "next", an offset or a time, not {start!r}'
            )
        if isinstance(start, datetime) and start.tzinfo is None:
            raise GraphError(f"start has no time zone: {start!r}")
        if on_lost_position not in ("fail", "earliest"):
            raise GraphError(f'on_lost_position is "fail" or "earliest", not {on_lost_position!r}')

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tags of the side outputs: `BAD_MESSAGES`, if the format emits bad messages there."""
        return () if self.format is None else side_output_tags(self.format.on_error)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator with a split for each stream."""
        del parallelism
        return ListEnumerator([Split(stream) for stream in self.streams])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of one stream."""
        return _StreamReader(self, context)


@dataclass
class _Chunk:
    """Messages of a stream, as the broker stores them together."""

    first_offset: int
    timestamp: int
    messages: list[bytes]


class _StreamReader(SourceReader):
    """Reads one stream. Its position is the offset of the next message."""

    blocking = True

    def __init__(self, source: RabbitStreamSource[Any], context: ReaderContext) -> None:
        self._goes_on = context.goes_on_at_earliest(source.on_lost_position)
        require_rstream()
        self._source = source
        self._reconnects = context.metrics.counter("numReconnects")
        self._decoder: MessageDecoder | None = None
        if source.format is not None:
            self._decoder = MessageDecoder(source.format, SchemaContext(metrics=context.metrics))
        self._stream = ""
        #: The offset of the next message that the task reads; None before the first one.
        self._position: int | None = None
        #: The offset of the next message that the connection receives.
        self._next: int | None = None
        self._chunks: deque[_Chunk] = deque()
        self._bridge: AsyncioBridge | None = None
        self._queue: BridgeQueue[_Chunk] | None = None
        self._closed = False
        self._subscribed = False

    def open(self, split: Split, position: Any) -> None:
        self._stream, self._position, self._next = split.id, position, position
        self._bridge = AsyncioBridge(f"rabbitmq {split.id}")
        if self._closed:
            self._bridge.close()
            return
        self._queue = self._bridge.produce(self._receive_all, _CHUNKS)

    def read(self, max_records: int) -> Read:
        if not self._chunks:
            try:
                taken = None if self._queue is None else self._queue.take(_CHUNKS)
            except BridgeClosedError:
                if not self._closed:
                    raise
                taken = None
            self._chunks += taken or ()
        if not self._chunks:
            return Read([], self._position)
        chunk = self._chunks[0]
        first, timestamp, stream = chunk.first_offset, chunk.timestamp, self._stream
        taken_messages = chunk.messages[:max_records]
        if len(taken_messages) < len(chunk.messages):
            rest = chunk.messages[max_records:]
            self._chunks[0] = _Chunk(first + len(taken_messages), timestamp, rest)
        else:
            self._chunks.popleft()
        self._position = first + len(taken_messages)
        decoded = [decode_message(data) for data in taken_messages]
        if self._decoder is None:
            messages = [
                RabbitMessage(body, first + index, timestamp, properties, stream)
                for index, (body, properties) in enumerate(decoded)
            ]
            return TimedRead(Read(messages, self._position), [timestamp] * len(messages))
        records = self._decoder.decode(
            [body for body, _ in decoded], lambda index: f"stream {stream}, offset {first + index}"
        ).records
        bad = self._decoder.take_side_output()
        read = Read(records, self._position, side_output=bad)
        return TimedRead(read, [timestamp] * len(records))

    def close(self) -> None:
        self._closed = True
        if self._bridge is not None:
            self._bridge.close()

    # ---- in the event loop of the bridge

    async def _receive_all(self, queue: BridgeQueue[_Chunk]) -> None:
        """Receive chunks over one connection after the other."""
        broker, delay, lost_at = self._source.broker, 0.0, None
        while True:
            connection = None
            try:
                connection = await StreamConnection.open(broker, self._stream)
                await self._subscribe(connection, queue)
                if lost_at is not None:
                    logger.warning("connected to RabbitMQ at %s again", broker.address)
                    self._reconnects.inc()
                delay, lost_at = 0.0, None
                await connection.wait()
            except StreamLostError as error:
                now = time.monotonic()
                if lost_at is None:
                    lost_at = now
                    logger.warning("%s", error)
                if now - lost_at > broker.unreachable_seconds:
                    raise JobError(
                        f"for {broker.unreachable_seconds:g} s: {error}",
                        recoverability=Recoverability.ENVIRONMENT,
                    ) from error
                delay = min(max(2 * delay, _MIN_DELAY_SECONDS), _MAX_DELAY_SECONDS)
            finally:
                if connection is not None:
                    await connection.close()
            await asyncio.sleep(delay)

    async def _subscribe(self, connection: StreamConnection, queue: BridgeQueue[_Chunk]) -> None:
        from rstream import schema

        client = connection.client

        async def deliver(frame: Any) -> None:
            try:
                chunk = self._checked(frame)
                if chunk.messages:
                    await queue.put(chunk)
                    self._next = chunk.first_offset + len(chunk.messages)
                await client.credit(0, 1)
            except Exception as error:
                connection.fail(error)

        client.add_handler(schema.Deliver, deliver, name="0")
        await client.run_queue_listener_task(0, deliver)
        with naming(self._source.broker, self._stream):
            await client.subscribe(self._stream, 0, self._offset(), _CHUNKS)
        self._subscribed = True

    def _offset(self) -> Any:
        from rstream import OffsetType, schema

        start = self._source.start if self._next is None else self._next
        if isinstance(start, datetime):
            milliseconds = int(start.timestamp() * 1000)
            return schema.OffsetSpec.from_params(OffsetType.TIMESTAMP, milliseconds)
        if isinstance(start, int):
            return schema.OffsetSpec.from_params(OffsetType.OFFSET, start)
        return schema.OffsetSpec.from_params(OffsetType[start.upper()], None)

    def _checked(self, frame: Any) -> _Chunk:
        """Return the messages of a chunk from the next offset on."""
        first, messages = frame.chunk_first_offset, frame.get_messages()
        wanted = self._next
        if wanted is None and isinstance(self._source.start, int):
            wanted = self._source.start if first <= self._source.start else None
        if wanted is not None and messages:
            if not first <= wanted < first + len(messages):
                self._lost(wanted, first)
                wanted = first
            messages = messages[wanted - first :]
            first = wanted
        return _Chunk(first, frame.timestamp, [bytes(message) for message in messages])

    def _lost(self, wanted: int, found: int) -> None:
        """Raise if the position is not in the stream any more, or log it."""
        if found > wanted:
            text = (
                f"the stream {self._stream!r} of RabbitMQ at {self._source.broker.address} does "
                f"not have the offsets {wanted} to {found - 1} any more: its retention has removed "
                f"them"
            )
        else:
            text = (
                f"the stream {self._stream!r} of RabbitMQ at {self._source.broker.address} has "
                f"sent the offset {found}, and the job is at {wanted} already: the stream was "
                f"deleted and created again"
            )
        if not self._goes_on:
            raise JobError(
                f"{text}. To go on with what is there, set on_lost_position='earliest', or resume "
                f"the job with --on-lost-position earliest",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        logger.warning("%s; the job goes on at %d", text, found)

"""Define `RabbitStreamSink`, which publishes to a RabbitMQ stream exactly once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from penstock.connectors.asyncio_bridge import AsyncioBridge
from penstock.connectors.formats.messages import MessageEncoder
from penstock.connectors.formats.schemas import (
    SchemaContext,
    SerializationSchema,
    check_serialization_schema,
)
from penstock.connectors.rabbitmq.amqp_body import encode_body
from penstock.connectors.rabbitmq.publishing_ids import (
    PublishingId,
    TooManyError,
    numbered,
    small_hash,
)
from penstock.connectors.rabbitmq.stream_connection import (
    RabbitBroker,
    StreamConnection,
    StreamLostError,
    naming,
    require_rstream,
)
from penstock.connectors.staged_sink import Marker, SinkPlace, StagedSink, Target
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.type_variables import PlainValue, T_contra

#: The number of messages that wait for the confirmation of the broker.
_UNCONFIRMED = 10_000
#: The size of a frame, in bytes. It is smaller than what brokers allow by default.
_FRAME_BYTES = 256 << 10
_FRAME_MESSAGES = 2_000
_OVERHEAD_BYTES = 64
_MAX_DELAY_SECONDS = 2.0


class RabbitStreamSink(StagedSink[T_contra]):
    """Publishes records to a RabbitMQ stream, exactly once.

    Records are staged until their snapshot is complete, and are then published by the JobManager,
    in order. The sink is a named publisher. The publishing id of a message is made from the numbers
    of its snapshot and its record. So the stream leaves out messages that it has already.

    Arguments:
        broker: the broker, or the name of its host.
        stream: the name of the stream, which must exist.
        format: how to encode records, such as `Json()`. With None, the records are text or bytes.
        amqp: whether messages are encoded as AMQP 1.0, as the clients of RabbitMQ expect. With
            False, they have the bytes of the record alone.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> sink = RabbitStreamSink("localhost", "alerts", Json())
        >>> sink.exactly_once
        True
    """

    def __init__(
        self,
        broker: RabbitBroker | str,
        stream: str,
        format: SerializationSchema[T_contra] | None = None,
        *,
        amqp: bool = True,
    ) -> None:
        self.broker = RabbitBroker(broker) if isinstance(broker, str) else broker
        self.stream, self.format, self.amqp = stream, format, amqp
        if not stream or not isinstance(stream, str):
            raise GraphError(f"a RabbitStreamSink needs the name of a stream, not {stream!r}")
        if format is not None:
            check_serialization_schema("the format of a RabbitStreamSink", format)

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that stages the messages of a batch."""
        encode = self._encoder(context)
        if not self.amqp:
            return encode
        return lambda batch: list(map(encode_body, encode(batch)))

    def _encoder(self, context: WriterContext) -> Callable[[list[Any]], Any]:
        if self.format is not None:
            schema_context = SchemaContext(self.stream, metrics=context.metrics)
            return MessageEncoder(self.format, schema_context).encode

        def encode(batch: list[Any]) -> list[bytes]:
            contents = [record.encode() if isinstance(record, str) else record for record in batch]
            for content in contents:
                if not isinstance(content, bytes):
                    raise JobError(
                        f"a record is {type(content).__name__}, and not text or bytes: give the "
                        f"RabbitStreamSink a format, such as Json()",
                        recoverability=Recoverability.NON_RECOVERABLE,
                    )
            return contents

        return encode

    def connect(self, place: SinkPlace) -> Target:
        """Return the publisher of staged records."""
        return _StreamTarget(self, place)


class _StreamTarget(Target):
    """A named publisher. Its publishing ids are the marker.

    RabbitMQ does not fence other publishers of the same name. It need not: an old publisher sends
    the same messages with the same ids, in the same order. Of two such messages the stream has one.
    """

    def __init__(self, sink: RabbitStreamSink[Any], place: SinkPlace) -> None:
        require_rstream()
        self._sink, self._place = sink, place
        self._bridge = AsyncioBridge(f"rabbitmq {sink.stream}")
        self._connection: StreamConnection | None = None
        #: The last record of a snapshot of which the stream has a part only.
        self._part: PublishingId | None = None

    def fence(self) -> Marker | None:
        """Connect, and return the snapshot of the highest publishing id."""
        found = PublishingId.unpack(self._call(self._connect_patiently()))
        if found is None:
            return None
        if found.last:
            return Marker(found.number)
        self._part = found
        return Marker(found.number - 1) if found.number > 1 else None

    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        """Publish the output of a snapshot, and wait until the broker has confirmed it."""
        self._check_part(marker)
        frames: Iterator[Any] = batches
        contents = chain.from_iterable(frames)
        try:
            self._call(self._publish(numbered(marker.number, marker.digest, contents)))
        except TooManyError as error:
            raise JobError(str(error), recoverability=Recoverability.NON_RECOVERABLE) from error
        self._part = None

    def close(self) -> None:
        """Close the connection."""
        connection = self._connection
        self._bridge.close(last=None if connection is None else connection.close)

    def _call(self, coroutine: Any) -> Any:
        # Every wait of the coroutines is bounded.
        try:
            return self._bridge.call(coroutine)
        except StreamLostError as error:
            raise JobError(str(error), recoverability=Recoverability.ENVIRONMENT) from error

    def _check_part(self, marker: Marker) -> None:
        """Raise if the stream has a part of another output."""
        part = self._part
        if part is None:
            return
        if (part.number, part.hash) == (marker.number, small_hash(marker.digest)):
            return
        if marker.number < part.number:
            return
        raise JobError(
            f"the stream {self._sink.stream!r} has a part of the output of snapshot {part.number}, "
            f"up to its record {part.index}, and the job has another output for it: the newest "
            f"snapshots are lost, or two jobs go on from copies of one folder. Resume from the "
            f"snapshot {part.number} of the job that has published it; or begin a new line of "
            f"output with --resume NUMBER --fork. Nothing was published",
            operator=f"sink {self._place.name}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    # ---- in the event loop of the bridge

    async def _connect_patiently(self) -> int:
        """Connect, also if the broker is just starting."""
        seconds, since, delay = self._sink.broker.unreachable_seconds, time.monotonic(), 0.1
        while True:
            try:
                return await self._connect()
            except StreamLostError as error:
                if time.monotonic() - since > seconds:
                    raise StreamLostError(f"for {seconds:g} s: {error}") from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY_SECONDS)

    async def _connect(self) -> int:
        sink = self._sink
        if self._connection is not None:
            await self._connection.close()
        self._connection = connection = await StreamConnection.open(
            sink.broker, sink.stream, leader=True
        )
        with naming(sink.broker, sink.stream):
            client, name = connection.client, self._place.key
            await client.declare_publisher(sink.stream, name, 0)
            sequence: int = await client.query_publisher_sequence(sink.stream, name)
            return sequence

    async def _publish(self, messages: Iterator[tuple[int, bytes]]) -> None:
        connection = self._connection
        assert connection is not None, "publish before fence"
        confirmations = _Confirmations(self._sink, connection)
        for frame in self._frames(messages, connection.client.frame_max):
            await confirmations.wait_below(_UNCONFIRMED)
            confirmations.sent(frame)
            await connection.client.send_publish_frame(frame)
        await confirmations.wait_below(1)

    def _frames(self, messages: Iterator[tuple[int, bytes]], frame_max: int) -> Iterator[Any]:
        """Divide messages into frames of the protocol."""
        from rstream import schema

        frame: list[Any] = []
        size, limit = 0, min(_FRAME_BYTES, frame_max or _FRAME_BYTES)
        for publishing_id, content in messages:
            needed = len(content) + _OVERHEAD_BYTES
            if needed > (frame_max or _FRAME_BYTES):
                raise JobError(
                    f"a message of {len(content)} bytes does not fit into a frame of RabbitMQ, "
                    f"which has {frame_max} bytes: set stream.frame_max of the broker higher",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            if frame and (size + needed > limit or len(frame) >= _FRAME_MESSAGES):
                yield schema.Publish(publisher_id=0, messages=frame)
                frame, size = [], 0
            frame.append(
                schema.Message(publishing_id=publishing_id, filter_value=None, data=content)
            )
            size += needed
        if frame:
            yield schema.Publish(publisher_id=0, messages=frame)


class _Confirmations:
    """The messages that the broker has not confirmed yet."""

    def __init__(self, sink: RabbitStreamSink[Any], connection: StreamConnection) -> None:
        from rstream import schema

        self._sink, self._connection = sink, connection
        self._waiting: set[int] = set()
        self._changed = asyncio.Event()
        connection.client.add_handler(schema.PublishConfirm, self._confirmed, name="penstock")
        connection.client.add_handler(schema.PublishError, self._refused, name="penstock")

    def sent(self, frame: Any) -> None:
        """Record the messages of a frame."""
        self._waiting.update(message.publishing_id for message in frame.messages)

    def _confirmed(self, frame: Any) -> None:
        self._waiting.difference_update(frame.publishing_ids)
        self._changed.set()

    def _refused(self, frame: Any) -> None:
        from rstream import exceptions

        codes = {error.response_code for error in frame.errors}
        names = ", ".join(sorted(exceptions.ServerError.from_code(code).__name__ for code in codes))
        self._connection.fail(
            StreamLostError(
                f"RabbitMQ at {self._sink.broker.address} has not stored {len(frame.errors)} "
                f"messages of the stream {self._sink.stream!r}: {names}"
            )
        )
        self._changed.set()

    async def wait_below(self, count: int) -> None:
        """Wait until fewer messages wait for their confirmation.

        Raises:
            StreamLostError: if the connection is lost, or nothing is confirmed for too long.
        """
        seconds = self._sink.broker.unreachable_seconds
        while len(self._waiting) >= count:
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            either: set[asyncio.Future[Any]] = {changed, self._connection.lost}
            try:
                await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._connection.lost.done():
                await self._connection.wait()
            if not self._changed.is_set():
                raise StreamLostError(
                    f"RabbitMQ at {self._sink.broker.address} has confirmed nothing for "
                    f"{seconds:g} s"
                )

"""Define `MqttSink`, which publishes records to an MQTT broker at least once."""

from __future__ import annotations

import reprlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.connectors.formats.messages import MessageEncoder
from penstock.connectors.formats.schemas import (
    SchemaContext,
    SerializationSchema,
    check_serialization_schema,
)
from penstock.connectors.mqtt.broker import BrokerConnection, MqttBroker
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.type_variables import T_contra

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

_LOOK_SECONDS = 1.0
#: paho's code if a packet id is still in use, `MQTT_ERR_QUEUE_SIZE`.
_QUEUE_IS_FULL = 15
#: The largest content that MQTT allows, and an upper limit for the header before it, in bytes.
_LARGEST_BYTES, _HEADER_BYTES = 268_435_455, 16


class MqttSink(Sink[T_contra]):
    """Publishes each record as a message with QoS 1, at least once.

    Messages are published at once. A snapshot is complete when the broker has acknowledged all
    messages before it. After a failure, records since the last snapshot are published again.

    Arguments:
        broker: the broker, or the name of its host.
        topic: the topic, or a function of a record that returns it.
        format: how to encode records, such as `Json()`. With None, the records are text or bytes.
        retain: whether the broker keeps the last message of each topic for later subscribers. With
            a topic for each key, this is a table of the last values, and writing a record twice
            does no harm.
        max_in_flight: the number of messages that are sent before their acknowledgements. The
            broker may allow fewer.
        max_waiting: the number of messages that wait for an acknowledgement or to be sent, at which
            the sink takes no more records.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> sink = MqttSink("localhost", lambda alert: f"alerts/{alert['room']}", Json())
        >>> sink.exactly_once
        False
    """

    def __init__(
        self,
        broker: MqttBroker | str,
        topic: str | Callable[[Any], str],
        format: SerializationSchema[T_contra] | None = None,
        *,
        retain: bool = False,
        max_in_flight: int = 1_000,
        max_waiting: int = 10_000,
    ) -> None:
        self.broker = MqttBroker(broker) if isinstance(broker, str) else broker
        self.topic, self.format, self.retain = topic, format, retain
        self.max_in_flight, self.max_waiting = max_in_flight, max_waiting
        if format is not None:
            check_serialization_schema("the format of an MqttSink", format)
        if isinstance(topic, str) and (reason := _wrong_topic(topic)):
            raise GraphError(f"{topic!r} is no topic to publish to: {reason}")
        if not isinstance(topic, str) and not callable(topic):
            raise GraphError(f"topic is text or a function of a record, not {topic!r}")
        if not 0 < max_in_flight < 65_535:
            raise GraphError(f"max_in_flight is from 1 to 65534, not {max_in_flight}")
        if max_waiting < 1:
            raise GraphError(f"max_waiting is at least 1, not {max_waiting}")

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer with a connection of its own."""
        return _MqttWriter(self, context)


class _Outgoing:
    """A message until the broker has acknowledged it."""

    __slots__ = ("acknowledged", "payload", "topic")

    def __init__(self, topic: str, payload: bytes) -> None:
        self.topic, self.payload, self.acknowledged = topic, payload, False

    @property
    def size(self) -> int:
        """The size of the packet, in bytes."""
        return len(self.topic.encode()) + len(self.payload) + _HEADER_BYTES


class _MqttWriter(SinkWriter):
    """Publishes records. The thread of the connection publishes waiting messages, too."""

    def __init__(self, sink: MqttSink, context: WriterContext) -> None:
        self._sink = sink
        self._reconnects = context.metrics.counter("numReconnects")
        self._encoder: MessageEncoder | None = None
        if sink.format is not None:
            topic = sink.topic if isinstance(sink.topic, str) else ""
            self._encoder = MessageEncoder(
                sink.format, SchemaContext(topic, metrics=context.metrics)
            )
        self._connection: BrokerConnection | None = None
        #: The messages since the last barrier, from the first that is not acknowledged.
        self._written: deque[_Outgoing] = deque()
        #: The messages that are not sent yet.
        self._unsent: deque[_Outgoing] = deque()
        #: The messages that are sent and not acknowledged, by packet id.
        self._sent: dict[int, _Outgoing] = {}
        #: The packet ids that were acknowledged before `publish` has returned them.
        self._early: set[int] = set()
        #: Whether a thread sends messages.
        self._sending = False
        #: The packet ids that are sent again on a new connection. Others wait, to keep the order.
        self._again: set[int] = set()
        self._window = sink.max_in_flight
        #: The largest packet that the broker takes, in bytes; None if it has no limit.
        self._largest: int | None = None

    def open(self) -> None:
        connection = BrokerConnection(
            self._sink.broker,
            "",
            connected=self._on_connected,
            disconnected=lambda: None,
        )
        connection.client.on_publish = self._on_acknowledged
        # The window is kept here: paho does not keep its own when it connects again.
        connection.client.max_inflight_messages_set(0)
        self._connection = connection
        connection.start()

    def write(self, batch: list[Any]) -> None:
        connection, sink, written = self._connection, self._sink, self._written
        assert connection is not None, "write before open"
        messages = self._encode(batch)
        while written and written[0].acknowledged:
            written.popleft()
        written += messages
        with connection.changed:
            self._unsent += messages
        self._send()
        self._wait(lambda: len(self._unsent) + len(self._sent) < sink.max_waiting)

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        del snapshot
        written, self._written = self._written, deque()

        def finish() -> list[Any]:
            # The broker mostly acknowledges in order, but need not.
            self._wait(lambda: all(message.acknowledged for message in written))
            return []

        return finish if written else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _encode(self, batch: list[Any]) -> list[_Outgoing]:
        """Return the message of each record. Raise `JobError` if a record has none."""
        sink = self._sink
        if self._encoder is not None:
            payloads: list[Any] = self._encoder.encode(batch)
        else:
            payloads = [record.encode() if isinstance(record, str) else record for record in batch]
        if isinstance(sink.topic, str):
            topics = [sink.topic] * len(batch)
        else:
            topics = list(map(sink.topic, batch))
        for topic, payload, record in zip(topics, payloads, batch, strict=True):
            wrong = _wrong_payload(payload) or (topic is not sink.topic and _wrong_topic(topic))
            if wrong:
                raise JobError(
                    f"a record cannot be published to the topic {topic!r}: {wrong}",
                    record=reprlib.repr(record),
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
        return list(map(_Outgoing, topics, payloads))

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait for acknowledgements. Raise an error if none has come for too long."""
        connection = self._connection
        assert connection is not None
        seconds = self._sink.broker.unreachable_seconds
        with connection.changed:
            left, since = len(self._unsent) + len(self._sent), time.monotonic()
            while True:
                connection.check()
                if condition():
                    return
                connection.changed.wait(_LOOK_SECONDS)
                now = len(self._unsent) + len(self._sent)
                if now != left:
                    left, since = now, time.monotonic()
                elif time.monotonic() - since > seconds:
                    raise JobError(
                        f"the MQTT broker {self._sink.broker.address} has acknowledged nothing for "
                        f"{seconds:g} s; {left} messages wait",
                        recoverability=Recoverability.ENVIRONMENT,
                    )

    def _send(self) -> None:
        """Send messages while the window allows it, unless another thread does."""
        connection = self._connection
        assert connection is not None
        changed, sink = connection.changed, self._sink
        with changed:
            if self._sending:
                return
            self._sending = True
        while True:
            with changed:
                free = connection.is_connected and len(self._sent) < self._window
                if not free or self._again or not self._unsent:
                    # A thread that found another one sending has changed these before.
                    self._sending = False
                    return
                message = self._unsent.popleft()
            if self._largest is not None and message.size > self._largest:
                connection.fail(self._refused(message, f"it takes {self._largest} bytes at most"))
                return
            info = connection.client.publish(message.topic, message.payload, 1, sink.retain)
            if info.rc == _QUEUE_IS_FULL:
                connection.fail(self._refused(message, "it does not acknowledge an older one"))
                return
            with changed:
                if info.mid in self._early:
                    self._early.discard(info.mid)
                    message.acknowledged = True
                else:
                    self._sent[info.mid] = message

    # ---- callbacks of the connection

    def _on_connected(self, _resumed: bool, properties: Properties | None) -> None:
        assert self._connection is not None
        allowed = getattr(properties, "ReceiveMaximum", 65_535)
        self._window = min(self._sink.max_in_flight, allowed)
        self._largest = getattr(properties, "MaximumPacketSize", None)
        if self._connection.losses:
            self._reconnects.inc()
        self._again = set(self._sent)
        self._send()

    def _on_acknowledged(
        self, _client: Client, _data: object, packet_id: int, reason: Any, _properties: object
    ) -> None:
        connection = self._connection
        assert connection is not None
        with connection.changed:
            message = self._sent.pop(packet_id, None)
            self._again.discard(packet_id)
            if reason.is_failure:
                connection.fail(self._refused(message, str(reason)))
            elif message is None:
                self._early.add(packet_id)
            else:
                message.acknowledged = True
            connection.changed.notify_all()
        self._send()

    def _refused(self, message: _Outgoing | None, reason: str) -> JobError:
        what = "a message" if message is None else f"a message of topic {message.topic!r}"
        return JobError(
            f"the MQTT broker {self._sink.broker.address} refuses {what}: {reason}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def _wrong_topic(topic: Any) -> str | None:
    """Return why a topic is none that can be published to, or None."""
    if not isinstance(topic, str):
        return f"it is of type {type(topic).__name__}"
    if not topic:
        return "it is empty"
    if set(topic) & {"+", "#", "\0"}:
        return "it contains '+', '#' or a zero character"
    if len(topic.encode()) > 65_535:
        return "it is longer than 65535 bytes"
    return None


def _wrong_payload(payload: Any) -> str | None:
    """Return why a content cannot be published, or None."""
    if not isinstance(payload, bytes):
        return f"it is {type(payload).__name__}, and not text or bytes: give the MqttSink a format"
    if len(payload) > _LARGEST_BYTES:
        return f"it has {len(payload)} bytes, and MQTT allows {_LARGEST_BYTES}"
    return None

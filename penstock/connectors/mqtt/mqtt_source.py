"""Define `MqttSource`, which reads topics of an MQTT broker at least once."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.formats.messages import Decoded, MessageDecoder
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    SchemaContext,
    check_deserialization_schema,
)
from penstock.connectors.mqtt.broker import BrokerConnection, MqttBroker
from penstock.connectors.mqtt.deliveries import Deliveries, Delivery
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
)
from penstock.dataflow.type_variables import T_co

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.properties import Properties

logger = logging.getLogger("penstock.connectors")

#: The largest expiry time, which means that a session never expires.
_NEVER = 0xFFFFFFFF
_WEEK_SECONDS = 7 * 86_400
#: The time after which a waiting read looks whether the broker was lost for too long, in seconds.
_LOOK_SECONDS = 1.0
#: The connection is not read any more while this number of messages wait to be read. Only messages
#: without acknowledgement reach it: for others, the broker stops at `receive_maximum`.
_MAX_WAITING = 100_000


@dataclass(frozen=True, slots=True)
class MqttMessage:
    """A message of an MQTT topic.

    Arguments:
        topic: the topic.
        payload: the content.
        retained: whether the broker had kept the message for new subscribers.
        content_type: the type of the content that the publisher has given, or None.
        user_properties: the names and values that the publisher has given, in their order.

    Examples:
        >>> MqttMessage("rooms/kitchen", b"21.5").payload
        b'21.5'
    """

    topic: str
    payload: bytes
    retained: bool = False
    content_type: str | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


class MqttSource(Source[T_co]):
    """Reads topics of an MQTT broker, at least once.

    The broker keeps a session for the source, with all messages that are not acknowledged. The
    source acknowledges a message when a snapshot that contains it is complete. So no message is
    lost, but those since the last snapshot come again after a failure: the source is not
    `rewindable`. The job must take snapshots. The source never ends.

    The session begins when the source first connects. Messages of earlier times do not come, apart
    from retained ones.

    Arguments:
        broker: the broker, or the name of its host.
        topics: a topic filter, or a list of them. `+` stands for one level, and `#` at the end for
            all others.
        client_id: the name of the session. No other client may use it, and it must stay the same.
        format: how to decode the payloads to records, such as `Json()`. None emits `MqttMessage`s.
        shares: the number of sessions that share the messages, so that several subtasks read. With
            more than one, the source has shared subscriptions: the order of messages is lost, and
            retained messages do not come.
        session_expiry_seconds: the time for which the broker keeps the session while the job does
            not run, in seconds. None keeps it without end, if the broker allows that.
        receive_maximum: the number of messages that the broker may send before they are
            acknowledged. It limits the number of messages between two snapshots.
        on_lost_session: "fail" ends the job if it is restarted and the broker has lost the session,
            and with it messages. "continue" logs a warning.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> source = MqttSource("localhost", "rooms/+/temperature", "heating")
        >>> source.rewindable, source.acknowledges
        (False, True)
    """

    rewindable = False
    acknowledges = True
    bounded = False
    has_event_times = False

    def __init__(
        self,
        broker: MqttBroker | str,
        topics: str | Iterable[str],
        client_id: str,
        format: DeserializationSchema[T_co] | None = None,
        *,
        shares: int = 1,
        session_expiry_seconds: int | None = _WEEK_SECONDS,
        receive_maximum: int = 65_535,
        on_lost_session: str = "fail",
    ) -> None:
        self.broker = MqttBroker(broker) if isinstance(broker, str) else broker
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.client_id = client_id
        self.format = format
        self.shares = shares
        self.session_expiry_seconds = (
            _NEVER if session_expiry_seconds is None else session_expiry_seconds
        )
        self.receive_maximum = receive_maximum
        self.on_lost_session = on_lost_session
        if format is not None:
            check_deserialization_schema("the format of an MqttSource", format)
        if not self.topics:
            raise GraphError("an MQTT source needs at least one topic filter")
        for topic in self.topics:
            _check_filter(topic)
        if not client_id or not isinstance(client_id, str) or set(client_id) & set("/+#"):
            raise GraphError(
                f"an MQTT source needs a client id without '/', '+' and '#', not {client_id!r}: "
                f"the broker keeps the messages for the client of that name"
            )
        if shares < 1:
            raise GraphError(f"shares is at least 1, not {shares}")
        if not 0 < self.session_expiry_seconds <= _NEVER:
            raise GraphError("session_expiry_seconds is from 1 to 4294967295, or None")
        if not 0 < receive_maximum < 65_536:
            raise GraphError(f"receive_maximum is from 1 to 65535, not {receive_maximum}")
        if on_lost_session not in ("fail", "continue"):
            raise GraphError(f'on_lost_session is "fail" or "continue", not {on_lost_session!r}')

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tags of the side outputs: `BAD_MESSAGES`, if the format emits bad messages there."""
        return () if self.format is None else side_output_tags(self.format.on_error)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator with a split for each session."""
        del parallelism
        if self.shares == 1:
            return ListEnumerator([Split(self.client_id, {"shared": False})])
        return ListEnumerator(
            [Split(f"{self.client_id}-{share}", {"shared": True}) for share in range(self.shares)]
        )

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of one session."""
        return _MqttReader(self, context)


class _MqttReader(SourceReader):
    """Receives the messages of one session. Its position has their number, and the filters."""

    blocking = True

    def __init__(self, source: MqttSource, context: ReaderContext) -> None:
        self._source = source
        self._name = context.uid
        self._again = context.metrics.counter("numMessagesSentAgain")
        self._reconnects = context.metrics.counter("numReconnects")
        self._lost_sessions = context.metrics.counter("numLostSessions")
        self._decoder: MessageDecoder | None = None
        if source.format is not None:
            context_of_format = SchemaContext(metrics=context.metrics)
            self._decoder = MessageDecoder(source.format, context_of_format)
        self._connection: BrokerConnection | None = None
        self._closed = False
        #: The messages that are not read yet, with their numbers.
        self._waiting: deque[tuple[int, MqttMessage]] = deque()
        self._deliveries = Deliveries()
        self._number = 0
        self._client_id = ""
        self._filters: list[str] = []
        self._old_filters: list[str] = []
        #: Whether an earlier attempt has had the session.
        self._resuming = False
        #: Whether a read has returned a position, which shows later attempts that there is one.
        self._shown = False

    def open(self, split: Split, position: Any) -> None:
        source = self._source
        self._resuming = position is not None
        self._number, self._old_filters = position or (0, [])
        self._deliveries = Deliveries(self._number)
        self._client_id = split.id
        prefix = f"$share/{source.client_id}/" if split.payload["shared"] else ""
        self._filters = [prefix + topic for topic in source.topics]
        connection = BrokerConnection(
            source.broker,
            self._client_id,
            session_expiry_seconds=source.session_expiry_seconds,
            receive_maximum=source.receive_maximum,
            connected=self._on_connected,
            disconnected=self._on_disconnected,
        )
        connection.client.on_message = self._on_message
        connection.client.on_subscribe = self._on_subscribe
        self._connection = connection
        if self._closed:
            return
        connection.start()

    def read(self, max_records: int) -> Read:
        connection, waiting = self._connection, self._waiting
        assert connection is not None, "read before open"
        with connection.changed:
            connection.check()
            while not (waiting or self._closed or (connection.is_connected and not self._shown)):
                connection.changed.wait(_LOOK_SECONDS)
                connection.check()
            taken = [waiting.popleft() for _ in range(min(max_records, len(waiting)))]
            if len(waiting) < _MAX_WAITING <= len(waiting) + len(taken):
                connection.changed.notify_all()
        if taken:
            self._number = taken[-1][0]
        self._shown = True
        messages = [message for _, message in taken]
        position = [self._number, self._filters]
        if self._decoder is None:
            return Read(messages, position)
        decoded = self._decode(messages)
        return Read(decoded.records, position, side_output=self._decoder.take_side_output())

    def _decode(self, messages: list[MqttMessage]) -> Decoded:
        assert self._decoder is not None
        payloads = [message.payload for message in messages]
        return self._decoder.decode(
            payloads, lambda index: f"the MQTT topic {messages[index].topic!r}"
        )

    def snapshot_completed(self, position: Any) -> None:
        connection = self._connection
        if connection is None or position is None:
            return
        with connection.changed:
            for packet_id in self._deliveries.complete(position[0]):
                connection.client.ack(packet_id, 1)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    # ---- callbacks of the connection

    def _on_connected(self, resumed: bool, _properties: Properties | None) -> None:
        from paho.mqtt.subscribeoptions import SubscribeOptions

        connection, source = self._connection, self._source
        assert connection is not None
        forgotten = self._deliveries.connect(resumed=resumed)
        if not resumed and (self._resuming or connection.losses):
            self._lost_sessions.inc()
            text = (
                f"the MQTT broker {source.broker.address} has lost the session "
                f"{self._client_id!r} of the source {self._name!r}, and with it all messages that "
                f"were not acknowledged or came while the session did not exist"
            )
            if source.on_lost_session == "fail" and not connection.losses:
                self._leave_no_session()
                raise JobError(
                    f"{text}. To go on without them, set on_lost_session='continue'",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            # A job that runs has all messages that came, and would lose them by a restart.
            logger.warning("%s. %d of them would be lost by a failure now", text, forgotten)
        if connection.losses:
            self._reconnects.inc()
        self._resuming = True
        gone = [topic for topic in self._old_filters if topic not in self._filters]
        if resumed and gone:
            connection.client.unsubscribe(gone)
        # Retained messages are wanted once, when the subscription is new.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        connection.client.subscribe([(topic, options) for topic in self._filters])

    def _leave_no_session(self) -> None:
        """Remove the session that this connection began, so that a resumed job fails again."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        assert self._connection is not None
        properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0
        self._connection.client.disconnect(properties=properties)

    def _on_subscribe(
        self, _client: Client, _data: object, _id: int, reasons: list[Any], _properties: object
    ) -> None:
        assert self._connection is not None
        for topic, reason in zip(self._filters, reasons, strict=False):
            if reason.is_failure or reason.value < 1:
                why = str(reason) if reason.is_failure else "it offers QoS 0 only"
                self._connection.fail(
                    JobError(
                        f"the MQTT broker {self._source.broker.address} refuses the subscription "
                        f"of {topic!r}: {why}. Let the user read it, or change the filter",
                        recoverability=Recoverability.NON_RECOVERABLE,
                    )
                )

    def _on_disconnected(self) -> None:
        self._deliveries.disconnect()

    def _on_message(self, client: Client, _data: object, received: MQTTMessage) -> None:
        connection = self._connection
        assert connection is not None
        with connection.changed:
            packet_id = received.mid if received.qos else 0
            digest = hash((received.topic, received.payload))
            delivery = self._deliveries.receive(packet_id, digest, again=received.dup)
            if delivery is Delivery.NEW:
                self._waiting.append((self._deliveries.count, _message(received)))
                connection.changed.notify_all()
                while len(self._waiting) >= _MAX_WAITING and not self._closed:
                    connection.changed.wait(_LOOK_SECONDS)
                return
            self._again.inc()
            if delivery is Delivery.COMPLETE:
                client.ack(packet_id, 1)


def _message(received: MQTTMessage) -> MqttMessage:
    properties = received.properties
    return MqttMessage(
        received.topic,
        bytes(received.payload),
        bool(received.retain),
        getattr(properties, "ContentType", None),
        tuple(getattr(properties, "UserProperty", ())),
    )


def _check_filter(topic: str) -> None:
    levels = topic.split("/") if isinstance(topic, str) else []
    wrong = (
        not topic
        or "\0" in topic
        or "#" in levels[:-1]
        or any(len(level) > 1 and set(level) & {"+", "#"} for level in levels)
    )
    if wrong:
        raise GraphError(
            f"{topic!r} is no topic filter of MQTT: levels are separated by '/', '+' stands for "
            f"one level, and '#' for all at the end"
        )
    if levels[0] == "$share":
        raise GraphError(f"{topic!r}: give the topic filter alone, and set shares= to share it")

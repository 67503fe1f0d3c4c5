"""A small MQTT 5 broker in threads of a test, without a server."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Self

_CONNECT, _PUBLISH, _PUBACK, _SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ, _DISCONNECT = (
    1,
    3,
    4,
    8,
    10,
    12,
    14,
)


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a topic matches a topic filter."""
    levels, wanted = topic.split("/"), topic_filter.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


@dataclass
class _Message:
    topic: str
    payload: bytes
    properties: bytes
    retained: bool = False


@dataclass
class _Session:
    """Holds what the broker keeps for a client id."""

    filters: dict[str, str] = field(default_factory=dict)
    #: Messages that are not sent yet, and those that are not acknowledged, by packet id.
    waiting: deque[_Message] = field(default_factory=deque)
    unacknowledged: dict[int, _Message] = field(default_factory=dict)
    connection: _Connection | None = None
    next_id: int = 0


class FakeMqttBroker:
    """An MQTT 5 broker for tests, on the loopback interface.

    It has sessions, QoS 0 and 1, retained messages, wildcards and shared subscriptions. It has no
    TLS, credentials and QoS 2, and sends all messages to the first client of a shared subscription.

    Examples:
        >>> with FakeMqttBroker() as broker:
        ...     address = MqttBroker(broker.host, broker.port)
        ...     _ = env.from_collection(["21", "22"]).sink_to(MqttSink(address, "kitchen"))
        ...     _ = env.execute("temperatures")
        >>> broker.published
        [('kitchen', b'21'), ('kitchen', b'22')]

    Attributes:
        published: the topics and payloads that clients have published.
    """

    def __init__(self) -> None:
        self.host, self.port = "127.0.0.1", 0
        self.published: list[tuple[str, bytes]] = []
        self._sessions: dict[str, _Session] = {}
        self._retained: dict[str, _Message] = {}
        self._lock = threading.RLock()
        self._server: socketserver.ThreadingTCPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start the broker, with the sessions that it had."""
        broker = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    _Connection(broker, self.request).run()

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True
            block_on_close = False

        self._server = Server((self.host, self.port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the broker, and cut all connections. It keeps its sessions."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            self._thread.join()
            server.server_close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            for session in self._sessions.values():
                if session.connection is not None:
                    session.connection.cut()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish a message to the clients."""
        self._publish(_Message(topic, payload, b""), retain=retain)

    def unacknowledged(self, client_id: str) -> int:
        """Return the number of messages that the broker keeps for a client."""
        with self._lock:
            session = self._sessions.get(client_id, _Session())
            return len(session.waiting) + len(session.unacknowledged)

    def _publish(self, message: _Message, *, retain: bool) -> None:
        with self._lock:
            if retain:
                self._retained[message.topic] = _Message(
                    message.topic, message.payload, message.properties, retained=True
                )
                if not message.payload:
                    del self._retained[message.topic]
            groups: set[str] = set()
            for session in self._sessions.values():
                for topic_filter, group in session.filters.items():
                    if matches(topic_filter, message.topic) and not (group and group in groups):
                        groups.add(group)
                        session.waiting.append(message)
                        break
                if session.connection is not None:
                    session.connection.send_waiting()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Connection:
    """A connection of a client."""

    def __init__(self, broker: FakeMqttBroker, connection: socket.socket) -> None:
        self._broker, self._socket = broker, connection
        self._stream = connection.makefile("rb")
        self._session = _Session()
        self._client_id = ""
        self._expires = True

    def run(self) -> None:
        """Handle packets until the client has gone."""
        try:
            while True:
                head = self._stream.read(1)
                if not head:
                    return
                body = self._stream.read(self._length())
                with self._broker._lock:
                    if not self._handle(head[0] >> 4, head[0] & 15, body):
                        return
        finally:
            with self._broker._lock:
                if self._session.connection is self:
                    self._session.connection = None
                    if self._expires:
                        self._broker._sessions.pop(self._client_id, None)
            self._stream.close()

    def cut(self) -> None:
        """Cut the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def send_waiting(self) -> None:
        """Send the messages that wait."""
        session = self._session
        while session.waiting:
            session.next_id = session.next_id % 65_535 + 1
            message = session.waiting.popleft()
            session.unacknowledged[session.next_id] = message
            self._send_message(session.next_id, message, again=False)

    def _handle(self, kind: int, flags: int, body: bytes) -> bool:
        if kind == _CONNECT:
            self._connect(body)
        elif kind == _PUBLISH:
            self._receive(flags, body)
        elif kind == _PUBACK:
            self._session.unacknowledged.pop(int.from_bytes(body[:2], "big"), None)
        elif kind == _SUBSCRIBE:
            self._subscribe(body)
        elif kind == _UNSUBSCRIBE:
            self._unsubscribe(body)
        elif kind == _PINGREQ:
            self._send(0xD0, b"")
        return kind != _DISCONNECT

    def _connect(self, body: bytes) -> None:
        clean = bool(body[7] & 2)
        properties, rest = _properties(body[10:])
        size = int.from_bytes(rest[:2], "big")
        self._client_id = rest[2 : 2 + size].decode() or f"client-{id(self)}"
        # The session expiry interval is the first property that paho sends.
        self._expires = not (properties[:1] == b"\x11" and any(properties[1:5]))
        sessions = self._broker._sessions
        old = sessions.get(self._client_id)
        if old is not None and old.connection is not None:
            old.connection.cut()
        present = old is not None and not clean
        self._session = old if old is not None and present else _Session()
        self._session.connection = self
        sessions[self._client_id] = self._session
        self._send(0x20, bytes((present, 0, 0)))
        for packet_id, message in self._session.unacknowledged.items():
            self._send_message(packet_id, message, again=True)
        self.send_waiting()

    def _receive(self, flags: int, body: bytes) -> None:
        size = int.from_bytes(body[:2], "big")
        topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
        quality = flags >> 1 & 3
        packet_id, rest = (rest[:2], rest[2:]) if quality else (b"", rest)
        properties, payload = _properties(rest)
        self._broker.published.append((topic, payload))
        self._broker._publish(_Message(topic, payload, properties), retain=bool(flags & 1))
        if quality:
            self._send(0x40, packet_id + b"\0\0")

    def _subscribe(self, body: bytes) -> None:
        packet_id, (_, rest) = body[:2], _properties(body[2:])
        granted, retained = b"", []
        while rest:
            size = int.from_bytes(rest[:2], "big")
            name = rest[2 : 2 + size].decode()
            rest = rest[3 + size :]
            shared = name.split("/", 2) if name.startswith("$share/") else None
            topic_filter, group = (shared[2], shared[1]) if shared else (name, "")
            if topic_filter not in self._session.filters and not group:
                found = self._broker._retained.values()
                retained += [one for one in found if matches(topic_filter, one.topic)]
            self._session.filters[topic_filter] = group
            granted += b"\x01"
        self._send(0x90, packet_id + b"\0" + granted)
        self._session.waiting.extend(retained)
        self.send_waiting()

    def _unsubscribe(self, body: bytes) -> None:
        packet_id, (_, rest) = body[:2], _properties(body[2:])
        results = b""
        while rest:
            size = int.from_bytes(rest[:2], "big")
            self._session.filters.pop(rest[2 : 2 + size].decode().rpartition("$")[2], None)
            rest, results = rest[2 + size :], results + b"\0"
        self._send(0xB0, packet_id + b"\0" + results)

    def _send_message(self, packet_id: int, message: _Message, *, again: bool) -> None:
        topic = message.topic.encode()
        properties = _encoded(len(message.properties)) + message.properties
        head = struct.pack(">H", len(topic)) + topic + struct.pack(">H", packet_id)
        flags = 0x32 | again << 3 | message.retained
        self._send(flags, head + properties + message.payload)

    def _send(self, head: int, body: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(bytes((head,)) + _encoded(len(body)) + body)

    def _length(self) -> int:
        length = shift = 0
        while True:
            [byte] = self._stream.read(1) or b"\0"
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return length


def _encoded(length: int) -> bytes:
    """Return a length as MQTT encodes it."""
    found = bytearray()
    while True:
        length, digit = divmod(length, 128)
        found.append(digit | (128 if length else 0))
        if not length:
            return bytes(found)


def _properties(data: bytes) -> tuple[bytes, Any]:
    """Return the properties at the beginning of data, and the rest."""
    length, begin = 0, 0
    for begin, byte in enumerate(data, 1):
        length |= (byte & 127) << 7 * (begin - 1)
        if byte < 128:
            break
    return data[begin : begin + length], data[begin + length :]

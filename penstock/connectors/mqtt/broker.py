"""Connect to an MQTT broker, and stay connected.

`MqttBroker` says where the broker is. `BrokerConnection` runs a client of paho's in a thread: it
connects again with growing delays, and keeps errors for the thread that uses it.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.connectors.tls import Tls, speaks_tls, tls_refusal
from penstock.dataflow.errors import GraphError, JobError, Recoverability

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

logger = logging.getLogger("penstock.connectors")

#: Reason codes after which another attempt cannot help: protocol version, client id, credentials.
_REFUSALS = {0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C}
_SESSION_TAKEN_OVER = 0x8E
_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 10.0
#: The time after which a connection without packets looks whether it must send one, in seconds.
_LOOK_SECONDS = 1.0
#: The time for which the end of a connection waits until acknowledgements are sent, in seconds.
_CLOSE_SECONDS = 2.0
#: A connection is short if it ends within this time, in seconds. After
#: `_SHORT_CONNECTIONS` of them in a row, another client probably uses the same id.
_SHORT_SECONDS, _SHORT_CONNECTIONS = 5.0, 8


@dataclass(frozen=True)
class MqttBroker:
    """Describes how to connect to an MQTT broker, with MQTT 5.

    Arguments:
        host: the name or address of the broker.
        port: the port; None for 1883, or 8883 with TLS.
        username: the name of the user, or None.
        password: the password, or a function that returns it. The function is called in the
            workers, so that the job does not contain the password.
        tls: the settings of encryption; None connects without.
        keepalive_seconds: the time without packets after which a connection is dead, in seconds.
        unreachable_seconds: the time for which a lost connection is tried again before the job
            restarts, in seconds.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> MqttBroker("localhost").address
        'localhost:1883'
        >>> MqttBroker("example.org", tls=Tls()).address
        'example.org:8883'
    """

    host: str
    port: int | None = None
    username: str | None = None
    password: str | Callable[[], str] | None = field(default=None, repr=False)
    tls: Tls | None = None
    keepalive_seconds: int = 60
    unreachable_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.host or not isinstance(self.host, str):
            raise GraphError(f"an MQTT broker needs the name of a host, not {self.host!r}")
        if self.port is not None and not 0 < self.port < 65_536:
            raise GraphError(f"the port of an MQTT broker is from 1 to 65535, not {self.port!r}")
        if not 0 < self.keepalive_seconds < 65_536:
            raise GraphError("keepalive_seconds is from 1 to 65535")
        if self.unreachable_seconds <= 0:
            raise GraphError("unreachable_seconds must be positive")

    @property
    def address(self) -> str:
        """The host and the port, with a colon between them."""
        return f"{self.host}:{self._port}"

    @property
    def _port(self) -> int:
        return self.port or (1883 if self.tls is None else 8883)


class BrokerConnection:
    """A connection to a broker, which is made again when it is lost.

    Callbacks run in the connection's thread, and hold `changed`. Other threads must not call
    `client.publish` while they hold it: paho calls some callbacks with a lock that `publish` needs.

    The loop of paho waits with `select`, which cannot wait for a file descriptor above 1,023: in a
    process with more open files, it would try to connect without end. So the loop is here.

    Arguments:
        broker: the broker.
        client_id: the id of the session; "" lets the broker choose one.
        session_expiry_seconds: the time for which the broker keeps the session without a
            connection; 0 for a session that ends with its connection.
        receive_maximum: the number of messages that the broker may send before they are
            acknowledged.
        connected: a function that is called when the broker has accepted the connection, with
            whether it has kept the session and with the properties of its answer.
        disconnected: a function that is called when the connection is lost.
    """

    def __init__(
        self,
        broker: MqttBroker,
        client_id: str,
        *,
        session_expiry_seconds: int = 0,
        receive_maximum: int = 65_535,
        connected: Callable[[bool, Properties | None], None],
        disconnected: Callable[[], None],
    ) -> None:
        client, properties = _client(broker, client_id)
        properties.SessionExpiryInterval = session_expiry_seconds
        properties.ReceiveMaximum = receive_maximum
        self.client = client
        #: A condition that is notified when something has changed.
        self.changed = threading.Condition(threading.RLock())
        self.is_connected = False
        #: The number of times that the connection was lost.
        self.losses = 0
        self._broker, self._client_id = broker, client_id
        self._properties = properties
        self._resumes_session = session_expiry_seconds > 0
        self._connected, self._disconnected = connected, disconnected
        self._closed = False
        self._error: BaseException | None = None
        #: Why the broker could not be reached, and since when.
        self._reason, self._lost_at = "no answer yet", time.monotonic()
        self._accepted_at = 0.0
        self._short_connections = 0
        self._delay_seconds = _MIN_DELAY_SECONDS
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_socket_register_write = lambda *_: self._wake()

    def start(self) -> None:
        """Begin to connect, in a thread."""
        broker = self._broker
        self.client.connect_async(
            broker.host,
            broker._port,
            broker.keepalive_seconds,
            clean_start=not self._resumes_session,
            properties=self._properties,
        )
        # A byte that is sent to the first socket wakes the thread, which reads from the second.
        self._waker, self._woken = socket.socketpair()
        threading.Thread(target=self._run, daemon=True, name="MQTT").start()

    def check(self) -> None:
        """Raise the error that ended the connection, if there is one.

        Raises:
            JobError: if the broker refuses the connection, or was not reached for too long.
        """
        if self._error is not None:
            raise self._error
        seconds = self._broker.unreachable_seconds
        if not self.is_connected and time.monotonic() - self._lost_at > seconds:
            raise JobError(
                f"the MQTT broker {self._broker.address} was not reached for {seconds:g} s: "
                f"{self._reason}",
                recoverability=Recoverability.ENVIRONMENT,
            )

    def fail(self, error: BaseException) -> None:
        """Keep an error for `check`, and end the connection."""
        with self.changed:
            self._error = self._error or error
            self.changed.notify_all()
        self.client.disconnect()

    def close(self) -> None:
        """End the connection, when all that waits to be sent is sent.

        The broker keeps a session that has an expiry time.
        """
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self.client.disconnect()
        with self.changed:
            self.changed.wait_for(lambda: not self.is_connected, _CLOSE_SECONDS)

    # ---- the loop of the thread

    def _run(self) -> None:
        try:
            while not self._is_ended:
                try:
                    self.client.reconnect()
                except OSError as error:
                    self._on_connect_fail(error)
                else:
                    self._serve()
                with self.changed:
                    self.changed.wait_for(lambda: self._is_ended, self._delay_seconds)
                self._delay_seconds = min(2 * self._delay_seconds, _MAX_DELAY_SECONDS)
        except BaseException as error:
            self.fail(error)
        finally:
            self._waker.close()
            self._woken.close()

    @property
    def _is_ended(self) -> bool:
        return self._closed or self._error is not None

    def _serve(self) -> None:
        """Receive and send packets until the connection has ended."""
        client = self.client
        connection = client.socket()
        assert connection is not None
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            while client.socket() is not None:
                selector.modify(connection, both if client.want_write() else selectors.EVENT_READ)
                # The socket is not readable if TLS has already decrypted its data.
                decrypted = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
                found = selector.select(0 if decrypted else _LOOK_SECONDS)
                events = {key.fileobj: mask for key, mask in found}
                if self._woken in events:
                    self._woken.recv(4096)
                possible = events.get(connection, 0)
                if decrypted or possible & selectors.EVENT_READ:
                    client.loop_read()
                if possible & selectors.EVENT_WRITE:
                    client.loop_write()
                client.loop_misc()

    def _wake(self) -> None:
        # A socket that is full wakes the thread, too, and one that is closed has no thread to wake.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0", socket.MSG_DONTWAIT)

    # ---- callbacks of the client

    def _on_connect(
        self, client: Client, _data: object, flags: Any, reason: Any, properties: Properties | None
    ) -> None:
        if self._closed:
            # `close` was called while the thread was connecting, so it had no effect.
            client.disconnect()
            return
        if reason.is_failure:
            self._refused(str(reason), reason.value)
            return
        with self.changed:
            self.is_connected = True
            self._delay_seconds = _MIN_DELAY_SECONDS
            self._accepted_at = time.monotonic()
            if self.losses:
                logger.warning("connected to the MQTT broker %s again", self._broker.address)
            try:
                self._connected(flags.session_present, properties)
            except BaseException as error:
                self.fail(error)
            self.changed.notify_all()

    def _refused(self, reason: str, code: int) -> None:
        self._reason = f"it refuses the connection: {reason}"
        if code in _REFUSALS:
            user = "no user" if self._broker.username is None else f"user {self._broker.username!r}"
            self.fail(
                JobError(
                    f"the MQTT broker {self._broker.address} refuses the connection: {reason} "
                    f"(client id {self._client_id!r}, {user}): correct the username and the "
                    f"password of the MqttBroker, or the rights of the user",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            )

    def _on_connect_fail(self, error: OSError) -> None:
        self._reason = f"no connection is possible: {error}"
        if (refusal := tls_refusal(error)) is not None:
            self._fail_for_tls(
                f"TLS with the MQTT broker {self._broker.address} fails: {refusal}. The file is "
                f"MqttBroker(..., tls=Tls(ca_file))"
            )

    def _fail_for_tls(self, message: str) -> None:
        self.fail(JobError(message, recoverability=Recoverability.NON_RECOVERABLE))

    def _on_disconnect(
        self, _client: Client, _data: object, flags: Any, reason: Any, _properties: object
    ) -> None:
        with self.changed:
            was_connected, self.is_connected = self.is_connected, False
            broker = self._broker
            if (
                not (self._closed or self._error or was_connected or self.losses)
                and broker.tls is None
                and speaks_tls(broker.host, broker._port)
            ):
                self._fail_for_tls(
                    f"the MQTT broker {broker.address} expects TLS: use MqttBroker(..., tls=Tls())"
                )
            if self._is_ended or not was_connected:
                self.changed.notify_all()
                return
            now = time.monotonic()
            self.losses += 1
            self._lost_at, self._reason = now, f"the connection was lost ({reason})"
            logger.warning(
                "the connection to the MQTT broker %s was lost (%s)", self._broker.address, reason
            )
            short = now - self._accepted_at < _SHORT_SECONDS
            self._short_connections = self._short_connections + 1 if short else 0
            taken = flags.is_disconnect_packet_from_server and reason.value == _SESSION_TAKEN_OVER
            if taken or self._short_connections >= _SHORT_CONNECTIONS:
                self._error = JobError(
                    f"the MQTT broker {self._broker.address} closes each connection soon after it "
                    f"has accepted it: probably another client uses the client id "
                    f"{self._client_id!r}, for example another job. Give each job its own",
                    recoverability=Recoverability.ENVIRONMENT,
                )
                self.client.disconnect()
            self._disconnected()
            self.changed.notify_all()


def _client(broker: MqttBroker, client_id: str) -> tuple[Client, Properties]:
    """Return a client that is not connected, and properties for its connection."""
    try:
        from paho.mqtt.client import Client, MQTTv5
        from paho.mqtt.enums import CallbackAPIVersion
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties
    except ImportError as error:
        raise JobError(
            "MQTT needs the package paho-mqtt, which is not installed: "
            "pip install 'penstock[mqtt]'",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
    client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTv5, manual_ack=True)
    if broker.username is not None:
        password = broker.password
        client.username_pw_set(broker.username, password() if callable(password) else password)
    if broker.tls is not None:
        client.tls_set_context(broker.tls.context())
    return client, Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]

"""Connect to NATS, and translate the errors of its client into errors of a job.

The client of NATS is for asyncio, so it runs in an `AsyncioBridge`. It would reconnect by itself.
It does not here, because sources and sinks know what must be checked after a new connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from penstock.connectors.asyncio_bridge import AsyncioBridge
from penstock.connectors.tls import Tls, tls_refusal
from penstock.dataflow.errors import GraphError, JobError, Recoverability

logger = logging.getLogger("penstock.connectors")

T = TypeVar("T")

#: The time to wait for an answer, in seconds. A server that is slower counts as unreachable.
ANSWER_SECONDS = 10.0
#: The time for the end of a connection that has failed, in seconds.
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True)
class NatsConnection:
    """Describes how to connect to NATS.

    Sources and sinks take either a URL or a `NatsConnection`.

    Arguments:
        servers: the URL of a server, such as `nats://user:password@host:4222`, or a list of them.
        tls: the settings of encryption. The connection is then refused if the server has none.
            With None, the server decides, and the certificates of the system are trusted.
        options: further arguments of `nats.connect`, such as
            `{"user_credentials": "/etc/nats/job.creds"}`.

    Raises:
        GraphError: if there is no server.

    Examples:
        >>> NatsConnection("nats://user:secret@localhost:4222").place
        'localhost:4222'
    """

    servers: str | Sequence[str] = field(default="nats://localhost:4222", repr=False)
    tls: Tls | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.servers:
            raise GraphError("a NatsConnection needs a server: for example nats://localhost:4222")

    @classmethod
    def of(cls, connection: str | NatsConnection) -> NatsConnection:
        """Return a connection that is given as a URL or as it is."""
        return cls(connection) if isinstance(connection, str) else connection

    @property
    def place(self) -> str:
        """The addresses without user and password, for messages."""
        servers = [self.servers] if isinstance(self.servers, str) else self.servers
        return ", ".join(one.rpartition("@")[2].rpartition("//")[2] for one in servers)

    def open(self, name: str) -> NatsClient:
        """Connect, and return the client. The name is that of its thread."""
        library("nats")
        return NatsClient(self, name)

    # ---- errors

    def is_passing(self, error: BaseException) -> bool:
        """Return whether an error may end by itself: the server is away, slow or starting."""
        errors, stream_errors = library("nats.errors"), library("nats.js.errors")
        if isinstance(error, JobError):
            return error.recoverability is Recoverability.ENVIRONMENT
        if isinstance(error, errors.AuthorizationError) or "authorization" in str(error).lower():
            return False
        if tls_refusal(error) is not None:
            return False
        if isinstance(error, stream_errors.ServiceUnavailableError | stream_errors.ServerError):
            return True
        if isinstance(error, stream_errors.APIError):
            return False
        # When the connection is lost, the client cancels requests that wait for an answer.
        return isinstance(error, errors.Error | OSError | TimeoutError | CancelledError)

    def explain(self, error: BaseException, what: str) -> JobError:
        """Return the error to raise for an error of the client.

        Arguments:
            error: the error of the client.
            what: what could not be done, such as "read the stream 'ORDERS'".
        """
        if isinstance(error, JobError):
            return error
        text = str(error) or type(error).__name__
        if self.is_passing(error):
            return JobError(
                f"cannot {what} at {self.place}: {text}", recoverability=Recoverability.ENVIRONMENT
            )
        if not isinstance(error, library("nats.errors").Error | OSError):
            return JobError(f"cannot {what} at {self.place}: {type(error).__name__}: {text}")
        said = f"cannot {what}: NATS at {self.place} answers: {text}"
        refusal = tls_refusal(error)
        if refusal is not None:
            said = (
                f"cannot {what}: TLS with NATS at {self.place} fails: {refusal}. The file is "
                f"NatsConnection(..., tls=Tls(ca_file))"
            )
        elif "authorization" in text.lower():
            said = f"cannot {what}: NATS at {self.place} refuses the user or password ({text}): "
            said += "correct the user, password, token or credentials of the connection"
        elif "permissions violation" in text.lower():
            said += ": give the user the right to use this subject"
        return JobError(said, recoverability=Recoverability.NON_RECOVERABLE)


class NatsClient:
    """A connection to NATS, with an event loop in a thread of its own.

    Arguments:
        connection: the servers.
        name: the name of the thread.
    """

    def __init__(self, connection: NatsConnection, name: str) -> None:
        self._bridge = AsyncioBridge(name)
        self._when_closed: list[Callable[[], object]] = []
        try:
            self.connected = self.call(_connect(connection, self._note_closed))
        except BaseException:
            self._bridge.close()
            raise
        self.streams = self.connected.jetstream(timeout=ANSWER_SECONDS)

    def call(self, coroutine: Awaitable[T], seconds: float = 3 * ANSWER_SECONDS) -> T:
        """Run a coroutine in the event loop, and return its result."""
        return self._bridge.call(coroutine, timeout=seconds)

    def when_closed(self, function: Callable[[], object]) -> None:
        """Call a function in the event loop when the connection is lost."""
        self._when_closed.append(function)

    async def _note_closed(self) -> None:
        for function in self._when_closed:
            function()

    def close(self) -> None:
        """Close the connection. Another thread may wait in `call`."""
        with suppress(Exception):
            self._bridge.close(self.connected.close)


async def _connect(connection: NatsConnection, closed: Callable[[], Awaitable[None]]) -> Any:
    servers, failures = connection.servers, list[Exception]()

    async def note_error(error: Exception) -> None:
        # Later, the call that fails raises an error, too.
        logger.debug("the connection to NATS has failed: %s", error)
        failures.append(error)

    options: dict[str, Any] = {
        "allow_reconnect": False,
        "connect_timeout": ANSWER_SECONDS,
        # Each server is tried twice. With 0, the client would try without end.
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.02,
        "error_cb": note_error,
        "closed_cb": closed,
        "name": "penstock",
        **connection.options,
    }
    if connection.tls is not None:
        options["tls"] = connection.tls.context()
    client = library("nats.aio.client").Client()
    if connection.tls is not None:
        _insist_on_tls(client, connection.place)
    try:
        await client.connect(servers if isinstance(servers, str) else list(servers), **options)
    except BaseException as error:
        # After a handshake that has failed, the client would wait for the end without end.
        with suppress(Exception):
            await asyncio.wait_for(client.close(), _CLOSE_SECONDS)
        if isinstance(error, library("nats.errors").NoServersError) and failures:
            raise failures[-1] from error  # which says why
        raise
    return client


def _insist_on_tls(client: Any, place: str) -> None:
    """Make a client encrypt if the server can, and refuse the connection if it cannot.

    The client encrypts only if the server requires it. Otherwise it would send the password
    readable for everybody on the way, although the user has asked for TLS.
    """
    process_info = client._process_info

    async def process(info: dict[str, Any], initial_connection: bool = False) -> None:
        if not info.get("tls_required") and info.get("tls_available"):
            info["tls_required"] = True
        websocket = client._current_server.uri.scheme in ("ws", "wss")  # its scheme decides
        if initial_connection and not websocket and not info.get("tls_required"):
            raise JobError(
                f"NATS at {place} has no TLS, and the connection asks for it: no password was "
                f"sent. Configure TLS in the server, or leave tls out",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        await process_info(info, initial_connection=initial_connection)

    client._process_info = process


def library(name: str) -> Any:
    """Return a module of the client library."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise JobError(
            "connectors of NATS need the package nats-py: pip install 'penstock[nats]'",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error

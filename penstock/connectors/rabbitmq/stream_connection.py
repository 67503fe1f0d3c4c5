"""Connect to the node of a RabbitMQ stream, in the event loop of an `AsyncioBridge`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.connectors.tls import Tls, speaks_tls, tls_refusal
from penstock.dataflow.errors import GraphError, JobError, PenstockError, Recoverability

if TYPE_CHECKING:
    from rstream.client import Client

_FRAME_BYTES = 1 << 20
#: The time without an answer after which a broker may be waiting for TLS, in seconds.
_SILENT_SECONDS = 1.0


@dataclass(frozen=True)
class RabbitBroker:
    """Describes how to connect to a RabbitMQ broker with the stream plugin.

    Arguments:
        host: the name or address of a node.
        port: the port of the stream protocol; None for 5552, or 5551 with TLS.
        username: the name of the user.
        password: the password, or a function that returns it. The function is called where the
            connection is made, so that the job does not contain the password.
        vhost: the virtual host.
        tls: the settings of encryption; None connects without.
        heartbeat_seconds: the time between two heartbeats, in seconds.
        unreachable_seconds: the time for which a lost connection is tried again before the job
            restarts, in seconds.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> RabbitBroker("localhost").address
        'localhost:5552'
    """

    host: str
    port: int | None = None
    username: str = "guest"
    password: str | Callable[[], str] = field(default="guest", repr=False)
    vhost: str = "/"
    tls: Tls | None = None
    heartbeat_seconds: int = 20
    unreachable_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.host or not isinstance(self.host, str):
            raise GraphError(f"a RabbitMQ broker needs the name of a host, not {self.host!r}")
        if self.port is not None and not 0 < self.port < 65_536:
            raise GraphError(f"the port of a RabbitMQ broker is from 1 to 65535, not {self.port!r}")
        if self.heartbeat_seconds < 1 or self.unreachable_seconds <= 0:
            raise GraphError("heartbeat_seconds and unreachable_seconds must be positive")

    @property
    def address(self) -> str:
        """The host and the port, with a colon between them."""
        return f"{self.host}:{self.stream_port}"

    @property
    def stream_port(self) -> int:
        """The port of the stream protocol."""
        return self.port or (5552 if self.tls is None else 5551)


class StreamLostError(ConnectionError):
    """Raised when a connection is lost, or cannot be made."""


class StreamConnection:
    """A connection to a node that has a stream.

    rstream also has a `Producer` and a `Consumer`. They connect again by themselves, and then it is
    unknown which messages were sent. So this class uses the client below them.

    Arguments:
        broker: the broker.
        client: the connected client.
        stream: the name of the stream.
    """

    def __init__(self, broker: RabbitBroker, client: Client, stream: str) -> None:
        self.client, self.stream = client, stream
        self._broker = broker
        #: Done when the connection is lost, with the error.
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, broker: RabbitBroker, stream: str, *, leader: bool = False
    ) -> StreamConnection:
        """Connect to the broker, or to the leader of the stream.

        Raises:
            JobError: if the credentials are wrong, or the stream does not exist.
            StreamLostError: if the broker cannot be reached.
        """
        with naming(broker, stream):
            client = await _connect(broker, (broker.host, broker.stream_port))
            try:
                node, _ = await client.query_leader_and_replicas(stream)
                properties = client.server_properties or {}
                here = (properties.get("advertised_host"), properties.get("advertised_port"))
                if leader and here != (node.host, str(node.port)):
                    await close_client(client)
                    client = await _connect(broker, (node.host, node.port))
            except BaseException:
                await close_client(client)
                raise
            connection = cls(broker, client, stream)
            connection._watch()
            return connection

    def _watch(self) -> None:
        from rstream import schema

        # The handler of the client is called only if it has a stream.
        self.client.add_stream(self.stream)
        self.client._connection_closed_handler = lambda _: self.fail(
            StreamLostError(f"the connection to {self._broker.address} was lost")
        )
        self.client.add_handler(
            schema.MetadataUpdate,
            lambda _: self.fail(
                StreamLostError(f"the stream {self.stream!r} is not available any more")
            ),
            name="penstock",
        )
        listener = self.client._tasks["listener"]
        listener.add_done_callback(lambda _: self.fail(StreamLostError("the connection has ended")))

    def fail(self, error: BaseException) -> None:
        """Note that the connection cannot be used any more."""
        if not self.lost.done():
            self.lost.set_exception(error)

    async def wait(self) -> None:
        """Wait until the connection is lost, and raise the error."""
        with naming(self._broker, self.stream):
            await asyncio.shield(self.lost)

    async def close(self) -> None:
        """Close the connection."""
        if not self.lost.done():
            self.lost.cancel()
        elif not self.lost.cancelled():
            self.lost.exception()  # it is known, so asyncio need not log it
        await close_client(self.client)


async def _connect(broker: RabbitBroker, address: tuple[str, int]) -> Client:
    from rstream.client import Client

    client = Client(
        *address,
        ssl_context=None if broker.tls is None else broker.tls.context(),
        frame_max=_FRAME_BYTES,
        heartbeat=broker.heartbeat_seconds,
        connection_name="penstock",
        connection_closed_handler=lambda _: None,
    )
    try:
        await _authenticate(broker, client, address)
    except BaseException:
        await close_client(client)
        raise
    return client


async def _authenticate(broker: RabbitBroker, client: Client, address: tuple[str, int]) -> None:
    """Start a client. Do not wait for an answer if the broker waits for a handshake of TLS."""

    async def start() -> None:
        await client.start()
        password = broker.password() if callable(broker.password) else broker.password
        await client.authenticate(broker.vhost, broker.username, password)

    starting = asyncio.ensure_future(start())
    try:
        await asyncio.wait({starting}, timeout=_SILENT_SECONDS)
        if (
            not starting.done()
            and broker.tls is None
            and await asyncio.to_thread(speaks_tls, *address, end=False)
        ):
            raise JobError(
                f"RabbitMQ at {broker.address} expects TLS: use RabbitBroker(..., tls=Tls())",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        await starting
    finally:
        starting.cancel()


async def close_client(client: Client) -> None:
    """Close a client at once, also if the broker does not answer."""
    connection = client._conn
    client._is_not_closed = False  # so that it does not wait for an answer
    try:
        with contextlib.suppress(Exception):
            await client.close()
    finally:
        # The client leaves it open if it believes the connection lost, or is cancelled meanwhile.
        writer = None if connection is None else connection._writer
        if writer is not None:
            writer.transport.abort()


@contextlib.contextmanager
def naming(broker: RabbitBroker, stream: str) -> Any:
    """Raise errors of the client with the name of the broker and the stream."""
    from rstream import exceptions

    refusals = (
        exceptions.AuthenticationFailure,
        exceptions.SASLError,
        exceptions.SASLAuthenticationFailureLoopback,
        exceptions.SASLMechanismNotSupported,
        exceptions.VirtualHostAccessFailure,
        exceptions.AccessRefused,
    )
    try:
        yield
    except (PenstockError, StreamLostError):
        raise
    except refusals as error:
        raise JobError(
            f"RabbitMQ at {broker.address} refuses user {broker.username!r} for virtual host "
            f"{broker.vhost!r} and stream {stream!r}: {_shown(error)}: correct the username and "
            f"the password of the RabbitBroker, or the rights of the user",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
    except exceptions.StreamDoesNotExist as error:
        raise JobError(
            f"RabbitMQ at {broker.address} has no stream {stream!r} in virtual host "
            f"{broker.vhost!r}: create it first, with a limit for its size or age",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
    except (OSError, TimeoutError) as error:
        refusal = tls_refusal(error)
        if refusal is not None:
            raise JobError(
                f"TLS with RabbitMQ at {broker.address} fails: {refusal}. The file is "
                f"RabbitBroker(..., tls=Tls(ca_file))",
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from error
        raise StreamLostError(
            f"RabbitMQ at {broker.address} cannot be reached: {_shown(error)}"
        ) from error
    except (exceptions.ServerError, exceptions.LeaderNotAvailable) as error:
        raise StreamLostError(
            f"RabbitMQ at {broker.address}, stream {stream!r}: {_shown(error)}"
        ) from error


def _shown(error: BaseException) -> str:
    return str(error) or type(error).__name__


def require_rstream() -> None:
    """Raise a `JobError` if rstream is not installed."""
    try:
        import rstream  # noqa: F401
    except ImportError as error:
        raise JobError(
            "RabbitMQ streams need the package rstream, which is not installed: "
            "pip install 'penstock[rabbitmq]'",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error

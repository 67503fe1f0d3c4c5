"""Connect the processes of a job by Unix sockets or TCP.

`memory_connection.py` has the transport for jobs in one process.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from penstock.dataflow.errors import GraphError, Recoverability
from penstock.runtime.system.unix_sockets import UnixSockets, socket_name

#: A function that serves one connection. The connection is closed when the function returns.
ConnectionHandler = Callable[[trio.abc.Stream], Awaitable[None]]


class Transport(Protocol):
    """Opens connections to other parts of a job, and listens for connections."""

    async def listen(self, name: str, handler: ConnectionHandler, nursery: trio.Nursery) -> str:
        """Call `handler` for each connection, in `nursery`, and return the address."""

    async def connect(self, address: str) -> trio.abc.Stream:
        """Open a connection. Raise `OSError` if it cannot be opened."""

    def forget(self, attempt: int) -> None:
        """Release what the processes of an attempt have left, whose number ends their names."""

    def close(self) -> None:
        """Release the resources that `listen` or `connect` have created."""


class SocketTransport:
    """Connects by Unix sockets in a private folder with a short path, or by TCP.

    Arguments:
        host: the address to listen on with TCP; None uses Unix sockets.
        bind: the address of this machine to which `host` leads, if the two differ.
        beside: the address of another process of the job. Unix sockets of this process are created
            in the same folder as the socket of that process.
    """

    def __init__(
        self, host: str | None = None, bind: str | None = None, beside: str | None = None
    ) -> None:
        self._host = host
        self._bind = bind or host
        kind, _, path = (beside or "").partition(":")
        self._sockets = UnixSockets(beside=path if kind == "unix" else None)

    async def listen(self, name: str, handler: ConnectionHandler, nursery: trio.Nursery) -> str:
        """Call `handler` for each connection, in `nursery`, and return the address.

        The address has the form `unix:PATH` or `tcp:HOST:PORT`.
        """
        if self._host is not None:
            try:
                listeners = await trio.open_tcp_listeners(0, host=self._bind)
            except OSError as error:
                temporary = error.errno in (errno.EMFILE, errno.ENFILE, socket.EAI_AGAIN)
                raise GraphError(
                    f"the processes of the job cannot listen at {self._bind!r}, which `host` in "
                    f"its settings says: {error.strerror or error}; it must be an address of "
                    f"this machine",
                    recoverability=None if temporary else Recoverability.NON_RECOVERABLE,
                ) from error
            port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(serve_forever, handler, listeners)
            return f"tcp:{self._host}:{port}"
        bound, path = self._sockets.bind(name)
        bound.listen(256)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        nursery.start_soon(serve_forever, handler, [listener])
        return f"unix:{path}"

    async def connect(self, address: str) -> trio.abc.Stream:
        """Open a connection to an address that `listen` returned."""
        kind, _, rest = address.partition(":")
        if kind == "unix":
            return await trio.open_unix_socket(socket_name(rest))
        host, _, port = rest.rpartition(":")
        return await trio.open_tcp_stream(host, int(port))

    def forget(self, attempt: int) -> None:
        """Remove the Unix sockets of an attempt that has ended, in the folder of this process."""
        self._sockets.remove(attempt)

    def close(self) -> None:
        """Remove the folder of the Unix sockets, if it belongs to this process."""
        self._sockets.close()


async def serve_forever(handler: ConnectionHandler, listeners: list[Any]) -> None:
    """Call a handler for each connection that a listener accepts, and close the connection then."""

    async def safely(stream: trio.abc.Stream) -> None:
        try:
            await handler(stream)
        finally:
            with trio.move_on_after(1) as scope:
                scope.shield = True
                await trio.aclose_forcefully(stream)

    await trio.serve_listeners(safely, listeners)

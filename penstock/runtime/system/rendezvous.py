"""The place where the workers of a dead JobManager wait for the next one.

The supervisor of a job listens on a Unix socket for as long as it supervises the job, and each of
its JobManagers inherits this socket. If a JobManager dies, its workers connect at once, and the
kernel keeps their connections until the next JobManager accepts them. If the supervisor gives the
job up or dies itself, the socket is closed. The kernel then ends the waiting connections, and the
workers end.
"""

from __future__ import annotations

import array
import os
import secrets
import socket
from pathlib import Path

import trio

from penstock.dataflow.errors import StoreError
from penstock.runtime.system.transport import ConnectionHandler, serve_forever
from penstock.runtime.system.unix_sockets import UnixSockets, socket_name

#: The number of connections that may wait for the next JobManager. Each worker opens two.
_BACKLOG = 4096


class Rendezvous:
    """The listening socket of a supervisor.

    Arguments:
        path: the path of the socket. With None, it is in a temporary folder of this process.
        listening: the socket, if it exists already. A supervisor that was started again receives it
            from the JobManager.

    Raises:
        StoreError: if the socket cannot be created.
    """

    def __init__(self, path: str | None = None, listening: socket.socket | None = None) -> None:
        self._sockets = UnixSockets("rejoin")
        if listening is not None:
            self._socket = listening
            path = str(path)
        elif path is not None:
            self._socket = listen_at(path, _BACKLOG)
        else:
            self._socket, path = self._sockets.bind("jobmanager")
            self._socket.listen(_BACKLOG)
        self.address = f"unix:{path}"
        #: The secret with which workers and JobManagers recognise each other here.
        self.token = secrets.token_bytes(32)

    def fileno(self) -> int:
        """Return the file descriptor of the socket, which a JobManager process inherits."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connections that wait, and remove the socket."""
        self._socket.close()
        self._sockets.close()


def listen_at(path: str, backlog: int = 64) -> socket.socket:
    """Listen on a Unix socket, which replaces one that a dead process has left there.

    Raise `StoreError` if the socket cannot be created.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.startswith("@"):
            Path(path).unlink(missing_ok=True)
        bound.bind(socket_name(path))
        bound.listen(backlog)
    except OSError as error:
        bound.close()
        raise StoreError(f"cannot make a Unix socket: {error.strerror}", path) from error
    return bound


async def send_descriptor(stream: trio.SocketStream, descriptor: int | None) -> None:
    """Send a file descriptor over a Unix socket, or the message that there is none.

    Nothing else may be sent on the stream meanwhile.
    """
    if descriptor is None:
        await stream.send_all(b"-")
        return
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
    await stream.socket.sendmsg([b"+"], [rights])


async def receive_descriptor(stream: trio.SocketStream) -> int | None:
    """Return the file descriptor that the other end sends; None if it sends none.

    The stream must have no other data before it. Raise `OSError` if the stream ends instead.
    """
    space = socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = await stream.socket.recvmsg(1, space)
    if not data:
        raise ConnectionResetError("the connection has ended")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            (descriptor,) = array.array("i", content)
            os.set_inheritable(descriptor, False)
            return int(descriptor)
    return None


def inherited_listener(descriptor: int) -> socket.socket:
    """Return the socket of the supervisor in a JobManager process."""
    # Workers and other children of this process must not inherit it.
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


async def serve_listener(listening: socket.socket, handler: ConnectionHandler) -> None:
    """Call a handler for each connection, until cancelled."""
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    await serve_forever(handler, [listener])

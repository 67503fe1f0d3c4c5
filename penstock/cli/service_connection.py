"""Send requests to the job service, and receive its answers: `ServiceConnection`.

A service of this machine is reached by the socket in its state folder, and any other one by HTTP
(`http_connection.py`). Requests and answers are the same. The calls block and use no event loop,
because a submitted job file may run its own event loop.
"""

from __future__ import annotations

import abc
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import PenstockError

if TYPE_CHECKING:
    from typing import Self

    from penstock.runtime.control.requests import Request

#: The time within which the service must accept a connection, in seconds.
CONNECT_SECONDS = 10.0
#: The message of the error if the service ends before it answers.
GONE = "the job manager ended before it answered"


class NoServiceError(PenstockError):
    """Raised when no service runs with a state folder."""


class ServiceConnection(abc.ABC):
    """A connection to the running job service. It is a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abc.abstractmethod
    def answers(self, request: Request) -> Iterator[dict[str, Any]]:
        """Send a request to the service, and yield the answers until the last one.

        Raises `PenstockError` if the service refuses the request, or ends before.
        """

    def ask(self, request: Request) -> dict[str, Any]:
        """Send a request to the service, and return the answer.

        Raises `PenstockError` if the service refuses the request, or ends before it answers.
        """
        for answer in self.answers(request):
            return answer
        raise PenstockError(GONE)


class LocalConnection(ServiceConnection):
    """A connection to a service of this machine.

    Arguments:
        directory: the state folder of the service. With None, the default folder is used.

    Raises:
        NoServiceError: if no service runs with this folder.
        PenstockError: if the service does not accept the connection.
    """

    def __init__(self, directory: Path | None) -> None:
        from penstock.runtime.dispatcher.state_folder import StateFolder

        folder = StateFolder(directory)
        contact = folder.contact()
        where = "" if directory is None else f" --dir {directory}"
        self._absent = (
            f"no job manager runs with the state folder {folder.root}; start one with: "
            f"penstock jobmanager{where}"
        )
        if contact is None:
            raise NoServiceError(self._absent)
        self._deadline: float | None = None
        self._socket = self._connect(*contact)

    def _connect(self, address: str, token: bytes) -> socket.socket:
        from penstock.runtime.control.handshake import (
            AuthenticationError,
            client_handshake_blocking,
        )
        from penstock.runtime.system.unix_sockets import socket_name

        kind, _, rest = address.partition(":")
        host, _, port = rest.rpartition(":")
        family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
        if ":" in host:
            family = socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(socket_name(rest) if kind == "unix" else (host, int(port)))
            client_handshake_blocking(connection, token)
        except (ConnectionRefusedError, FileNotFoundError):
            connection.close()
            # A service that was killed has left its address in the folder.
            raise NoServiceError(self._absent) from None
        except (AuthenticationError, OSError) as error:
            connection.close()
            raise PenstockError(
                f"the job manager at {address} does not answer as it should: {error}"
            ) from None
        connection.settimeout(None)
        return connection

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def answers(self, request: Request) -> Iterator[dict[str, Any]]:
        """Send a request to the service, and yield the answers until the last one.

        Raises `PenstockError` if the service refuses the request, or ends before.
        """
        from penstock.runtime.control.framing import send_blocking
        from penstock.runtime.control.requests import encode_request

        try:
            send_blocking(self._socket, encode_request(request))
        except OSError:
            raise PenstockError(GONE) from None
        for answer in self.events():
            if answer["event"] == "refused":
                raise PenstockError(answer["reason"])
            yield answer

    def set_timeout(self, seconds: float) -> None:
        """Set the time after which `events` raises `TimeoutError`, in seconds from now."""
        self._deadline = time.monotonic() + seconds

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that the service sends until it closes the connection.

        Raises `TimeoutError` after the time that `set_timeout` has set.
        """
        from penstock.runtime.control.framing import receive_blocking
        from penstock.runtime.control.packing import unpack_event

        while True:
            if self._deadline is not None:
                # A timeout of 0 would make the socket non-blocking.
                self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
            frame = receive_blocking(self._socket)
            if frame is None:
                return
            yield unpack_event(frame)

"""Listen, and serve the HTTP application until it is told to stop."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from penstock.dataflow.errors import GraphError, PenstockError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: The number of connections that may wait to be accepted.
BACKLOG = 1_024
#: The time for which a server that stops waits for its answers to open requests, in seconds.
ANSWER_SECONDS = 10.0
#: The time that open connections have when the server stops, in seconds. No request is open then.
GRACE_SECONDS = 0.5
_MISSING = (
    "the HTTP API needs packages that are not installed ({name}): pip install 'penstock[service]'"
)


@dataclass(frozen=True)
class ServerCertificate:
    """The files of a server certificate.

    Arguments:
        certificate: the path of the certificate chain, in PEM format.
        key: the path of the private key, in PEM format.
    """

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise `PenstockError` if the files cannot be used."""
        import ssl

        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.certificate, self.key
            )
        except (OSError, ssl.SSLError) as error:
            raise PenstockError(
                f"cannot use the certificate {self.certificate} with the key {self.key}: {error}"
            ) from error


def require_packages() -> None:
    """Raise `GraphError` if a package of the server is not installed."""
    try:
        import starlette  # noqa: F401

        _serving()
    except ImportError as error:
        raise GraphError(_MISSING.format(name=error.name)) from error


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a TCP address.

    Raises:
        PenstockError: if it cannot listen, for example because the port is in use.
    """
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            reason = "it is in use; give another, or 0 for any that is free"
        raise PenstockError(f"cannot listen on port {port} of {host}: {reason}") from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, host: str, tls: ServerCertificate | None) -> str:
    """Return the address of a server for people."""
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{shown}:{port}"


async def serve_application(
    application: ASGIApp,
    listener: socket.socket,
    tls: ServerCertificate | None = None,
    stopping: Callable[[], Awaitable[None]] = trio.sleep_forever,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an application until it is told to stop.

    Arguments:
        application: the application.
        listener: the socket of `listen`. It is closed at the end.
        tls: the certificate; None for a server without TLS.
        stopping: returns when the server should stop.
        task_status: is notified when the server accepts connections.
    """
    serve, make_config = _serving()
    config = make_config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None
    config.errorlog = logging.getLogger("penstock.rest")
    config.include_server_header = False
    config.graceful_timeout = GRACE_SECONDS
    config.backlog = BACKLOG
    if tls is not None:
        config.certfile, config.keyfile = str(tls.certificate), str(tls.key)
    requests = _OpenRequests(application)

    async def stop() -> None:
        await stopping()
        with trio.move_on_after(ANSWER_SECONDS):
            await requests.answered()

    await serve(requests, config, shutdown_trigger=stop, task_status=task_status, mode="asgi")


class _OpenRequests:
    """Counts the requests that have no answer yet. Streams of events do not count.

    Arguments:
        application: answers the requests.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._open = 0
        self._none_open = trio.Event()
        self._none_open.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith("/events"):
            await self._application(scope, receive, send)
            return
        if not self._open:
            self._none_open = trio.Event()
        self._open += 1
        try:
            await self._application(scope, receive, send)
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()

    async def answered(self) -> None:
        """Wait until each request has its answer."""
        await self._none_open.wait()


def _serving() -> tuple[Any, Any]:
    """Return the functions that serve and that make a configuration.

    Anycorn is the maintained fork of Hypercorn. Both take the same call.
    """
    try:
        import anycorn
    except ImportError:
        import hypercorn.config
        import hypercorn.trio

        return hypercorn.trio.serve, hypercorn.config.Config
    return anycorn.serve, anycorn.Config

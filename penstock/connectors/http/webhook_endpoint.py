"""Accept webhooks by HTTP, and write them to a `WebhookLog` before they are confirmed."""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgpack

from penstock.connectors.http.webhook_log import LogClosedError, LogFullError, WebhookLog
from penstock.dataflow.metrics import Counter, MetricGroup

logger = logging.getLogger("penstock.connectors")

Secret = str | Callable[[], str]
#: The time that a client is asked to wait before it tries again, in seconds.
_RETRY_SECONDS = 5
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A request that a `WebhookSource` has accepted.

    Arguments:
        body: the content.
        path: the path of the URL, with its query.
        received: the time of its arrival, in milliseconds since the epoch.
        key: the idempotency key of the client; empty if it has sent none.
        content_type: the type of the content, or None.
        headers: the headers that the source keeps, with names in lower case.

    Examples:
        >>> WebhookRequest(b"{}", "/hooks/orders", 0).key
        ''
    """

    body: bytes
    path: str
    received: int
    key: str = ""
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return the request as a record of the log."""
        packed: bytes = msgpack.packb(
            [self.received, self.path, self.key, self.content_type, self.headers, self.body]
        )
        return packed

    @staticmethod
    def unpack(data: bytes) -> WebhookRequest:
        """Return the request of a record of the log."""
        received, path, key, content_type, headers, body = msgpack.unpackb(data)
        return WebhookRequest(body, path, received, key, content_type, headers)


class Verification(ABC):
    """Decides whether a request comes from a client that may send."""

    @abstractmethod
    def verify(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether the request is from a known client."""


@dataclass(frozen=True)
class BearerToken(Verification):
    """Accepts requests with the header `Authorization: Bearer TOKEN`.

    Arguments:
        token: the token, or a function that returns it. The function is called in the worker, so
            that the job does not contain the token.

    Examples:
        >>> BearerToken("s3cret").verify({"Authorization": "Bearer s3cret"}, b"")
        True
    """

    token: Secret = field(repr=False)

    def verify(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether the request has the token."""
        del body
        wanted = f"Bearer {_value(self.token)}"
        return hmac.compare_digest(headers.get("Authorization", "").encode(), wanted.encode())


@dataclass(frozen=True)
class HmacSignature(Verification):
    """Accepts requests whose body is signed with a shared secret, as those of GitHub.

    Arguments:
        secret: the secret, or a function that returns it, which is called in the worker.
        header: the header with the signature, in hexadecimal digits.
        prefix: the text before the digits.
        algorithm: the name of the hash function.

    Examples:
        >>> signature = hmac.new(b"s3cret", b"{}", "sha256").hexdigest()
        >>> headers = {"X-Hub-Signature-256": f"sha256={signature}"}
        >>> HmacSignature("s3cret").verify(headers, b"{}")
        True
    """

    secret: Secret = field(repr=False)
    header: str = "X-Hub-Signature-256"
    prefix: str = "sha256="
    algorithm: str = "sha256"

    def verify(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether the signature is that of the body."""
        digest = hmac.new(_value(self.secret).encode(), body, self.algorithm).hexdigest()
        found = headers.get(self.header, "")
        return hmac.compare_digest(found.encode(), f"{self.prefix}{digest}".encode())


def _value(secret: Secret) -> str:
    return secret() if callable(secret) else secret


@dataclass
class _Seen:
    """A request with an idempotency key: when it came, its content, and whether it is durable."""

    at: float
    digest: int
    durable: bool = False
    failed: bool = False


class SeenKeys:
    """The idempotency keys of the last time.

    Arguments:
        window_seconds: the time for which a key is remembered, in seconds.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._keys: OrderedDict[str, _Seen] = OrderedDict()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, at: float, body: bytes) -> None:
        """Record a request that is durable already."""
        self._keys[key] = _Seen(at, zlib.crc32(body), durable=True)

    def begin(self, key: str, body: bytes, now: float) -> bool | None:
        """Begin to accept a request.

        Returns:
            True if it is new. False if it was accepted before. None if the key belongs to a request
            with another body, or if that could not be accepted.
        """
        digest = zlib.crc32(body)
        with self._changed:
            self._forget(now - self._window)
            seen = self._keys.get(key)
            if seen is None:
                self._keys[key] = _Seen(now, digest)
                return True
            if seen.digest != digest:
                return None
            # The first request with the key may still wait for the disk.
            self._changed.wait_for(lambda: seen.durable or seen.failed)
            return False if seen.durable else None

    def _forget(self, before: float) -> None:
        while self._keys:
            oldest = next(iter(self._keys.values()))
            if oldest.at >= before or not oldest.durable:
                return
            self._keys.popitem(last=False)

    def finish(self, key: str, *, durable: bool) -> None:
        """Record whether the request with this key is durable now."""
        with self._changed:
            seen = self._keys[key]
            seen.durable, seen.failed = durable, not durable
            if not durable:
                del self._keys[key]
            self._changed.notify_all()


@dataclass(frozen=True)
class EndpointSettings:
    """Describes an endpoint and the requests that it accepts; see `WebhookSource`."""

    host: str
    port: int
    path: str
    verification: Verification | None
    max_body_bytes: int
    key_header: str
    kept_headers: tuple[str, ...]
    max_connections: int
    timeout_seconds: float


class WebhookEndpoint:
    """An HTTP server that appends requests to a log.

    Arguments:
        settings: what it accepts.
        log: the log.
        keys: the idempotency keys that it knows.
        metrics: the metrics of the source.

    Raises:
        OSError: if the port is taken.
    """

    def __init__(
        self, settings: EndpointSettings, log: WebhookLog, keys: SeenKeys, metrics: MetricGroup
    ) -> None:
        self.settings, self.log, self.keys = settings, log, keys
        self.accepted: Counter = metrics.counter("numRequestsAccepted")
        self.duplicates: Counter = metrics.counter("numRequestsDuplicated")
        self.refused: Counter = metrics.counter("numRequestsRefused")
        self._server = _Server((settings.host, settings.port), self)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="webhooks", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections. Those that are open end with the next request."""
        self._server.closing = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def accept(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[HTTPStatus, str]:
        """Append a request to the log, and return the status and the text of the answer."""
        settings = self.settings
        if settings.verification is not None and not settings.verification.verify(headers, body):
            return HTTPStatus.UNAUTHORIZED, "the token or the signature is missing or wrong"
        key = headers.get(settings.key_header, "")
        now = time.time()
        if key:
            new = self.keys.begin(key, body, now)
            if new is False:
                self.duplicates.inc()
                return HTTPStatus.ACCEPTED, "it was accepted before"
            if new is None:
                return (
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"the {settings.key_header} {key!r} belongs to a request with another body",
                )
        request = WebhookRequest(
            body,
            path,
            int(now * 1000),
            key,
            headers.get("Content-Type"),
            {name: headers[name] for name in settings.kept_headers if name in headers},
        )
        durable = False
        try:
            self.log.append(request.pack())
            durable = True
        except LogFullError:
            return HTTPStatus.SERVICE_UNAVAILABLE, "the log is full, because the job is behind"
        except LogClosedError:
            return HTTPStatus.SERVICE_UNAVAILABLE, "the job is down"
        except OSError as error:
            logger.error("a webhook could not be written to the log: %s", error)
            return HTTPStatus.SERVICE_UNAVAILABLE, "the log cannot be written"
        finally:
            if key:
                self.keys.finish(key, durable=durable)
        self.accepted.inc()
        return HTTPStatus.ACCEPTED, "it is accepted"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], endpoint: WebhookEndpoint) -> None:
        self.endpoint = endpoint
        self.closing = False
        self._free = threading.Semaphore(endpoint.settings.max_connections)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        # While it waits, further clients wait in the queue of the socket.
        while not self._free.acquire(timeout=_LOOK_SECONDS):
            if self.closing:
                self.shutdown_request(request)
                return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        logger.debug("the connection of a webhook from %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is one packet. In two, the second would wait for the acknowledgement of the first.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.endpoint.settings.timeout_seconds)

    def do_POST(self) -> None:
        settings = self.server.endpoint.settings
        path = self.path.partition("?")[0]
        below = settings.path if settings.path.endswith("/") else settings.path + "/"
        length = self.headers.get("Content-Length", "")
        if path != settings.path and not path.startswith(below):
            self._answer(HTTPStatus.NOT_FOUND, f"webhooks are at {settings.path}", unread=True)
        elif not length.isdecimal():
            self._answer(HTTPStatus.LENGTH_REQUIRED, "a Content-Length is needed", unread=True)
        elif int(length) > settings.max_body_bytes:
            self._answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a body has at most {settings.max_body_bytes} bytes",
                unread=True,
            )
        else:
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                self.close_connection = True  # the client has gone in the middle of the body
                return
            self._answer(*self.server.endpoint.accept(self.path, self.headers, body))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "webhooks are sent with POST")

    do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, text: str, *, unread: bool = False) -> None:
        """Send an answer. The connection ends if the body of the request was not read."""
        if status is not HTTPStatus.ACCEPTED:
            self.server.endpoint.refused.inc()
        content = json.dumps({"status": status.phrase, "detail": text}).encode()
        self.close_connection = self.close_connection or unread or self.server.closing
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", str(_RETRY_SECONDS))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

    def version_string(self) -> str:
        return "penstock"

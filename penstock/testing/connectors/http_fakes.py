"""Servers in threads of a test: a receiver of webhooks, a stream of events, a WebSocket."""

from __future__ import annotations

import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

#: The time after which a stream without events looks whether its client has gone, in seconds.
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that a `FakeReceiver` has got.

    Arguments:
        path: the path of the URL.
        headers: the headers.
        body: the content.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes


class _FakeServer(ABC):
    """An HTTP server on the loopback interface, which a `with` block starts and stops."""

    def __init__(self) -> None:
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The address of the server. It stays the same after `stop` and `start`."""
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> Self:
        """Start the server."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.handle(self)

            do_POST = do_PUT = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = _QuietServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the server. Connections that are open end."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            self._thread.join()
            server.server_close()

    @abstractmethod
    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request."""

    @property
    def stopped(self) -> bool:
        """Whether the server does not run."""
        return self._server is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address


@dataclass
class FakeReceiver(_FakeServer):
    """A receiver of webhooks that remembers idempotency keys.

    Arguments:
        answer: a function that returns the status for a request; 0 cuts the connection after the
            request has been processed.
        key_header: the header with the idempotency key.

    Attributes:
        requests: all requests, also repeated ones.
        accepted: the requests that were answered with 2xx or cut, each key once.

    Examples:
        >>> with FakeReceiver() as receiver:
        ...     _ = env.from_collection(["a", "b"]).sink_to(HttpSink(receiver.url))
        ...     _ = env.execute("letters")
        >>> [request.body for request in receiver.accepted]
        [b'a', b'b']
    """

    answer: Callable[[ReceivedRequest], int] = lambda _: 200
    key_header: str = "Idempotency-Key"
    requests: list[ReceivedRequest] = field(default_factory=list)
    accepted: list[ReceivedRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._keys: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request, and remember its key."""
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        received = ReceivedRequest(request.path, dict(request.headers), body)
        with self._lock:
            self.requests.append(received)
            status = self.answer(received)
            key = request.headers.get(self.key_header)
            if status == 0 or 200 <= status < 300:
                if key is None or key not in self._keys:
                    self.accepted.append(received)
                elif self._keys[key] != body:
                    status = 422
                if key is not None:
                    self._keys.setdefault(key, body)
        if status == 0:
            request.close_connection = True
            return
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()


class FakeEventServer(_FakeServer):
    """A stream of server-sent events, which goes on behind the `Last-Event-ID`.

    The id of an event is its number, from 1. More events may be appended at any time.

    Arguments:
        events: the data of the events.
        ends: whether the server answers that the stream has ended, when all events are sent.

    Attributes:
        connections: the number of connections so far.

    Examples:
        >>> with FakeEventServer(["a", "b"], ends=True) as server:
        ...     source = SseSource(server.url, SimpleStringSchema(), resumes=True)
        ...     list(env.from_source(source).execute_and_collect())
        ['a', 'b']
    """

    def __init__(self, events: Sequence[str] = (), *, ends: bool = False) -> None:
        super().__init__()
        self.events = list(events)
        self.ends = ends
        self.connections = 0
        self._changed = threading.Condition()
        self._cuts = 0

    def append(self, *events: str) -> None:
        """Append events."""
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def cut(self) -> None:
        """Cut all connections."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop the server, and cut all connections."""
        super().stop()
        self.cut()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Send events until the connection is cut."""
        request.close_connection = True
        self.connections += 1
        place = int(request.headers.get("Last-Event-ID") or "0")
        if self.ends and place >= len(self.events):
            request.send_response(204)
            request.end_headers()
            return
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        cuts = self._cuts
        client = select.poll()
        client.register(request.connection, select.POLLRDHUP)
        while True:
            with self._changed:
                while len(self.events) <= place and self._cuts == cuts and not self.ends:
                    self._changed.wait(_LOOK_SECONDS)
                    if client.poll(0):
                        return  # it has gone
                if self._cuts != cuts or self.stopped:
                    return
                found = self.events[place:]
            if not found:
                return
            for event in found:
                place += 1
                lines = "".join(f"data: {line}\n" for line in event.split("\n"))
                request.wfile.write(f"id: {place}\n{lines}\n".encode())
            request.wfile.flush()


class FakeSocketServer:
    """A server of WebSockets, which sends the same messages to each connection.

    More messages may be appended at any time. It stays open until the end of the `with` block.

    Arguments:
        messages: the messages, as text or bytes.

    Attributes:
        received: the messages that clients have sent, such as greetings.
        connections: the number of connections so far.

    Examples:
        >>> with FakeSocketServer(["1", "2"]) as server:
        ...     source = WebSocketSource(server.url, Json(int))
        ...     with env.from_source(source).execute_and_collect() as numbers:
        ...         next(numbers), next(numbers)
        (1, 2)
    """

    def __init__(self, messages: Sequence[str | bytes] = ()) -> None:
        self.messages = list(messages)
        self.received: list[str | bytes] = []
        self.connections = 0
        self.url = ""
        self._changed = threading.Condition()
        self._stopped = False
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def append(self, *messages: str | bytes) -> None:
        """Append messages."""
        with self._changed:
            self.messages += messages
            self._changed.notify_all()

    def __enter__(self) -> Self:
        from websockets.sync.server import serve

        self._server = serve(self._handle, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()

    def _handle(self, connection: Any) -> None:
        """Send messages until the client has gone, or the server stops."""
        from websockets.exceptions import ConnectionClosed

        gone: list[bool] = []

        def receive() -> None:
            with suppress(ConnectionClosed):
                for message in connection:
                    with self._changed:
                        self.received.append(message)
                        self._changed.notify_all()
            with self._changed:
                gone.append(True)
                self._changed.notify_all()

        with self._changed:
            self.connections += 1
        threading.Thread(target=receive, daemon=True).start()
        place = 0
        with suppress(ConnectionClosed):
            while True:
                with self._changed:
                    while len(self.messages) <= place and not (self._stopped or gone):
                        self._changed.wait()
                    if self._stopped or gone:
                        return
                    message = self.messages[place]
                connection.send(message)
                place += 1

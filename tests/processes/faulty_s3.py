"""A server in front of the server of S3 that makes requests fail in ways that networks have."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

#: Returns the fault of a request, given its method and its path: "500", "403", "empty" (a listing
#: without objects), "slow" (until the test ends or lets it go), "cut" (no answer), "cut after"
#: (it is done, but half an answer comes), or None.
Fault = Callable[[str, str], str | None]


_EMPTY = (
    b"<ListBucketResult><Name>b</Name><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys>"
    b"<IsTruncated>false</IsTruncated></ListBucketResult>"
)


class FaultyS3:
    """Forwards requests to a server of S3, with faults.

    Arguments:
        address: the host and port of the server.
    """

    def __init__(self, address: str) -> None:
        self.fault: Fault = lambda method, path: None
        #: The number of requests that had each fault.
        self.faults: Counter[str] = Counter()
        #: The requests that were forwarded: their method and path.
        self.requests: list[tuple[str, str]] = []
        self.released = threading.Event()
        host, _, port = address.partition(":")
        faulty = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                fault = faulty.fault(self.command, self.path)
                if fault is not None:
                    faulty.faults[fault] += 1
                if fault in ("500", "403"):
                    return self.answer(int(fault), b"<Error><Code>Simulated</Code></Error>", {})
                if fault == "empty":
                    return self.answer(200, _EMPTY, {"Content-Type": "application/xml"})
                if fault == "slow":
                    faulty.released.wait()
                if fault == "cut":
                    return self.cut(0)
                faulty.requests.append((self.command, self.path))
                connection = http.client.HTTPConnection(host, int(port), timeout=120)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers.items()))
                    found = connection.getresponse()
                    content = found.read()
                finally:
                    connection.close()
                if fault == "cut after":
                    return self.cut(len(content))
                kept = {
                    name: value
                    for name, value in found.getheaders()
                    if name.lower() in ("etag", "last-modified", "content-type", "content-range")
                }
                if self.command == "HEAD":
                    kept["Content-Length"] = found.getheader("Content-Length") or "0"
                return self.answer(found.status, content, kept)

            def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def cut(self, length: int) -> None:
                """End the connection in the middle of an answer."""
                if length:
                    self.send_response(200)
                    self.send_header("Content-Length", str(length + 100))
                    self.end_headers()
                self.close_connection = True
                self.connection.close()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Ignore clients that have ended their connection."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[FaultyS3]:
        """Serve requests during a `with` block."""
        self._thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def is_file(path: str) -> bool:
    """Return whether a request is for a file of a snapshot."""
    return "/files/" in urlsplit(path).path


def is_entry(path: str) -> bool:
    """Return whether a request is for an entry of the snapshot log."""
    return "/log/" in urlsplit(path).path


def is_listing(path: str) -> bool:
    """Return whether a request lists objects."""
    return "list-type" in parse_qs(urlsplit(path).query, keep_blank_values=True)

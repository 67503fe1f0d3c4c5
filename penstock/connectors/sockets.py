"""A source that reads text from a TCP connection.

It is for demonstrations and tests, like Flink's `socketTextStream`. Text that was received before
a failure cannot be read again, so the source is not rewindable, and the compilation of the job
refuses exactly-once. The reader connects at its first read, which runs in a thread.
"""

from __future__ import annotations

import codecs
import contextlib
import socket
import threading
from typing import Any

from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

__all__ = ["SocketSource"]

_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16


class SocketSource(Source):
    """Read text from one TCP connection, cut at a delimiter, until the peer closes it.

    One reader connects, at any parallelism. With the delimiter `"\\n"`, one `"\\r"` at the
    end of a record is stripped. Text after the last delimiter is a record if it isn't empty.
    After a recovery the reader connects again, and records may be missing or come twice. The
    position is the number of records so far, for information only.

    Arguments:
        host: name or address of the peer.
        port: its port.
        delimiter: text at the end of a record.
        encoding: of the text.
        errors: what to do with bytes that cannot be decoded; as for `bytes.decode`.
        retries: number of attempts to connect after the first one; -1 is without end.
        retry_seconds: time between two attempts, in seconds.

    Raises:
        GraphError: if an argument is out of range.
    """

    rewindable = False
    bounded = False

    def __init__(
        self,
        host: str,
        port: int,
        delimiter: str = "\n",
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        retries: int = 0,
        retry_seconds: float = 0.5,
    ) -> None:
        if not host or not isinstance(host, str):
            raise GraphError(f"a socket source needs the name of a host, not {host!r}")
        if not isinstance(port, int) or not 0 < port < 65_536:
            raise GraphError(f"a socket source needs a port from 1 to 65535, not {port!r}")
        if not delimiter:
            raise GraphError("the delimiter of a socket source must not be empty")
        if retries < -1 or retry_seconds < 0:
            raise GraphError("retries is -1, 0 or more, and retry_seconds is not negative")
        try:
            codecs.lookup(encoding)
            codecs.lookup_error(errors)
        except LookupError as error:
            raise GraphError(f"a socket source can't decode: {error}") from None
        self.host = host
        self.port = port
        self.delimiter = delimiter
        self.encoding = encoding
        self.errors = errors
        self.retries = retries
        self.retry_seconds = retry_seconds

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of a single split."""
        del parallelism
        return ListEnumerator([Split(f"{self.host}:{self.port}")])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a blocking reader."""
        del context
        return _SocketReader(self)


class _SocketReader(SourceReader):
    """Receive, cut and decode the text of a connection."""

    blocking = True

    def __init__(self, source: SocketSource) -> None:
        self._source = source
        self._delimiter = source.delimiter.encode(source.encoding)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._records: list[bytes] = []
        self._tail = b""
        self._ended = False
        self._count = 0

    def open(self, split: Split, position: Any) -> None:
        del split
        self._count = position or 0

    def read(self, max_records: int) -> Read:
        while not (self._records or self._ended):
            if not self._receive():
                return Read([], self._count)
        taken = self._records[:max_records]
        del self._records[: len(taken)]
        self._count += len(taken)
        finished = self._ended and not self._records
        return Read(self._decode(taken), self._count, finished)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._socket is not None:
                # A shutdown wakes a thread that waits for the socket. A close does not.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._socket.close()

    def _receive(self) -> bool:
        """Wait for bytes and cut them into records; return False if the reader was closed."""
        connection = self._socket or self._connect()
        if connection is None:
            return False
        try:
            data = connection.recv(_CHUNK_BYTES)
        except OSError as error:
            if self._closed.is_set():
                return False
            raise JobError(f"the connection to {self._peer} broke: {error}") from error
        if self._closed.is_set():
            return False
        if data:
            *self._records, self._tail = (self._tail + data).split(self._delimiter)
        else:
            self._ended = True
            self._records = [self._tail] if self._tail else []
        return True

    def _connect(self) -> socket.socket | None:
        """Connect, with retries; return None if the reader was closed meanwhile."""
        source = self._source
        attempts = 0
        while not self._closed.is_set():
            try:
                connection = socket.create_connection(
                    (source.host, source.port), timeout=_CONNECT_SECONDS
                )
            except OSError as error:
                attempts += 1
                if attempts > source.retries >= 0:
                    raise JobError(
                        f"cannot connect to {self._peer} ({attempts} attempts): {error}. Start "
                        f"the server first, or let the source wait for it with retries="
                    ) from error
                self._closed.wait(source.retry_seconds)
                continue
            connection.settimeout(None)
            with self._lock:
                # close() was called while connecting and saw no socket, so close it here.
                if self._closed.is_set():
                    connection.close()
                    return None
                self._socket = connection
            return connection
        return None

    def _decode(self, taken: list[bytes]) -> list[str]:
        encoding, errors = self._source.encoding, self._source.errors
        try:
            records = [record.decode(encoding, errors) for record in taken]
        except UnicodeDecodeError as error:
            raise JobError(
                f"text from {self._peer} cannot be decoded as {encoding}: {error}; "
                f"set encoding= or errors='replace'"
            ) from error
        if self._source.delimiter == "\n":
            records = [record.removesuffix("\r") for record in records]
        return records

    @property
    def _peer(self) -> str:
        return f"{self._source.host}:{self._source.port}"

"""A source that reads text from a TCP connection.

It is for demonstrations and tests, like Flink's `socketTextStream`. Text that was received before
a failure cannot be read again. So the source is not rewindable, and a job with this source cannot
be exactly once. The reader connects in its first call of `read`. It may block there, because the
task calls `read` in a separate thread.
"""

from __future__ import annotations

import codecs
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, Generic, overload

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    check_deserialization_schema,
)
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.dataflow.type_variables import T

if TYPE_CHECKING:
    from penstock.connectors.formats import MessageDecoder

_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16


class SocketSource(Source[T], Generic[T]):
    """Reads text or messages from one TCP connection until the peer closes the connection.

    A delimiter separates the records. Only one reader connects, at any parallelism. If the
    delimiter is `"\\n"`, one `"\\r"` at the end of a record is removed. Text after the last
    delimiter is a record if it is not empty.

    After a recovery the reader connects again. Then records may be missing, or may be received
    twice. The position is the number of records so far. It is only informative.

    Arguments:
        host: the name or address of the peer.
        port: the port of the peer.
        delimiter: the text that ends a record.
        encoding: the name of the text encoding.
        errors: the way to handle bytes that cannot be decoded, such as `strict` or `replace`.
        schema: the schema of the messages between two delimiters, such as `Json(Order)`; None if
            they are text. Empty messages are then left out.
        retries: the number of attempts to connect after the first one. -1 means no limit.
        retry_seconds: the time between two attempts, in seconds.

    Raises:
        GraphError: if an argument is out of range, or the encoding is unknown.

    Examples:
        >>> source = SocketSource("localhost", 7777, retries=10)
        >>> _ = env.from_source(source).sink_to(PrintSink())
    """

    rewindable = False
    bounded = False
    has_event_times = False

    @overload
    def __init__(
        self: SocketSource[str],
        host: str,
        port: int,
        delimiter: str = "\n",
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        schema: None = None,
        retries: int = 0,
        retry_seconds: float = 0.5,
    ) -> None: ...

    @overload
    def __init__(
        self: SocketSource[T],
        host: str,
        port: int,
        delimiter: str = "\n",
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        schema: DeserializationSchema[T],
        retries: int = 0,
        retry_seconds: float = 0.5,
    ) -> None: ...

    def __init__(
        self,
        host: str,
        port: int,
        delimiter: str = "\n",
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        schema: DeserializationSchema[Any] | None = None,
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
        if schema is not None:
            check_deserialization_schema("schema of a socket source", schema)
        self.schema = schema
        self.host = host
        self.port = port
        self.delimiter = delimiter
        self.encoding = encoding
        self.errors = errors
        self.retries = retries
        self.retry_seconds = retry_seconds

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tag `BAD_MESSAGES` if the schema emits bad messages to a side output."""
        return () if self.schema is None else side_output_tags(self.schema.on_error)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns a single split."""
        del parallelism
        return ListEnumerator([Split(f"{self.host}:{self.port}")])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader whose method `read` may block."""
        decoder = None
        if self.schema is not None:
            from penstock.connectors.formats import MessageDecoder, SchemaContext

            decoder = MessageDecoder(self.schema, SchemaContext(metrics=context.metrics))
        return _SocketReader(self, decoder)


class _SocketReader(SourceReader):
    """Receives the text of a connection, and divides it into records."""

    blocking = True

    def __init__(self, source: SocketSource[Any], decoder: MessageDecoder | None) -> None:
        self._source = source
        self._decoder = decoder
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
        first, self._count = self._count + 1, self._count + len(taken)
        finished = self._ended and not self._records
        decoder = self._decoder
        if decoder is None:
            return Read(self._decode(taken), self._count, finished)
        if self._source.delimiter == "\n":
            taken = [message.removesuffix(b"\r") for message in taken]
        numbers = [number for number, message in enumerate(taken, first) if message]
        decoded = decoder.decode(
            [message for message in taken if message],
            lambda index: f"{self._peer}, message {numbers[index]}",
        )
        if finished:
            decoder.end_split(self._peer)
        side_output = decoder.take_side_output()
        return Read(decoded.records, self._count, finished, 0.0, side_output)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._socket is not None:
                # `shutdown` ends a blocked `recv` in another thread. `close` alone does not.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._socket.close()

    def _receive(self) -> bool:
        """Wait for bytes, and divide them into records.

        Returns:
            False if the reader was closed meanwhile, else True.

        Raises:
            JobError: if the connection cannot be opened, or is lost.
        """
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
        """Connect to the peer, and retry as often as the source allows.

        Returns:
            The connected socket, or None if the reader was closed meanwhile.

        Raises:
            JobError: if all attempts failed.
        """
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
                # If `close` was called during the attempt to connect, it could not close the new
                # socket. So close the socket here.
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

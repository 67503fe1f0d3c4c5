"""Define `WebSocketSource`, which receives the messages of a WebSocket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    check_deserialization_schema,
)
from penstock.connectors.http.missing import require
from penstock.connectors.http.push_reader import PushReader, check_url, header_values
from penstock.connectors.tls import Tls
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import (
    ListEnumerator,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.dataflow.type_variables import PlainValue, T_co

_OPEN_SECONDS = 10.0
#: Messages that are received at most at a time, so that a fast server cannot fill the memory.
_AT_ONCE = 1_000


class WebSocketSource(Source[T_co]):
    """Receives the messages of a WebSocket. A failure may lose messages.

    A WebSocket has no positions, so messages cannot be read again: the source is not `rewindable`.
    When the connection is lost, the source connects again. Messages that the server has sent
    meanwhile are lost, unless the server sends them again.

    Arguments:
        url: the address, which begins with `ws://` or `wss://`.
        format: how to decode messages to records, such as `Json()`. With None, the records are
            text or bytes, as the server sends them.
        greetings: texts to send after each connection, such as subscriptions; or a function that
            returns them, which is called in the worker.
        headers: headers of the request. A value may be a function, which is called in the worker,
            so that the job contains no secrets.
        tls: the settings of encryption, if the certificate of the server is not one that the system
            trusts.
        ping_seconds: the time between two pings, in seconds; a connection whose ping is not
            answered for as long counts as lost.
        max_message_bytes: the size of a message at which the connection is closed.
        unreachable_seconds: the time for which a lost connection is tried again before the job
            restarts, in seconds.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> source = WebSocketSource("wss://example.org/trades", greetings=['{"subscribe": "all"}'])
        >>> source.rewindable
        False
    """

    rewindable = False
    bounded = False
    has_event_times = False

    def __init__(
        self,
        url: str,
        format: DeserializationSchema[T_co] | None = None,
        *,
        greetings: Iterable[str] | Callable[[], Iterable[str]] = (),
        headers: Mapping[str, str | Callable[[], str]] | None = None,
        tls: Tls | None = None,
        ping_seconds: float = 20.0,
        max_message_bytes: int = 1 << 20,
        unreachable_seconds: float = 30.0,
    ) -> None:
        self.url = check_url(url, ("ws", "wss"))
        self.format = format
        self.greetings = greetings if callable(greetings) else tuple(greetings)
        self.headers = dict(headers or {})
        self.tls = tls
        self.ping_seconds, self.max_message_bytes = ping_seconds, max_message_bytes
        self.unreachable_seconds = unreachable_seconds
        if format is not None:
            check_deserialization_schema("the format of a WebSocketSource", format)
        if ping_seconds <= 0 or max_message_bytes <= 0:
            raise GraphError("ping_seconds and max_message_bytes must be positive")

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tags of the side outputs: `BAD_MESSAGES`, if the format emits bad messages there."""
        return () if self.format is None else side_output_tags(self.format.on_error)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator with one split."""
        del parallelism
        return ListEnumerator([Split(self.url)])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader, which connects when it is read."""
        return _WebSocketReader(self, context)


class _WebSocketReader(PushReader[Any, Any]):
    """Receives messages. Its position is their number, which is only informative."""

    def __init__(self, source: WebSocketSource[Any], context: ReaderContext) -> None:
        super().__init__(source.url, source.format, source.unreachable_seconds, context)
        self._source = source
        self._client = require("websockets.sync.client")
        self._errors = require("websockets.exceptions")
        self._count = 0

    def open(self, split: Split, position: Any) -> None:
        super().open(split, position)
        self._count = position or 0

    def payload(self, message: str | bytes) -> bytes:
        return message.encode() if isinstance(message, str) else message

    def is_loss(self, error: Exception) -> bool:
        return isinstance(error, OSError | TimeoutError | self._errors.WebSocketException)

    def connect(self) -> Any:
        source = self._source
        tls = {} if source.tls is None else {"ssl": source.tls.context()}
        try:
            # The newest versions connect when the block is entered, and older ones at once.
            connection = self._client.connect(
                source.url,
                additional_headers=header_values(source.headers),
                open_timeout=_OPEN_SECONDS,
                ping_interval=source.ping_seconds,
                ping_timeout=source.ping_seconds,
                close_timeout=1.0,
                max_size=source.max_message_bytes,
                **tls,
            ).__enter__()
        except self._errors.InvalidStatus as error:
            status = error.response.status_code
            what = f"{source.url} refuses the WebSocket with status {status}"
            if status >= 500 or status in (408, 425, 429):
                raise ConnectionError(what) from error
            raise JobError(what, recoverability=Recoverability.NON_RECOVERABLE) from error
        greetings = source.greetings
        for text in greetings() if callable(greetings) else greetings:
            connection.send(text)
        return connection

    def receive(self, connection: Any) -> list[tuple[Any, PlainValue]]:
        try:
            messages = [connection.recv()]
        except self._errors.ConnectionClosed as error:
            sent = error.sent
            if sent is not None and sent.code == 1009:  # by us: it is too big
                raise JobError(
                    f"{self._url} has sent a message of more than "
                    f"{self._source.max_message_bytes} bytes: raise max_message_bytes",
                    recoverability=Recoverability.NON_RECOVERABLE,
                ) from error
            raise
        try:
            while len(messages) < _AT_ONCE:
                messages.append(connection.recv(timeout=0))
        except (TimeoutError, self._errors.ConnectionClosed):
            pass  # the next call finds out that it is closed
        first = self._count
        self._count += len(messages)
        return list(zip(messages, range(first + 1, self._count + 1), strict=True))

    def disconnect(self, connection: Any) -> None:
        connection.close()

"""Define `SseSource`, which reads server-sent events. (WHATWG HTML, section 9.2.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

_CONNECT_SECONDS = 10.0
_CHUNK_BYTES = 1 << 16
#: Answers after which another attempt may help, besides all 5xx.
_BUSY = {408, 425, 429}


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """An event of a stream of server-sent events.

    Arguments:
        data: the content.
        event: the type of the event.
        id: the id of the last event that had one; empty if there was none.

    Examples:
        >>> ServerSentEvent("21.5").event
        'message'
    """

    data: str
    event: str = "message"
    id: str = ""


class EventStreamParser:
    """Divides the bytes of a stream into events.

    Attributes:
        last_id: the id of the last event.
        retry_seconds: the delay before a new connection that the server wants, or None.

    Arguments:
        last_id: the id of the last event of an earlier connection.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.retry_seconds: float | None = None
        self._id = last_id
        self._rest = b""
        self._begun = False
        self._data: list[str] = []
        self._event = ""
        #: Whether the event that is being read has its own id.
        self._has_id = False

    def feed(self, chunk: bytes) -> list[tuple[ServerSentEvent, bool]]:
        """Return the events that are complete now, and whether each has an id of its own."""
        events: list[tuple[ServerSentEvent, bool]] = []
        for line in self._lines(chunk):
            if line:
                self._field(line)
                continue
            self.last_id = self._id
            if self._data:
                event = ServerSentEvent("\n".join(self._data), self._event or "message", self._id)
                events.append((event, self._has_id))
            self._data, self._event, self._has_id = [], "", False
        return events

    def _lines(self, chunk: bytes) -> list[str]:
        """Return the lines that are complete now. They end with LF, CR, or both."""
        data = self._rest + chunk
        if not self._begun and len(data) >= 3:
            data, self._begun = data.removeprefix(b"\xef\xbb\xbf"), True
        if not self._begun and not data.endswith(b"\n"):
            self._rest = data
            return []
        # A CR at the end may be followed by its LF in the next chunk.
        held = data[-1:] if data.endswith(b"\r") else b""
        data = data[: len(data) - len(held)]
        parts = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = parts.pop() + held
        return [part.decode(errors="replace") for part in parts]

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id, self._has_id = value, True
        elif name == "retry" and value.isdecimal():
            self.retry_seconds = int(value) / 1000


class SseSource(Source[T_co]):
    """Reads server-sent events from a URL.

    When the connection is lost, the source connects again, and sends the id of the last event as
    `Last-Event-ID`. Many servers then go on behind it. Others begin with the next event, so events
    are lost. If the server keeps all events for long enough and goes on behind any id, also after
    hours, set `resumes=True`: the source is then `rewindable`, and exactly once in state. Otherwise
    it is not, and a failure may lose events.

    Arguments:
        url: the address, which begins with `http://` or `https://`.
        format: how to decode the data of events to records, such as `Json()`. None emits
            `ServerSentEvent`s.
        resumes: whether the server goes on behind each id. Each event must then have an id.
        headers: headers of the request. A value may be a function, which is called in the worker,
            so that the job contains no secrets.
        tls: the settings of encryption, if the certificate of the server is not one that the system
            trusts.
        idle_seconds: the time without any byte after which the connection counts as lost, in
            seconds; None for no limit. Servers send comments to show that they live.
        unreachable_seconds: the time for which a lost connection is tried again before the job
            restarts, in seconds.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> SseSource("https://example.org/events").rewindable
        False
        >>> SseSource("https://example.org/events", Json(), resumes=True).rewindable
        True
    """

    bounded = False
    has_event_times = False

    def __init__(
        self,
        url: str,
        format: DeserializationSchema[T_co] | None = None,
        *,
        resumes: bool = False,
        headers: Mapping[str, str | Callable[[], str]] | None = None,
        tls: Tls | None = None,
        idle_seconds: float | None = 300.0,
        unreachable_seconds: float = 30.0,
    ) -> None:
        self.url = check_url(url, ("http", "https"))
        self.format = format
        self.rewindable = resumes
        self.headers = dict(headers or {})
        self.tls = tls
        self.idle_seconds, self.unreachable_seconds = idle_seconds, unreachable_seconds
        if format is not None:
            check_deserialization_schema("the format of an SseSource", format)
        if idle_seconds is not None and idle_seconds <= 0:
            raise GraphError(f"idle_seconds is positive or None, not {idle_seconds}")

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
        return _SseReader(self, context)


class _SseReader(PushReader[Any, ServerSentEvent]):
    """Reads events. Its position is the id of the last event."""

    def __init__(self, source: SseSource[Any], context: ReaderContext) -> None:
        super().__init__(source.url, source.format, source.unreachable_seconds, context)
        self._source = source
        self._urllib3 = require("urllib3")
        tls = None if source.tls is None else source.tls.context()
        self._pool = self._urllib3.PoolManager(ssl_context=tls, retries=False)
        self._last_id = ""
        self._parser = EventStreamParser()

    def open(self, split: Split, position: Any) -> None:
        super().open(split, position)
        self._last_id = position or ""

    def payload(self, message: ServerSentEvent) -> bytes:
        return message.data.encode()

    def is_loss(self, error: Exception) -> bool:
        return isinstance(error, OSError | self._urllib3.exceptions.HTTPError)

    def connect(self) -> Any:
        source = self._source
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        response = self._pool.request(
            "GET",
            source.url,
            headers={**header_values(source.headers), **headers},
            preload_content=False,
            redirect=True,
            timeout=self._urllib3.Timeout(connect=_CONNECT_SECONDS, read=source.idle_seconds),
        )
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
        if response.status == 204:
            self.end()
        elif response.status != 200:
            text = response.read(200).decode(errors="replace")
            response.close()
            what = f"{source.url} has answered {response.status} {response.reason}: {text}"
            if response.status >= 500 or response.status in _BUSY:
                raise ConnectionError(what)
            raise JobError(what, recoverability=Recoverability.NON_RECOVERABLE)
        elif kind != "text/event-stream":
            response.close()
            raise JobError(
                f"{source.url} sends {kind or 'no type'}, and not text/event-stream: it is no "
                f"stream of server-sent events",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        self._parser = EventStreamParser(self._last_id)
        return response

    def receive(self, connection: Any) -> list[tuple[ServerSentEvent, PlainValue]]:
        if self._ended:
            return []
        # The size only bounds the memory: `read1` returns as soon as some bytes have arrived.
        chunk = connection.read1(_CHUNK_BYTES)
        if not chunk:
            raise ConnectionError("the server has closed the connection")
        events = self._parser.feed(chunk)
        self._last_id = self._parser.last_id
        self.least_delay = self._parser.retry_seconds or self.least_delay
        if self._source.rewindable and not all(has_id for _, has_id in events):
            raise JobError(
                f"{self._url} has sent an event without an id, so the source cannot go on behind "
                f"it: let the server send ids, or set resumes=False",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return [(event, event.id) for event, _ in events]

    def disconnect(self, connection: Any) -> None:
        try:
            connection.shutdown()  # a blocked read then ends
        except (ValueError, RuntimeError, OSError):
            pass  # it is closed already
        connection.close()

    def close(self) -> None:
        super().close()
        self._pool.clear()

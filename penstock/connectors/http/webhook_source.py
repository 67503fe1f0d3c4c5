"""Define `WebhookSource`, an HTTP endpoint whose requests are records, exactly once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.formats.messages import MessageDecoder
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    SchemaContext,
    check_deserialization_schema,
)
from penstock.connectors.http.webhook_endpoint import (
    EndpointSettings,
    SeenKeys,
    Verification,
    WebhookEndpoint,
    WebhookRequest,
)
from penstock.connectors.http.webhook_log import LogInUseError, WebhookLog
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)
from penstock.dataflow.type_variables import T_co

#: The time for which a reader waits until an earlier one has released the port and the log.
_TAKEN_SECONDS = 30.0
_LOOK_SECONDS = 0.2


class WebhookSource(Source[T_co]):
    """Accepts webhooks at an HTTP endpoint, and emits each once.

    A request is answered with 202 when it is on disk, in a log of the source. From there it is
    exactly once: the source is `rewindable`, and a position is a place in the log. A client that
    gets no 202 sends its request again. If it sends an idempotency key, the source finds out
    whether it has the request already.

    One subtask has the endpoint. It is open while the job runs. While it does not, connections are
    refused, and clients must try again. Segments of the log are removed when a complete snapshot
    covers them and their keys are not needed any more.

    Event times are the times of arrival, unless a watermark strategy has a timestamp assigner.

    Arguments:
        folder: the folder of the log. Each worker that may run the source must reach it, and it
            must be on a disk whose `fsync` can be relied on.
        port: the port of the endpoint.
        format: how to decode bodies to records, such as `Json()`. None emits `WebhookRequest`s.
        host: the address to listen on. By default, only programs of this machine can connect; a
            proxy in front of it can add encryption.
        path: the path of the endpoint. Paths below it are accepted, too.
        verification: a `BearerToken` or an `HmacSignature`; None accepts all requests.
        max_body_bytes: the size of the largest body.
        max_log_bytes: the size of the log at which requests are refused with 503, until the job has
            processed some.
        key_header: the header with the idempotency key.
        deduplicate_seconds: the time for which keys are remembered, in seconds. The log keeps the
            requests for as long.
        keep_headers: the names of headers that `WebhookRequest.headers` has.
        max_connections: the number of connections that are served at the same time.
        timeout_seconds: the time for which a connection may be silent, in seconds.
        segment_bytes: the size of a file of the log at which the next one begins.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> token = BearerToken(lambda: Path("/run/secrets/webhooks").read_text())
        >>> source = WebhookSource("webhook-log", 8080, Json(), verification=token)
        >>> source.rewindable
        True
    """

    bounded = False
    exclusive = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        port: int,
        format: DeserializationSchema[T_co] | None = None,
        *,
        host: str = "127.0.0.1",
        path: str = "/",
        verification: Verification | None = None,
        max_body_bytes: int = 1 << 20,
        max_log_bytes: int = 1 << 30,
        key_header: str = "Idempotency-Key",
        deduplicate_seconds: float = 3600.0,
        keep_headers: Iterable[str] = (),
        max_connections: int = 100,
        timeout_seconds: float = 30.0,
        segment_bytes: int = 16 << 20,
    ) -> None:
        self.folder = str(Path(folder).absolute())
        self.format = format
        self.max_log_bytes, self.segment_bytes = max_log_bytes, segment_bytes
        self.deduplicate_seconds = deduplicate_seconds
        self.settings = EndpointSettings(
            host=host,
            port=port,
            path=path,
            verification=verification,
            max_body_bytes=max_body_bytes,
            key_header=key_header,
            kept_headers=tuple(name.lower() for name in keep_headers),
            max_connections=max_connections,
            timeout_seconds=timeout_seconds,
        )
        if format is not None:
            check_deserialization_schema("the format of a WebhookSource", format)
        if not isinstance(port, int) or not 0 <= port < 65_536:
            raise GraphError(f"the port of a WebhookSource is from 0 to 65535, not {port!r}")
        if not path.startswith("/"):
            raise GraphError(f"the path of a WebhookSource begins with '/', and {path!r} does not")
        if verification is not None and not isinstance(verification, Verification):
            raise GraphError(
                f"verification is a BearerToken, an HmacSignature or None, not {verification!r}"
            )
        sizes = (max_body_bytes, segment_bytes, max_connections, timeout_seconds)
        if min(sizes) <= 0 or deduplicate_seconds < 0:
            raise GraphError("the limits of a WebhookSource must be positive")
        if max_log_bytes < 2 * max(segment_bytes, max_body_bytes):
            raise GraphError("max_log_bytes is at least twice segment_bytes and max_body_bytes")

    @property
    def location(self) -> object:
        """The folder of the log."""
        return self.folder

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tags of the side outputs: `BAD_MESSAGES`, if the format emits bad messages there."""
        return () if self.format is None else side_output_tags(self.format.on_error)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator with one split, the log."""
        del parallelism
        return ListEnumerator([Split("log")])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader, which opens the log and the endpoint when it is read."""
        return _WebhookReader(self, context)


class _WebhookReader(SourceReader):
    """Reads the log, and has the endpoint that writes it."""

    blocking = True

    def __init__(self, source: WebhookSource[Any], context: ReaderContext) -> None:
        self._source, self._metrics = source, context.metrics
        self._decoder: MessageDecoder | None = None
        if source.format is not None:
            self._decoder = MessageDecoder(source.format, SchemaContext(metrics=context.metrics))
        self._place: tuple[int, int] | None = None
        self._log: WebhookLog | None = None
        self._endpoint: WebhookEndpoint | None = None
        self._closed = threading.Event()
        #: It is held while the log and the endpoint are opened or closed.
        self._lock = threading.Lock()

    @property
    def port(self) -> int | None:
        """The port of the endpoint; None as long as it is not open."""
        return None if self._endpoint is None else self._endpoint.port

    def open(self, split: Split, position: Any) -> None:
        del split
        self._place = None if position is None else (position[0], position[1])

    def read(self, max_records: int) -> Read:
        log = self._log or self._open_log()
        if log is None or self._place is None:
            return Read([], None if self._place is None else list(self._place))
        with log.changed:
            log.changed.wait_for(lambda: log.end != self._place or log.closed)
            if log.closed:
                if self._closed.is_set():
                    return Read([], list(self._place))
                raise JobError(
                    f"the webhook log {self._source.folder} could not be written",
                    recoverability=Recoverability.ENVIRONMENT,
                )
        records, self._place = log.read(self._place, max_records)
        requests = [WebhookRequest.unpack(record) for record in records]
        received = [request.received for request in requests]
        position = list(self._place)
        if self._decoder is None:
            return TimedRead(Read(requests, position), received)
        decoded = self._decoder.decode(
            [request.body for request in requests],
            lambda index: f"the webhook {requests[index].path} of {received[index]} ms",
        )
        bad = self._decoder.take_side_output()
        read = Read(decoded.records, position, side_output=bad)
        return TimedRead(read, list(decoded.pick(received)))

    def snapshot_completed(self, position: Any) -> None:
        log = self._log
        if log is not None and position is not None:
            before = time.time() - self._source.deduplicate_seconds
            log.remove_before((position[0], position[1]), before)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            endpoint, self._endpoint = self._endpoint, None
            log = self._log
        # The log comes first: requests that wait for it are then answered with 503.
        if log is not None:
            log.close()
        if endpoint is not None:
            endpoint.close()

    def _open_log(self) -> WebhookLog | None:
        """Open the log and the endpoint, when an earlier attempt has closed them."""
        source, since = self._source, time.monotonic()
        while not self._closed.is_set():
            try:
                with self._lock:
                    return None if self._closed.is_set() else self._try_to_open()
            except (LogInUseError, OSError) as error:
                if time.monotonic() - since > _TAKEN_SECONDS:
                    raise JobError(
                        f"the webhook endpoint {source.settings.host}:{source.settings.port} "
                        f"cannot be opened: {error}. Another program may use the port, or another "
                        f"job the log",
                        recoverability=Recoverability.ENVIRONMENT,
                    ) from error
                self._closed.wait(_LOOK_SECONDS)
        return None

    def _try_to_open(self) -> WebhookLog:
        source = self._source
        log = WebhookLog(Path(source.folder), source.segment_bytes, source.max_log_bytes)
        try:
            keys = SeenKeys(source.deduplicate_seconds)
            oldest = time.time() - source.deduplicate_seconds
            for record in log.read_all():
                request = WebhookRequest.unpack(record)
                if request.key and request.received / 1000 >= oldest:
                    keys.add(request.key, request.received / 1000, request.body)
            if self._place is None:
                self._place = log.start
            log.check(self._place)
            self._endpoint = WebhookEndpoint(source.settings, log, keys, self._metrics)
        except BaseException:
            log.close()
            raise
        self._log = log
        return log

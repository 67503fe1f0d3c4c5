"""Define `HttpSink`, which sends webhooks: staged with the snapshots, with idempotency keys."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from penstock.connectors.formats.messages import MessageEncoder
from penstock.connectors.formats.schemas import (
    SchemaContext,
    SerializationSchema,
    check_serialization_schema,
)
from penstock.connectors.http.missing import require
from penstock.connectors.http.push_reader import check_url, header_values
from penstock.connectors.staged_sink import (
    Marker,
    SinkPlace,
    StagedCommitter,
    StagedSink,
    Target,
    make_staging,
)
from penstock.connectors.tls import Tls
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import Committer, CommitterContext, WriterContext
from penstock.dataflow.type_variables import PlainValue, T_contra
from penstock.snapshot.storage.filesystem.durable_files import make_folders, replace_file

logger = logging.getLogger("penstock.connectors")

#: Answers after which another attempt may help, besides all 5xx. 409: a request with the same key
#: is still being processed.
_BUSY = {408, 409, 425, 429}
_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 30.0
#: The length of the part of an answer or a request that an error shows, in bytes.
_SHOWN_BYTES = 500


class HttpSink(StagedSink[T_contra]):
    """Sends records to a URL, at least once, with an idempotency key for each request.

    Records are staged until their snapshot is complete, and are sent by the JobManager then. The
    key of a request is made when its first record is staged, and is a part of the snapshot: a
    request that is sent again, after any failure, has the same key and the same content. So the
    effect is exactly once if the receiver remembers keys. Records of a failed attempt that belong
    to no snapshot are never sent.

    Arguments:
        url: the address, or a function of a record that returns it.
        format: how to encode records, such as `Json()`. With None, the records are text or bytes.
        method: the method of the requests.
        headers: headers of the requests. A value may be a function, which is called in the
            JobManager, so that the job contains no secrets.
        content_type: the type of the content; None for the usual one of `batch`.
        batch: the content of a request with several records: "json" is an array of JSON values, and
            "lines" has a line for each.
        batch_records: the largest number of records of one request. With 1, a request has the
            record alone.
        parallel: the number of requests that are sent at the same time. With more than one, they
            may arrive in another order.
        key_header: the header with the idempotency key.
        timeout_seconds: the time for which an answer is awaited, in seconds.
        retry_seconds: the time for which a request is tried again before the job restarts, in
            seconds. Requests are tried again if there is no connection, and after the answers 408,
            409, 425, 429 and 5xx.
        rejected: "fail" ends the job if a request is answered otherwise than with 2xx. The path of
            a folder writes it to a file there, and goes on.
        tls: the settings of encryption, if the certificate of the server is not one that the system
            trusts.

    Raises:
        GraphError: if an argument is out of range.

    Examples:
        >>> sink = HttpSink("https://example.org/hooks", Json(), batch_records=100)
        >>> _ = env.from_collection([{"order": 1}]).sink_to(sink)
    """

    def __init__(
        self,
        url: str | Callable[[Any], str],
        format: SerializationSchema[T_contra] | None = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str | Callable[[], str]] | None = None,
        content_type: str | None = None,
        batch: str = "json",
        batch_records: int = 1,
        parallel: int = 1,
        key_header: str = "Idempotency-Key",
        timeout_seconds: float = 30.0,
        retry_seconds: float = 60.0,
        rejected: str | os.PathLike[str] = "fail",
        tls: Tls | None = None,
    ) -> None:
        self.url = url if callable(url) else check_url(url, ("http", "https"))
        self.format = format
        self.method, self.headers = method, dict(headers or {})
        self.batch, self.batch_records = batch, batch_records
        self.content_type = content_type or (
            "application/x-ndjson" if batch == "lines" and batch_records > 1 else "application/json"
        )
        self.parallel, self.key_header = parallel, key_header
        self.timeout_seconds, self.retry_seconds = timeout_seconds, retry_seconds
        self.rejected = None if rejected == "fail" else str(Path(rejected).absolute())
        self.tls = tls
        #: The folders of the job with staged files: its own, and that of the parent of a fork.
        self.folders: tuple[Path, ...] = ()
        if format is not None:
            check_serialization_schema("the format of an HttpSink", format)
        if batch not in ("json", "lines"):
            raise GraphError(f'batch of an HttpSink is "json" or "lines", not {batch!r}')
        if batch_records < 1 or parallel < 1:
            raise GraphError("batch_records and parallel of an HttpSink are at least 1")
        if timeout_seconds <= 0 or retry_seconds < 0:
            raise GraphError("timeout_seconds must be positive, and retry_seconds not negative")

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that stages the contents of records with the keys of one file."""
        encode = self._encoder(context)
        file_key, count = secrets.token_hex(8), 0

        def stage(batch: list[Any]) -> PlainValue:
            nonlocal count
            first, count = count, count + len(batch)
            urls: Any = None
            if callable(self.url):
                urls = [check_url(self.url(record), ("http", "https")) for record in batch]
            return [file_key, first, urls, encode(batch)]

        return stage

    def _encoder(self, context: WriterContext) -> Callable[[list[Any]], list[Any]]:
        if self.format is not None:
            return MessageEncoder(self.format, SchemaContext(metrics=context.metrics)).encode

        def encode(batch: list[Any]) -> list[Any]:
            contents = [record.encode() if isinstance(record, str) else record for record in batch]
            for content in contents:
                if not isinstance(content, bytes):
                    raise JobError(
                        f"a record is {type(content).__name__}, and not text or bytes: give the "
                        f"HttpSink a format, such as Json()",
                        recoverability=Recoverability.NON_RECOVERABLE,
                    )
            return contents

        return encode

    def connect(self, place: SinkPlace) -> Target:
        """Return the sender of staged records."""
        return _HttpTarget(self, place)

    def create_committer(self) -> Committer:
        """Return the committer, which keeps its markers in the job's folder."""
        return _HttpCommitter(self)


class _HttpCommitter(StagedCommitter):
    """Passes the folders of the job to the target."""

    def __init__(self, sink: HttpSink[Any]) -> None:
        super().__init__(sink)
        self._http_sink = sink

    def open(self, context: CommitterContext) -> None:
        self._http_sink.folders = tuple(context.staging)
        super().open(context)


@dataclass(frozen=True)
class _Request:
    """A request: its key is the same each time that it is sent."""

    key: str
    url: str
    contents: list[bytes]


@dataclass(frozen=True)
class _Rejection:
    """The answer to a request that is not sent again."""

    request: _Request
    status: int
    answer: str


class _HttpTarget(Target):
    """Sends the records of snapshots.

    A receiver has no marker that could be read. So the marker is a file in the job's folder, which
    is written when all requests of a snapshot are answered. A snapshot whose marker is missing is
    sent again, with the same keys.
    """

    def __init__(self, sink: HttpSink[Any], place: SinkPlace) -> None:
        self._sink, self._place = sink, place
        self._urllib3 = require("urllib3")
        tls = None if sink.tls is None else sink.tls.context()
        self._pool = self._urllib3.PoolManager(
            maxsize=sink.parallel, block=True, ssl_context=tls, retries=False
        )
        self._senders = ThreadPoolExecutor(sink.parallel, thread_name_prefix="webhooks out")

    def fence(self) -> Marker | None:
        """Return the newest marker of the job's folders. An earlier sender has the same keys."""
        found: list[Marker] = []
        for folder in self._sink.folders:
            try:
                number, digest = json.loads((folder / self._marker_name).read_text())
            except FileNotFoundError:
                continue
            found.append(Marker(number, digest))
        return max(found, key=lambda marker: marker.number, default=None)

    @property
    def _marker_name(self) -> str:
        return f"http-{self._place.key}.marker"

    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        """Send the records of a snapshot."""
        headers = {
            "Content-Type": self._sink.content_type,
            **header_values(self._sink.headers),
        }
        rejections: list[_Rejection] = []
        waiting: deque[Future[_Rejection | None]] = deque()

        def take() -> None:
            rejection = waiting.popleft().result()
            if rejection is not None:
                rejections.append(self._rejected(rejection))

        try:
            for request in self._requests(batches):
                waiting.append(self._senders.submit(self._send, request, headers))
                if len(waiting) >= 2 * self._sink.parallel:
                    take()
            while waiting:
                take()
        finally:
            for future in waiting:
                future.cancel()
        self._keep(marker.number, rejections)
        self._write_marker(marker)

    def _write_marker(self, marker: Marker) -> None:
        [own, *_] = self._sink.folders
        make_staging(own)
        path = own / self._marker_name
        data = json.dumps([marker.number, marker.digest]).encode()
        replace_file(path, data, path.with_suffix(".tmp"))

    def close(self) -> None:
        """End the connections."""
        self._senders.shutdown(wait=False, cancel_futures=True)
        self._pool.clear()

    def _requests(self, batches: Iterator[Any]) -> Iterator[_Request]:
        """Divide staged records into requests, in the same way each time."""
        request: _Request | None = None
        last_file = ""
        for file_key, first, urls, contents in batches:
            for index, content in enumerate(contents):
                url = str(self._sink.url) if urls is None else urls[index]
                full = request is not None and len(request.contents) >= self._size
                if request is None or full or last_file != file_key or request.url != url:
                    if request is not None:
                        yield request
                    last_file = file_key
                    request = _Request(f"{self._place.key}-{file_key}-{first + index}", url, [])
                request.contents.append(content)
        if request is not None:
            yield request

    @property
    def _size(self) -> int:
        return self._sink.batch_records

    def _body(self, contents: list[bytes]) -> bytes:
        if self._size == 1:
            return contents[0]
        if self._sink.batch == "lines":
            return b"".join(content + b"\n" for content in contents)
        return b"[" + b",".join(contents) + b"]"

    def _send(self, request: _Request, headers: dict[str, str]) -> _Rejection | None:
        """Send a request until it is answered; return the answer if it is a rejection."""
        sink, since, delay = self._sink, time.monotonic(), _MIN_DELAY_SECONDS
        body = self._body(request.contents)
        while True:
            wait = delay
            try:
                answer = self._pool.request(
                    sink.method,
                    request.url,
                    body=body,
                    headers={**headers, sink.key_header: request.key},
                    redirect=False,
                    timeout=sink.timeout_seconds,
                )
                if 200 <= answer.status < 300:
                    return None
                text = answer.data[:_SHOWN_BYTES].decode(errors="replace")
                if answer.status < 500 and answer.status not in _BUSY:
                    return _Rejection(request, answer.status, text)
                problem = f"it has answered {answer.status}: {text}"
                wait = max(wait, _retry_after(answer.headers.get("Retry-After")))
            except (OSError, self._urllib3.exceptions.HTTPError) as error:
                problem = str(error)
            if time.monotonic() + wait - since > sink.retry_seconds:
                raise JobError(
                    f"a request to {request.url} did not succeed within {sink.retry_seconds:g} s: "
                    f"{problem}",
                    recoverability=Recoverability.ENVIRONMENT,
                )
            time.sleep(wait)
            delay = min(2 * delay, _MAX_DELAY_SECONDS)

    def _rejected(self, rejection: _Rejection) -> _Rejection:
        """Return a rejection that is kept in a file. Raise if there is no folder for it."""
        if self._sink.rejected is None:
            shown = rejection.request.contents[0][:_SHOWN_BYTES].decode(errors="replace")
            raise JobError(
                f"{rejection.request.url} rejects a request with {rejection.status}: "
                f"{rejection.answer}. Change the receiver or the program, or keep such requests "
                f"with rejected='a-folder'",
                record=shown,
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return rejection

    def _keep(self, number: int, rejections: list[_Rejection]) -> None:
        """Write rejected requests to a file of the snapshot, which replaces one of before."""
        if not rejections or self._sink.rejected is None:
            return
        lines = [
            json.dumps(
                {
                    "key": one.request.key,
                    "url": one.request.url,
                    "status": one.status,
                    "answer": one.answer,
                    "records": [
                        content.decode(errors="backslashreplace")
                        for content in one.request.contents
                    ],
                }
            )
            for one in rejections
        ]
        folder = Path(self._sink.rejected)
        make_folders(folder)
        path = folder / f"{self._place.key}-{number:010d}.jsonl"
        data = "".join(f"{line}\n" for line in lines).encode()
        replace_file(path, data, folder / f"_{path.name}.tmp")
        logger.warning(
            "sink %s: %d requests of snapshot %d were rejected, and are in %s",
            self._place.name,
            len(rejections),
            number,
            path,
        )


def _retry_after(value: str | None) -> float:
    """Return the delay that a receiver asks for, in seconds."""
    if not value:
        return 0.0
    if value.isdecimal():
        seconds = float(value)
    else:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), _MAX_DELAY_SECONDS)

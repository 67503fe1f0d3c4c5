"""Publish to a stream exactly once: the target of `NatsStreamSink`.

NATS has no transaction of several messages in all its versions. So each message says by itself what
it is: its `Nats-Msg-Id` has the place of the sink, the number and the digest of the snapshot, and
the index of the message in it. When all messages of a snapshot are there, its marker is written to
the *ledger*, a key-value bucket, with the sequence of its last message. A new connection reads the
ledger, and then the ids of the messages behind that sequence. So it knows how many messages of the
next snapshot are there already, however long ago they were published.

Each message also has the sequence that must be the last one of the stream when it is stored
(`Nats-Expected-Last-Sequence`). If it is sent before the one in front of it is confirmed, it also
has the id of that one (`Nats-Expected-Last-Msg-Id`). So a message is stored only behind the one in
front of it. If one is refused, so are all others that were sent after it.

An old JobManager that goes on publishes the same messages as the new one. Each of them is stored
once: by the expected sequence, or because the server knows the id.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.connectors.nats.connection import NatsClient, NatsConnection, library
from penstock.connectors.nats.fetcher import Fetcher, stream_state
from penstock.connectors.nats.publisher import Publisher, WrongLastSequence
from penstock.connectors.patience import Patience
from penstock.connectors.staged_sink import Marker, SinkPlace, Target
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.type_variables import PlainValue

logger = logging.getLogger("penstock.connectors")

#: How many messages are sent before the first of them is confirmed.
_WINDOW = 512
#: How many messages go to the event loop at once.
_CHUNK = 1_000
_SCAN_SECONDS = 1.0


@dataclass(frozen=True)
class NatsWriting:
    """Describes the stream and the ledger to which a sink writes.

    Arguments:
        stream: the name of the stream.
        subject: the subject of all messages; None if they have several.
        alone: whether the sink is the only one that writes to the stream. Otherwise it is the only
            one that writes to the subject.
        connection: the servers.
        ledger: the name of the bucket with the markers.
        patience_seconds: how long to try to reach a server.
    """

    stream: str
    subject: str | None
    alone: bool
    connection: NatsConnection
    ledger: str
    patience_seconds: float


@dataclass(frozen=True)
class _Part:
    """A snapshot of which some messages are there.

    Arguments:
        number: the number of the snapshot.
        digest: its digest.
        done: how many of its messages are there.
    """

    number: int
    digest: str
    done: int


class NatsTarget(Target):
    """A connection of a sink's committer to NATS.

    Arguments:
        writing: says where it writes.
        place: the place of the sink.
    """

    def __init__(self, writing: NatsWriting, place: SinkPlace) -> None:
        self._writing, self._place = writing, place
        stream = hashlib.blake2b(writing.stream.encode(), digest_size=8).hexdigest()
        #: The key of the entry in the ledger, which sinks to different streams do not share.
        self._key = f"{place.key}.{stream}"
        self._client: NatsClient | None = None
        self._bucket: Any = None
        self._revision = 0
        self._part: _Part | None = None
        #: The last sequence of the stream, or of the subject that only this sink writes to.
        self._last = 0

    def fence(self) -> Marker | None:
        """Read the marker, and find out which messages behind it are there."""
        writing = self._writing
        patience = Patience(writing.connection, writing.patience_seconds)
        while True:
            try:
                if self._client is None:
                    self._client = writing.connection.open("penstock-nats-sink")
                marker = self._client.call(self._look(self._client), 600)
                patience.succeeded()
                return marker
            except Exception as error:
                self.close()
                time.sleep(patience.after(error, f"write to the stream {writing.stream!r}"))

    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        """Publish the messages of a snapshot that are not there yet, and then its marker."""
        client, part, done = self._client, self._part, 0
        assert client is not None, "publish before fence"
        if part is not None:
            if (part.number, part.digest) != (marker.number, marker.digest):
                raise self._unfinished(part, marker.number)
            done = part.done
        try:
            index = done
            for chunk in _chunks(batches, done):
                client.call(self._publish(client, marker, index, chunk), 600)
                index += len(chunk)
            client.call(self._write_marker(marker))
        except Exception as error:
            # Some messages may be stored: `fence` must find them before any is sent again.
            self.close()
            what = f"publish snapshot {marker.number} to the stream {self._writing.stream!r}"
            raise self._writing.connection.explain(error, what) from error
        self._part = None

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        self._bucket = None
        if client is not None:
            with suppress(Exception):
                client.close()

    # ---- in the event loop

    async def _look(self, client: NatsClient) -> Marker | None:
        writing, streams = self._writing, client.streams
        state = await stream_state(streams, writing.stream)
        await self._require_subject(client)
        entry = await self._entry(client, state.last)
        self._part = None
        self._last = state.last if writing.alone else await self._last_of_subject(client)
        if state.last > entry["sequence"]:
            self._part = await self._find_part(client, entry["sequence"], state.last)
        number = entry["number"]
        return None if number is None else Marker(number, entry["digest"])

    async def _require_subject(self, client: NatsClient) -> None:
        """Refuse a subject that the stream does not store."""
        writing = self._writing
        info = await client.streams.stream_info(writing.stream)
        filters = info.config.subjects or []
        if info.config.no_ack:
            raise JobError(
                f"the stream {writing.stream!r} confirms no messages (no_ack), so it is unknown "
                f"which are stored: change its configuration",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        if writing.subject is not None and not any(
            _matches(one, writing.subject) for one in filters
        ):
            raise JobError(
                f"the stream {writing.stream!r} does not store the subject {writing.subject!r}, "
                f"but {', '.join(filters)}: correct the subject, or add it to the stream",
                recoverability=Recoverability.NON_RECOVERABLE,
            )

    async def _entry(self, client: NatsClient, last: int) -> dict[str, Any]:
        """Return the entry of the ledger. A new one begins behind the message `last`."""
        errors, key = library("nats.js.errors"), self._key
        if self._bucket is None:
            self._bucket = await self._open_bucket(client)
        with suppress(errors.KeyNotFoundError):
            found = await self._bucket.get(key)
            self._revision = found.revision
            entry: dict[str, Any] = json.loads(found.value)
            return entry
        entry = {"number": None, "digest": "", "sequence": last}
        await self._write(self._bucket.create(key, json.dumps(entry).encode()))
        return entry

    async def _write(self, writing: Awaitable[int]) -> None:
        """Wait until an entry of the ledger is written."""
        try:
            self._revision = await writing
        except library("nats.js.errors").KeyWrongLastSequenceError as error:
            raise JobError(
                "another JobManager of this job has written its marker",
                recoverability=Recoverability.ENVIRONMENT,
            ) from error

    async def _open_bucket(self, client: NatsClient) -> Any:
        errors, name = library("nats.js.errors"), self._writing.ledger
        try:
            return await client.streams.key_value(name)
        except (errors.BucketNotFoundError, errors.NotFoundError):
            info = await client.streams.stream_info(self._writing.stream)
            replicas = info.config.num_replicas or 1
            return await client.streams.create_key_value(bucket=name, replicas=replicas)

    async def _last_of_subject(self, client: NatsClient) -> int:
        errors, writing = library("nats.js.errors"), self._writing
        try:
            found = await client.streams.get_last_msg(writing.stream, writing.subject)
        except errors.NotFoundError:
            return 0
        sequence: int = found.seq
        return sequence

    async def _find_part(self, client: NatsClient, after: int, last: int) -> _Part | None:
        """Return how many messages of the snapshot behind the marker are there."""
        writing = self._writing
        fetcher = Fetcher(client, writing.stream, writing.subject, after, headers_only=True)
        pending, part = await fetcher.open(), None
        pattern = re.compile(rf"{re.escape(self._place.key)}-(\d+)-(\w*)-(\d+)")
        while pending:
            arrived = await fetcher.fetch(_CHUNK, _SCAN_SECONDS)
            if not arrived and await fetcher.is_caught_up():
                break
            for one in arrived:
                found = pattern.fullmatch(one.message.headers.get("Nats-Msg-Id", ""))
                if found is not None:
                    part = _Part(int(found[1]), found[2], int(found[3]) + 1)
                pending = one.pending if one.message.sequence < last else 0
        await client.streams.delete_consumer(writing.stream, fetcher.name)
        return part

    async def _publish(
        self, client: NatsClient, marker: Marker, index: int, chunk: list[Any]
    ) -> None:
        """Publish messages, each behind the one before."""
        writing, publisher = self._writing, Publisher(client)
        window = _WINDOW if writing.alone else 1
        expected = (
            "Nats-Expected-Last-Sequence"
            if writing.alone
            else "Nats-Expected-Last-Subject-Sequence"
        )
        limit = client.connected.max_payload
        prefix = f"{self._place.key}-{marker.number}-{marker.digest}-"
        sent = self._last
        await publisher.open()
        try:
            for number, (subject, content, headers) in enumerate(chunk, index):
                own = {
                    **(headers or {}),
                    "Nats-Msg-Id": f"{prefix}{number}",
                    "Nats-Expected-Stream": writing.stream,
                    expected: str(sent),
                }
                if publisher.waiting:
                    # If the one before is refused, this one must be, too, although another program
                    # may have written just as many messages meanwhile.
                    own["Nats-Expected-Last-Msg-Id"] = f"{prefix}{number - 1}"
                if not sent:
                    # Some servers do not compare the sequence 0 of a stream.
                    own["Nats-Expected-Last-Subject-Sequence"] = "0"
                if len(content) + sum(len(k) + len(v) + 4 for k, v in own.items()) + 16 > limit:
                    raise JobError(
                        f"a message for {subject!r} has {len(content)} bytes, and the server "
                        f"takes {limit} with headers: raise its max_payload, or leave out such "
                        f"records",
                        recoverability=Recoverability.NON_RECOVERABLE,
                    )
                await publisher.publish(subject, content, own)
                if publisher.waiting >= window:
                    # Half a window at a time, so that many messages share a packet.
                    while publisher.waiting > window // 2:
                        self._last = await publisher.confirmed()
                # In a stream of its own, each message has the next sequence.
                sent = self._last if window == 1 else sent + 1
            while publisher.waiting:
                self._last = await publisher.confirmed()
        except WrongLastSequence as error:
            raise self._other_writer(str(error)) from error
        finally:
            publisher.forget()

    async def _write_marker(self, marker: Marker) -> None:
        entry = {"number": marker.number, "digest": marker.digest, "sequence": self._last}
        value = json.dumps(entry).encode()
        await self._write(self._bucket.update(self._key, value, last=self._revision))

    # ---- errors

    def _other_writer(self, reason: str) -> JobError:
        where = (
            f"the stream {self._writing.stream!r}"
            if self._writing.alone
            else f"the subject {self._writing.subject!r}"
        )
        # The next connection finds out whether it was another JobManager of this job.
        return JobError(
            f"something else has written to {where} ({reason}): another JobManager of this job, "
            f"which does no harm; or another program, which the sink of this job must be without",
            recoverability=Recoverability.ENVIRONMENT,
        )

    def _unfinished(self, part: _Part, wanted: int) -> JobError:
        return JobError(
            f"{part.done} messages of snapshot {part.number} are in the stream "
            f"{self._writing.stream!r} already, and its marker is not; they belong to another run "
            f"than snapshot {wanted}, which comes now. Resume from snapshot {part.number}, whose "
            f"output then becomes complete; or start a new line of output with --resume NUMBER "
            f"--fork. Nothing was written",
            operator=f"sink {self._place.name}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def _chunks(batches: Iterator[PlainValue], skipped: int) -> Iterator[list[Any]]:
    """Yield messages in chunks, without the first ones."""
    chunk: list[Any] = []
    for batch in batches:
        messages: Any = batch
        if skipped >= len(messages):
            skipped -= len(messages)
            continue
        chunk += messages[skipped:]
        skipped = 0
        while len(chunk) >= _CHUNK:
            yield chunk[:_CHUNK]
            chunk = chunk[_CHUNK:]
    if chunk:
        yield chunk


def _matches(pattern: str, subject: str) -> bool:
    """Return whether a filter of a stream matches a subject.

    Examples:
        >>> _matches("orders.*.eu", "orders.tea.eu"), _matches("orders.>", "orders")
        (True, False)
    """
    parts, names = pattern.split("."), subject.split(".")
    for index, part in enumerate(parts):
        if part == ">":
            return len(names) > index
        if index >= len(names) or part not in ("*", names[index]):
            return False
    return len(parts) == len(names)

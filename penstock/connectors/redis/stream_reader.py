"""Read one stream of Redis, and check with each read that nothing was trimmed in between.

Entries and the counts of the stream are read in one transaction, so they belong together. If there
are no entries, the thread of the reader waits for the next one with a blocking XREAD.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.connectors.formats.messages import MessageDecoder
from penstock.connectors.formats.schemas import DeserializationSchema, SchemaContext
from penstock.connectors.patience import NUM_CONNECTION_ERRORS, Patience
from penstock.connectors.redis.connection import RedisConnection
from penstock.connectors.redis.offsets import parse_id
from penstock.connectors.redis.stream_entry import RedisEntry
from penstock.connectors.redis.stream_position import (
    StreamInfo,
    StreamPosition,
    as_text,
    what_is_lost,
)
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split, TimedRead

logger = logging.getLogger("penstock.connectors")

#: The number of times that entries were lost and the reader went on with the first one left.
NUM_POSITIONS_LOST = "numPositionsLost"
#: How long a blocking read waits for an entry. A thread that waits cannot be ended.
_BLOCK_MILLISECONDS = 500
#: The end of each stream.
_END = "+"


@dataclass(frozen=True)
class RedisReading:
    """Describes how streams are read; the arguments are those of `RedisStreamSource`."""

    streams: list[str]
    connection: RedisConnection
    decode: Callable[[RedisEntry], Any]
    schema: DeserializationSchema[Any] | None
    field: str
    on_lost_position: str
    fetch_size: int
    patience_seconds: float


class RedisReader(SourceReader):
    """Reads one stream at a time.

    Arguments:
        source: says how to read.
        context: the place of the reader in the job.
    """

    blocking = True

    def __init__(self, source: RedisReading, context: ReaderContext) -> None:
        self._source = source
        self._goes_on = context.goes_on_at_earliest(source.on_lost_position)
        self._positions_lost = context.metrics.counter(NUM_POSITIONS_LOST)
        self._patience = Patience(
            source.connection,
            source.patience_seconds,
            context.metrics.counter(NUM_CONNECTION_ERRORS),
        )
        schema = source.schema
        self._decoder = (
            None
            if schema is None
            else MessageDecoder(schema, SchemaContext(metrics=context.metrics))
        )
        self._client: Any = None
        self._closed = False
        self._stream = ""
        self._end: str | None = None
        #: Behind the last entry that `read` has returned, and that `_fetch` has returned.
        self._position = self._fetched = StreamPosition()
        #: Entries with the positions behind them; `read` has returned those before `_next`.
        self._ahead: list[tuple[RedisEntry, StreamPosition]] = []
        self._next = 0
        #: Whether the last answer came over the present connection.
        self._connected = False

    def open(self, split: Split, position: Any) -> None:
        """Begin to read a stream."""
        self.close()
        self._closed = False
        payload: Any = split.payload
        self._stream, self._end = split.id, payload["end"]
        plain = payload["start"] if position is None else position
        self._position = self._fetched = StreamPosition.from_plain(plain)
        self._ahead, self._next, self._connected = [], 0, False

    def read(self, max_records: int) -> Read:
        """Return the next entries, or wait a moment for one."""
        source = self._source
        if self._stream not in source.streams:
            logger.warning(
                "the stream %r is no longer read, because the program does not name it; the job "
                "has read it up to the id %s",
                *(self._stream, self._position.id),
            )
            return Read([], self._position.to_plain(), finished=True)
        if self._next >= len(self._ahead):
            try:
                self._fetch()
                if not self._ahead and not self._is_at_end():
                    self._wait()
                self._patience.succeeded()
            except JobError:
                raise
            except Exception as error:
                if self._closed:
                    return Read([], self._position.to_plain())
                self._disconnect()
                delay = self._patience.after(error, f"read the stream {self._stream!r}")
                return Read([], self._position.to_plain(), wait_seconds=delay)
        return self._take(max_records)

    def close(self) -> None:
        """Close the connection, also if another thread waits for an answer."""
        self._closed = True
        self._disconnect()

    # ---- parts of `read`

    def _take(self, max_records: int) -> Read:
        part = self._ahead[self._next : self._next + max_records]
        entries = [entry for entry, _ in part]
        records, timestamps, side_output = self._decoded(entries)
        if part:
            self._next += len(part)
            self._position = part[-1][1]
        finished = self._next >= len(self._ahead) and self._is_at_end()
        if finished and self._decoder is not None:
            self._decoder.end_split(f"the stream {self._stream!r}")
        read = Read(records, self._position.to_plain(), finished, 0.0, side_output)
        return TimedRead(read, timestamps)

    def _is_at_end(self) -> bool:
        return self._end is not None and parse_id(self._fetched.id) >= parse_id(self._end)

    def _decoded(self, entries: list[RedisEntry]) -> tuple[list[Any], list[int], list[Any]]:
        """Return the records of entries, their timestamps, and those for the side output."""
        timestamps = [entry.timestamp for entry in entries]
        if self._decoder is None:
            return list(map(self._decode, entries)), timestamps, []
        messages = [self._value(entry) for entry in entries]
        decoded = self._decoder.decode(messages, lambda index: _place(entries[index]))
        side_output = self._decoder.take_side_output()
        return decoded.records, list(decoded.pick(timestamps)), side_output

    def _value(self, entry: RedisEntry) -> bytes:
        name = self._source.field
        if name not in entry.fields:
            raise JobError(
                f"{_place(entry)} has no field {name!r}, but {sorted(entry.fields)}: set field of "
                f"the RedisStreamSource, or use decode instead of a schema",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return entry.fields[name]

    def _decode(self, entry: RedisEntry) -> Any:
        try:
            return self._source.decode(entry)
        except Exception as error:
            raise JobError(
                f"{_place(entry)} cannot be decoded: {type(error).__name__}: {error}. Its "
                f"fields are {_shown(entry.fields)}"
            ) from error

    def _fetch(self) -> None:
        """Request the entries behind those that were fetched before."""
        self._ahead, self._next = [], 0
        if self._is_at_end():
            return
        if self._client is None:
            self._client = self._source.connection.client()
        at = self._fetched
        pipeline = self._client.pipeline(transaction=True)
        pipeline.xinfo_stream(self._stream)
        pipeline.xrange(self._stream, f"({at.id}", self._end or _END, self._source.fetch_size)
        pipeline.xrange(self._stream, at.id, at.id)
        info, found, present = pipeline.execute(raise_on_error=False)
        # After a new connection, the server may be another one than before.
        check_presence, self._connected = not self._connected, True
        known = _info_of(info)
        for answer in (found, present):
            if isinstance(answer, Exception):
                raise answer
        lost = what_is_lost(at, known, present=bool(present) or not check_presence)
        if lost is not None:
            self._go_on_after(lost, known)
            return
        self._ahead = self._numbered(found, known)
        if self._ahead:
            self._fetched = self._ahead[-1][1]
        elif self._end is not None:
            # Nothing is left up to the end, because entries were deleted.
            self._fetched = StreamPosition(self._end)
        elif known is not None:
            number = known.added if known.last == at.id else at.number
            self._fetched = StreamPosition(at.id, number, at.read, known.added)

    def _numbered(self, found: Any, info: StreamInfo | None) -> list[Any]:
        """Return the entries with the positions behind them."""
        number, stream, numbered = self._fetched.number, self._stream, []
        for raw_id, raw_fields in found:
            id = as_text(raw_id)
            if number is not None:
                number += 1
            if info is not None and id == info.last:
                number = info.added
            if isinstance(raw_fields, list):
                raw_fields = dict(zip(raw_fields[::2], raw_fields[1::2], strict=True))
            fields = {as_text(name): value for name, value in (raw_fields or {}).items()}
            added = 0 if info is None else info.added
            position = StreamPosition(id, number, True, added)
            numbered.append((RedisEntry(stream, id, fields), position))
        return numbered

    def _go_on_after(self, lost: str, info: StreamInfo | None) -> None:
        """Go to the first entry that is left, or raise an error."""
        what = (
            f"the job has read the stream {self._stream!r} at {self._source.connection.place} up "
            f"to the id {self._fetched.id}, and cannot go on there: {lost}"
        )
        if not self._goes_on:
            raise JobError(
                f'{what}. With on_lost_position="earliest", or resumed with --on-lost-position '
                f"earliest, the job goes on with the first entry that is left",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        self._positions_lost.inc()
        logger.error("%s: going on with the first entry that is left", what)
        id = self._fetched.id
        if info is None:
            self._fetched = StreamPosition(number=0)
        elif parse_id(info.last) < parse_id(id):
            # A stream that was made again, or an old state of it: which of both is unknown.
            self._fetched = StreamPosition(number=info.before_first, added=info.added)
        else:
            # Entries in front of the position that are left have been read.
            self._fetched = StreamPosition(
                id, info.before_first if info.starts_behind(id) else None
            )
        self._position = self._fetched

    def _wait(self) -> None:
        """Wait for the next entry. It is read again by the next call of `_fetch`."""
        self._client.xread({self._stream: self._fetched.id}, count=1, block=_BLOCK_MILLISECONDS)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._connected = False
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()


def read_info(client: Any, stream: str) -> StreamInfo | None:
    """Return what the server knows about a stream; None if there is no such stream."""
    try:
        return _info_of(client.xinfo_stream(stream))
    except Exception as error:
        return _info_of(error)


def _info_of(answer: Any) -> StreamInfo | None:
    if isinstance(answer, Exception):
        if "no such key" in str(answer):
            return None
        raise answer
    if isinstance(answer, list):  # a transaction in a cluster returns it as it came
        answer = {as_text(answer[i]): answer[i + 1] for i in range(0, len(answer), 2)}
    if "entries-added" not in answer:
        raise JobError(
            "Redis 7 or newer, or Valkey, is needed: older servers do not count the entries of a "
            "stream, so it is unknown whether some were trimmed",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    return StreamInfo.from_answer(answer)


def _place(entry: RedisEntry) -> str:
    return f"the entry {entry.id} of the stream {entry.stream!r}"


def _shown(fields: dict[str, bytes]) -> str:
    text = repr(fields)
    return text if len(text) <= 200 else f"{text[:200]}…"

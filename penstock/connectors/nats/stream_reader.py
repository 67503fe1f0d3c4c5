"""Read one split of a stream of NATS, and notice messages that were removed before they were read.

A stream removes old messages, and a consumer then begins with the first one that is left. The
sequences show it: they grow by one with each message. Behind a gap in them, the reader asks for the
first sequence of the stream. If that is behind the gap's beginning, messages were removed by the
limits of the stream. Otherwise single messages were deleted, or belong to other subjects.

While there is nothing to read, the position follows the end of the stream. So messages of other
subjects may be removed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.connectors.formats.messages import MessageDecoder
from penstock.connectors.formats.schemas import DeserializationSchema, SchemaContext
from penstock.connectors.nats.connection import NatsClient, NatsConnection
from penstock.connectors.nats.fetcher import (
    Fetched,
    Fetcher,
    StreamState,
    stream_state,
)
from penstock.connectors.nats.message import NatsMessage
from penstock.connectors.patience import NUM_CONNECTION_ERRORS, Patience
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.metrics import Counter
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split, TimedRead

logger = logging.getLogger("penstock.connectors")

#: The number of times that messages were lost and the reader went on with the first one left.
NUM_POSITIONS_LOST = "numPositionsLost"
#: The number of messages that were deleted one by one before they were read.
NUM_MESSAGES_DELETED = "numMessagesDeleted"
#: How long a read waits for a message. A thread that waits cannot be ended.
_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class NatsReading:
    """Describes how a stream is read; the arguments are those of `NatsStreamSource`."""

    stream: str
    subjects: list[str]
    connection: NatsConnection
    decode: Callable[[NatsMessage], Any]
    schema: DeserializationSchema[Any] | None
    on_lost_position: str
    fetch_size: int
    patience_seconds: float


class NatsReader(SourceReader):
    """Reads one split at a time.

    Arguments:
        reading: says how to read.
        context: the place of the reader in the job.
    """

    blocking = True

    def __init__(self, reading: NatsReading, context: ReaderContext) -> None:
        self._reading = reading
        self._thread_name = f"penstock-nats-{context.uid}-{context.subtask}"
        self._goes_on = context.goes_on_at_earliest(reading.on_lost_position)
        self._positions_lost: Counter = context.metrics.counter(NUM_POSITIONS_LOST)
        self._deleted: Counter = context.metrics.counter(NUM_MESSAGES_DELETED)
        errors = context.metrics.counter(NUM_CONNECTION_ERRORS)
        self._patience = Patience(reading.connection, reading.patience_seconds, errors)
        schema = reading.schema
        self._decoder = (
            None
            if schema is None
            else MessageDecoder(schema, SchemaContext(reading.stream, False, context.metrics))
        )
        self._client: NatsClient | None = None
        self._fetcher: Fetcher | None = None
        self._subject = ""
        self._end: int | None = None
        self._created = ""
        #: The sequence behind which reading goes on, for the job and for the fetcher.
        self._after = self._fetched = 0
        #: Messages that are fetched; `read` has returned those before `_next`.
        self._ahead: list[NatsMessage] = []
        self._next = 0
        #: Whether there is nothing more up to the end of a bounded source.
        self._complete = False

    def open(self, split: Split, position: Any) -> None:
        """Begin to read a split."""
        self.close()
        payload: Any = split.payload
        self._subject, self._end = split.id, payload["end"]
        plain = [payload["after"], payload["created"]] if position is None else position
        self._after, self._created = plain
        self._fetched = self._after
        self._ahead, self._next, self._complete = [], 0, False

    def read(self, max_records: int) -> Read:
        """Return the next messages, or wait a moment for one."""
        reading = self._reading
        if self._subject not in reading.subjects:
            logger.warning(
                "the subject %r of the stream %r is no longer read, because the program does not "
                "name it; the job has read it up to the sequence %d",
                *(self._subject, reading.stream, self._after),
            )
            return Read([], self._position(), finished=True)
        if self._end is not None and self._fetched >= self._end:
            self._complete = True
        if self._next >= len(self._ahead) and not self._complete:
            try:
                self._fetch()
                self._patience.succeeded()
            except Exception as error:
                delay = self._retry_delay(error)
                return Read([], self._position(), wait_seconds=delay)
        return self._take(max_records)

    def close(self) -> None:
        """Close the connection, also if another thread waits for an answer."""
        client, self._client = self._client, None
        self._fetcher = None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    # ---- parts of `read`

    def _position(self) -> list[Any]:
        return [self._after, self._created]

    def _retry_delay(self, error: Exception) -> float:
        """Return the time until the next try, which begins at the position."""
        self.close()
        return self._patience.after(error, f"read the stream {self._reading.stream!r}")

    def _take(self, max_records: int) -> Read:
        part = self._ahead[self._next : self._next + max_records]
        records, timestamps, side_output = self._decoded(part)
        self._next += len(part)
        if part:
            self._after = part[-1].sequence
        if self._next >= len(self._ahead):
            # The fetched range may end behind its last message.
            self._after = max(self._after, self._fetched)
        finished = self._complete and self._next >= len(self._ahead)
        if finished and self._decoder is not None:
            self._decoder.end_split(f"the stream {self._reading.stream!r}")
        read = Read(records, self._position(), finished, 0.0, side_output)
        return TimedRead(read, timestamps)

    def _decoded(self, part: list[NatsMessage]) -> tuple[list[Any], list[int], list[Any]]:
        """Return the records of messages, their timestamps, and those for the side output."""
        timestamps = [message.timestamp for message in part]
        if self._decoder is None:
            return list(map(self._decode, part)), timestamps, []
        contents = [message.data for message in part]
        decoded = self._decoder.decode(contents, lambda index: self._place(part[index]))
        side_output = self._decoder.take_side_output()
        return decoded.records, list(decoded.pick(timestamps)), side_output

    def _decode(self, message: NatsMessage) -> Any:
        try:
            return self._reading.decode(message)
        except Exception as error:
            shown = repr(message.data[:200])
            raise JobError(
                f"{self._place(message)} cannot be decoded: {type(error).__name__}: {error}. Its "
                f"content is {shown}"
            ) from error

    def _place(self, message: NatsMessage) -> str:
        return (
            f"the message {message.sequence} ({message.subject}) of the stream "
            f"{self._reading.stream!r}"
        )

    def _fetch(self) -> None:
        """Fetch the messages behind those that were fetched before."""
        self._ahead, self._next = [], 0
        if self._client is None:
            self._client = self._reading.connection.open(self._thread_name)
        client = self._client
        found = client.call(self._fetch_with(client))
        if not found:
            return
        last, end = found[-1], self._end
        self._ahead = [one.message for one in found]
        self._fetched = last.message.sequence
        if end is not None:
            self._ahead = [message for message in self._ahead if message.sequence <= end]
            # The rest of the stream, if there is one, has come behind the end.
            self._complete = self._fetched >= end or last.pending == 0
            self._fetched = min(self._fetched, end)

    async def _fetch_with(self, client: NatsClient) -> list[Fetched]:
        reading = self._reading
        if self._fetcher is None:
            state = await stream_state(client.streams, reading.stream)
            self._require_same_stream(state)
            if state.first > self._fetched + 1:
                self._go_on_after_loss(self._fetched + 1, state.first - 1, state)
            subject = None if self._subject == ">" else self._subject
            fetcher = Fetcher(client, reading.stream, subject, self._fetched)
            pending = await fetcher.open()
            if self._end is not None and not pending:
                self._complete = True
                return []
            self._fetcher = fetcher
        found = await self._fetcher.fetch(reading.fetch_size, _WAIT_SECONDS)
        if found:
            await self._check_gaps(client, found)
        else:
            await self._follow_the_end(client, self._fetcher)
        return found

    async def _check_gaps(self, client: NatsClient, found: list[Fetched]) -> None:
        """Find out whether messages in front of those that were fetched are lost."""
        state: StreamState | None = None
        before = self._fetched
        for one in found:
            sequence = one.message.sequence
            if sequence != before + 1:
                if state is None:
                    state = await stream_state(client.streams, self._reading.stream)
                if state.first > before + 1:
                    self._go_on_after_loss(before + 1, min(state.first, sequence) - 1, state)
                elif self._subject == ">":
                    self._deleted.inc(sequence - before - 1)
            before = sequence

    async def _follow_the_end(self, client: NatsClient, fetcher: Fetcher) -> None:
        """Move the position to the end of the stream, if all in front of it has come."""
        state = await stream_state(client.streams, self._reading.stream)
        self._require_same_stream(state)
        if state.last > self._fetched and await fetcher.is_caught_up():
            self._fetched = state.last

    # ---- lost messages

    def _require_same_stream(self, state: StreamState) -> None:
        """Refuse a stream that was made again, or has lost its newest messages."""
        other = bool(state.created and self._created) and state.created != self._created
        if not other and state.last >= self._fetched:
            return
        reading = self._reading
        what = (
            f"the job has read the stream {reading.stream!r} at {reading.connection.place} up to "
            f"the sequence {self._fetched}, and cannot go on there: "
        )
        if other:
            what += "the stream was deleted and made again"
        else:
            what += f"it ends with the sequence {state.last} now, so the server has lost data"
        self._refuse_or_log(what)
        self._created = state.created
        self._after = self._fetched = state.first - 1

    def _go_on_after_loss(self, first: int, last: int, state: StreamState) -> None:
        """Say which messages are lost, and raise an error if the job shall not go on."""
        reading = self._reading
        mine = "" if self._subject == ">" else f", among which {self._subject!r} may have some"
        self._refuse_or_log(
            f"the stream {reading.stream!r} at {reading.connection.place} has removed the messages "
            f"{first} to {last} before the job has read them{mine}: its first message is "
            f"{state.first} now"
        )
        self._fetched = max(self._fetched, last)

    def _refuse_or_log(self, what: str) -> None:
        if not self._goes_on:
            raise JobError(
                f'{what}. With on_lost_position="earliest", or resumed with --on-lost-position '
                f"earliest, the job goes on with the first message that is left",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        self._positions_lost.inc()
        logger.error("%s: going on with the first message that is left", what)

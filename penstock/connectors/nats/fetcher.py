"""Fetch the messages of a stream in order, with a consumer that only this reader uses.

The consumer is *ephemeral*: the server forgets it when no client uses it. It pulls, so a slow job
holds back the server, and it acknowledges nothing. The server numbers the messages that it sends to
a consumer. If a number is missing, a message was lost on its way, and a new consumer begins behind
the last message that has come.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.nats.connection import NatsClient, library
from penstock.connectors.nats.message import NatsMessage
from penstock.dataflow.errors import JobError, Recoverability

#: The time for which the server keeps a consumer without a client, in seconds.
_INACTIVE_SECONDS = 60.0
#: How long the end of a request may be late, in seconds. Then there is a new consumer.
_GRACE_SECONDS = 3.0


class MessageLost(ConnectionError):
    """Raised when a message has not arrived, or the server has forgotten the consumer."""


@dataclass(frozen=True)
class StreamState:
    """Describes the state of a stream on the server.

    Arguments:
        first: the sequence of the first message that it has. It grows as messages are removed.
        last: the sequence of the last message that it has ever had.
        created: when the stream was made, as text; empty if the client does not say so.
    """

    first: int
    last: int
    created: str


async def stream_state(streams: Any, stream: str) -> StreamState:
    """Return the state of a stream."""
    try:
        info = await streams.stream_info(stream)
    except library("nats.js.errors").NotFoundError as error:
        raise JobError(
            f"there is no stream {stream!r}: correct its name, or make it with `nats stream add`. "
            f"If it was there before, it was deleted, or the server has lost its data",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
    # In an empty stream, the first sequence is that of the next message, or 0.
    created = getattr(info, "created", None)  # nats-py 2.9 does not have it
    text = "" if created is None else str(created)
    return StreamState(max(1, info.state.first_seq), info.state.last_seq, text)


@dataclass
class Fetched:
    """A message, and how many others the consumer had not sent when it sent this one."""

    message: NatsMessage
    number: int
    pending: int


@dataclass
class Fetcher:
    """A consumer. It must be used in the event loop of its client.

    Arguments:
        client: the client.
        stream: the name of the stream.
        subject: the filter; None for all subjects.
        after: the sequence behind which it begins.
        headers_only: whether the content of messages is left out.
    """

    client: NatsClient
    stream: str
    subject: str | None
    after: int
    headers_only: bool = False
    #: How many messages the server has sent to this consumer, as far as they have arrived.
    number: int = 0
    #: The name of the consumer.
    name: str = ""
    _inbox: str = ""
    _arrived: list[Fetched] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    #: How many messages the open request still waits for.
    _requested: int = 0
    _failure: Exception | None = None

    async def open(self) -> int:
        """Make the consumer, and return the number of messages that it will send."""
        api, connected = library("nats.js.api"), self.client.connected
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.after + 1,
            ack_policy=api.AckPolicy.NONE,
            filter_subject=self.subject,
            inactive_threshold=_INACTIVE_SECONDS,
            headers_only=self.headers_only or None,
            mem_storage=True,
        )
        self._inbox = connected.new_inbox()
        self.client.when_closed(self._fail)
        await connected.subscribe(self._inbox, cb=self._arrive)
        info = await self.client.streams.add_consumer(self.stream, config)
        self.name = info.name
        pending: int = info.num_pending
        return pending

    async def fetch(self, count: int, seconds: float) -> list[Fetched]:
        """Return the messages that have come, or wait for one.

        Raises:
            MessageLost: if a message is missing, or the consumer is gone. A new one is needed.
        """
        if not self._requested and not self._arrived:
            self._requested = count
            request = {"batch": count, "expires": int(seconds * 1e9)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"
            await self.client.connected.publish(
                subject, json.dumps(request).encode(), reply=self._inbox
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds + _GRACE_SECONDS
        while self._requested and not self._failure:
            if self._arrived and self._arrived[-1].pending == 0:
                break
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - loop.time())
            except TimeoutError as error:
                raise MessageLost("the server does not answer to a request") from error
        if self._failure is not None and not self._arrived:
            raise self._failure
        arrived, self._arrived = self._arrived, []
        return arrived

    async def is_caught_up(self) -> bool:
        """Return whether the consumer has no other messages, and all have arrived."""
        try:
            info = await self.client.streams.consumer_info(self.stream, self.name)
        except library("nats.js.errors").NotFoundError as error:
            raise MessageLost("the consumer is gone") from error
        sent = info.delivered.consumer_seq
        return info.num_pending == 0 and sent == self.number and not self._arrived

    def _fail(self) -> None:
        self._failure = MessageLost("the connection is lost")
        self._changed.set()

    async def _arrive(self, message: Any) -> None:
        self._changed.set()
        status = message.headers.get("Status") if message.headers else None
        if status is not None and not message.reply:
            self._note(status, message.headers.get("Description", ""))
            return
        # $JS.ACK.[domain.account.]stream.consumer.deliveries.sequence.number.nanoseconds.pending
        parts = message.reply.split(".")
        sequence, number, nanoseconds, pending = parts[5:9] if len(parts) < 11 else parts[7:11]
        if self._failure is not None:
            return  # what comes behind a gap comes again
        if int(number) != self.number + 1:
            self._failure = MessageLost(f"message {self.number + 1} of the consumer is missing")
            return
        self.number += 1
        self._requested = max(0, self._requested - 1)
        found = NatsMessage(
            message.subject,
            int(sequence),
            int(nanoseconds) // 1_000_000,
            message.data,
            dict(message.headers) if message.headers else {},
        )
        self._arrived.append(Fetched(found, self.number, int(pending)))

    def _note(self, status: str, description: str) -> None:
        if status in ("404", "408"):
            self._requested = 0  # nothing more has come in time
        elif status != "100":
            self._failure = MessageLost(f"the consumer is gone ({status} {description})")

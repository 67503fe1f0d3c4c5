"""Send batches of messages to Kafka, and check that each of them has arrived."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.connectors.kafka.client import KafkaConnection, confluent_kafka, error_of_client
from penstock.connectors.kafka.serializers import MessageBatch
from penstock.dataflow.errors import JobError, Recoverability

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

#: The number of messages, and of their bytes, that may wait in the client. Its own limits are
#: higher: a message that is refused by the full queue could be overtaken by the next one.
QUEUED_MESSAGES, QUEUED_BYTES = 200_000, 128 << 20
#: The number of bytes that a message needs in addition to its key and its value.
_OVERHEAD = 512
#: The default of `message.max.bytes`.
_MAX_BYTES = 1_000_000


class BatchProducer:
    """A producer that sends batches, in order and without duplicates of its own.

    Arguments:
        connection: the cluster.
        stall_seconds: the time after which it is an error that no message arrives, in seconds. With
            None, the client decides, by `message.timeout.ms`.
        settings: further settings of the client, which the user cannot replace.
    """

    def __init__(
        self, connection: KafkaConnection, stall_seconds: float | None = None, **settings: Any
    ) -> None:
        kafka = confluent_kafka()
        self._connection = connection
        # The client holds the reports, but not this object: a client that is part of a cycle keeps
        # its threads and connections until the garbage collector finds it, which may be never.
        self._reports = _Reports(connection)
        self._stall_seconds = stall_seconds
        self._bytes = 0
        defaults = connection.settings(
            linger_ms=5,
            partitioner="murmur2_random",  # as Java clients choose partitions
            queue_buffering_max_messages=2 * QUEUED_MESSAGES,
            enable_idempotence=True,
        )
        #: The client, or None when it is closed.
        self.client: Any = connection.create(
            kafka.Producer,
            {
                **defaults,
                **settings,
                "delivery.report.only.error": True,
                "error_cb": self._reports.note,
            },
        )

    def send(self, batches: Iterable[MessageBatch]) -> None:
        """Queue messages to be sent. It waits if too many are queued.

        Raises:
            JobError: if a message is refused, or if one before it was not delivered.
        """
        kafka = confluent_kafka()
        for batch in batches:
            size = sum(map(len, filter(None, batch.values)))
            self._make_room(size)
            try:
                # The call for batches has no headers and timestamps.
                if batch.headers is None and batch.timestamps is None:
                    self._queue(batch)
                else:
                    self._queue_singly(batch)
            except (kafka.KafkaException, BufferError) as error:
                found = error.args[0] if isinstance(error, kafka.KafkaException) else error
                raise self._refusal(batch.topic, found) from None
            self._bytes += size
            self.serve(0)
            self.check()

    def serve(self, seconds: float, *, until_empty: bool = False) -> None:
        """Handle the reports of the client. A closed producer has none.

        Arguments:
            seconds: the longest time to wait, in seconds.
            until_empty: whether to wait until no message is queued, instead of for one report.

        Raises:
            KafkaException: if the client cannot go on, for instance because it was fenced.
        """
        client = self.client  # another thread may close it
        if client is not None:
            _serve(client, seconds, until_empty=until_empty)

    def flush(self) -> None:
        """Wait until all messages have arrived.

        Raises:
            JobError: if a message was not delivered. The client tries for `message.timeout.ms`.
        """
        self._wait(0)
        self._bytes = 0

    def check(self) -> None:
        """Raise a `JobError` if a message was not delivered."""
        reports = self._reports
        if reports.refused is not None:
            raise self._connection.failure("messages cannot be written", reports.refused)
        if reports.failed is not None:
            what = f"a message for {reports.where} was not delivered"
            raise self._connection.failure(what, reports.failed)

    def forget_failure(self) -> None:
        """Go on after a message was not delivered."""
        self._reports.failed = None

    def close(self) -> None:
        """Drop the messages that are not sent, and close the connections.

        An open transaction stays open. The client's own `close` would abort it, so the client is
        released instead, and ends its threads.
        """
        client, self.client = self.client, None
        if client is not None:
            client.purge()
            with suppress(confluent_kafka().KafkaException):  # It was fenced.
                _serve(client, 0)

    def _make_room(self, size: int) -> None:
        if len(self.client) >= QUEUED_MESSAGES:
            self._wait(QUEUED_MESSAGES // 2)
        if self._bytes + size > QUEUED_BYTES:
            self.flush()

    def _wait(self, most: int) -> None:
        """Wait until at most `most` messages are queued. A closed producer has none."""
        client = self.client  # another thread may close it
        if client is None:
            return
        before, since = len(client), time.monotonic()
        while (queued := len(client)) > most:
            _serve(client, 0.2 if most == 0 else 0.05, until_empty=most == 0)
            self.check()
            now = time.monotonic()
            if queued < before:
                before, since = queued, now
            elif self._stall_seconds is not None and now - since > self._stall_seconds:
                raise JobError(
                    f"{queued} messages have not arrived at {self._connection.bootstrap_servers} "
                    f"for {self._stall_seconds:g} seconds",
                    recoverability=Recoverability.ENVIRONMENT,
                )
        self.check()

    def _queue(self, batch: MessageBatch) -> None:
        columns: dict[str, Sequence[Any]] = {"value": batch.values}
        for name, column in (("key", batch.keys), ("partition", batch.partitions)):
            if column is not None:
                columns[name] = column
        names = tuple(columns)
        if len(names) == 1:
            messages = [{"value": value} for value in batch.values]
        elif names == ("value", "key"):
            pairs = zip(batch.values, columns["key"], strict=True)
            messages = [{"value": value, "key": key} for value, key in pairs]
        else:
            messages = [
                dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
        queued = self.client.produce_batch(
            batch.topic, messages, on_delivery=self._reports.delivered
        )
        if queued != len(messages):
            error = next(one["_error"] for one in messages if "_error" in one)
            raise self._refusal(batch.topic, error)

    def _queue_singly(self, batch: MessageBatch) -> None:
        for index, value in enumerate(batch.values):
            self.client.produce(
                batch.topic,
                value,
                None if batch.keys is None else batch.keys[index],
                -1 if batch.partitions is None else batch.partitions[index],
                on_delivery=self._reports.delivered,
                timestamp=0 if batch.timestamps is None else batch.timestamps[index],
                headers=None if batch.headers is None else [*map(tuple, batch.headers[index])],
            )

    def _refusal(self, topic: str, error: Any) -> JobError:
        text = error.str() if hasattr(error, "code") else str(error)
        return JobError(
            f"the client refuses a message for topic {topic!r} at "
            f"{self._connection.bootstrap_servers}: {text}"
        )


def _serve(client: Producer, seconds: float, *, until_empty: bool = False) -> None:
    failure = None
    try:
        (client.flush if until_empty else client.poll)(seconds)
    except SystemError as error:
        failure = error_of_client(error)
    if failure is not None:
        try:
            raise failure
        finally:
            # Otherwise the client were part of a cycle: the error has this frame, and the reverse.
            del failure


class _Reports:
    """Keeps what a client reports."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.refused: KafkaError | None = None
        self.failed: KafkaError | None = None
        #: The topic of the message that was not delivered.
        self.where = ""
        self._connection = connection

    def note(self, error: KafkaError) -> None:
        """Keep that the brokers refuse the client."""
        if self.refused is None:
            self.refused = self._connection.refusal(error)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Keep that a message was not delivered."""
        if error is not None and self.failed is None:
            self.failed, self.where = error, f"topic {message.topic()!r}"


def require_size(batches: Iterable[MessageBatch], properties: dict[str, Any]) -> None:
    """Raise an error if a message is larger than the client can send.

    It is checked before messages are staged. Otherwise they would be a part of a snapshot, and
    could never be published.

    Arguments:
        batches: the messages.
        properties: the properties of the client.
    """
    limit = int(properties.get("message.max.bytes", _MAX_BYTES)) - _OVERHEAD
    for batch in batches:
        longest = max(map(len, filter(None, batch.values)), default=0)
        if batch.keys is not None:
            longest += max(map(len, filter(None, batch.keys)), default=0)
        if longest <= limit:
            continue
        for index, value in enumerate(batch.values):
            key = None if batch.keys is None else batch.keys[index]
            size = len(value or b"") + len(key or b"")
            if size > limit:
                raise JobError(
                    f"a message for topic {batch.topic!r} has {size:,} bytes, and the client sends "
                    f"at most {limit:,}: set the property message.max.bytes of the sink, and "
                    f"max.message.bytes of the topic",
                    record=repr((value or b"")[:100]),
                    recoverability=Recoverability.NON_RECOVERABLE,
                )

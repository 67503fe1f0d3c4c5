"""Receive the messages of all partitions that a subtask reads, with one client in one thread.

A topic may have hundreds of partitions. So their readers share a client, which a thread of its own
polls. The thread distributes messages to the partitions and wakes their readers, which never wait
themselves. An idle client costs nothing, and a message is handed on as soon as it arrives.

The thread stops to receive while enough messages are waiting. But a reader may wait for messages
while another one does not take its own, for example because its split is ahead in event time. Then
the thread goes on, and pauses partitions of which too much is waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from penstock.connectors.kafka.client import (
    REQUEST_SECONDS,
    KafkaConnection,
    confluent_kafka,
    is_refused,
    logger,
)
from penstock.connectors.kafka.records import KafkaTopicPartition
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.metrics import MetricGroup

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

#: The number of messages, and of their bytes, above which no more are received.
WAITING_MESSAGES, WAITING_BYTES = 10_000, 32 << 20
#: The number of messages of one partition, and of their bytes, above which it is paused.
PAUSE_MESSAGES, PAUSE_BYTES = 20_000, 64 << 20
#: The maximum number of messages that the client returns in one call.
CHUNK = 1_000
#: The maximum time until the thread notices that it has other partitions to read, in seconds.
POLL_SECONDS = 0.1


class AssignedPartition:
    """The messages of one partition that wait for their reader.

    Arguments:
        partition: the topic and the number of the partition.
        offset: the offset of the first message.
        wake: called when there are messages, or an error.
    """

    def __init__(
        self, partition: KafkaTopicPartition, offset: int, wake: Callable[[], None]
    ) -> None:
        self.partition = partition
        self.wake = wake
        #: The offset behind the last message that was received.
        self.received = offset
        #: The offset behind the last message that the reader has taken.
        self.taken = offset
        #: The offset behind the last record of the partition, as far as it is known.
        self.high = offset
        #: The offset of the end of the partition, when it was last reached; -1 before.
        self.end = -1
        self.error: BaseException | None = None
        self.chunks: deque[list[Message]] = deque()
        #: The number of messages of the first chunk that are taken already.
        self.begin = 0
        self.count = 0
        self.bytes = 0
        #: Whether the reader has found no message, and none has come since.
        self.hungry = True
        self.paused = False

    @property
    def lag(self) -> int:
        """The number of offsets between the reader and the end of the partition."""
        return max(0, self.high - self.taken)


class PartitionConsumer:
    """Receives the messages of the partitions of one subtask.

    The thread begins with the first partition, and ends with the last one. No other thread calls
    the client.

    Arguments:
        connection: the cluster.
        restart_at_earliest: whether to continue at the first record of a partition if the wanted
            one is gone. Otherwise that is an error.
        bounded: whether partitions have ends, so that the end of a partition must be noticed.
        group: the name of the group, for access control lists; None if there is none.
        metrics: the metrics of the subtask.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        metrics: MetricGroup,
        *,
        restart_at_earliest: bool,
        bounded: bool,
        group: str | None,
    ) -> None:
        self.metrics = metrics
        self._connection = connection
        self._restart_at_earliest = restart_at_earliest
        self._settings = {"enable.partition.eof": bounded, "group.id": group or "penstock"}
        self._changed = threading.Condition()
        self._partitions: dict[KafkaTopicPartition, AssignedPartition] = {}
        #: Whether the client reads other partitions than it should.
        self._stale = False
        self._thread: threading.Thread | None = None
        self._count = self._bytes = 0
        self._refused: KafkaError | None = None
        #: Whether no broker has answered since the last message.
        self._away = False
        self._lost = metrics.counter("numRecordsLost")

    # ---- methods of readers

    def pending_records(self) -> int:
        """Return the number of records that are not read yet, in all partitions."""
        return sum(one.lag for one in list(self._partitions.values()))

    def highest_lag(self) -> int:
        """Return the number of records that are not read yet in the slowest partition."""
        return max((one.lag for one in list(self._partitions.values())), default=0)

    def open(
        self, partition: KafkaTopicPartition, offset: int, wake: Callable[[], None]
    ) -> AssignedPartition:
        """Begin to receive the messages of a partition.

        Arguments:
            partition: the partition.
            offset: the offset of the first message.
            wake: called in another thread when there are messages, or an error.
        """
        assigned = AssignedPartition(partition, offset, wake)
        with self._changed:
            self._partitions[partition], self._stale = assigned, True
            if self._thread is None:
                name = f"kafka {partition.topic}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return assigned

    def take(self, assigned: AssignedPartition, max_messages: int) -> list[Message]:
        """Return the next messages of a partition; an empty list if there are none now.

        Raises:
            JobError: if the partition cannot be read.
        """
        with self._changed:
            if not assigned.chunks:
                if assigned.error is not None:
                    raise assigned.error
                if not assigned.hungry:
                    assigned.hungry = True
                    self._changed.notify()
                return []
            chunk, begin = assigned.chunks[0], assigned.begin
            end = begin + max_messages
            if begin or end < len(chunk):
                messages = chunk[begin:end]
            else:
                messages = chunk
            if end < len(chunk):
                assigned.begin = end
            else:
                assigned.chunks.popleft()
                assigned.begin = 0
                size = sum(map(len, chunk))
                assigned.bytes -= size
                self._bytes -= size
            assigned.count -= len(messages)
            full = self._full
            self._count -= len(messages)
            if full and not self._full:
                self._changed.notify()
        assigned.taken = (messages[-1].offset() or 0) + 1
        return messages

    def close(self, assigned: AssignedPartition) -> None:
        """End to receive the messages of a partition."""
        with self._changed:
            if self._partitions.get(assigned.partition) is assigned:
                del self._partitions[assigned.partition]
                self._stale = True
                self._count -= assigned.count
                self._bytes -= assigned.bytes
                self._changed.notify()

    # ---- the thread

    @property
    def _full(self) -> bool:
        return self._count >= WAITING_MESSAGES or self._bytes >= WAITING_BYTES

    def _may_go_on(self) -> bool:
        if self._stale or not self._full:
            return True
        return any(one.hungry for one in self._partitions.values())

    def _run(self) -> None:
        kafka = confluent_kafka()
        consumer: Any = None
        #: The partitions that the client reads.
        current: dict[KafkaTopicPartition, AssignedPartition] = {}
        try:
            consumer = self._connection.create(kafka.Consumer, self._client_settings())
            while True:
                with self._changed:
                    self._changed.wait_for(self._may_go_on)
                    if not self._partitions:
                        self._thread = None  # the next partition begins another thread
                        return
                    stale, self._stale = self._stale, False
                    wanted = dict(self._partitions) if stale else current
                if stale:
                    self._assign(consumer, current, wanted)
                    current = wanted
                self._resume(consumer, current)
                first = consumer.poll(POLL_SECONDS)
                if first is not None:
                    self._away = False
                    self._distribute(consumer, [first, *consumer.consume(CHUNK - 1, 0)])
                if self._refused is not None:
                    raise self._connection.failure("messages cannot be read", self._refused)
        except BaseException as error:
            self._fail(error)
        finally:
            if consumer is not None:
                consumer.close()

    def _client_settings(self) -> dict[str, Any]:
        return self._connection.settings(isolation_level="read_committed") | {
            **self._settings,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "error_cb": self._note,
        }

    def _note(self, error: KafkaError) -> None:
        if is_refused(error):
            self._refused = error
        elif error.name() == "_ALL_BROKERS_DOWN" and not self._away:
            self._away = True
            logger.warning(
                "no Kafka broker at %s answers; the source waits and tries again",
                self._connection.bootstrap_servers,
            )

    def _fail(self, error: BaseException) -> None:
        """Report an error to all readers. The next partition begins another thread."""
        if isinstance(error, confluent_kafka().KafkaException):
            error = self._connection.failure("messages cannot be read", error)
        with self._changed:
            self._thread, self._stale = None, True
            partitions = list(self._partitions.values())
            for one in partitions:
                one.error = error
        for one in partitions:
            one.wake()

    def _assign(
        self,
        consumer: Any,
        current: dict[KafkaTopicPartition, AssignedPartition],
        wanted: dict[KafkaTopicPartition, AssignedPartition],
    ) -> None:
        """Make the client read other partitions."""
        place = confluent_kafka().TopicPartition
        gone = [place(*one) for one, held in current.items() if wanted.get(one) is not held]
        if gone:
            consumer.incremental_unassign(gone)
        new = [
            place(*one, held.received)
            for one, held in wanted.items()
            if current.get(one) is not held
        ]
        if new:
            consumer.incremental_assign(new)

    def _resume(self, consumer: Any, current: dict[KafkaTopicPartition, AssignedPartition]) -> None:
        """Resume paused partitions whose readers have taken most of their messages."""
        for partition, one in current.items():
            if one.paused and one.count < PAUSE_MESSAGES // 4 and one.bytes < PAUSE_BYTES // 4:
                one.paused = False
                consumer.resume([confluent_kafka().TopicPartition(*partition)])

    def _distribute(self, consumer: Any, messages: list[Message]) -> None:
        """Hand messages over to the readers of their partitions."""
        kafka = confluent_kafka()
        reports: list[Message] = []
        if any(map(kafka.Message.error, messages)):
            reports = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        for partition, group in groupby(messages, self._partition_of):
            self._add(consumer, partition, list(group))
        # A report comes behind the messages before it. For example, the end of a partition must not
        # be known before its last message.
        for message in reports:
            if (error := message.error()) is not None:
                self._handle(consumer, message, error)

    def _add(self, consumer: Any, partition: KafkaTopicPartition, messages: list[Message]) -> None:
        place = confluent_kafka().TopicPartition(*partition)
        size = sum(map(len, messages))
        with self._changed:
            one = self._partitions.get(partition)
            if one is None:
                return  # it was closed meanwhile
            one.chunks.append(messages)
            one.received = (messages[-1].offset() or 0) + 1
            one.count += len(messages)
            one.bytes += size
            self._count += len(messages)
            self._bytes += size
            hungry, one.hungry = one.hungry, False
            must_pause = one.count >= PAUSE_MESSAGES or one.bytes >= PAUSE_BYTES
        one.high = max(consumer.get_watermark_offsets(place, cached=True)[1], one.received)
        if hungry:
            one.wake()
        if must_pause and not one.paused:
            one.paused = True
            consumer.pause([place])

    def _partition_of(self, message: Message) -> KafkaTopicPartition:
        return KafkaTopicPartition(message.topic() or "", message.partition() or 0)

    # ---- errors of partitions

    def _handle(self, consumer: Any, message: Message, error: KafkaError) -> None:
        """Handle a message that reports an error or the end of a partition."""
        one = self._partitions.get(self._partition_of(message))
        if one is None:
            if (message.partition() or 0) < 0 and not error.retriable():
                raise self._connection.failure("messages cannot be read", error)
            return  # the partition was closed meanwhile
        if error.name() == "_PARTITION_EOF":
            one.end = max(one.received, message.offset() or 0)
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self._handle_lost_position(consumer, one)
        elif error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
            topic, partition = one.partition
            one.error = JobError(
                f"partition {partition} of topic {topic!r} does not exist any more at "
                f"{self._connection.bootstrap_servers}: the topic was deleted, or has fewer "
                f"partitions than before"
            )
        else:
            topic, partition = one.partition
            what = f"partition {partition} of topic {topic!r} cannot be read"
            failure = self._connection.failure(what, error)
            if error.retriable() and not is_refused(error):
                logger.warning("%s; the source tries again", failure)
                return
            one.error = failure
        one.wake()

    def _handle_lost_position(self, consumer: Any, one: AssignedPartition) -> None:
        """Handle the error that a partition has no record at the wanted offset."""
        topic, partition = one.partition
        place = confluent_kafka().TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(place, REQUEST_SECONDS)
        if one.received < low:
            lost = low - one.received
            what = (
                f"the offsets {one.received} to {low - 1} of partition {partition} of topic "
                f"{topic!r} are gone ({lost} offsets): the retention of the topic has removed "
                f"them before the job has read them"
            )
        else:
            lost = 0
            what = (
                f"partition {partition} of topic {topic!r} ends at offset {high}, and the job "
                f"goes on at {one.received}: the topic was deleted and created again, or the "
                f"brokers have lost records"
            )
        if not self._restart_at_earliest:
            one.error = JobError(
                f"{what}. To go on at the first record that is there, at offset {low}, set "
                f"on_lost_position='earliest' for the source, or resume the job with "
                f"--on-lost-position earliest; or start the job afresh",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
            return
        logger.warning("%s. The source goes on at offset %d", what, low)
        self._lost.inc(lost)
        one.received = one.taken = low
        consumer.incremental_unassign([place])
        consumer.incremental_assign([confluent_kafka().TopicPartition(topic, partition, low)])

"""Ask the brokers for topics, partitions and offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.connectors.kafka.client import (
    REQUEST_SECONDS,
    KafkaConnection,
    confluent_kafka,
    logger,
)
from penstock.connectors.kafka.records import KafkaTopicPartition, Offsets
from penstock.dataflow.errors import JobError, Recoverability

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, TopicPartition

#: The time that a request has at its first try, in seconds. Each try has twice that of the last.
_FIRST_SECONDS = 1.0
#: The errors after which a request is tried again, with more time.
_UNANSWERED = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN")


class TopicClient:
    """Asks the brokers about topics. Only one thread may use it.

    Arguments:
        connection: the cluster.
        group: the group whose offsets are read and committed; None if there is none.
    """

    def __init__(self, connection: KafkaConnection, group: str | None) -> None:
        self.group = group
        self._connection = connection
        self._kafka = confluent_kafka()
        self._refused: KafkaError | None = None
        #: The newest error that the client has reported, which says more than that of a request.
        self._reported: KafkaError | None = None
        settings = connection.settings(isolation_level="read_committed")
        settings["group.id"] = group or "penstock"
        settings["enable.auto.commit"] = False
        settings["allow.auto.create.topics"] = False
        settings["error_cb"] = self._note
        settings["on_commit"] = self._answered
        self._consumer = connection.create(self._kafka.Consumer, settings)
        #: Whether a commit has no answer yet, and the offsets that are committed after it.
        self._committing = False
        self._next: list[TopicPartition] = []

    def _note(self, error: KafkaError) -> None:
        if self._refused is None:
            self._refused = self._connection.refusal(error)
        if error.name() != "_ALL_BROKERS_DOWN":
            self._reported = error

    def topics(self, topics: Sequence[str], pattern: str | None) -> list[KafkaTopicPartition]:
        """Return the partitions of topics.

        Arguments:
            topics: the names of topics, all of which must exist.
            pattern: a regular expression that matches whole names instead; None for none.

        Raises:
            JobError: if a topic does not exist, or the brokers do not answer.
        """
        found: dict[str, int] = {}
        if pattern is not None:
            for name, topic in self._metadata(None).items():
                if re.fullmatch(pattern, name) and topic.error is None:
                    found[name] = len(topic.partitions)
        for name in topics:
            topic = self._metadata(name)[name]
            if topic.error is None:
                found[name] = len(topic.partitions)
            elif topic.error.name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                raise JobError(
                    f"there is no topic {name!r} at {self._connection.bootstrap_servers}: create "
                    f"it, or correct its name",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            else:
                raise self._connection.failure(f"topic {name!r} cannot be read", topic.error)
        return [KafkaTopicPartition(t, p) for t in sorted(found) for p in range(found[t])]

    def range(self, partition: KafkaTopicPartition) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset behind its committed records."""
        place = self._kafka.TopicPartition(*partition)
        low, high = self._ask(
            f"offsets of {partition.topic} [{partition.partition}] cannot be read",
            lambda seconds: self._consumer.get_watermark_offsets(place, seconds),
        )
        return low, high

    def offsets_at(self, partitions: Sequence[KafkaTopicPartition], timestamp: int) -> Offsets:
        """Return the offset of the first record of each partition from a time on.

        If there is no such record, it is the offset behind the last one.
        """
        places = [self._kafka.TopicPartition(*one, timestamp) for one in partitions]
        found = self._ask(
            "offsets by time cannot be read",
            lambda seconds: self._consumer.offsets_for_times(places, seconds),
        )
        offsets = self._checked(found)
        return {one: offsets[one] if one in offsets else self.range(one)[1] for one in partitions}

    def committed(self, partitions: Sequence[KafkaTopicPartition]) -> Offsets:
        """Return the offsets that the group has committed, for partitions that have some."""
        places = [self._kafka.TopicPartition(*one) for one in partitions]
        return self._checked(
            self._ask(
                f"the offsets of group {self.group!r} cannot be read",
                lambda seconds: self._consumer.committed(places, seconds),
            )
        )

    def commit(self, offsets: Iterable[tuple[KafkaTopicPartition, int]]) -> None:
        """Begin to commit offsets of the group, when an earlier commit has its answer.

        Nothing depends on these offsets, so an error is only logged.
        """
        self._next = [self._kafka.TopicPartition(*one, offset) for one, offset in offsets]
        self._consumer.poll(0)  # may handle the answer
        self._commit_next()

    def marker(self, partition: KafkaTopicPartition) -> tuple[int, str | None] | None:
        """Return the offset that the group has committed, and its metadata; None if there is none.

        It waits for an open transaction that commits such an offset.
        """
        place = self._kafka.TopicPartition(*partition)
        [found] = self._ask(
            f"the offset of group {self.group!r} cannot be read",
            lambda seconds: self._consumer.committed([place], seconds),
        )
        self._checked([found])
        return None if found.offset < 0 else (found.offset, found.metadata)

    def group_metadata(self) -> Any:
        """Return what a transaction needs to commit offsets of the group."""
        return self._consumer.consumer_group_metadata()

    def _commit_next(self) -> None:
        if self._committing or not self._next:
            return
        places, self._next = self._next, []
        self._committing = True
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except self._kafka.KafkaException as error:
            self._answered(error.args[0], [])

    def _answered(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        """Note the answer to a commit."""
        self._committing = False
        if error is not None:
            logger.warning(
                "the offsets of group %r are not committed (%s): its lag in tools is too high. "
                "The job does not need them",
                self.group,
                error.str(),
            )

    def finish_commits(self, seconds: float) -> None:
        """Wait at most `seconds` for the answers to all commits."""
        deadline = time.monotonic() + seconds
        while self._committing and time.monotonic() < deadline:
            self._consumer.poll(0.1)
            self._commit_next()

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _metadata(self, topic: str | None) -> dict[str, Any]:
        what = "topics cannot be listed" if topic is None else f"topic {topic!r} cannot be found"
        found: dict[str, Any] = self._ask(
            what, lambda seconds: self._consumer.list_topics(topic, timeout=seconds).topics
        )
        return found

    def _ask(self, what: str, request: Callable[[float], Any]) -> Any:
        # The client does not return earlier if the brokers refuse it. So the first tries are short.
        seconds = _FIRST_SECONDS
        while True:
            try:
                return request(seconds)
            except self._kafka.KafkaException as error:
                self._consumer.poll(0)  # calls `_note` with the reason
                lasting = error.args[0].name() not in _UNANSWERED
                seconds *= 2
                if self._refused is not None or lasting or seconds > REQUEST_SECONDS:
                    unanswered = None if lasting else self._reported
                    found = self._refused or unanswered or error
                    raise self._connection.failure(what, found) from None

    def _checked(self, found: Sequence[TopicPartition]) -> Offsets:
        offsets = {}
        for one in found:
            if one.error is not None:
                raise self._connection.failure(
                    f"an offset of {one.topic} [{one.partition}] cannot be read", one.error
                )
            if one.offset >= 0:
                offsets[KafkaTopicPartition(one.topic, one.partition)] = one.offset
        return offsets

"""Find the partitions of topics, and where to read them. It runs in the JobManager."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.connectors.kafka.client import KafkaConnection, logger
from penstock.connectors.kafka.offsets import KafkaOffsetsInitializer
from penstock.connectors.kafka.records import KafkaTopicPartition
from penstock.connectors.kafka.topic_client import TopicClient
from penstock.dataflow.errors import JobError, PenstockError, Recoverability
from penstock.dataflow.source import Split, SplitEnumerator

#: The time for which the end of a job waits for the last commit of offsets, in seconds.
_LAST_COMMIT_SECONDS = 5.0


class KafkaTopics(Protocol):
    """Describes the partitions of a source, and its range in each; see `KafkaSource`."""

    connection: KafkaConnection
    topics: tuple[str, ...]
    topic_pattern: str | None
    partitions: tuple[KafkaTopicPartition, ...] | None
    group_id: str | None
    commits_offsets: bool
    starting_offsets: KafkaOffsetsInitializer
    stopping_offsets: KafkaOffsetsInitializer | None
    discovery_seconds: float | None

    @property
    def discovers(self) -> bool:
        """Whether new partitions are looked for."""


class KafkaEnumerator(SplitEnumerator):
    """Assigns the partitions of topics, and finds new ones.

    The payload of a split is the topic, the partition, the first offset, and the offset at which
    the split ends or None.

    Arguments:
        source: the source.
    """

    def __init__(self, source: KafkaTopics) -> None:
        self._source = source
        self._client: TopicClient | None = None
        self._commits: TopicClient | None = None
        self._left: deque[Split] = deque()
        #: The end of each known split, keyed by its id.
        self._known: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._discovery: threading.Thread | None = None

    def start(self) -> None:
        """Find the partitions and their offsets.

        Raises:
            JobError: if a topic does not exist, or the brokers do not answer.
        """
        partitions = self._list()
        if not partitions and self._source.topic_pattern is not None:
            logger.warning("no topic matches %r yet", self._source.topic_pattern)
        self._add(partitions, self._source.starting_offsets)
        self._watch()

    def restore(self, state: Any) -> None:
        """Restore the state, and find new partitions.

        Raises:
            JobError: if a known partition does not exist any more, or the brokers do not answer.
        """
        with self._lock:
            self._left = deque(Split(id, payload) for id, payload in state["left"])
            self._known = dict(state["known"])
        partitions = self._list()
        self._require_known(partitions)
        if self._source.discovers:
            self._add(partitions, KafkaOffsetsInitializer.earliest())
        self._watch()

    def next_split(self, subtask: int) -> Split | None:
        """Return the next partition for any subtask."""
        del subtask
        with self._lock:
            return self._left.popleft() if self._left else None

    @property
    def exhausted(self) -> bool:
        """Whether no partition is found later."""
        return not self._source.discovers

    def snapshot(self) -> Any:
        """Return the partitions that are not assigned, and all that are known."""
        with self._lock:
            left = [[split.id, split.payload] for split in self._left]
            return {"left": left, "known": [[id, item] for id, item in self._known.items()]}

    def snapshot_completed(self, positions: Sequence[tuple[Split, Any]]) -> None:
        """Commit the offsets of a complete snapshot, for tools that show the lag of a group."""
        source = self._source
        if source.group_id is None or not source.commits_offsets:
            return
        with self._lock:
            waiting = {split.id for split in self._left}
            offsets = {id: stop for id, (_, _, _, stop) in self._known.items() if id not in waiting}
        for split, position in positions:
            payload: Any = split.payload
            offsets[split.id] = payload[2] if position is None else position
        if self._commits is None:
            self._commits = TopicClient(source.connection, source.group_id)
        self._commits.commit(
            (KafkaTopicPartition(*self._known[id][:2]), offset)
            for id, offset in offsets.items()
            if offset is not None and id in self._known
        )

    def close(self) -> None:
        """Close the connections."""
        self._closed.set()
        if self._discovery is not None:
            self._discovery.join()
        if self._commits is not None:
            self._commits.finish_commits(_LAST_COMMIT_SECONDS)
            self._commits.close()
        if self._client is not None:
            self._client.close()

    # ---- partitions

    def _list(self) -> list[KafkaTopicPartition]:
        source = self._source
        if self._client is None:
            self._client = TopicClient(source.connection, source.group_id)
        if source.partitions is None:
            return self._client.topics(source.topics, source.topic_pattern)
        found = set(self._client.topics(sorted({one.topic for one in source.partitions}), None))
        for one in source.partitions:
            if one not in found:
                raise JobError(
                    f"topic {one.topic!r} has no partition {one.partition}: correct the partitions "
                    f"of the source",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
        return list(source.partitions)

    def _add(
        self, partitions: Sequence[KafkaTopicPartition], start: KafkaOffsetsInitializer
    ) -> None:
        """Add the partitions that are not known, with their offsets."""
        client, stop = self._client, self._source.stopping_offsets
        assert client is not None
        new = [one for one in partitions if _id(one) not in self._known]
        first = start.resolve(client, new)
        last = {} if stop is None else stop.resolve(client, new)
        with self._lock:
            for one in new:
                payload = [one.topic, one.partition, first[one], last.get(one)]
                self._known[_id(one)] = payload
                self._left.append(Split(_id(one), payload))

    def _require_known(self, partitions: Sequence[KafkaTopicPartition]) -> None:
        """Raise an error if a known partition of a topic of the source does not exist any more."""
        found = {_id(one) for one in partitions}
        counts: dict[str, int] = {}
        for one in partitions:
            counts[one.topic] = counts.get(one.topic, 0) + 1
        for id, (topic, partition, *_) in self._known.items():
            if id in found:
                continue
            if self._source.partitions is None and (
                topic in counts or topic in self._source.topics
            ):
                raise JobError(
                    f"topic {topic!r} has {counts.get(topic, 0)} partitions, and the snapshot has "
                    f"read its partition {partition}: it was deleted and created again with fewer "
                    f"partitions. Start the job afresh, or read another topic",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            logger.warning(
                "partition %d of topic %r is still read, because the snapshot has it, although the "
                "source does not name it any more",
                partition,
                topic,
            )

    def _watch(self) -> None:
        if self._source.discovers:
            name = "kafka partitions"
            self._discovery = threading.Thread(target=self._discover, name=name, daemon=True)
            self._discovery.start()

    def _discover(self) -> None:
        """Find new partitions at intervals. They are read from their first records."""
        seconds = self._source.discovery_seconds
        while not self._closed.wait(seconds):
            try:
                self._add(self._list(), KafkaOffsetsInitializer.earliest())
            except PenstockError as error:
                logger.warning("new partitions cannot be found: %s", error)


def _id(partition: KafkaTopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"

"""Say where a source begins and ends to read the partitions of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from penstock.connectors.kafka.records import KafkaTopicPartition, Offsets
from penstock.dataflow.errors import GraphError, JobError, Recoverability

if TYPE_CHECKING:
    from penstock.connectors.kafka.topic_client import TopicClient


class KafkaOffsetResetStrategy(Enum):
    """Chooses where to begin without an offset. (PyFlink: `KafkaOffsetResetStrategy`.)

    EARLIEST: at the first record that the partition has.
    LATEST: behind the last record.
    NONE: the job fails.

    Examples:
        >>> KafkaOffsetResetStrategy.NONE.name
        'NONE'
    """

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class KafkaOffsetsInitializer:
    """Chooses where a source begins or ends. (PyFlink: `KafkaOffsetsInitializer`.)

    The offsets are looked up once, when the job is started. A job that goes on from a snapshot goes
    on at the offsets of the snapshot.

    Examples:
        >>> start = KafkaOffsetsInitializer.timestamp(1_700_000_000_000)
        >>> start
        KafkaOffsetsInitializer.timestamp(1700000000000)
    """

    def __init__(self, kind: str, *arguments: object) -> None:
        self._kind, self._arguments = kind, arguments
        self._strategy = KafkaOffsetResetStrategy.EARLIEST
        self._offsets: Offsets = {}
        self._timestamp = 0

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """Return an initializer for the first record that each partition has."""
        return KafkaOffsetsInitializer("earliest")

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """Return an initializer for the offset behind the last record of each partition."""
        return KafkaOffsetsInitializer("latest")

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """Return an initializer for the first record of each partition from a time on.

        In partitions without such a record it is the offset behind the last record.

        Arguments:
            timestamp: the time, in milliseconds since the epoch.
        """
        initializer = KafkaOffsetsInitializer("timestamp", timestamp)
        initializer._timestamp = timestamp
        return initializer

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """Return an initializer for the offsets that the group of the source has committed.

        Arguments:
            offset_reset_strategy: where to begin in partitions without such an offset.
        """
        initializer = KafkaOffsetsInitializer("committed_offsets", offset_reset_strategy)
        initializer._strategy = offset_reset_strategy
        return initializer

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """Return an initializer for given offsets.

        Arguments:
            offsets: the offset of each partition.
            offset_reset_strategy: where to begin in the other partitions.

        Raises:
            GraphError: if an offset is not a number from 0 on.
        """
        given = {KafkaTopicPartition(*partition): at for partition, at in offsets.items()}
        for partition, offset in given.items():
            if type(offset) is not int or offset < 0:
                raise GraphError(
                    f"the offset of {partition.topic} [{partition.partition}] is a number from 0 "
                    f"on, not {offset!r}"
                )
        initializer = KafkaOffsetsInitializer("offsets", given, offset_reset_strategy)
        initializer._offsets, initializer._strategy = given, offset_reset_strategy
        return initializer

    def resolve(self, client: TopicClient, partitions: Sequence[KafkaTopicPartition]) -> Offsets:
        """Return the offset of each partition.

        Raises:
            JobError: if an offset is not known, or the brokers do not answer.
        """
        match self._kind:
            case "earliest":
                return {one: client.range(one)[0] for one in partitions}
            case "latest":
                return {one: client.range(one)[1] for one in partitions}
            case "timestamp":
                return client.offsets_at(partitions, self._timestamp)
            case "committed_offsets":
                return self._or_reset(client, partitions, client.committed(partitions))
            case _:
                return self._or_reset(client, partitions, self._offsets)

    def _or_reset(
        self, client: TopicClient, partitions: Sequence[KafkaTopicPartition], known: Offsets
    ) -> Offsets:
        missing = [one for one in partitions if one not in known]
        if missing and self._strategy is KafkaOffsetResetStrategy.NONE:
            topic, partition = missing[0]
            group = "" if client.group is None else f" of group {client.group!r}"
            raise JobError(
                f"there is no offset{group} for partition {partition} of topic {topic!r}, and for "
                f"{len(missing)} of {len(partitions)} partitions in all: commit offsets, or say "
                f"where to begin with a KafkaOffsetResetStrategy",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        at_end = self._strategy is KafkaOffsetResetStrategy.LATEST
        return {
            one: known[one] if one in known else client.range(one)[at_end] for one in partitions
        }

    @property
    def needs_group(self) -> bool:
        """Whether the offsets are those of a group."""
        return self._kind == "committed_offsets"

    def __repr__(self) -> str:
        return f"KafkaOffsetsInitializer.{self._kind}({', '.join(map(repr, self._arguments))})"

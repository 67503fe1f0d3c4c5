"""Define the names of partitions, and records with all that Kafka has of them."""

from __future__ import annotations

from typing import Any, NamedTuple


class KafkaTopicPartition(NamedTuple):
    """Names a partition of a topic. (PyFlink: `KafkaTopicPartition`.)

    Arguments:
        topic: the name of the topic.
        partition: the number of the partition, from 0.

    Examples:
        >>> KafkaTopicPartition("orders", 2).topic
        'orders'
    """

    topic: str
    partition: int


#: An offset in each of some partitions.
Offsets = dict[KafkaTopicPartition, int]


class KafkaRecord(NamedTuple):
    """A record of a topic with its key, headers, time and place.

    Arguments:
        value: the value, as bytes or decoded. None is a tombstone: it deletes the key in a
            compacted topic.
        key: the key, as bytes or decoded; None if there is none.
        topic: the name of the topic.
        partition: the number of the partition.
        offset: the offset of the record in the partition.
        timestamp: the time of the record, in milliseconds since the epoch.
        headers: pairs of a name and a value, in order.

    Examples:
        >>> KafkaRecord(b"7", key=b"ann", topic="orders").key
        b'ann'
    """

    value: Any
    key: Any = None
    topic: str = ""
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()

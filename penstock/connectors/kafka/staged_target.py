"""Publish staged output to Kafka: each snapshot in one transaction, with its number as a marker.

The marker is an offset that the transaction commits for a consumer group. The group has the same
name as the transactional id. Nobody reads with this group; its only offset is the number of the
newest published snapshot, and the metadata of the offset is a hash of the output.

`init_transactions` fences every earlier producer with this id, and finishes or aborts its
transaction. After it, the offset is the truth. So an open transaction never outlives the process
that writes it by more than the time until its successor starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from penstock.connectors.kafka.batch_producer import BatchProducer
from penstock.connectors.kafka.client import KafkaConnection, confluent_kafka
from penstock.connectors.kafka.records import KafkaTopicPartition
from penstock.connectors.kafka.serializers import MessageBatch
from penstock.connectors.kafka.topic_client import TopicClient
from penstock.connectors.kafka.transactional_producer import (
    COMMIT_SECONDS,
    STEP_SECONDS,
    bounded,
    transaction_failure,
    transactional_producer,
)
from penstock.connectors.staged_sink import Marker, Target
from penstock.dataflow.type_variables import PlainValue

#: The time for which brokers keep an offset that is not committed again (`offsets.retention.
#: minutes`), in seconds.
MARKER_SECONDS = 7 * 86400.0


class KafkaTarget(Target):
    """A producer with the transactional id of one sink.

    Arguments:
        connection: the cluster.
        transactional_id: the id, which no other sink of any job has.
        topic: the topic under whose first partition the marker is kept. It must exist.
        marker_seconds: the time for which the brokers keep the marker, in seconds.
    """

    def __init__(
        self, connection: KafkaConnection, transactional_id: str, topic: str, marker_seconds: float
    ) -> None:
        self.marker_seconds = marker_seconds
        self._connection, self._id = connection, transactional_id
        self._place = KafkaTopicPartition(topic, 0)
        self._producer: BatchProducer | None = None
        self._marker: TopicClient | None = None

    def fence(self) -> Marker | None:
        """Fence earlier producers, and return the marker."""
        self._marker = TopicClient(self._connection, self._id)
        self._marker.topics([self._place.topic], None)
        self._producer = transactional_producer(self._connection, self._id)
        found = self._marker.marker(self._place)
        return None if found is None else Marker(found[0], found[1] or "")

    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        """Write messages and the marker in one transaction."""
        assert self._producer is not None and self._marker is not None
        kafka = confluent_kafka()
        client = self._producer.client
        place = kafka.TopicPartition(*self._place, marker.number, metadata=marker.digest)
        try:
            client.begin_transaction()
            for batch in batches:
                parts: Any = batch
                self._producer.send(MessageBatch(*part) for part in parts)
            # No flush: it would wait for the messages of a transaction that has failed. The commit
            # waits for the messages, or raises the error of the transaction.
            group = self._marker.group_metadata()
            bounded(partial(client.send_offsets_to_transaction, [place], group), STEP_SECONDS)
            bounded(client.commit_transaction, COMMIT_SECONDS)
        except kafka.KafkaException as error:
            self._producer.check()
            what = f"the output of snapshot {marker.number} is not published"
            raise transaction_failure(self._connection, what, error) from None

    def close(self) -> None:
        """Close the connection, without a commit."""
        if self._producer is not None:
            self._producer.close()
        if self._marker is not None:
            self._marker.close()

"""Kafka topics as sources and sinks of a job.

This package needs the extra `penstock[kafka]`, which installs confluent-kafka and kafka-python.
Importing it needs neither. Names are those of PyFlink, so that a program only changes its imports.

`partition_consumer.py` receives messages, and `enumerator.py` finds partitions and offsets. The
user guide is `docs/guides/connectors/kafka.md`.
"""

from __future__ import annotations

from penstock.connectors.kafka.deserializers import KafkaRecordDeserializationSchema
from penstock.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from penstock.connectors.kafka.records import KafkaRecord, KafkaTopicPartition
from penstock.connectors.kafka.serializers import (
    KafkaRecordSerializationSchema,
    KafkaRecordSerializationSchemaBuilder,
)
from penstock.connectors.kafka.sink import DeliveryGuarantee, KafkaSink, KafkaSinkBuilder
from penstock.connectors.kafka.source import KafkaSource, KafkaSourceBuilder

__all__ = [
    "DeliveryGuarantee",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecord",
    "KafkaRecordDeserializationSchema",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
]

"""The Kafka broker of the tests: topics, and what a restart keeps."""

import pytest

from penstock.testing.servers.kafka import KafkaServer

kafka = pytest.importorskip("confluent_kafka")


def test_a_broker_keeps_its_topics_and_messages_over_a_restart(tmp_path):
    if (advice := KafkaServer.missing()) is not None:
        pytest.skip(advice)
    with KafkaServer(tmp_path) as server:
        topic = server.create_topic(partitions=2)
        producer = kafka.Producer({"bootstrap.servers": server.address})
        producer.produce(topic, b"kept", partition=1)
        assert producer.flush(60) == 0
        server.stop()
        server.start()
        reader = kafka.Consumer({"bootstrap.servers": server.address, "group.id": "none"})
        assert reader.get_watermark_offsets(kafka.TopicPartition(topic, 1), 60) == (0, 1)
        assert reader.get_watermark_offsets(kafka.TopicPartition(topic, 0), 60) == (0, 0)
        reader.close()


def test_the_shared_broker_has_topics_for_each_test(kafka_server):
    first, second = kafka_server.create_topic(), kafka_server.create_topic()
    assert first != second

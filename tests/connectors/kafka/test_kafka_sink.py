"""Topics of a real broker as sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import GraphError, JobError, Recoverability, StreamExecutionEnvironment
from penstock.connectors.formats import ByteArraySchema, Json, SimpleStringSchema
from penstock.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecord,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from penstock.connectors.staged_sink import Marker, SinkPlace
from penstock.dataflow.sink import WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.connectors.source_run import SourceRun
from penstock.testing.servers.kafka import KafkaServer

kafka = pytest.importorskip("confluent_kafka")
Schema = KafkaRecordSerializationSchema


def read_topic(server: KafkaServer, topic: str) -> list[KafkaRecord]:
    """Return the committed records of a topic."""
    latest = KafkaOffsetsInitializer.latest()
    return SourceRun(
        KafkaSource(server.address, topic, stopping_offsets=latest), 1, None, 100
    ).run()


def values(server: KafkaServer, topic: str) -> list[str]:
    return [record.value.decode() for record in read_topic(server, topic)]


class TestKafkaSink(SinkConformance):
    parallelisms = (1, 2)
    shared = True
    whole_snapshots = True

    @pytest.fixture(autouse=True)
    def server(self, kafka_server: KafkaServer) -> None:
        self.kafka = kafka_server
        self.topics: dict[str, str] = {}

    def create_sink(self, place: Path) -> KafkaSink[Any]:
        if place.name not in self.topics:
            self.topics[place.name] = self.kafka.create_topic(partitions=2)
        return KafkaSink(self.kafka.address, self.topics[place.name], SimpleStringSchema())

    def read_output(self, place: Path) -> list[str]:
        return values(self.kafka, self.topics[place.name])


def write(sink: KafkaSink[Any], records: list[Any], folder: Path | None = None) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    if folder is not None:
        env.enable_checkpointing(50)
        env.get_checkpoint_config().set_checkpoint_storage_dir(folder)
    env.from_collection(records).sink_to(sink)
    env.execute("write")


@pytest.mark.parametrize("guarantee", DeliveryGuarantee)
def test_a_job_writes_each_record(kafka_server: KafkaServer, guarantee: DeliveryGuarantee):
    topic = kafka_server.create_topic(partitions=3)
    sink = KafkaSink(kafka_server.address, topic, SimpleStringSchema(), guarantee=guarantee)
    write(sink, list(map(str, range(500))))
    assert sorted(map(int, values(kafka_server, topic))) == list(range(500))


def test_a_record_has_the_key_headers_time_and_partition_of_the_program(kafka_server: KafkaServer):
    topic = kafka_server.create_topic(partitions=3)
    now = 1_000 * (2_000_000_000)
    schema = Schema(
        topic,
        Json(),
        key=SimpleStringSchema(),
        key_of=lambda record: record["name"],
        partition_of=lambda record: record["n"] % 3,
        headers_of=lambda record: [("n", b"%d" % record["n"]), ("none", None)],
        timestamp_of=lambda record: now + record["n"],
    )
    write(KafkaSink(kafka_server.address, schema), [{"name": "ann", "n": n} for n in range(6)])
    found = sorted(read_topic(kafka_server, topic), key=lambda record: record.timestamp)
    assert [record.timestamp - now for record in found] == list(range(6))
    assert [record.partition for record in found] == [0, 1, 2, 0, 1, 2]
    assert found[4].key == b"ann" and found[4].value == b'{"name":"ann","n":4}'
    assert found[4].headers == (("n", b"4"), ("none", None))


def test_kafka_records_are_written_as_they_are(kafka_server: KafkaServer):
    source, target = kafka_server.create_topic(), kafka_server.create_topic()
    now = 1_000 * 2_000_000_000
    records = [
        KafkaRecord(b"a", b"k", source, 0, -1, now, (("h", b"1"),)),
        KafkaRecord(None, b"k", source, 0, -1, now + 1),
    ]
    env = StreamExecutionEnvironment.get_execution_environment()
    env.register_type(KafkaRecord)
    env.from_collection(records).sink_to(
        KafkaSink(kafka_server.address, Schema.records(), marker_topic=source)
    )
    env.execute("write")
    assert [one._replace(offset=-1) for one in read_topic(kafka_server, source)] == records
    encoded = Schema.records(target, Json(), SimpleStringSchema())
    write(KafkaSink(kafka_server.address, encoded), [KafkaRecord({"n": 1}, "k")])
    [found] = read_topic(kafka_server, target)
    assert (found.value, found.key) == (b'{"n":1}', b"k")


def test_records_with_a_key_go_to_the_partitions_that_java_clients_choose(
    kafka_server: KafkaServer,
):
    topic = kafka_server.create_topic(partitions=7)
    schema = Schema(topic, SimpleStringSchema(), key=SimpleStringSchema())
    write(KafkaSink(kafka_server.address, schema), [f"user-{n}" for n in range(20)])
    from kafka.partitioner.default import murmur2

    for record in read_topic(kafka_server, topic):
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 7


def test_the_topic_may_depend_on_the_record(kafka_server: KafkaServer):
    even, odd = kafka_server.create_topic(), kafka_server.create_topic()
    schema = (
        Schema.builder()
        .set_topic_selector(lambda text: odd if int(text) % 2 else even)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    with pytest.raises(GraphError, match="give it a marker_topic"):
        KafkaSink(kafka_server.address, schema)
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(kafka_server.address)
        .set_record_serializer(schema)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("shop")
        .set_marker_topic(even)
        .set_property("linger.ms", 1)
        .build()
    )
    write(sink, list(map(str, range(10))))
    assert values(kafka_server, even) == ["0", "2", "4", "6", "8"]
    assert values(kafka_server, odd) == ["1", "3", "5", "7", "9"]


# ---- transactions and the marker


def place(name: str) -> SinkPlace:
    return SinkPlace("lineage", name, "Kafka")


def batch(topic: str, *texts: str) -> Any:
    return iter([[[topic, [text.encode() for text in texts], None, None, None, None]]])


def test_a_zombie_is_fenced_and_its_open_transaction_has_no_effect(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    sink = KafkaSink(kafka_server.address, topic, SimpleStringSchema())
    old = sink.connect(place(topic))
    assert old.fence() is None
    old.publish(Marker(1, "abc"), batch(topic, "1"))
    # It is in the middle of a transaction when its successor starts.
    old._producer.client.begin_transaction()
    old._producer.client.produce(topic, b"2 by a zombie")
    old._producer.client.flush(60)
    new = sink.connect(place(topic))
    assert new.fence() == Marker(1, "abc")
    new.publish(Marker(2), batch(topic, "2"))
    with pytest.raises(kafka.KafkaException, match="FENCED"):
        old._producer.client.commit_transaction(60)
    with pytest.raises((JobError, kafka.KafkaException)):
        old.publish(Marker(3), batch(topic, "3 by a zombie"))
    assert sink.connect(place(topic)).fence() == Marker(2)
    assert values(kafka_server, topic) == ["1", "2"]
    old.close()
    new.close()


def test_an_error_while_batches_are_read_publishes_nothing(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    sink = KafkaSink(kafka_server.address, topic, SimpleStringSchema())

    def damaged() -> Any:
        yield from batch(topic, "1", "2")
        raise JobError("the staged file was changed")

    target = sink.connect(place(topic))
    target.fence()
    with pytest.raises(JobError, match="was changed"):
        target.publish(Marker(1), damaged())
    target.close()
    assert sink.connect(place(topic)).fence() is None
    assert values(kafka_server, topic) == []


# ---- bad input


def context() -> WriterContext:
    return WriterContext("sink", "Kafka", 0, 1, 1, "lineage")


def test_a_topic_that_is_missing_ends_the_job(kafka_server: KafkaServer, tmp_path: Path):
    sink = KafkaSink(kafka_server.address, "no-such-topic", SimpleStringSchema())
    with pytest.raises(JobError, match="there is no topic 'no-such-topic'"):
        write(sink, ["a"], tmp_path)
    with pytest.raises(JobError, match="there is no topic 'no-such-topic'") as error:
        sink.connect(place("missing")).fence()
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_message_that_is_too_large_is_refused_before_it_is_staged(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    sink = KafkaSink(kafka_server.address, topic, ByteArraySchema())
    encode = sink.create_encoder(context())
    encode([b"x" * 999_000])
    with pytest.raises(JobError, match=r"1,000,000 bytes.*message.max.bytes") as error:
        encode([b"small", b"x" * 1_000_000])
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE
    larger = KafkaSink(
        kafka_server.address, topic, ByteArraySchema(), properties={"message.max.bytes": 2_000_000}
    )
    larger.create_encoder(context())([b"x" * 1_000_000])


def test_a_delivery_that_fails_is_an_error_before_the_snapshot_is_complete(tmp_path: Path):
    # Nothing listens on the port.
    sink = KafkaSink(
        "127.0.0.1:1",
        "topic",
        SimpleStringSchema(),
        guarantee=DeliveryGuarantee.AT_LEAST_ONCE,
        properties={"message.timeout.ms": 300},
    )
    writer = sink.create_writer(context())
    writer.open()
    writer.write(["a"])
    finish = writer.prepare(1)
    assert finish is not None
    with pytest.raises(JobError, match="was not delivered"):
        finish()
    writer.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "topic", Json()), "bootstrap_servers"),
        (("host:9092", "topic"), "needs a schema"),
        (("host:9092", "", Json()), "is a name"),
        (("host:9092", Schema("topic", Json()), Json()), "two serializers"),
        (("host:9092", "topic", "json"), "SerializationSchema"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: Any, message: str):
    with pytest.raises(GraphError, match=message):
        KafkaSink(*arguments)


def test_an_incomplete_builder_is_refused():
    with pytest.raises(GraphError, match="set_record_serializer"):
        KafkaSink.builder().set_bootstrap_servers("host:9092").build()
    with pytest.raises(GraphError, match="set_topic"):
        Schema.builder().build()

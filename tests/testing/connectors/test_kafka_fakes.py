"""The fakes of Kafka: sources and sinks by topic, partition and transaction, without a broker."""

from __future__ import annotations

import doctest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    KafkaOffsetsInitializer,
    KafkaSink,
    KafkaSource,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from penstock.connectors.bad_messages import BAD_MESSAGES
from penstock.connectors.formats import Json, SimpleStringSchema
from penstock.connectors.kafka import (
    DeliveryGuarantee,
    KafkaRecord,
    KafkaRecordDeserializationSchema,
    KafkaRecordSerializationSchema,
    KafkaTopicPartition,
)
from penstock.dataflow.errors import GraphError
from penstock.testing.connectors import SinkConformance, SourceConformance
from penstock.testing.connectors.kafka_fakes import (
    FakeKafka,
    FakeKafkaSink,
    FakeKafkaSource,
)
from penstock.testing.servers.kafka import KafkaServer

SERVERS = "kafka:9092"


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> StreamExecutionEnvironment:
    monkeypatch.setenv("PENSTOCK_IN_PROCESS", "true")
    return StreamExecutionEnvironment.get_execution_environment()


class TestFakeKafkaSource(SourceConformance):
    def create_source(self) -> Any:
        records = [KafkaRecord(b"%d" % n, partition=n % 3, timestamp=1000 + n) for n in range(12)]
        return FakeKafkaSource(KafkaSource(SERVERS, "orders", Json(int)), records)

    def expected(self) -> list[int]:
        return list(range(12))


class TestFakeKafkaSink(SinkConformance):
    whole_snapshots = True

    @pytest.fixture(autouse=True)
    def systems(self) -> Any:
        self.made: dict[str, FakeKafka] = {}
        yield
        for kafka in self.made.values():
            kafka.__exit__()

    def create_sink(self, place: Path) -> Any:
        if place.name not in self.made:
            self.made[place.name] = FakeKafka(place.name, partitions={"totals": 3})
        return FakeKafkaSink(KafkaSink(SERVERS, "totals", SimpleStringSchema()), place.name)

    def read_output(self, place: Path) -> Sequence[Any]:
        kafka = self.made[place.name]
        markers = [(one.transactional_id, one.marker.number) for one in kafka.transactions]
        assert len(markers) == len(set(markers))
        return [record.value.decode() for record in kafka.topic("totals")]


def test_a_program_sees_keys_headers_times_and_partitions(env: Any):
    given = [
        KafkaRecord(b"1", b"ann", "orders", 1, -1, 1_000, (("from", b"shop"),)),
        KafkaRecord(None, b"bob", "orders", 0, -1, 2_000),
        KafkaRecord(b"3", None, "returns", 0, -1, -1),
    ]
    schema = KafkaRecordDeserializationSchema.records(Json(int), key=SimpleStringSchema())
    source = KafkaSource(SERVERS, ["orders", "returns"], schema)
    found = env.from_source(FakeKafkaSource(source, given)).execute_and_collect()
    assert sorted(found, key=lambda record: (record.topic, record.partition)) == [
        KafkaRecord(None, "bob", "orders", 0, 0, 2_000),
        KafkaRecord(1, "ann", "orders", 1, 0, 1_000, (("from", b"shop"),)),
        KafkaRecord(3, None, "returns", 0, 0, -1),
    ]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"topics": "a"}, [0, 1, 2, 3]),
        ({"topic_pattern": "[ab]"}, [0, 1, 2, 3, 9]),
        ({"partitions": [KafkaTopicPartition("a", 1)]}, [1, 3]),
        ({"topics": "a", "starting_offsets": KafkaOffsetsInitializer.latest()}, []),
        ({"topics": "a", "starting_offsets": KafkaOffsetsInitializer.timestamp(102)}, [2, 3]),
        (
            {
                "topics": "a",
                "stopping_offsets": KafkaOffsetsInitializer.offsets(
                    {KafkaTopicPartition("a", 0): 1, KafkaTopicPartition("a", 1): 1}
                ),
            },
            [0, 1],
        ),
    ],
)
def test_topics_and_offsets_are_those_of_the_source(env: Any, options: Any, numbers: list[int]):
    records = [
        *(KafkaRecord(b"%d" % n, None, "a", n % 2, -1, 100 + n) for n in range(4)),
        KafkaRecord(b"9", None, "b"),
        KafkaRecord(b"10", None, "other"),
    ]
    source = KafkaSource(SERVERS, deserializer=Json(int), **options)
    found = env.from_source(FakeKafkaSource(source, records)).execute_and_collect()
    assert sorted(found) == numbers


def test_bad_messages_go_to_the_side_output_and_windows_use_the_times(env: Any):
    values = [b"1", b"none", b"3"]
    records = [KafkaRecord(value, timestamp=1000 + n) for n, value in enumerate(values)]
    source = KafkaSource(SERVERS, "orders", Json(int, on_error="side_output"))
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    numbers = env.from_source(FakeKafkaSource(source, records), strategy, "orders")
    bad = numbers.get_side_output(BAD_MESSAGES).map(lambda one: one.message)
    assert sorted(numbers.union(bad).execute_and_collect(), key=str) == [1, 3, b"none"]


@pytest.mark.parametrize("failing", ["fence", "write", "commit", "answer"])
def test_transactions_have_the_output_of_a_snapshot_and_its_marker(env: Any, failing: str):
    schema = KafkaRecordSerializationSchema(
        "totals",
        Json(),
        key=SimpleStringSchema(),
        key_of=str,
        partition_of=lambda number: number % 2,
        headers_of=lambda number: [("from", b"test")],
        timestamp_of=lambda number: 1000 + number,
    )
    steps: list[str] = []

    def fail(step: str) -> None:
        steps.append(step)
        if step == failing and steps.count(step) == 1:
            raise ConnectionError("the broker was restarted")

    env.set_restart_strategy(penstock.RestartStrategies.fixed_delay_restart(3, 0))
    with FakeKafka("shop", hook=fail, partitions={"totals": 2}) as kafka:
        env.from_collection([1, 2, 3]).sink_to(FakeKafkaSink(KafkaSink(SERVERS, schema), "shop"))
        env.execute()
    assert kafka.topic("totals", 1) == [
        KafkaRecord(b"1", b"1", "totals", 1, 0, 1001, (("from", b"test"),)),
        KafkaRecord(b"3", b"3", "totals", 1, 1, 1003, (("from", b"test"),)),
    ]
    assert steps.count(failing) >= 1 and steps.count("fence") >= 2
    records = [record for one in kafka.transactions for record in one.records]
    assert records == kafka.records and len(records) == 3
    newest = kafka.transactions[-1]
    assert newest.marker.digest and kafka.markers == {newest.transactional_id: newest.marker}


@pytest.mark.parametrize(
    "guarantee", [DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.NONE], ids=str
)
def test_a_sink_without_transactions_writes_at_once(env: Any, guarantee: DeliveryGuarantee):
    sink: Any = KafkaSink(SERVERS, "totals", Json(), guarantee=guarantee)
    with FakeKafka("shop") as kafka:
        env.from_collection([1, 2]).sink_to(FakeKafkaSink(sink, "shop"))
        env.execute()
    assert [record.value for record in kafka.topic("totals")] == [b"1", b"2"]
    assert not kafka.transactions and not kafka.markers


def test_what_is_written_can_be_read(env: Any):
    records = [KafkaRecord(b"%d" % n, b"key %d" % n, "a", n % 2) for n in range(6)]
    whole: Any = KafkaRecordSerializationSchema.records()
    with FakeKafka("shop", partitions={"a": 2}) as kafka:
        sink = FakeKafkaSink(KafkaSink(SERVERS, whole, marker_topic="a"), "shop")
        env.from_source(FakeKafkaSource(KafkaSource(SERVERS, "a"), records)).sink_to(sink)
        env.execute()
    again = StreamExecutionEnvironment.get_execution_environment()
    fake = FakeKafkaSource(KafkaSource(SERVERS, "a"), kafka.topic("a"))
    found = again.from_source(fake).execute_and_collect()
    assert sorted(one[:4] for one in found) == sorted(one[:4] for one in records)


def test_keys_choose_the_partition_that_a_broker_has(
    env: Any, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
):
    topic = kafka_server.create_topic(partitions=5)
    words = [f"word {n}" for n in range(40)]
    schema = KafkaRecordSerializationSchema(topic, SimpleStringSchema(), key=SimpleStringSchema())
    sink: Any = KafkaSink(kafka_server.address, schema)
    with FakeKafka("shop", partitions={topic: 5}) as kafka:
        env.from_collection(words).sink_to(FakeKafkaSink(sink, "shop"))
        env.execute()
    writing = StreamExecutionEnvironment.get_execution_environment()
    writing.from_collection(words).sink_to(sink)
    writing.execute()
    reading = StreamExecutionEnvironment.get_execution_environment()
    latest = KafkaOffsetsInitializer.latest()
    source = KafkaSource(kafka_server.address, topic, stopping_offsets=latest)
    real = {one.key: one.partition for one in reading.from_source(source).execute_and_collect()}
    assert real == {one.key: one.partition for one in kafka.topic(topic)}
    assert len(set(real.values())) == 5


@pytest.mark.parametrize(
    ("record", "said"),
    [(KafkaRecord(b"1"), "several topics"), (KafkaRecord("text", None, "a"), "are bytes")],
)
def test_wrong_records_are_refused(record: KafkaRecord, said: str):
    with pytest.raises(GraphError, match=said):
        FakeKafkaSource(KafkaSource(SERVERS, ["a", "b"]), [record])


def test_a_partition_that_does_not_exist_fails_as_with_a_broker(env: Any):
    schema = KafkaRecordSerializationSchema("totals", Json(), partition_of=lambda number: number)
    with FakeKafka("shop"):
        env.from_collection([7]).sink_to(FakeKafkaSink(KafkaSink(SERVERS, schema), "shop"))
        env.set_restart_strategy(penstock.RestartStrategies.no_restart())
        with pytest.raises(penstock.JobError, match="has no partition 7"):
            env.execute()


@pytest.mark.parametrize("fake", [FakeKafka, FakeKafkaSink, FakeKafkaSource])
def test_the_example_of_a_fake_gives_what_it_says(env: Any, fake: type):
    names = {**{name: getattr(penstock, name) for name in penstock.__all__}, "env": env}
    names |= {one.__name__: one for one in (FakeKafka, FakeKafkaSink, FakeKafkaSource)}
    names |= {
        "__name__": "__main__",
        "Json": Json,
        "KafkaRecord": KafkaRecord,
        "KafkaRecordSerializationSchema": KafkaRecordSerializationSchema,
        "SimpleStringSchema": SimpleStringSchema,
    }
    test = doctest.DocTestParser().get_doctest(fake.__doc__ or "", names, fake.__name__, None, None)
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert test.examples and not report, "".join(report)

"""Topics of a real broker as sources: each record once, from any position."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Duration,
    GraphError,
    JobError,
    Recoverability,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.connectors.formats import Json, SimpleStringSchema
from penstock.connectors.kafka import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaRecord,
    KafkaRecordDeserializationSchema,
    KafkaSource,
    KafkaTopicPartition,
)
from penstock.dataflow.source import ReaderContext, Split
from penstock.testing.connectors import SourceConformance
from penstock.testing.connectors.source_run import SourceRun
from penstock.testing.servers.kafka import KafkaServer

kafka = pytest.importorskip("confluent_kafka")

LATEST = KafkaOffsetsInitializer.latest()
#: The time of records, which must not be so old that the broker removes them.
NOW = int(time.time() * 1000) // 1000 * 1000


def produce(server: KafkaServer, topic: str, records: Any, **settings: Any) -> None:
    """Write values, or tuples (value, arguments of `produce`)."""
    producer = kafka.Producer({"bootstrap.servers": server.address, **settings})
    for record in records:
        value, arguments = record if isinstance(record, tuple) else (record, {})
        producer.produce(topic, value, **arguments)
        producer.poll(0)
    assert producer.flush(60) == 0


def filled(server: KafkaServer, partitions: int = 3, count: int = 30) -> str:
    topic = server.create_topic(partitions=partitions)
    records = [(str(n).encode(), {"partition": n % partitions}) for n in range(count)]
    produce(server, topic, records)
    return topic


def text_source(server: KafkaServer, topic: str, **arguments: Any) -> KafkaSource:
    arguments = {"stopping_offsets": LATEST, **arguments}
    return KafkaSource(server.address, topic, SimpleStringSchema(), **arguments)


def read_all(source: KafkaSource) -> list[Any]:
    """Read the source with two subtasks, without a job."""
    return SourceRun(source, 2, None, 100).run()


def run_job(source: KafkaSource) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    with env.from_source(source).execute_and_collect() as records:
        return list(records)


class TestBoundedTopics(SourceConformance):
    parallelisms = (1, 2)

    @pytest.fixture(autouse=True)
    def topic(self, kafka_server: KafkaServer) -> None:
        self.server = kafka_server
        self.name = filled(kafka_server, 3, 9)

    def create_source(self) -> KafkaSource:
        return text_source(self.server, self.name)

    def expected(self) -> list[str]:
        return [str(n) for n in range(9)]


class TestTopicsWithTransactions(SourceConformance):
    """Offsets have gaps: aborted records, and the markers at the ends of transactions."""

    parallelisms = (1, 2)

    @pytest.fixture(autouse=True)
    def topic(self, kafka_server: KafkaServer) -> None:
        self.server = kafka_server
        self.name = kafka_server.create_topic(partitions=2)
        for n in range(6):
            # noida-db hides committed records from a reader that begins behind an aborted
            # transaction of the same producer.
            settings = {"transactional.id": f"{self.name}-{n}"}
            producer = kafka.Producer({"bootstrap.servers": kafka_server.address, **settings})
            producer.init_transactions(60)
            producer.begin_transaction()
            for i in range(2):
                producer.produce(self.name, f"{n}-{i}".encode(), partition=n // 2 % 2)
            producer.flush(60)
            producer.abort_transaction(60) if n % 2 else producer.commit_transaction(60)

    def create_source(self) -> KafkaSource:
        return text_source(self.server, self.name)

    def expected(self) -> list[str]:
        return [f"{n}-{i}" for n in (0, 2, 4) for i in range(2)]


def test_a_job_reads_each_record_of_a_bounded_topic(kafka_server: KafkaServer):
    topic = filled(kafka_server, 5, 1000)
    assert Counter(run_job(text_source(kafka_server, topic))) == Counter(map(str, range(1000)))


def test_an_empty_topic_ends_at_once(kafka_server: KafkaServer):
    assert run_job(text_source(kafka_server, kafka_server.create_topic(partitions=3))) == []


def test_uncommitted_records_are_read_if_the_program_wants_them(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    producer = kafka.Producer(
        {"bootstrap.servers": kafka_server.address, "transactional.id": topic}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(60)
    assert read_all(text_source(kafka_server, topic)) == []
    properties = {"isolation.level": "read_uncommitted"}
    assert read_all(text_source(kafka_server, topic, properties=properties)) == ["open"]
    producer.abort_transaction(60)


def test_a_record_has_its_key_headers_time_and_place(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    arguments = {"key": b"k", "timestamp": NOW, "headers": [("a", b"1"), ("b", None)]}
    produce(kafka_server, topic, [(b'{"n": 1}', arguments), (None, {"key": b"gone"})])
    whole = KafkaSource(kafka_server.address, topic, stopping_offsets=LATEST)
    first, tombstone = run_job(whole)
    assert first == KafkaRecord(b'{"n": 1}', b"k", topic, 0, 0, NOW, (("a", b"1"), ("b", None)))
    assert type(first) is KafkaRecord
    assert tombstone.value is None and tombstone.key == b"gone"
    decoded = KafkaSource(
        kafka_server.address,
        topic,
        KafkaRecordDeserializationSchema.records(Json(), key=SimpleStringSchema()),
        stopping_offsets=LATEST,
    )
    first, tombstone = read_all(decoded)
    assert (first.value, first.key) == ({"n": 1}, "k")
    assert (tombstone.value, tombstone.key, tombstone.offset) == (None, "gone", 1)
    assert read_all(text_source(kafka_server, topic)) == ['{"n": 1}', None]


def test_the_event_time_is_the_timestamp_of_the_record(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    produce(kafka_server, topic, [(b"a", {"timestamp": NOW + 7}), (b"b", {"timestamp": NOW + 9})])
    source = text_source(kafka_server, topic)
    enumerator = source.create_enumerator(1)
    enumerator.start()
    split = enumerator.next_split(0)
    assert split is not None
    reader, times = source.create_reader(ReaderContext("s", 0, 1)), []
    reader.open(split, None)
    while not (read := reader.read(10)).finished or read.records:
        times += getattr(read, "timestamps", [])
        if read.finished:
            break
    assert times == [NOW + 7, NOW + 9]
    reader.close()
    enumerator.close()


def test_a_source_begins_and_ends_where_the_program_says(kafka_server: KafkaServer):
    topic = kafka_server.create_topic(partitions=2)
    first, second = KafkaTopicPartition(topic, 0), KafkaTopicPartition(topic, 1)
    produce(
        kafka_server,
        topic,
        [(str(n).encode(), {"partition": n % 2, "timestamp": NOW + 100 * n}) for n in range(10)],
    )
    at = KafkaOffsetsInitializer

    def values(start: Any, stop: Any = LATEST, **arguments: Any) -> list[int]:
        source = text_source(
            kafka_server, topic, starting_offsets=start, stopping_offsets=stop, **arguments
        )
        return sorted(map(int, read_all(source)))

    assert values(at.earliest()) == list(range(10))
    assert values(at.latest()) == []
    assert values(at.timestamp(NOW + 600)) == [6, 7, 8, 9]
    assert values(at.timestamp(NOW + 601)) == [7, 8, 9]
    assert values(at.timestamp(NOW + 10**6)) == []
    assert values(at.offsets({first: 3, second: 4})) == [6, 8, 9]
    assert values(at.offsets({first: 3}, KafkaOffsetResetStrategy.LATEST)) == [6, 8]
    assert values(at.earliest(), at.timestamp(NOW + 500)) == [0, 1, 2, 3, 4]
    assert values(at.earliest(), at.offsets({first: 1, second: 2})) == [0, 1, 3]
    group = f"group-{topic}"
    with pytest.raises(JobError, match=rf"no offset of group '{group}' for partition 0 of topic"):
        values(at.committed_offsets(), group_id=group)
    earliest = at.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)
    assert values(earliest, group_id=group) == list(range(10))
    commit(kafka_server, group, topic, {0: 4, 1: 4})
    assert values(at.committed_offsets(), group_id=group) == [8, 9]


def commit(server: KafkaServer, group: str, topic: str, offsets: dict[int, int]) -> None:
    client = kafka.Consumer({"bootstrap.servers": server.address, "group.id": group})
    places = [kafka.TopicPartition(topic, one, offset) for one, offset in offsets.items()]
    client.commit(offsets=places, asynchronous=False)
    client.close()


def committed(server: KafkaServer, group: str, topic: str, partitions: int) -> list[int]:
    client = kafka.Consumer({"bootstrap.servers": server.address, "group.id": group})
    places = [kafka.TopicPartition(topic, one) for one in range(partitions)]
    found = [one.offset for one in client.committed(places, 60)]
    client.close()
    return found


def test_a_bounded_job_commits_the_offsets_of_its_group(kafka_server: KafkaServer, tmp_path: Path):
    topic = filled(kafka_server, 3, 30)
    group = f"group-{topic}"
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    env.from_source(text_source(kafka_server, topic, group_id=group)).uid("topic").print()
    env.execute("read")
    assert committed(kafka_server, group, topic, 3) == [10, 10, 10]


def test_topics_can_be_named_matched_or_given_by_partitions(kafka_server: KafkaServer):
    one, two = filled(kafka_server, 1, 3), filled(kafka_server, 2, 4)
    server = kafka_server.address

    def values(**arguments: Any) -> list[int]:
        source = KafkaSource(
            server, deserializer=SimpleStringSchema(), stopping_offsets=LATEST, **arguments
        )
        return sorted(map(int, read_all(source)))

    assert values(topics=[one, two]) == [0, 0, 1, 1, 2, 2, 3]
    assert values(topic_pattern=f"{one}|{two}") == [0, 0, 1, 1, 2, 2, 3]
    assert values(topic_pattern=one[:-1]) == [], "a pattern matches whole names"
    assert values(partitions={KafkaTopicPartition(two, 1)}) == [1, 3]


def test_the_builder_has_the_names_of_pyflink(kafka_server: KafkaServer):
    topic = filled(kafka_server, 2, 6)
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(kafka_server.address)
        .set_topics(topic)
        .set_group_id("shop")
        .set_client_id_prefix("penstock")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_bounded(KafkaOffsetsInitializer.latest())
        .set_value_only_deserializer(SimpleStringSchema())
        .set_property("partition.discovery.interval.ms", "10000")
        .set_properties({"commit.offsets.on.checkpoint": "false", "fetch.wait.max.ms": "20"})
        .build()
    )
    assert source.discovery_seconds == 10 and not source.commits_offsets
    assert sorted(read_all(source)) == ["0", "1", "2", "3", "4", "5"]


def test_an_unbounded_source_finds_new_partitions_and_topics(kafka_server: KafkaServer):
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = filled(kafka_server, 1, 3)
    source = KafkaSource(
        kafka_server.address,
        deserializer=SimpleStringSchema(),
        topic_pattern=f"{topic}.*",
        discovery_seconds=0.1,
    )
    env = StreamExecutionEnvironment.get_execution_environment()
    with env.from_source(source).execute_and_collect() as records:
        assert [next(records) for _ in range(3)] == ["0", "1", "2"]
        admin = AdminClient({"bootstrap.servers": kafka_server.address})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
        produce(kafka_server, topic, [("new partition", {"partition": 1})])
        kafka_server.create_topic(f"{topic}-more")
        produce(kafka_server, f"{topic}-more", [b"new topic"])
        assert {next(records), next(records)} == {"new partition", "new topic"}


# ---- bad input


def test_a_topic_that_is_missing_is_an_error(kafka_server: KafkaServer):
    with pytest.raises(JobError, match=r"there is no topic 'no-such-topic' at .*: create it"):
        read_all(text_source(kafka_server, "no-such-topic"))


def test_a_partition_that_is_missing_is_an_error(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    source = KafkaSource(
        kafka_server.address, partitions=[KafkaTopicPartition(topic, 3)], stopping_offsets=LATEST
    )
    with pytest.raises(JobError, match="has no partition 3"):
        read_all(source)


def test_a_wrong_property_is_an_error_that_names_it(kafka_server: KafkaServer):
    topic = kafka_server.create_topic()
    properties = {"no.such.setting": "x"}
    with pytest.raises(JobError, match=r"no.such.setting.*names are those of librdkafka"):
        read_all(text_source(kafka_server, topic, properties=properties))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of them"),
        ({"topics": "a", "topic_pattern": "b"}, "give one of them"),
        ({"topic_pattern": "("}, "is not valid"),
        ({"topics": "a", "on_lost_position": "latest"}, "on_lost_position"),
        ({"partitions": []}, "empty"),
        (
            {"topics": "a", "starting_offsets": KafkaOffsetsInitializer.committed_offsets()},
            "group_id",
        ),
        ({"topics": "a", "deserializer": json.loads}, "deserializer"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(GraphError, match=message):
        KafkaSource("localhost:9", **arguments)


def test_records_that_are_gone_are_an_error_or_skipped_with_their_number(
    kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture
):
    from confluent_kafka.admin import AdminClient

    topic = filled(kafka_server, 1, 10)
    source = text_source(kafka_server, topic)
    enumerator = source.create_enumerator(1)
    enumerator.start()
    split = enumerator.next_split(0)
    assert split is not None
    enumerator.close()
    place = kafka.TopicPartition(topic, 0, 7)
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    admin.delete_records([place])[place].result(60)
    with pytest.raises(JobError, match=r"offsets 2 to 6 .* are gone \(5 offsets\)") as error:
        read_split(source, split, 2)
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE
    assert "on_lost_position" in str(error.value)
    going_on = text_source(kafka_server, topic, on_lost_position="earliest")
    with caplog.at_level(logging.WARNING, "penstock.kafka"):
        context = ReaderContext("s", 0, 1)
        assert read_split(going_on, split, 2, context) == ["7", "8", "9"]
    assert "goes on at offset 7" in caplog.text
    assert context.metrics.counter("numRecordsLost").count == 5


def test_a_position_behind_the_end_is_an_error(kafka_server: KafkaServer):
    topic = filled(kafka_server, 1, 10)
    source = text_source(kafka_server, topic)
    with pytest.raises(JobError, match=r"ends at offset 10, and the job goes on at 25"):
        read_split(source, Split(f"{topic}-0", [topic, 0, 0, 30]), 25)


def read_split(
    source: KafkaSource, split: Split, position: int, context: ReaderContext | None = None
) -> list[Any]:
    reader = source.create_reader(context or ReaderContext("s", 0, 1))
    reader.open(split, position)
    records: list[Any] = []
    try:
        while True:
            read = reader.read(3)
            records += read.records
            if read.finished:
                return records
    finally:
        reader.close()


def test_a_topic_with_fewer_partitions_than_the_snapshot_is_an_error(kafka_server: KafkaServer):
    topic = filled(kafka_server, 2, 4)
    source = text_source(kafka_server, topic)
    known = [[f"{topic}-{n}", [topic, n, 0, 9]] for n in range(3)]
    enumerator = source.create_enumerator(1)
    with pytest.raises(
        JobError, match=r"has 2 partitions, and the snapshot has read its partition 2"
    ):
        enumerator.restore({"left": [], "known": known})
    enumerator.close()


# ---- event time


def test_an_idle_partition_does_not_hold_back_watermarks(kafka_server: KafkaServer):
    topic = kafka_server.create_topic(partitions=3)
    records = [(b"%d" % n, {"partition": 0, "timestamp": NOW + 1000 * n}) for n in range(50)]
    produce(kafka_server, topic, records)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(Duration.of_millis(200))
    source = KafkaSource(kafka_server.address, topic, SimpleStringSchema())
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    counts = (
        env.from_source(source, strategy)
        .map(lambda text: (0, 1))
        .key_by(lambda pair: pair[0])
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    # The first partition must not be idle, too: then no watermark would advance.
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.05):
            produce(kafka_server, topic, [(b"later", {"partition": 0, "timestamp": NOW + 60_000})])

    producing = threading.Thread(target=go_on)
    producing.start()
    try:
        with counts.execute_and_collect() as windows:
            # The first window may have begun before the first record.
            assert sum(next(windows)[1] for _ in range(4)) in range(31, 41)
    finally:
        ended.set()
        producing.join()

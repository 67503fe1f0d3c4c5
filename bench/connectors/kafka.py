"""`kafka`: records a second from and to a broker, against a hand-written loop of confluent-kafka.

`kafka_plain_records_per_second` is a loop that consumes batches, decodes JSON with the `json`
module and counts by key in a dict. It forgets everything if it fails.
`kafka_source_records_per_second` is a job of one worker that does the same, with snapshots each
second, and `kafka_source_ratio_to_plain` divides the two. `kafka_loop_msgspec_records_per_second`
is the loop with msgspec, which the job uses. `kafka_bytewax_records_per_second` is a dataflow of
Bytewax with one worker, its connector for Kafka, msgspec and snapshots each second; without Bytewax
there is no such figure. Starting the processes is not counted: the time begins
with the first snapshot behind the first record, which both know by their own clocks.
`kafka_sink_staged_records_per_second` is the rate at which a `KafkaSink` publishes staged output of
100 bytes each: encoded, written to files, and then to the broker in one transaction.

The broker is noida-db on this machine, which shares its cores.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Say, WrongResultError
from bench.connectors import bytewax_kafka
from penstock import KafkaOffsetsInitializer, KafkaSink, KafkaSource, StreamExecutionEnvironment
from penstock.connectors.formats import ByteArraySchema, Json
from penstock.connectors.kafka.batch_producer import BatchProducer
from penstock.connectors.kafka.client import KafkaConnection
from penstock.connectors.kafka.serializers import MessageBatch
from penstock.dataflow.program import RunOptions, run_options
from penstock.dataflow.sink import Committable, CommitterContext, WriterContext
from penstock.testing.servers.kafka import KafkaServer

__all__ = ["measure"]

RECORDS, KEYS, PARTITIONS, BATCH = 1_000_000, 1_000, 4, 1_000


def measure(records: int | None, rounds: int, folder: str | None, say: Say) -> Figures:
    """Measure source and sink; see the module."""
    count = records or RECORDS
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        KafkaServer(Path(name) / "broker") as server,
    ):
        topic = _fill(server, count)
        say(f"{count:,} records are in {PARTITIONS} partitions")
        plain = fast = job = sink = other = 0.0
        if (advice := bytewax_kafka.missing()) is not None:
            say(advice)
        for number in range(rounds):
            plain = max(plain, count / _loop(server, topic, count, json.loads))
            fast = max(fast, count / _loop(server, topic, count, _msgspec()))
            job = max(job, _job(server, topic, count, Path(name) / f"job{number}"))
            sink = max(sink, _sink(server, count // 2, Path(name) / f"sink{number}"))
            if advice is None:
                other = max(other, _bytewax(server, topic, count, Path(name) / f"bytewax{number}"))
            say(
                f"loop {plain:,.0f}, job {job:,.0f}, Bytewax {other:,.0f}, staged sink {sink:,.0f} "
                f"records a second"
            )
    return {
        "kafka_plain_records_per_second": round(plain),
        "kafka_loop_msgspec_records_per_second": round(fast),
        "kafka_source_records_per_second": round(job),
        "kafka_source_ratio_to_plain": round(job / plain, 3),
        "kafka_sink_staged_records_per_second": round(sink),
        **({"kafka_bytewax_records_per_second": round(other)} if advice is None else {}),
    }


def _fill(server: KafkaServer, count: int) -> str:
    topic = server.create_topic(partitions=PARTITIONS)
    producer = BatchProducer(KafkaConnection(server.address, {}))
    for begin in range(0, count, BATCH):
        numbers = range(begin, min(begin + BATCH, count))
        values = [
            b'{"id": %d, "user": "user-%d", "amount": %d.25, "tags": ["a", "b"]}'
            % (n, n % KEYS, n % 977)
            for n in numbers
        ]
        producer.send([MessageBatch(topic, values, None, [n % PARTITIONS for n in numbers])])
    producer.flush()
    return topic


def _msgspec() -> Any:
    import msgspec

    return msgspec.json.decode


def _loop(server: KafkaServer, topic: str, count: int, decode: Any) -> float:
    """Return the seconds in which a loop reads, decodes and counts."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "loop",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, one, 0) for one in range(PARTITIONS)])
    counts: dict[str, int] = {}
    done, began = 0, 0.0
    while done < count:
        messages = consumer.consume(BATCH, 0.1)
        began = began or time.perf_counter()
        for message in messages:
            user = decode(message.value())["user"]
            counts[user] = counts.get(user, 0) + 1
        done += len(messages)
    seconds = time.perf_counter() - began
    consumer.close()
    _check(counts, count)
    return seconds


def _job(server: KafkaServer, topic: str, count: int, folder: Path) -> float:
    """Return the records a second of a job, between two of its reports."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    latest = KafkaOffsetsInitializer.latest()
    source = KafkaSource(server.address, topic, Json(), stopping_offsets=latest)
    pairs = env.from_source(source).uid("topic").map(lambda record: (record["user"], 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    # Only the last count of each user goes on.
    last = counted.filter(lambda pair, most=count // KEYS: pair[1] == most)
    last.sink_to(KafkaSink(server.address, out := server.create_topic(), Json()))
    reports: list[tuple[float, int]] = []

    def progress(event: dict[str, Any]) -> None:
        if event["event"] == "status":
            done = next(one["records_in"] for one in event["operators"] if one["uid"] == "topic")
            reports.append((time.perf_counter(), done))

    with run_options(RunOptions(progress=progress)):
        env.execute("kafka")
    found = KafkaSource(server.address, out, Json(), stopping_offsets=latest)
    reading = StreamExecutionEnvironment.get_execution_environment()
    rows = list(reading.from_source(found).execute_and_collect())
    _check(dict(map(tuple, rows)), count)
    going = [report for report in reports if 0 < report[1] < count]
    if len(going) < 2:
        raise WrongResultError(f"{count:,} records are too few to measure a job")
    (began, first), (ended, final) = going[0], going[-1]
    return (final - first) / (ended - began)


def _bytewax(server: KafkaServer, topic: str, count: int, folder: Path) -> float:
    """Return the records a second of a dataflow of Bytewax."""
    address, most, decode = server.address, count // KEYS, _msgspec()
    seconds, counts = bytewax_kafka.count_by_user(address, topic, most, decode, folder)
    _check(counts, count)
    return count / seconds


def _sink(server: KafkaServer, count: int, folder: Path) -> float:
    """Return the records a second that are staged and published."""
    topic = server.create_topic(partitions=PARTITIONS)
    sink = KafkaSink(server.address, topic, ByteArraySchema())
    context = WriterContext("sink", "Kafka", 0, 1, 1, "bench", staging=folder)
    batches = [[b"%0100d" % n for n in range(at, at + BATCH)] for at in range(0, count, BATCH)]
    committer = sink.create_committer()
    assert committer is not None
    committer.open(CommitterContext("Kafka", "bench", staging=[folder]))
    writer = sink.create_writer(context)
    writer.open()
    began = time.perf_counter()
    for batch in batches:
        writer.write(batch)
    finish = writer.prepare(1)
    assert finish is not None
    payloads = finish()
    committer.commit([Committable("bench", "sink", 0, 1, 1, one) for one in payloads])
    seconds = time.perf_counter() - began
    writer.close()
    committer.close()
    written = sum(len(batch) for batch in batches)
    return written / seconds


def _check(counts: dict[str, int], count: int) -> None:
    expected = Counter(f"user-{n % KEYS}" for n in range(count))
    if counts != expected:
        raise WrongResultError(f"{sum(counts.values()):,} records were counted, not {count:,}")

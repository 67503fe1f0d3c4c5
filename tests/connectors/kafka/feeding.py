"""Topics that are filled while a job reads them, and jobs that end when they have read all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from penstock import FileSink, JsonLines, RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.formats import Json
from penstock.connectors.kafka import KafkaOffsetsInitializer, KafkaSource, KafkaTopicPartition
from penstock.testing.servers.kafka import KafkaServer
from tests.processes.harness import Killer


@dataclass
class Fed:
    """A topic that gets its records in parts. A source that reads it ends behind the last one.

    Arguments:
        server: the broker.
        partitions: the number of partitions.
        parts: the number of parts.
        size: the number of records of a part in each partition.
    """

    server: KafkaServer
    partitions: int = 3
    parts: int = 4
    size: int = 200
    topic: str = ""
    fed: int = 0

    def __post_init__(self) -> None:
        self.topic = self.server.create_topic(partitions=self.partitions)

    @property
    def expected(self) -> set[tuple[int, int]]:
        """All records: the partition and the index in it."""
        return {(p, n) for p in range(self.partitions) for n in range(self.parts * self.size)}

    def feed(self) -> None:
        """Write the next part, if there is one."""
        if self.fed >= self.parts:
            return
        producer = Producer({"bootstrap.servers": self.server.address})
        for n in range(self.fed * self.size, (self.fed + 1) * self.size):
            for partition in range(self.partitions):
                producer.produce(self.topic, f"[{partition}, {n}]", partition=partition)
        assert producer.flush(120) == 0
        self.fed += 1

    def feed_all(self) -> None:
        """Write all parts that are left."""
        while self.fed < self.parts:
            self.feed()

    def source(self, **arguments: Any) -> KafkaSource[Any]:
        """Return a source that ends when it has read all parts."""
        ends = {
            KafkaTopicPartition(self.topic, one): self.parts * self.size
            for one in range(self.partitions)
        }
        return KafkaSource(
            self.server.address,
            self.topic,
            Json(),
            stopping_offsets=KafkaOffsetsInitializer.offsets(ends),
            **arguments,
        )


@dataclass
class FeedingKiller(Killer):
    """Kills processes of the job, and feeds its topic after each kill."""

    fed: Fed | None = None
    events_seen: list[str] = field(default_factory=list)

    def _strike(self) -> None:
        super()._strike()
        assert self.fed is not None
        self.fed.feed()
        if len(self.killed) >= self.kills:
            self.fed.feed_all()


def files_job(fed: Fed, folder: Path, parallelism: int = 2) -> StreamExecutionEnvironment:
    """A job that copies the topic to files."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    stream = env.from_source(fed.source(group_id=fed.topic)).uid("topic")
    stream.map(list).uid("same").sink_to(FileSink(folder / "out", JsonLines())).uid("files")
    return env


def lost_and_doubled(records: Iterable[Any], fed: Fed) -> tuple[int, int]:
    """Return the number of records that are missing, and of those that are there too often."""
    seen = [tuple(record) for record in records]
    return len(fed.expected - set(seen)), len(seen) - len(set(seen) & fed.expected)

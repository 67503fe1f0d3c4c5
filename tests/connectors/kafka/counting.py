"""A job that counts by key from Kafka to Kafka, exactly once, and what its output must be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock import RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.formats import Json
from penstock.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from penstock.connectors.kafka.sink import ExactlyOnceMode
from penstock.testing.connectors.source_run import SourceRun
from tests.connectors.kafka.feeding import Fed
from tests.connectors.kafka.open_transactions import expire_all
from tests.processes.harness import compared

KEYS = 53


def counting_job(
    fed: Fed,
    folder: Path,
    output: str,
    parallelism: int = 2,
    interval_ms: float = 100,
    mode: ExactlyOnceMode = "staged",
    make_sink: Callable[..., KafkaSink[Any]] = KafkaSink,
) -> StreamExecutionEnvironment:
    """Return a job that emits each count of each key to the topic `output`."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 10))
    pairs = env.from_source(fed.source(group_id=fed.topic)).uid("topic")
    keyed = pairs.map(lambda pair, keys=KEYS: (pair[1] % keys, 1)).key_by(lambda pair: pair[0])
    counts = keyed.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("count")
    # All counts of a key are in one partition, in their order.
    schema = KafkaRecordSerializationSchema(output, Json(), key=Json(), key_of=lambda pair: pair[0])
    # Producers then connect in a few milliseconds, and not in up to 500.
    quick = {"enable.sparse.connections": False}
    sink = make_sink(
        fed.server.address,
        schema,
        exactly_once_mode=mode,
        transactional_id_prefix=output,
        properties=quick,
    )
    counts.sink_to(sink).uid("counts")
    return env


def verdict(fed: Fed, output: str) -> tuple[int, int, int]:
    """Return how many counts are lost, doubled, and out of order."""
    # Writers that go on after their JobManager was killed may leave a transaction open, for which
    # readers would wait until it expires. The job has committed all of its own.
    expire_all(fed.server, f"{output}/")
    latest = KafkaOffsetsInitializer.latest()
    source = KafkaSource(fed.server.address, output, Json(), stopping_offsets=latest)
    rows: list[Any] = [tuple(row) for row in SourceRun(source, 1, None, 1000).run()]
    totals = Counter(n % KEYS for _, n in fed.expected)
    wanted = {(key, n + 1) for key, total in totals.items() for n in range(total)}
    by_key: dict[int, list[int]] = defaultdict(list)
    for key, count in rows:
        by_key[key].append(count)
    disordered = sum(a > b for counts in by_key.values() for a, b in pairwise(counts))
    return *compared(Counter(rows), wanted), disordered

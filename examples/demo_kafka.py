"""The demo of connectors: orders from Kafka, through windows, to Kafka and PostgreSQL.

`make demo-kafka` runs it. A producer writes 20,000 orders a second to a topic of four partitions. A
job adds them up by product and second, and writes the sums to another topic and to a table.
Meanwhile workers and JobManagers get SIGKILL, the broker stops to answer for a while, and the
connections to PostgreSQL are cut: 20 times in all. At the end, each sum must be in both places
once, and be right. It ends with `lost 0 · doubled 0`.

The broker is noida-db, a program in a package of PyPI. Without a PostgreSQL server on this machine,
that half is left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.console import Console

from penstock import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaTopicPartition,
    RestartStrategies,
    StoreError,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.connectors.formats import Json
from penstock.dataflow.program import RunOptions, run_options
from penstock.testing.servers import PostgresServer
from penstock.testing.servers.kafka import KafkaServer

PARTITIONS, PRODUCTS, RATE = 4, 97, 20_000
#: The event time of the first order, in milliseconds since the epoch.
BEGIN = int(time.time()) * 1000
COLUMNS = ("product", "second", "orders", "amount")

console = Console(highlight=False)


def order(number: int) -> tuple[int, int, int]:
    """Return the product, the amount and the time of an order."""
    return number % PRODUCTS, number % 1009, BEGIN + number * 1000 // RATE


def expected(count: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the number and the amount of the orders, by product and second."""
    sums: dict[tuple[int, int], tuple[int, int]] = {}
    for product, amount, when in map(order, range(count)):
        key = product, when // 1000
        orders, total = sums.get(key, (0, 0))
        sums[key] = orders + 1, total + amount
    return sums


class Orders(threading.Thread):
    """Writes orders at a steady rate; the last tenth only when all faults are over.

    Arguments:
        server: the broker.
        topic: the topic.
        count: the number of orders.
    """

    def __init__(self, server: KafkaServer, topic: str, count: int) -> None:
        super().__init__(daemon=True)
        self._server, self._topic, self._count = server, topic, count
        self.over = threading.Event()

    def run(self) -> None:
        """Write all orders."""
        producer = Producer({"bootstrap.servers": self._server.address, "linger.ms": 20})
        began, held = time.monotonic(), self._count - self._count // 10
        for number in range(self._count):
            if number == held:
                self.over.wait()
            if number % 500 == 0 and number < held:
                late = time.monotonic() - began - number / RATE
                time.sleep(max(0.0, -late))
            product, amount, when = order(number)
            text = b'{"product":%d,"amount":%d,"second":%d}' % (product, amount, when // 1000)
            while True:
                try:
                    producer.produce(
                        self._topic, text, partition=number % PARTITIONS, timestamp=when
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush()


class Faults:
    """Brings about faults while the job runs; called with the job's events.

    Arguments:
        count: the number of faults.
        rng: decides when they come, and which they are.
        server: the broker.
        postgres: the PostgreSQL server, or None.
        orders: the producer, which is told when the faults are over.
    """

    def __init__(
        self,
        count: int,
        rng: random.Random,
        server: KafkaServer,
        postgres: PostgresServer | None,
        orders: Orders,
    ) -> None:
        kinds = ["worker", "JobManager", "broker"] + ["PostgreSQL"] * (postgres is not None)
        self._left = list(itertools.islice(itertools.cycle(kinds), count))
        self._rng, self._server, self._postgres, self._orders = rng, server, postgres, orders
        self.done: Counter[str] = Counter()
        self._jobmanager, self._workers = 0, []
        self._snapshots = 0

    def __call__(self, event: dict[str, Any]) -> None:
        """Count snapshots, and bring about a fault behind some of them."""
        kind = event["event"]
        if kind == "started":
            self._jobmanager, self._workers, self._snapshots = event["pid"], [], 0
        elif kind == "workers":
            self._workers, self._snapshots = event["pids"], 0
        elif kind == "snapshot":
            self._snapshots += 1
            if self._snapshots >= 2 and self._left and self._workers:
                self._snapshots = 0
                time.sleep(self._rng.uniform(0, 0.2))
                self._strike(self._left.pop(0))
                if not self._left:
                    self._orders.over.set()

    def _strike(self, kind: str) -> None:
        if kind == "worker":
            self._kill(self._rng.choice(self._workers))
        elif kind == "JobManager":
            self._kill(self._jobmanager)
        elif kind == "broker":
            self._server.pause()
            time.sleep(0.7)
            self._server.resume()
        else:
            assert self._postgres is not None
            cut(self._postgres)
        self.done[kind] += 1
        what = {"broker": "paused the broker", "PostgreSQL": "cut the connections to PostgreSQL"}
        console.print(f"{self.done.total():2} · {what.get(kind, f'killed a {kind}')}")

    def _kill(self, pid: int) -> None:
        self._workers = []
        os.kill(pid, signal.SIGKILL)


def cut(postgres: PostgresServer) -> None:
    """Cut all connections to the database."""
    import psycopg

    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname IS NOT NULL AND pid <> pg_backend_pid()"
        )


def program(
    server: KafkaServer, topics: tuple[str, str], count: int, conninfo: str | None, folder: Path
) -> StreamExecutionEnvironment:
    """Return the job. Its source ends behind the last order."""
    orders, sums = topics
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.enable_checkpointing(250)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 10))
    ends = {
        KafkaTopicPartition(orders, one): len(range(one, count, PARTITIONS))
        for one in range(PARTITIONS)
    }
    source = KafkaSource(
        server.address, orders, Json(), stopping_offsets=KafkaOffsetsInitializer.offsets(ends)
    )
    totals = (
        env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "orders")
        .uid("orders")
        .map(lambda one: (one["product"], one["second"], 1, one["amount"]))
        .key_by(lambda row: row[0])
        .window(TumblingEventTimeWindows.of(Time.seconds(1)))
        .reduce(lambda a, b: (a[0], a[1], a[2] + b[2], a[3] + b[3]))
        .uid("sums")
    )
    schema = KafkaRecordSerializationSchema(sums, Json(), key=Json(), key_of=lambda row: row[0])
    totals.sink_to(KafkaSink(server.address, schema)).uid("topic")
    if conninfo is not None:
        from penstock.connectors.postgres import PostgresSink

        totals.sink_to(PostgresSink(conninfo, "sums", columns=COLUMNS)).uid("table")
    return env


def run(job: Any, faults: Faults) -> int:
    """Run the job, and resume it whenever its JobManager is killed; return the number of runs."""
    for number in itertools.count(1):
        try:
            with run_options(RunOptions(progress=faults, resume="newest" if number > 1 else None)):
                job().execute("orders")
            return number
        except StoreError as error:
            if "killed by signal 9" not in str(error):
                raise
    raise AssertionError


def in_topic(server: KafkaServer, topic: str) -> Iterator[tuple[int, ...]]:
    """Yield the sums in the topic."""
    latest = KafkaOffsetsInitializer.latest()
    source = KafkaSource(server.address, topic, Json(), stopping_offsets=latest)
    env = StreamExecutionEnvironment.get_execution_environment()
    yield from map(tuple, env.from_source(source).execute_and_collect("sums"))


def in_table(conninfo: str) -> Iterator[tuple[int, ...]]:
    """Yield the sums in the table."""
    import psycopg

    with psycopg.connect(conninfo) as connection:
        yield from connection.execute("SELECT product, second, orders, amount FROM sums")


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=1_200_000, help="of 20,000 a second")
    parser.add_argument("--faults", type=int, default=20)
    options = parser.parse_args()
    wanted = Counter((*key, *sums) for key, sums in expected(options.orders).items())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        server = stack.enter_context(KafkaServer(folder / "broker"))
        topics = server.create_topic(partitions=PARTITIONS), server.create_topic(partitions=2)
        postgres = conninfo = None
        if PostgresServer.missing() is None:
            import psycopg

            postgres = stack.enter_context(PostgresServer(folder / "postgres"))
            conninfo = postgres.create_database()
            with psycopg.connect(conninfo) as connection:
                connection.execute(
                    "CREATE TABLE sums (product int, second bigint, orders int, amount bigint)"
                )
        orders = Orders(server, topics[0], options.orders)
        faults = Faults(options.faults, random.Random(), server, postgres, orders)
        orders.start()
        began = time.monotonic()
        runs = run(lambda: program(server, topics, options.orders, conninfo, folder), faults)
        console.print(
            f"{options.orders:,} orders in {time.monotonic() - began:.0f} s, {runs} runs, faults: "
            + ", ".join(f"{kind} {count}" for kind, count in faults.done.items())
        )
        places = {"Kafka": Counter(in_topic(server, topics[1]))}
        if conninfo is not None:
            places["PostgreSQL"] = Counter(in_table(conninfo))
    lost = doubled = 0
    for place, found in places.items():
        console.print(f"{place}: {found.total():,} sums")
        lost += (wanted - found).total()
        doubled += (found - wanted).total()
    if faults.done.total() < options.faults:
        console.print(f"only {faults.done.total()} faults: start it again with more --orders")
        return 1
    console.print(f"lost {lost} · doubled {doubled}")
    return 1 if lost or doubled else 0


if __name__ == "__main__":
    sys.exit(main())

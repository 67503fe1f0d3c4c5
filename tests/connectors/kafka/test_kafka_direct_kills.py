"""Jobs that write in open transactions while their processes are killed or stopped."""

from __future__ import annotations

import os
import random
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import JobError, StoreError
from penstock.connectors.kafka import KafkaSink
from penstock.testing.servers.kafka import KafkaServer
from tests.connectors.kafka.counting import counting_job, verdict
from tests.connectors.kafka.feeding import Fed, FeedingKiller
from tests.connectors.kafka.open_transactions import DyingSink, expire_all
from tests.processes.harness import gone, run, run_to_the_end


@pytest.mark.parametrize("target", ["worker", "jobmanager"])
def test_a_killed_job_writes_each_record_once_and_in_order(
    kafka_server: KafkaServer, tmp_path: Path, target: str
):
    fed, output = Fed(kafka_server), kafka_server.create_topic(partitions=2)
    fed.feed()
    killer = FeedingKiller(random.Random(30), kills=2, targets=(target,), fed=fed)
    run_to_the_end(None, killer, job=lambda _: counting_job(fed, tmp_path, output, mode="direct"))
    assert [who for who, _ in killer.killed] == [target] * 2
    assert verdict(fed, output) == (0, 0, 0)


@pytest.mark.connectors
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_with_changing_parallelism(kafka_server: KafkaServer, tmp_path: Path, seed: int):
    rng = random.Random(seed)
    fed = Fed(kafka_server, partitions=4, parts=16)
    output = kafka_server.create_topic(partitions=3)
    fed.feed()
    targets = ("worker", "jobmanager", "jobmanager", "both")
    killer = FeedingKiller(rng, kills=15, targets=targets, after_snapshots=None, fed=fed)
    run_to_the_end(
        None,
        killer,
        job=lambda _: counting_job(
            fed, tmp_path, output, rng.choice([1, 2, 3]), rng.choice([40, 100]), mode="direct"
        ),
    )
    assert len(killer.killed) >= 15, f"seed {seed}"
    assert verdict(fed, output) == (0, 0, 0), f"seed {seed}"


def dying(moment: str, at: int) -> Any:
    return partial(DyingSink, moment, at)


@pytest.mark.parametrize(("moment", "at"), [("before", 1), ("after", 1)])
def test_a_job_that_dies_between_its_snapshot_and_the_commits_publishes_them_later(
    kafka_server: KafkaServer, tmp_path: Path, moment: str, at: int
):
    fed, output = Fed(kafka_server, parts=2), kafka_server.create_topic(partitions=2)
    fed.feed()
    with pytest.raises(StoreError, match="killed by signal 9"):
        run(counting_job(fed, tmp_path, output, 2, mode="direct", make_sink=dying(moment, at)))
    fed.feed_all()
    # Another number of subtasks inherits the open transactions.
    run(counting_job(fed, tmp_path, output, 3, mode="direct"), resume="newest")
    assert verdict(fed, output) == (0, 0, 0)


def test_transactions_that_expire_while_the_job_is_down_end_it_and_are_counted(
    kafka_server: KafkaServer, tmp_path: Path
):
    fed, output = Fed(kafka_server, parts=2), kafka_server.create_topic(partitions=2)
    fed.feed()

    def job(make: Any) -> Any:
        return counting_job(fed, tmp_path, output, 2, mode="direct", make_sink=make)

    with pytest.raises(StoreError, match="killed by signal 9"):
        run(job(dying("before", 1)))
    assert expire_all(kafka_server, output) >= 1
    fed.feed_all()
    for _ in range(2):
        with pytest.raises(JobError, match="cannot be committed") as error:
            run(job(KafkaSink), resume="newest")
    found = re.search(r"([\d,]+) records of \d+ transactions cannot be committed", str(error.value))
    number = re.search(r"--sink-marker UID=(\d+)", str(error.value))
    assert found is not None and number is not None
    run(job(KafkaSink), resume="newest", sink_markers={"counts": int(number[1])})
    assert verdict(fed, output) == (int(found[1].replace(",", "")), 0, 0)


def test_a_worker_that_wakes_up_behind_its_successor_has_no_effect(
    kafka_server: KafkaServer, tmp_path: Path
):
    fed, output = Fed(kafka_server), kafka_server.create_topic(partitions=2)
    fed.feed()
    workers: list[int] = []
    asleep: list[int] = []
    woken: list[int] = []

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            workers[:] = [event["pid"]]
        elif event["event"] == "workers":
            workers[1:] = event["pids"]
        elif event["event"] == "snapshot" and not asleep:
            # Records are on their way when the worker falls asleep, and its JobManager dies.
            fed.feed()
            os.kill(workers[1], signal.SIGSTOP)
            asleep.append(workers[1])
            os.kill(workers[0], signal.SIGKILL)

    def wake(event: dict[str, Any]) -> None:
        if event["event"] == "snapshot" and not woken:
            woken.extend(pid for pid in asleep if not gone(pid))
            for pid in asleep:
                os.kill(pid, signal.SIGCONT)
            fed.feed_all()

    with pytest.raises(StoreError, match="killed by signal 9"):
        run(counting_job(fed, tmp_path, output, mode="direct"), progress=stop)
    fed.feed()
    try:
        run(counting_job(fed, tmp_path, output, mode="direct"), resume="newest", progress=wake)
    finally:
        for pid in set(asleep) - set(woken):
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
    assert woken == asleep
    assert verdict(fed, output) == (0, 0, 0)

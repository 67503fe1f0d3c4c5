"""Jobs that read Kafka while processes are killed and the broker is away."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.servers.kafka import KafkaServer
from tests.connectors.kafka.counting import counting_job, verdict
from tests.connectors.kafka.feeding import Fed, FeedingKiller, files_job, lost_and_doubled
from tests.connectors.kafka.publishers import play
from tests.processes.harness import committed, run, run_to_the_end


@pytest.mark.parametrize("target", ["worker", "jobmanager"])
def test_a_killed_job_reads_each_record_once(
    kafka_server: KafkaServer, tmp_path: Path, target: str
):
    fed = Fed(kafka_server)
    fed.feed()
    killer = FeedingKiller(random.Random(28), kills=2, targets=(target,), fed=fed)
    run_to_the_end(None, killer, job=lambda _: files_job(fed, tmp_path))
    assert [who for who, _ in killer.killed] == [target] * 2
    assert lost_and_doubled(committed(tmp_path / "out"), fed) == (0, 0)


@pytest.mark.connectors
def test_many_kills(kafka_server: KafkaServer, tmp_path: Path):
    fed = Fed(kafka_server, partitions=8, parts=24)
    fed.feed()
    targets = ("worker", "jobmanager", "both")
    killer = FeedingKiller(random.Random(29), kills=20, targets=targets, fed=fed)
    run_to_the_end(None, killer, job=lambda _: files_job(fed, tmp_path, 3))
    assert len(killer.killed) >= 20
    assert lost_and_doubled(committed(tmp_path / "out"), fed) == (0, 0)


def test_a_job_waits_for_a_broker_that_restarts(tmp_path: Path):
    if (advice := KafkaServer.missing()) is not None:
        pytest.skip(advice)
    with KafkaServer(tmp_path / "broker") as server:
        fed = Fed(server, parts=3)
        fed.feed()
        snapshots = 0
        stops = 0

        def progress(event: dict[str, Any]) -> None:
            nonlocal snapshots, stops
            snapshots += event["event"] == "snapshot"
            if event["event"] == "snapshot" and snapshots % 4 == 0 and stops < 2:
                server.stop()
                server.start()
                stops += 1
                fed.feed()

        run(files_job(fed, tmp_path), progress=progress)
        assert stops == 2
    assert lost_and_doubled(committed(tmp_path / "out"), fed) == (0, 0)


@pytest.mark.parametrize("target", ["worker", "jobmanager"])
def test_a_killed_job_writes_each_record_once_and_in_order(
    kafka_server: KafkaServer, tmp_path: Path, target: str
):
    fed, output = Fed(kafka_server), kafka_server.create_topic(partitions=2)
    fed.feed()
    killer = FeedingKiller(random.Random(30), kills=2, targets=(target,), fed=fed)
    run_to_the_end(None, killer, job=lambda _: counting_job(fed, tmp_path, output))
    assert [who for who, _ in killer.killed] == [target] * 2
    assert verdict(fed, output) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["staged", pytest.param("direct", marks=pytest.mark.connectors)])
def test_a_sink_waits_for_a_broker_that_does_not_answer(tmp_path: Path, mode: str):
    if (advice := KafkaServer.missing()) is not None:
        pytest.skip(advice)
    with KafkaServer(tmp_path / "broker") as server:
        fed, output = Fed(server, parts=4), server.create_topic(partitions=2)
        fed.feed()
        snapshots = pauses = 0

        def progress(event: dict[str, Any]) -> None:
            nonlocal snapshots, pauses
            snapshots += event["event"] == "snapshot"
            if event["event"] == "snapshot" and snapshots % 3 == 0 and pauses < 3:
                server.pause()
                threading.Event().wait(0.5)
                server.resume()
                pauses += 1
                fed.feed()

        run(counting_job(fed, tmp_path, output, mode=mode), progress=progress)
        assert pauses == 3
        assert verdict(fed, output) == (0, 0, 0)


def test_publishers_that_die_or_wake_up_late_lose_and_double_nothing(kafka_server: KafkaServer):
    outcome = play(kafka_server.address, kafka_server.create_topic(), random.Random(31), 6, 3)
    assert outcome.zombies >= 2 and outcome.kills >= 1
    assert (outcome.lost, outcome.doubled, outcome.in_order) == (0, 0, True)


@pytest.mark.connectors
@pytest.mark.parametrize("seed", range(4))
def test_many_publishers_that_die_or_wake_up_late(kafka_server: KafkaServer, seed: int):
    outcome = play(kafka_server.address, kafka_server.create_topic(), random.Random(seed), 16, 8)
    assert outcome.zombies >= 4 and outcome.kills >= 4
    assert (outcome.lost, outcome.doubled, outcome.in_order) == (0, 0, True)

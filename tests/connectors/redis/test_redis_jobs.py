"""Jobs from Redis to Redis that are killed: each record comes out once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.dataflow.errors import JobError
from penstock.testing.servers.redis import EphemeralRedisServer, RedisServer
from tests.connectors.disturber import disturber, freeze
from tests.connectors.redis.redis_job import (
    cut,
    fill,
    redis_job,
    restart,
    verdict,
)
from tests.processes.harness import Settings, run_to_the_end, wait_until
from tests.processes.parts import let_all_go

redis = pytest.importorskip("redis")


def test_kills_of_workers_and_of_the_jobmanager_lose_and_double_nothing(
    tmp_path: Path, redis_server: RedisServer
):
    seed, prefix = 3, f"{tmp_path}:"
    settings = Settings(tmp_path, count=4_000, interval_ms=100, parts=4)
    with redis.Redis(port=redis_server.port) as client:
        fill(client, prefix, settings.count)
        killer = disturber(seed, settings, 3)
        run_to_the_end(settings, killer, job=lambda s: redis_job(s, prefix, redis_server.url))
        assert len(killer.killed) >= 3, f"seed {seed}"
        assert verdict(client, prefix, settings.count) == (0, 0, 0)


@pytest.mark.connectors
@pytest.mark.parametrize("seed", range(3))
def test_kills_of_the_server_too_lose_and_double_nothing(tmp_path: Path, seed: int):
    settings = Settings(tmp_path, count=12_000, interval_ms=60, parts=11)
    with RedisServer(tmp_path / "redis") as server, redis.Redis(port=server.port) as client:
        fill(client, "", settings.count)
        faults = (restart(server), cut(client), freeze(server))
        killer = disturber(seed, settings, 10, faults=faults, disturbances=8)
        run_to_the_end(settings, killer, job=lambda s: redis_job(s, "", server.url))
        killer.settle()
        assert len(killer.killed) >= 10, f"seed {seed}"
        assert killer.done, f"seed {seed}"
        assert verdict(client, "", settings.count) == (0, 0, 0), f"seed {seed}: {killer.done}"


@pytest.mark.connectors
def test_a_server_that_loses_its_data_ends_the_job(tmp_path: Path):
    settings = Settings(tmp_path, count=4_000, interval_ms=60, parts=3)
    with EphemeralRedisServer(tmp_path / "redis") as server:
        with redis.Redis(port=server.port) as client:
            fill(client, "", settings.count)

        def lose_data() -> str:
            # The job has output there, and goes on when it is lost.
            with redis.Redis(port=server.port) as client:
                wait_until(lambda: client.exists("out"), "output of the job")
            done = restart(server)()
            let_all_go(settings.gate)
            return done

        killer = disturber(0, settings, 0, faults=(lose_data,), disturbances=1)
        with pytest.raises(JobError, match=r"lost its|has no marker|does not exist any more"):
            run_to_the_end(settings, killer, job=lambda s: redis_job(s, "", server.url))
        killer.settle()
        assert killer.done == ["server killed"]

"""Jobs from NATS to NATS that are killed: each record comes out once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.servers.nats import NatsServer
from tests.connectors.disturber import disturber, freeze
from tests.processes.harness import Settings, run_to_the_end

pytest.importorskip("nats")
from tests.connectors.nats.nats_job import fill, nats_job, restart, verdict
from tests.connectors.nats.streams import Streams


def test_kills_of_workers_and_of_the_jobmanager_lose_and_double_nothing(
    tmp_path: Path, nats_server: NatsServer
):
    seed, name = 3, f"JOBS_{tmp_path.name}"
    settings = Settings(tmp_path, count=4_000, interval_ms=100, parts=4)
    with Streams(nats_server.url) as streams:
        fill(streams, name, settings.count)
        killer = disturber(seed, settings, 3)
        run_to_the_end(settings, killer, job=lambda s: nats_job(s, name, nats_server.url))
        assert len(killer.killed) >= 3, f"seed {seed}"
        assert verdict(streams, name, settings.count) == (0, 0, 0)


@pytest.mark.connectors
@pytest.mark.parametrize("seed", range(3))
def test_kills_of_the_server_too_lose_and_double_nothing(tmp_path: Path, seed: int):
    settings = Settings(tmp_path, count=12_000, interval_ms=60, parts=11)
    with NatsServer(tmp_path / "nats") as server:
        with Streams(server.url) as streams:
            fill(streams, "A", settings.count)
        faults = (restart(server), freeze(server))
        killer = disturber(seed, settings, 10, faults=faults, disturbances=8)
        run_to_the_end(settings, killer, job=lambda s: nats_job(s, "A", server.url))
        killer.settle()
        assert len(killer.killed) >= 10, f"seed {seed}"
        assert killer.done, f"seed {seed}"
        with Streams(server.url) as streams:
            found = verdict(streams, "A", settings.count)
        assert found == (0, 0, 0), f"seed {seed}: {killer.done}"

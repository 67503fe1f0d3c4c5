"""Jobs with PostgreSQL lose and double nothing, whoever is killed: workers, JobManager, server."""

from __future__ import annotations

import pytest

from penstock.testing.servers.postgres import PostgresServer
from tests.connectors.postgres.postgres_jobs import (
    copy_table,
    counting_job,
    create_counts,
    cut,
    disturber,
    judge_counts,
    restart,
)
from tests.processes.harness import Settings, run_to_the_end


def test_counts_are_written_once_with_kills(postgres_server, tmp_path):
    database = postgres_server.create_database("counting")
    create_counts(database)
    settings = Settings(tmp_path, count=6_000, interval_ms=100, parts=3)
    killer = disturber(1, 2, gate=settings.gate)
    run_to_the_end(settings, killer, job=lambda s: counting_job(s, database))
    assert judge_counts(settings, database) == (0, 0)
    assert len(killer.killed) >= 2


def test_a_table_is_copied_with_kills(postgres_server, tmp_path):
    database = postgres_server.create_database("copying")
    killer = disturber(2, 2)
    lost, doubled, changes = copy_table(Settings(tmp_path, interval_ms=100), database, killer, 2)
    assert (lost, doubled) == (0, 0) and changes > 300
    assert len(killer.killed) >= 2


@pytest.mark.connectors
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_written_once_whatever_is_killed(tmp_path, seed):
    settings = Settings(tmp_path, count=20_000, interval_ms=80, parts=9)
    with PostgresServer(tmp_path / "pg") as server:
        database = server.create_database()
        create_counts(database)
        faults = (restart(server), cut(database))
        killer = disturber(seed, 8, gate=settings.gate, faults=faults, disturbances=6)
        run_to_the_end(settings, killer, job=lambda s: counting_job(s, database))
        killer.settle()
        assert judge_counts(settings, database) == (0, 0)
    assert len(killer.killed) >= 8 and killer.done


@pytest.mark.connectors
@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_copied_whatever_is_killed(tmp_path, seed):
    with PostgresServer(tmp_path / "pg") as server:
        database = server.create_database()
        faults = (restart(server), cut(database))
        killer = disturber(seed, 8, faults=faults, disturbances=6)
        lost, doubled, changes = copy_table(
            Settings(tmp_path, interval_ms=80), database, killer, seed
        )
    assert (lost, doubled) == (0, 0) and changes > 300
    assert len(killer.killed) >= 8 and len(killer.done) == 6

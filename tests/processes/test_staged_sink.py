"""A sink that publishes by transactions, in real processes that are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import JobError, StoreError, StreamExecutionEnvironment
from penstock.connectors.staged_sink import Marker, SinkPlace, StagedSink, Target
from penstock.connectors.staging_writer import sink_tag
from penstock.dataflow.sink import WriterContext
from penstock.snapshot.storage.store import Store
from tests.processes.harness import (
    Killer,
    Settings,
    counting_job,
    expected_words,
    lost_and_doubled,
    run,
    run_to_the_end,
)
from tests.processes.parts import let_all_go, let_go
from tests.sizes import sized


class Rows(StagedSink[Any]):
    """Inserts pairs into a table of SQLite."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], Any]:
        return lambda pairs: [list(pair) for pair in pairs]

    def connect(self, place: SinkPlace) -> Target:
        return RowTarget(self.path, place.key)


class RowTarget(Target):
    def __init__(self, path: str, key: str) -> None:
        self.database, self.key = _open(path), key

    def fence(self) -> Marker | None:
        query = "SELECT number, digest FROM markers WHERE key = ?"
        row = self.database.execute(query, [self.key]).fetchone()
        return None if row is None else Marker(*row)

    def publish(self, marker: Marker, batches: Iterator[Any]) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        found = self.fence()
        if found is not None and found.number >= marker.number:
            raise RuntimeError("another JobManager has published this snapshot")
        for pairs in batches:
            self.database.executemany("INSERT INTO pairs VALUES (?, ?)", pairs)
        values = [self.key, marker.number, marker.digest]
        self.database.execute("REPLACE INTO markers VALUES (?, ?, ?)", values)
        self.database.execute("COMMIT")

    def close(self) -> None:
        self.database.close()


def _open(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    database.execute("CREATE TABLE IF NOT EXISTS pairs (name TEXT, value INTEGER)")
    database.execute(
        "CREATE TABLE IF NOT EXISTS markers (key TEXT PRIMARY KEY, number INTEGER, digest TEXT)"
    )
    return database


@pytest.mark.parametrize("seed", range(sized(2, 12)))
def test_kills_in_any_phase_lose_and_double_nothing(tmp_path: Path, seed: int):
    path = tmp_path / "rows.db"
    settings = Settings(tmp_path, rate=40_000, interval_ms=30, parts=7)
    targets = ("worker", "jobmanager", "jobmanager", "both")
    killer = Killer(
        random.Random(seed), kills=6, targets=targets, after_snapshots=None, gate=settings.gate
    )
    result = run_to_the_end(
        settings, killer, job=lambda settings: counting_job(settings, Rows(path))
    )
    assert len(killer.killed) >= 6, f"seed {seed}"
    with contextlib.closing(_open(str(path))) as database:
        rows = database.execute("SELECT * FROM pairs").fetchall()
        [marker] = database.execute("SELECT number FROM markers").fetchall()
    assert lost_and_doubled(rows, expected_words(settings)) == (0, 0)
    newest = Store(settings.job).newest()
    assert newest is not None and 0 < marker[0] <= newest.number
    # A run that died before its first snapshot was no part of this lineage.
    assert not list((settings.job / "staging").glob(f"{sink_tag(result.lineage, 'files')}-*"))


def rows_job(settings: Settings, path: Path) -> StreamExecutionEnvironment:
    return counting_job(settings, Rows(path))


def rows_in(path: Path) -> list[tuple[str, int]]:
    with contextlib.closing(_open(str(path))) as database:
        return database.execute("SELECT * FROM pairs").fetchall()


class Dying(Rows):
    """Kills the JobManager when it has published the second snapshot, and not confirmed it.

    With the first one, it lets the next part of the records come.
    """

    def __init__(self, path: Path, gate: Path) -> None:
        super().__init__(path)
        self.gate = gate

    def connect(self, place: SinkPlace) -> Target:
        return DyingTarget(self.path, place.key, self.gate)


class DyingTarget(RowTarget):
    def __init__(self, path: str, key: str, gate: Path) -> None:
        super().__init__(path, key)
        self.gate = gate

    def publish(self, marker: Marker, batches: Iterator[Any]) -> None:
        super().publish(marker, batches)
        # The gate and not an attribute, since a target that is connected again is another object.
        if self.gate.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        let_go(self.gate)


def test_a_marker_that_is_gone_or_ahead_is_refused_until_the_user_says_what_is_there(
    tmp_path: Path,
):
    path = tmp_path / "rows.db"
    settings = Settings(tmp_path, count=20_000, parts=3)
    with pytest.raises(StoreError, match="killed by signal 9"):
        run(counting_job(settings, Dying(path, settings.gate)))
    let_all_go(settings.gate)
    before = rows_in(path)
    with contextlib.closing(_open(str(path))) as database:
        [(key, number, digest)] = database.execute("SELECT * FROM markers").fetchall()
        database.execute("UPDATE markers SET number = number + 100")
    with pytest.raises(JobError, match=f"has the output of snapshot {number + 100} already"):
        run(rows_job(settings, path), resume="newest")
    with contextlib.closing(_open(str(path))) as database:
        database.execute("DELETE FROM markers")
    with pytest.raises(JobError, match=f"--sink-marker UID={number} if it is there.*'files'"):
        run(rows_job(settings, path), resume="newest")
    assert rows_in(path) == before
    run(rows_job(settings, path), resume="newest", sink_markers={"files": number})
    assert lost_and_doubled(rows_in(path), expected_words(settings)) == (0, 0)
    with contextlib.closing(_open(str(path))) as database:
        [(same, last, _)] = database.execute("SELECT * FROM markers").fetchall()
    assert same == key and last > number and digest

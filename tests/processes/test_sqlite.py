"""The example connectors for SQLite in real processes that are killed: each row comes out once."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from examples.connectors.sqlite_sink import SqliteSink
from examples.connectors.sqlite_source import RowPoller, SqliteSource
from penstock import RestartStrategies, StreamExecutionEnvironment
from tests.processes.harness import Killer, Settings, compared, run_to_the_end
from tests.processes.parts import has_let_all_go

KEYS = 97


class Held(SqliteSource):
    """Holds back rows until parts of them are let go, so that the job outlives its kills."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.folder / "shop.db", "orders", splits=3)
        self.gate, self.count, self.kills = settings.gate, settings.count, settings.parts

    def create_poller(self, split: Any) -> RowPoller:
        return HeldPoller(self, split.payload)


class HeldPoller(RowPoller):
    def poll(self, max_records: int) -> list[Any] | None:
        before, source = self.last, self.source
        rows = super().poll(max_records)
        if has_let_all_go(source.gate):
            return rows
        parts = len(list(source.gate.iterdir())) if source.gate.exists() else 0
        if self.last > source.count * (parts + 1) // (source.kills + 1):
            self.last = before
            return []
        return rows or []


def _job(settings: Settings) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    path = settings.folder / "shop.db"
    numbers = env.from_source(Held(settings), None, "orders").uid("orders").map(lambda row: row[0])
    pairs = numbers.map(lambda number, keys=KEYS: (number % keys, 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counted.uid("count").sink_to(SqliteSink(path, "counts", ["key", "count"])).uid("counts")
    return env


def test_rows_are_read_and_written_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = 11
    settings = Settings(tmp_path, count=3_000, interval_ms=300, parts=3)
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (number INTEGER)")
        database.execute("CREATE TABLE counts (key INTEGER, count INTEGER)")
        database.executemany("INSERT INTO orders VALUES (?)", ((i,) for i in range(settings.count)))
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), kills=3, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=_job)
    assert len(killer.killed) >= 3, f"seed {seed}"
    with closing(sqlite3.connect(path)) as database:
        seen = Counter(database.execute("SELECT key, count FROM counts").fetchall())
        staged = database.execute('SELECT count(*) FROM "_staged_counts"').fetchone()
    expected = Counter(number % KEYS for number in range(settings.count))
    wanted = {(key, count + 1) for key, total in expected.items() for count in range(total)}
    assert compared(seen, wanted) == (0, 0)
    assert staged == (0,), "staged rows of killed attempts were not discarded"

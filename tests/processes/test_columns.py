"""Columns in processes that are killed: each row of each result is committed once.

A Parquet source feeds aggregations over columns, running and by windows, and Parquet sinks write
their results. So source, routing, state and sinks must all be exactly once.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    ColumnTimestamps,
    ParquetSink,
    ParquetSource,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tests.processes.harness import Killer, Settings, compared, run_to_the_end
from tests.processes.parts import Slow

ROWS, KEYS, FILES = 12_000, 37, 6


def key_of(number: int) -> str:
    return f"key {number * 31 % KEYS}"


def write_input(folder: Path) -> None:
    folder.mkdir()
    size = ROWS // FILES
    for file in range(FILES):
        numbers = list(range(file * size, (file + 1) * size))
        table = pa.table({"key": [key_of(n) for n in numbers], "n": numbers})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=500)


class SlowBatches:
    """Leaves batches as they are, and takes its time until all is let go."""

    def __init__(self, gate: Path) -> None:
        self.slow = Slow(0.02, gate)

    def __call__(self, batch):
        return self.slow.map(batch)


def columns_job(settings: Settings) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = ParquetSource(settings.folder / "in", split_rows=500)
    rows = env.from_source(source, None, "files").uid("files")
    slow = rows.map_batches(SlowBatches(settings.gate)).uid("slow")
    running = slow.group_by("key").agg(total=("n", "sum"), rows=("*", "count")).uid("running")
    running.sink_to(ParquetSink(settings.output / "running")).uid("running out")
    # The splits are read in any order, so nothing is late before the end.
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(ROWS))
    timed = slow.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(ColumnTimestamps("n"))
    )
    windows = timed.group_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(1000)))
    windows.agg(rows=("*", "count"), total=("n", "sum")).uid("windows").sink_to(
        ParquetSink(settings.output / "windows")
    ).uid("windows out")
    return env


@pytest.mark.parametrize("targets", [("worker",), ("worker", "jobmanager")])
def test_aggregations_parquet_source_and_sink_lose_and_double_nothing(tmp_path, targets):
    threshold = 0 if len(targets) == 1 else 64 * 1024
    settings = Settings(tmp_path, inline_threshold=threshold)
    write_input(tmp_path / "in")
    killer = Killer(random.Random(len(targets)), kills=3, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=columns_job)
    assert len(killer.killed) == 3

    counts, totals = Counter(map(key_of, range(ROWS))), defaultdict(int)
    rows = pq.read_table(settings.output / "running").to_pylist()
    seen = Counter((row["key"], row["rows"]) for row in rows)
    wanted = {(key, n + 1) for key, count in counts.items() for n in range(count)}
    assert compared(seen, wanted) == (0, 0)
    windows: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number in range(ROWS):
        totals[key_of(number)] += number
        windows[key_of(number), number // 1000 * 1000].append(number)
    last = {row["key"]: row["total"] for row in sorted(rows, key=lambda row: row["rows"])}
    assert last == totals

    rows = pq.read_table(settings.output / "windows").to_pylist()
    results = Counter(
        (row["key"], row["window_start"], row["window_end"], row["rows"], row["total"])
        for row in rows
    )
    assert compared(
        results,
        {(key, at, at + 1000, len(ns), sum(ns)) for (key, at), ns in windows.items()},
    ) == (0, 0)


def test_workers_keep_the_memory_of_freed_arrays_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "12345678")
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    env = StreamExecutionEnvironment.get_execution_environment()
    names = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"]
    found = list(
        env.from_collection(names).map(lambda name: os.environ[name]).execute_and_collect()
    )
    assert sorted(found) == ["12345678", str(4 << 20)]

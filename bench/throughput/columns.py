"""`columns`: a running sum and count per key over Arrow columns, against the same job by rows.

Both jobs have the same keys and amounts, in memory before their time begins, and a snapshot each
second. The job by rows gets tuples, and emits a tuple for each. The job by columns gets Arrow
batches, and emits Arrow batches with a row for each row. `ratio_to_rows` compares their records per
second; `cpu_ratio_to_rows` compares the processor time of their workers per record, which other
work on the machine disturbs less.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.harness import Figures, Say, WrongResultError, machine, median_figures, scratch
from bench.time.measured_job import Totals, environment, measure_job, records_in_memory
from penstock.connectors.columns.arrow_cursor import ArrowCursor
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

__all__ = ["measure"]

KEYS, WORKERS = 10_000, 2
#: The number of rows of an Arrow batch of the source.
BATCH_ROWS = 1 << 16


def measure(
    records: int = 20_000_000,
    rounds: int = 2,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Run both jobs in turns.

    Arguments:
        records: the number of records of the job by rows. The job by columns has five times more.
        rounds: the number of rounds; medians are quoted.
        interval_ms: the time between two snapshots, in milliseconds.
        folder: the folder for snapshots; the system's temporary folder if None.
        say: a function that is called with each step of progress.

    Raises:
        WrongResultError: if a record is lost or doubled.
    """
    runs: list[Figures] = []
    with scratch(folder) as place:
        for number in range(rounds):
            figures: Figures = {}
            for name, job, count in (("rows", _rows, records), ("columns", _columns, 5 * records)):
                say(f"{name}, round {number + 1}")
                run = place / f"{name}-{number}"
                run.mkdir()
                got = job(count // WORKERS, run, interval_ms, say)
                _check(got, count // WORKERS)
                figures[f"{name}_per_second"] = got["results"] / got["seconds"]
                figures[f"{name}_cpu_ns"] = got["cpu_seconds"] * 1e9 / got["results"]
                figures[f"{name}_snapshots"] = got["snapshots_completed"]
            figures["ratio_to_rows"] = figures["columns_per_second"] / figures["rows_per_second"]
            figures["cpu_ratio_to_rows"] = figures["rows_cpu_ns"] / figures["columns_cpu_ns"]
            runs.append(figures)
    return {**median_figures(runs), "records": records, "rounds": rounds, **machine()}


def _numbers(subtask: int, count: int) -> tuple[Any, Any]:
    """Return the keys and the amounts of a subtask. The amount follows from the key."""
    keys = np.random.default_rng(subtask).integers(0, KEYS, count)
    return keys, 1 + keys % 7


def _check(got: Figures, count: int) -> None:
    """Compare the sum of all running sums, which does not depend on the order of records."""
    counts = sum(np.bincount(_numbers(i, count)[0], minlength=KEYS) for i in range(WORKERS))
    amounts = 1 + np.arange(KEYS) % 7
    expected = int((amounts * counts * (counts + 1) // 2).sum())
    if (got["results"], got["total"]) != (WORKERS * count, expected):
        raise WrongResultError(f"{got} instead of a total of {expected}")


def _rows(count: int, run: Path, interval_ms: float, say: Say) -> Figures:
    def records(subtask: int, _: int) -> list[tuple[int, int, int]]:
        keys, amounts = _numbers(subtask, count)
        return list(zip(keys.tolist(), amounts.tolist(), [1] * count, strict=True))

    env = environment(run, WORKERS, interval_ms)
    stream = env.from_source(records_in_memory(records, run), None, "rows")
    keyed = stream.key_by(lambda row: row[0])
    totals = keyed.reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2]))
    totals.add_sink(Totals(run))
    return measure_job(env, run, say)


def _columns(count: int, run: Path, interval_ms: float, say: Say) -> Figures:
    env = environment(run, WORKERS, interval_ms)
    stream = env.from_source(_ColumnsInMemory(count, run), None, "columns")
    totals = stream.group_by("key").agg(total=("amount", "sum"), n=("*", "count"))
    totals.sink_to(_ColumnTotals(run))
    return measure_job(env, run, say)


class _ColumnsInMemory(Source):
    """Emits Arrow batches; its subtasks begin together, as those of `records_in_memory`."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.folder = count, folder

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return SubtaskEnumerator(list(range(parallelism)), parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _ColumnsReader(self)


class _ColumnsReader(SourceReader):
    def __init__(self, source: _ColumnsInMemory) -> None:
        self._source = source

    def open(self, split: Split, position: Any) -> None:
        import pyarrow as pa

        subtask, count, folder = split.payload, self._source.count, self._source.folder
        keys, amounts = _numbers(subtask, count)
        batches = [
            pa.record_batch(
                {"key": keys[at : at + BATCH_ROWS], "amount": amounts[at : at + BATCH_ROWS]}
            )
            for at in range(0, count, BATCH_ROWS)
        ]
        self._cursor = ArrowCursor(iter(batches), position or 0, count)
        (folder / f"ready-{subtask}").touch()
        while not all((folder / f"ready-{i}").exists() for i in range(WORKERS)):
            os.sched_yield()
        began = {"at": time.monotonic(), "cpu": time.process_time()}
        (folder / f"began-{subtask}.json").write_text(json.dumps(began))

    def read(self, max_records: int) -> Read:
        return self._cursor.read(max_records)


class _ColumnTotals(Sink):
    """Counts rows, and sums up their column `total`, as `Totals`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _ColumnTotalsWriter(self.folder, context.subtask)


class _ColumnTotalsWriter(SinkWriter):
    def __init__(self, folder: Path, subtask: int) -> None:
        self._folder, self._subtask = folder, subtask
        self._results = self._total = 0
        self.write_columns = self._add

    def write(self, batch: list[Any]) -> None:
        raise WrongResultError(f"rows instead of columns: {batch[:1]}")

    def _add(self, batch: Any) -> None:
        self._results += batch.num_rows
        self._total += int(batch.column("total").to_numpy().sum())

    def close(self) -> None:
        ended = {"results": self._results, "total": self._total, "cpu": time.process_time()}
        (self._folder / f"ended-{self._subtask}.json").write_text(json.dumps(ended))

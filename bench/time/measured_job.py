"""A job whose records are in memory before its time begins.

Each source makes its records, and waits for the other sources. **The time runs from the first
record that is read until the last snapshot, which follows the last record, is durable**, as in the
word count. So its figures can be compared with those of the word count.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Follower, Say, run
from penstock import (
    IterableSource,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
)

__all__ = ["Totals", "environment", "measure_job", "records_in_memory"]

Build = Callable[[StreamExecutionEnvironment, Path], None]


def environment(folder: Path, workers: int, interval_ms: float) -> StreamExecutionEnvironment:
    """Return an environment with the settings of the word count.

    Arguments:
        folder: the folder of the run, which gets the snapshots.
        workers: the parallelism.
        interval_ms: the time between two snapshots, in milliseconds.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(workers).enable_checkpointing(interval_ms)
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_inline_threshold(0).set_checkpoint_storage_dir(folder / "snapshots")
    return env


def records_in_memory(make: Callable[[int, int], Sequence[Any]], folder: Path) -> IterableSource:
    """Return a source whose subtasks begin together.

    Arguments:
        make: a function that returns the records of `(subtask, parallelism)`.
        folder: the folder of the run.
    """
    return IterableSource(_Records(make, folder), blocking=False)


class _Records:
    """Makes the records of a subtask, then waits for the other subtasks."""

    def __init__(self, make: Callable[[int, int], Sequence[Any]], folder: Path) -> None:
        self._make, self._folder = make, folder

    def __call__(self, subtask: int, parallelism: int) -> Sequence[Any]:
        records = self._make(subtask, parallelism)
        (self._folder / f"ready-{subtask}").touch()
        while not all((self._folder / f"ready-{i}").exists() for i in range(parallelism)):
            os.sched_yield()
        began = {"at": time.monotonic(), "cpu": time.process_time()}
        (self._folder / f"began-{subtask}.json").write_text(json.dumps(began))
        return records


class Totals(SinkFunction):
    """Counts the records that it receives, and sums up their second field.

    Arguments:
        folder: the folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin to count."""
        self._subtask = runtime_context.get_index_of_this_subtask()
        self._results = self._total = 0

    def invoke(self, value: Any) -> None:
        """Count a record."""
        self._results += 1
        self._total += value[1]

    def close(self) -> None:
        """Write the counts to a file."""
        ended = {"results": self._results, "total": self._total, "cpu": time.process_time()}
        (self._folder / f"ended-{self._subtask}.json").write_text(json.dumps(ended))


def measure_job(env: StreamExecutionEnvironment, folder: Path, say: Say) -> Figures:
    """Run a job with `records_in_memory` and `Totals`, and return its figures.

    Returns:
        `seconds`, `cpu_seconds` of all workers in that time, and the `results` and their `total`.
    """
    follower = Follower(say)
    run(env, follower)
    began = [json.loads(path.read_text()) for path in folder.glob("began-*")]
    ended = [json.loads(path.read_text()) for path in folder.glob("ended-*")]
    last = next(
        at for at, e in follower.events if e["event"] == "snapshot" and e["kind"] == "final"
    )
    return {
        "seconds": last - min(source["at"] for source in began),
        "cpu_seconds": sum(e["cpu"] for e in ended) - sum(b["cpu"] for b in began),
        "results": sum(one["results"] for one in ended),
        "total": sum(one["total"] for one in ended),
        "snapshots_completed": len(follower.snapshots()),
        "peak_rss_mb": follower.peak_mb(),
    }

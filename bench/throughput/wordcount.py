"""`wordcount`: the keyed word count, against a program that has nothing but the count.

The program is

    lines.flat_map(lambda line: [(word, 1) for word in line.split()])
         .key_by(lambda pair: pair[0])
         .reduce(lambda a, b: (a[0], a[1] + b[1]))

into a Python function sink that counts the records and keeps the last one per key: two workers, a
snapshot each second, keyed state in RocksDB. The lines are those of `limit_wordcount.py`. They are
made once, by another process, and written to one file per source; each source reads its file
into memory and then waits for the other, so that neither begins earlier. **The time runs from the
first line that is read until the last snapshot, which follows the last record, is durable**; so
it has the final snapshot in it, and not the start (`startup_seconds`: from `execute()` until every
task runs). The limit program is run before and after each run of ours; medians are quoted.

`cpu_ns_per_word` is the processor time of both workers in that span, per word. It suffers less than
the rate from others' work on the machine.

The counts are those of `collections.Counter`, or there is no figure.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.common.harness import (
    Figures,
    Follower,
    Say,
    WrongResultError,
    machine,
    median_figures,
    run,
    scratch,
)
from penstock import IterableSource, RuntimeContext, SinkFunction, StreamExecutionEnvironment

__all__ = ["WORKERS", "count_words", "measure", "prepare"]

WORKERS = 2
LIMIT = Path(__file__).with_name("limit_wordcount.py")


def measure(
    lines: int = 3_000_000,
    rounds: int = 2,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Count the words of so many lines, `rounds` times.

    Arguments:
        lines: how many, of 10 words each.
        rounds: runs of the engine; the limit program has one more.
        interval_ms: between two snapshots.
        folder: where inputs and snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a count is not that of a `Counter`.
    """
    ours: list[Figures] = []
    with scratch(folder) as place:
        say("writing the lines")
        # In another process, so that its memory does not count as the engine's client.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(prepare, lines, place).result()
        limits = [_limit(lines, say)]
        for number in range(rounds):
            ours.append(count_words(place, number, interval_ms, say))
            limits.append(_limit(lines, say))
    figures = median_figures(ours)
    limit = median_figures(limits)["limit_words_per_second"]
    return {
        "words_per_second": round(figures.pop("words_per_second")),
        "limit_words_per_second": limit,
        "ratio": round(median_figures(ours)["words_per_second"] / limit, 3),
        **figures,
        "snapshots_completed": min(run["snapshots_completed"] for run in ours),
        "all_words_per_second": [run["words_per_second"] for run in ours],
        "all_limit_words_per_second": [run["limit_words_per_second"] for run in limits],
        **machine(),
    }


def prepare(count: int, place: Path) -> None:
    """Write each source's share of the lines, and the counts that must come out."""
    from bench.throughput.limit_wordcount import lines

    text = lines(count)
    for subtask in range(WORKERS):
        path = place / f"lines-{subtask}.txt"
        path.write_text("\n".join(text[subtask::WORKERS]), encoding="ascii")
    expected = Counter(itertools.chain.from_iterable(map(str.split, text)))
    (place / "expected.json").write_text(json.dumps(expected))


def _limit(lines: int, say: Say) -> Figures:
    say("the limit program counts")
    command = [sys.executable, str(LIMIT), str(lines)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def count_words(place: Path, number: int, interval_ms: float, say: Say) -> Figures:
    """Run the engine once, and return its figures."""
    folder = place / f"run-{number}"
    folder.mkdir()
    follower = Follower(say)
    env = build(place, folder, interval_ms)
    began = time.monotonic()
    run(env, follower)
    counted = _check(place, folder)
    began_at = [json.loads(path.read_text()) for path in folder.glob("began-*")]
    ended = [json.loads(path.read_text()) for path in folder.glob("counted-*")]
    first = min(source["at"] for source in began_at)
    cpu = sum(e["cpu"] for e in ended) - sum(b["cpu"] for b in began_at)
    last = next(
        at for at, e in follower.events if e["event"] == "snapshot" and e["kind"] == "final"
    )
    checkpoints = follower.snapshots()
    return {
        "words": counted,
        "seconds": round(last - first, 3),
        "words_per_second": round(counted / (last - first)),
        "cpu_ns_per_word": round(cpu / counted * 1e9, 1),
        "startup_seconds": round(follower.first("running") - began, 3),
        "snapshots_completed": len(checkpoints),
        "snapshot_ms_median": median_figures(checkpoints)["duration_ms"] if checkpoints else None,
        "rocksdb_files": len(list((folder / "snapshots").rglob("*.sst"))),
        "peak_rss_mb": follower.peak_mb(),
    }


def build(place: Path, folder: Path, interval_ms: float) -> StreamExecutionEnvironment:
    """Build the program, as the specification has it."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).enable_checkpointing(interval_ms)
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_inline_threshold(0).set_checkpoint_storage_dir(folder / "snapshots")
    lines = env.from_source(IterableSource(_Lines(place, folder), blocking=False))
    counts = (
        lines.flat_map(lambda line: [(word, 1) for word in line.split()])
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    counts.add_sink(_LastPerKey(folder))
    return env


class _Lines:
    """Each source's lines, in memory; no source begins before all have theirs."""

    def __init__(self, place: Path, folder: Path) -> None:
        self._place, self._folder = place, folder

    def __call__(self, subtask: int, parallelism: int) -> list[str]:
        lines = (self._place / f"lines-{subtask}.txt").read_text("ascii").split("\n")
        (self._folder / f"ready-{subtask}").touch()
        while not all((self._folder / f"ready-{i}").exists() for i in range(parallelism)):
            os.sched_yield()
        began = {"at": time.monotonic(), "cpu": time.process_time()}
        (self._folder / f"began-{subtask}.json").write_text(json.dumps(began))
        return lines


class _LastPerKey(SinkFunction):
    """Counts records and keeps the last one per key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.records = 0
        self.last: dict[str, Any] = {}

    def invoke(self, value: Any) -> None:
        self.records += 1
        self.last[value[0]] = value

    def close(self) -> None:
        counts = dict(self.last.values())
        result = {"records": self.records, "counts": counts, "cpu": time.process_time()}
        (self._folder / f"counted-{self.subtask}.json").write_text(json.dumps(result))


def _check(place: Path, folder: Path) -> int:
    """Return the number of words counted. Raises `WrongResultError` if any count is wrong."""
    expected = json.loads((place / "expected.json").read_text())
    results = [json.loads(path.read_text()) for path in folder.glob("counted-*.json")]
    counts: dict[str, int] = {}
    for result in results:
        if counts.keys() & result["counts"].keys():
            raise WrongResultError("a word was counted by two subtasks")
        counts |= result["counts"]
    records = sum(result["records"] for result in results)
    total: int = sum(expected.values())
    if counts != expected or records != total:
        raise WrongResultError(f"{records} records and {sum(counts.values())} words, not {total}")
    return total

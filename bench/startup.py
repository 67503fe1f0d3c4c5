"""`startup`: how soon a job runs, and what it costs while it has nothing to do.

`seconds_to_first_record`: from `execute()` until the first record has come through a keyed shuffle
to a sink, with two workers, the median of several runs. `idle_cpu_percent`: processor time of a
worker, as a share of wall time, while a source gives a record now and then; the larger one of the
two. `idle_rss_mb` is the resident memory of a worker then.

`measure_widths` starts a job with two shuffles, by the number of workers. `start_seconds` is the
time from `execute()` until all tasks process records. `descriptors` and `pss_mb_per_worker` are the
open files of all workers together, and the proportional memory of each.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
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
from penstock import GeneratorSource, SinkFunction, StreamExecutionEnvironment
from penstock.dataflow.program import RunOptions, run_options

__all__ = ["measure", "measure_widths"]

WORKERS = 2
SETTLE_SECONDS = 2.0


def measure(
    rounds: int = 5, idle_seconds: float = 10.0, folder: str | None = None, say: Say = print
) -> Figures:
    """Measure both.

    Arguments:
        rounds: starts.
        idle_seconds: how long an idle job is watched.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.
    """
    with scratch(folder) as place:
        firsts, runnings = [], []
        for number in range(rounds):
            say(f"start {number + 1} of {rounds}")
            began = time.monotonic()
            follower = Follower(say)
            run(_build(place, f"start-{number}", 20, 1000), follower)
            runnings.append(follower.first("running") - began)
            arrived = [float(path.read_text()) for path in place.glob(f"start-{number}-*")]
            firsts.append(min(arrived) - began)
        say("watching an idle job")
        idle = _Idle(idle_seconds)
        records = int((SETTLE_SECONDS + idle_seconds + 2) * 2)
        run(_build(place, "idle", records, 2), Follower(say, idle))
    return {
        "seconds_to_first_record": round(statistics.median(firsts), 3),
        "seconds_to_running": round(statistics.median(runnings), 3),
        "idle_cpu_percent": round(max(idle.percents), 2),
        "idle_rss_mb": round(max(idle.resident) / 1e6, 1),
        "all_seconds_to_first_record": [round(seconds, 3) for seconds in firsts],
        **machine(),
    }


def measure_widths(widths: Sequence[int], rounds: int = 3, say: Say = print) -> Figures:
    """Start a job with two shuffles with each number of workers.

    Arguments:
        widths: the numbers of workers.
        rounds: the starts of each; medians are quoted.
        say: told what happens.
    """
    figures: Figures = {}
    for width in widths:
        runs = []
        for _ in range(rounds):
            environment = StreamExecutionEnvironment.get_execution_environment()
            environment.set_parallelism(width)
            stream = environment.from_source(GeneratorSource(lambda i: i, None, 10 * width))
            for _ in range(2):
                stream = stream.key_by(lambda i: i).map(lambda i: i)
            stream.add_sink(_Drop())
            workers = _Workers()
            follower = Follower(say, workers)
            began = time.monotonic()
            with run_options(RunOptions(progress=follower)):
                job = environment.execute_async()
            workers.measured.wait()
            job.cancel().result()
            if not workers.figures:
                raise WrongResultError("the job did not start")
            runs.append({"start_seconds": follower.first("running") - began, **workers.figures})
        for name, value in median_figures(runs).items():
            figures[f"{name}_p{width}"] = round(value, 3)
        say(f"{width} workers: {figures[f'start_seconds_p{width}']} s")
    return figures


class _Drop(SinkFunction):
    """Drops all records."""

    def invoke(self, value: Any) -> None:
        """Do nothing."""


class _Workers:
    """Counts the open files and the memory of the workers, once they run."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self.figures: Figures = {}
        self.measured = threading.Event()

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "workers":
            self._pids = event["pids"]
        elif event["event"] == "running":
            files = sum(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) for pid in self._pids)
            memory = sum(_proportional(pid) for pid in self._pids)
            self.figures = {
                "descriptors": files,
                "pss_mb_per_worker": memory / len(self._pids) / 1e6,
            }
            self.measured.set()
        elif event["event"] == "failed":
            self.measured.set()


def _proportional(pid: int) -> int:
    """Return the memory of a process in bytes. A shared page counts for each process in part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _build(place: Path, name: str, records: int, rate: float) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).enable_checkpointing(60_000)
    source = GeneratorSource(lambda index: index, records, rate)
    stream = env.from_source(source).key_by(lambda index: index).reduce(lambda _, new: new)
    stream.add_sink(_First(place, name))
    return env


class _First(SinkFunction):
    """Writes down when its first record came."""

    def __init__(self, place: Path, name: str) -> None:
        self._place, self._name = place, name
        self._come = False

    def invoke(self, value: Any) -> None:
        del value
        if not self._come:
            self._come = True
            path = self._place / f"{self._name}-{os.getpid()}"
            path.write_text(str(time.monotonic()))


class _Idle:
    """Watches the workers for a while, from a thread, once they run."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pids: list[int] = []
        self.percents: list[float] = [0.0]
        self.resident: list[int] = [0]

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "workers":
            self._pids = event["pids"]
        elif event["event"] == "running":
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        time.sleep(SETTLE_SECONDS)
        began, before = time.monotonic(), [_cpu_seconds(pid) for pid in self._pids]
        time.sleep(self._seconds)
        seconds = time.monotonic() - began
        used = [_cpu_seconds(pid) - at for pid, at in zip(self._pids, before, strict=True)]
        self.percents = [100 * cpu / seconds for cpu in used]
        self.resident = [_resident(pid) for pid in self._pids]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

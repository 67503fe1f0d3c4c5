"""One run of `paper`: a program of `programs.py`, and the figures of the run.

A run reads either for a fixed time or a fixed number of records. It is measured where records
arrive: each subtask of the sink notes how many have come, when the first moments were over (code
that runs for the first time, state that has no keys yet), when the last came, the longest time
without any, and when each barrier reached it. `statistics.py` compares the runs.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from bench.common.harness import Figures, Follower, Say, WrongResultError, percentile, scratch
from bench.common.processors import ProcessorTime, seconds_of_children
from bench.paper import statistics as paper_statistics
from bench.paper.programs import Job, build
from penstock.dataflow.program import RunOptions, run_options

__all__ = ["run_once", "run_row"]


def run_row(
    jobs: Mapping[str, Job],
    baseline: Job,
    rounds: int,
    folder: str | None,
    say: Say,
    seed: int = 1,
) -> list[tuple[str, Figures]]:
    """Run jobs in turns with a baseline, and return name and figures of each run in order.

    Arguments:
        jobs: by name.
        baseline: the same job without snapshots.
        rounds: runs of each job.
        folder: where snapshots lie; the system's temporary folder if None.
        say: called with lines of progress.
        seed: of the order.
    """
    names = paper_statistics.order(list(jobs), rounds, seed)
    row = []
    for position, name in enumerate(names):
        say(f"run {position + 1} of {len(names)}: {name}")
        row.append((name, run_once(jobs.get(name, baseline), folder, say)))
    return row


def run_once(
    job: Job,
    folder: str | None,
    say: Say,
    cluster: Callable[[], AbstractContextManager[Any]] | None = None,
) -> Figures:
    """Run a job once.

    Arguments:
        job: the run.
        folder: where snapshots lie; the system's temporary folder if None.
        say: called with lines of progress.
        cluster: makes the cluster that the program runs on instead of local processes.

    Returns:
        Of the measured time: `seconds`, `records`, `records_per_second`, `seconds_per_record`,
        `longest_pause_ms` between two arrivals at a subtask of the sink, and for a paced job
        `p50_ms` and `p99_ms` of the latency. Of the whole run: `run_seconds` from the first read
        to the last arrival, `cpu_seconds` of all processes from the moment all tasks run to the
        end of the job and `cpu_seconds_per_record` (None on a cluster), `snapshots_asked` and
        `snapshots_completed`. Of its snapshots, medians: `snapshot_bytes`, `snapshot_ms`,
        `write_ms`, `aligned_ms` (the longest wait of a task), `channel_aligned_ms` (how long the
        median channel was blocked), `barrier_travel_ms` (from the start of the snapshot to the
        last sink's cut, to the millisecond), `log_bytes`, `log_records`; and `log_bytes_max`,
        `log_records_max`.

    Raises:
        WrongResultError: if records were lost or doubled, the job was restarted, or the run is
            too short to be measured.
    """
    with scratch(folder) as place:
        clock = ProcessorTime()
        follower = Follower(say, clock)
        env = build(job, place)
        before = seconds_of_children()
        with run_options(RunOptions(progress=follower)), cluster() if cluster else _nothing():
            env.execute()
        spent = seconds_of_children() - before - clock.at_start
        arrivals = [json.loads(path.read_text()) for path in sorted(place.glob("arrivals-*"))]
        reads = [json.loads(path.read_text()) for path in place.glob("read-*")]
    _check(job, follower, reads, arrivals)
    arrived = sum(one["arrived"] for one in arrivals)
    last = max(one["last"] for one in arrivals)
    seconds = last - statistics.mean(one["warm_at"] for one in arrivals)
    records = arrived - sum(one["warm_arrived"] for one in arrivals)
    run_seconds = last - min(one["began"] for one in reads)
    latencies = [1000 * latency for one in arrivals for latency in one["latencies"]]
    return {
        "seconds": seconds,
        "records": records,
        "records_per_second": records / seconds,
        "seconds_per_record": seconds / records,
        "run_seconds": run_seconds,
        "cpu_seconds": None if cluster else spent,
        "cpu_seconds_per_record": None if cluster else spent / arrived,
        "longest_pause_ms": 1000 * max(one["longest_pause"] for one in arrivals),
        "p50_ms": percentile(latencies, 50) if latencies else None,
        "p99_ms": percentile(latencies, 99) if latencies else None,
        **_of_snapshots(job, follower, arrivals, run_seconds, max(one["ended"] for one in reads)),
    }


def _check(job: Job, follower: Follower, reads: list[Figures], arrivals: list[Figures]) -> None:
    if any(event["event"] == "restarting" for _, event in follower.events):
        raise WrongResultError("the job was restarted, so its figures mean nothing")
    arrived = sum(one["arrived"] for one in arrivals)
    read = sum(one["read"] for one in reads)
    expected = read * job.outputs_per_record
    if arrived != expected or (job.records is not None and read != job.records):
        wanted = "" if job.records is None else f"; the source was asked for {job.records}"
        raise WrongResultError(f"{arrived} of {expected} records arrived{wanted}")
    if any(one["warm_at"] is None or one["last"] <= one["warm_at"] for one in arrivals):
        raise WrongResultError(
            f"a subtask had no records after {job.warm:g} s of warm-up: the run is too short"
        )


def _of_snapshots(
    job: Job, follower: Follower, arrivals: list[Figures], run_seconds: float, ended: float
) -> Figures:
    if job.mode is None:
        return {}
    # A loop takes further snapshots to find out that it is empty; the clock did not ask for them.
    snapshots = [s for s in follower.snapshots() if s["created_ms"] <= 1000 * ended]
    # A snapshot takes time, so one that is due less than this before the end is not asked for.
    slack = min(0.5, job.interval / 2)
    asked = int(((job.seconds or run_seconds) - slack) / job.interval + 1e-9)
    travels = [
        1000 * max(one["cuts"][str(snapshot["number"])] for one in arrivals)
        - snapshot["created_ms"]
        for snapshot in snapshots
        if all(str(snapshot["number"]) in one["cuts"] for one in arrivals)
    ]

    def median(figure: str) -> float | None:
        return statistics.median(s[figure] for s in snapshots) if snapshots else None

    return {
        "snapshots_asked": asked,
        "snapshots_completed": len(snapshots),
        "snapshot_bytes": median("bytes_new"),
        "snapshot_ms": median("duration_ms"),
        "write_ms": median("write_ms"),
        "aligned_ms": median("aligned_ms"),
        "channel_aligned_ms": median("channel_aligned_ms"),
        "barrier_travel_ms": statistics.median(travels) if travels else None,
        "log_bytes": median("log_bytes"),
        "log_records": median("log_records"),
        "log_bytes_max": max((s["log_bytes"] for s in snapshots), default=None),
        "log_records_max": max((s["log_records"] for s in snapshots), default=None),
    }


def _nothing() -> AbstractContextManager[Any]:
    return contextlib.nullcontext()

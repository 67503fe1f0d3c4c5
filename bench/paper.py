"""`paper`: the evaluation of the ABS paper, redone: what snapshots cost, by protocol and interval.

*Figure 6*: the run time per record relative to that without snapshots, for ABS, synchronous
snapshots and Chandy-Lamport's, on the topology of the paper's figure 5 (`paper_jobs.py`). All
protocols write state in the same way, and it changes all the time (`keys_changed_per_second` is
counted, in a run of its own). A run reads for a fixed time, so that every run at an interval has
the same number of snapshots in it; measured is from half a second after the first arrival to the
last, and with intervals of up to a second from half a second after the first snapshot was due. How
runs are ordered and compared is told in `paper_statistics.py`. A figure is void (null) if fewer
than 0.9 of the snapshots that the interval asks for completed.

*Cyclic*, which the paper has not: the same on a keyed loop, with the sizes of back-edge logs.

*Figure 7*: the run time of a fixed number of records at parallelism 1, 2, 4 and 8, with ABS at 3 s
and without snapshots; and on a Spark cluster on this machine, if asked for.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import platform
import random
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import paper_statistics
from bench.harness import Figures, Say, machine, scratch
from bench.paper_jobs import HOPS, KEYS, LOOP_KEYS, Job, run_once
from penstock import CheckpointingMode

__all__ = ["INTERVALS", "PARTS", "PROTOCOLS", "QUICK_INTERVALS", "QUICK_SECONDS", "Plan", "measure"]

INTERVALS = (0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
QUICK_INTERVALS = (0.1, 1.0, 3.0)
QUICK_SECONDS = 2.0
PARTS = ("figure6", "figure7", "cyclic", "spark")
PROTOCOLS = {
    "abs": CheckpointingMode.EXACTLY_ONCE,
    "synchronous": CheckpointingMode.SYNCHRONOUS,
    "chandy_lamport": CheckpointingMode.CHANDY_LAMPORT,
}
#: The first snapshot is not measured if it is due after at most so many seconds.
LONGEST_UNMEASURED = 1.0
#: Of figure 7, as in the paper.
FIGURE7_INTERVAL = 3.0
#: Figure 7 is of so many seconds' work at the best parallelism, which is more than its interval.
FIGURE7_SECONDS = 4.5
SPARK_MASTER = "local-cluster[2,1,1024]"


@dataclass(frozen=True)
class Plan:
    """What is measured, and how long.

    Arguments:
        intervals: seconds between two snapshots.
        rounds: runs of each protocol at each interval.
        parallelisms: of figure 7.
        parts: of `PARTS`.
        protocols: of `PROTOCOLS`.
        seconds: a run is measured for at least so long,
        least_intervals: and for at least so many intervals.
        warm: seconds at a run's beginning that are not measured; see `warm_of`.
        figure7_rounds: runs of each point of figure 7.
    """

    intervals: Sequence[float] = QUICK_INTERVALS
    rounds: int = 5
    parallelisms: Sequence[int] = (1, 2)
    parts: Sequence[str] = ("figure6", "figure7")
    protocols: Sequence[str] = tuple(PROTOCOLS)
    seconds: float = 3.0
    least_intervals: int = 2
    warm: float = 0.5
    figure7_rounds: int = 2

    def warm_of(self, interval: float) -> float:
        """How long a run at an interval, or one that is compared with it, is not measured.

        A job's first snapshot runs code for the first time, and nothing was written ahead of it.
        It is over before a run is measured, but for intervals with which that takes too long.
        """
        return self.warm + (interval if interval <= LONGEST_UNMEASURED else 0.0)

    def seconds_of(self, interval: float) -> float:
        """How long a run at an interval reads.

        Whole intervals and the warm-up. The first snapshot is due after one interval, so exactly
        as many snapshots as there are intervals in the measured time begin in it, and the last
        has at least `warm` seconds left to be written.
        """
        intervals = max(self.least_intervals, math.ceil(self.seconds / interval - 1e-9))
        return self.warm_of(interval) + intervals * interval


def measure(
    plan: Plan,
    folder: str | None = None,
    say: Say = print,
    done: Callable[[Figures], None] | None = None,
) -> Figures:
    """Measure the parts of a plan.

    Arguments:
        plan: what.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.
        done: called with the figures of each part when it is measured.

    Returns:
        Of figure 6 what `paper_statistics.evaluate` tells, and of the cyclic graph the same below
        `cyclic`; `records_per_second` with ABS and `records_per_second_none`, by parallelism, and
        all run times of figure 7 below `figure7` and `spark`; `measured`: machine, versions and
        date of each part.

    Raises:
        WrongResultError: if not as many records arrive as were read.
    """
    measures = {"figure6": _shuffles, "figure7": _scaling, "cyclic": _loop, "spark": _spark}
    result: Figures = {"measured": {}}
    for part in plan.parts:
        figures = measures[part](plan, folder, say)
        rounds = plan.figure7_rounds if part in ("figure7", "spark") else plan.rounds
        told = {part: {**provenance(), "rounds": rounds}}
        if done is not None:
            done({**figures, "measured": told, "cores": told[part]["cores"]})
        result |= {**figures, "measured": {**result["measured"], **told}}
    return {**result, "rounds": plan.rounds, **machine()}


def _shuffles(plan: Plan, folder: str | None, say: Say) -> Figures:
    """Figure 6."""
    say("counting keys")
    counting = Job(seconds=plan.warm + 1.5, warm=plan.warm, count_keys=True)
    changed = run_once(counting, folder, say)["keys_changed_per_second"]
    figures = _protocols(plan, False, folder, say)
    return {**figures, "keys": 3 * KEYS, "keys_changed_per_second": changed}


def _loop(plan: Plan, folder: str | None, say: Say) -> Figures:
    """The same on the cyclic graph."""
    figures = _protocols(plan, True, folder, say)
    return {"cyclic": {**figures, "keys": LOOP_KEYS, "hops": HOPS}}


def _protocols(plan: Plan, cyclic: bool, folder: str | None, say: Say) -> Figures:
    """All protocols at all intervals, on one of the graphs."""
    result: Figures = {}
    for number, interval in enumerate(plan.intervals):
        seconds, warm = plan.seconds_of(interval), plan.warm_of(interval)
        job = Job(seconds=seconds, warm=warm, cyclic=cyclic)
        names = paper_statistics.order(plan.protocols, plan.rounds, number)
        row = []
        for position, name in enumerate(names):
            say(f"every {interval:g} s, run {position + 1} of {len(names)}: {name}")
            this = replace(job, mode=PROTOCOLS.get(name), interval=interval)
            row.append((name, run_once(this, folder, say)))
        key = f"{interval:g}"
        paper_statistics.evaluate(result, key, row)
        sizes = result.setdefault("snapshot_bytes", {})
        sizes[key] = result["details"][key][plan.protocols[0]].get("snapshot_bytes")
    return result


def _work(plan: Plan, parallelisms: Iterable[int], folder: str | None, say: Say) -> int:
    """So many records that the fastest of figure 7 takes long enough for a snapshot."""
    rates = []
    for parallelism in parallelisms:
        say(f"how fast is parallelism {parallelism}")
        job = Job(parallelism, seconds=plan.warm + 1.0, warm=plan.warm)
        rates.append(run_once(job, folder, say)["records_per_second"])
    return int(max(rates) * FIGURE7_SECONDS)


def _scaling(plan: Plan, folder: str | None, say: Say) -> Figures:
    """Figure 7 on local processes."""
    records = _work(plan, plan.parallelisms, folder, say)
    points = _points(plan, plan.parallelisms, records, folder, say)
    rates = {
        name: {key: round(records / point[name]["seconds"]) for key, point in points.items()}
        for name in ("abs", "none")
    }
    return {
        "figure7": {"records": records, "interval": FIGURE7_INTERVAL, "points": points},
        "records_per_second": rates["abs"],
        "records_per_second_none": rates["none"],
    }


def _points(
    plan: Plan,
    parallelisms: Iterable[int],
    records: int,
    folder: str | None,
    say: Say,
    cluster: Callable[[], AbstractContextManager[Any]] | None = None,
) -> Figures:
    """Run times by parallelism, with ABS and without snapshots, all in random order per round."""
    kinds = [(p, mode) for p in parallelisms for mode in (None, CheckpointingMode.EXACTLY_ONCE)]
    times: dict[tuple[int, Any], list[float]] = {kind: [] for kind in kinds}
    completed: dict[int, list[int]] = {p: [] for p in parallelisms}
    rng, rounds = random.Random(1), plan.figure7_rounds
    for number in range(rounds):
        for parallelism, mode in rng.sample(kinds, len(kinds)):
            say(f"fixed work, round {number + 1} of {rounds}: parallelism {parallelism}")
            job = Job(parallelism, mode, FIGURE7_INTERVAL, records=records, warm=0.0)
            done = run_once(job, folder, say, cluster)
            times[parallelism, mode].append(done["run_seconds"])
            if mode is not None:
                completed[parallelism].append(done["snapshots_completed"])
    points: Figures = {}
    for (parallelism, mode), seconds in times.items():
        point = points.setdefault(str(parallelism), {})
        point["none" if mode is None else "abs"] = {
            "seconds": round(statistics.median(seconds), 4),
            "seconds_95": paper_statistics.median_interval(seconds),
            "all_seconds": [round(one, 4) for one in seconds],
        }
        point["snapshots_completed"] = statistics.median(completed[parallelism])
    return points


def _spark(plan: Plan, folder: str | None, say: Say) -> Figures:
    """Figure 7 with the workers on executors of Spark, each a process with one core."""
    from penstock.connectors.spark import spark_session
    from penstock.runtime.spark import SESSION_SETTINGS, SparkCluster, checks

    records = _work(plan, (1, 2), folder, say)
    say("starting Spark")
    with scratch(folder) as place:
        own = {"spark.local.dir": f"{place}/local", "spark.sql.warehouse.dir": f"{place}/tables"}
        settings = {**SESSION_SETTINGS, **own, "spark.log.level": "OFF"}
        session = spark_session(settings, SPARK_MASTER)
        try:
            checks.await_slots(session, 2)
            points = _points(plan, (1, 2), records, folder, say, lambda: SparkCluster(session))
            version = session.version
        finally:
            session.stop()
    return {
        "spark": {
            "records": records,
            "interval": FIGURE7_INTERVAL,
            "master": SPARK_MASTER,
            "version": version,
            "points": points,
        }
    }


def provenance() -> Figures:
    """The machine, the versions and the date, for a result that is kept."""
    names = ("penstock", "trio", "msgpack", "rocksdict")
    return {
        **machine(),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {name: importlib.metadata.version(name) for name in names},
    }


def _cpu() -> str:
    """The name of the processor; "unknown" where the operating system does not tell."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"

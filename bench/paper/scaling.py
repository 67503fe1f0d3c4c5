"""Figure 7 of `paper`: run time of fixed work by parallelism, with ABS and without.

`two_workers_to_one` is the rate of two workers by that of one, without snapshots. In
`two_workers_to_one_scattered` the keys come in another order each time (`Job.scattered`).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from bench.common.harness import Figures, Say, scratch
from bench.paper import statistics as paper_statistics
from bench.paper.jobs import run_once
from bench.paper.programs import Job
from penstock import CheckpointingMode

__all__ = ["measure", "measure_on_spark"]

#: Seconds between two snapshots, as in the paper.
INTERVAL = 3.0
#: The work takes this time at the best parallelism, which is longer than the interval.
SECONDS = 4.5
WARM_SECONDS = 0.5
SPARK_MASTER = "local-cluster[2,1,1024]"


def measure(parallelisms: Sequence[int], rounds: int, folder: str | None, say: Say) -> Figures:
    """Measure on local processes.

    Arguments:
        parallelisms: numbers of workers.
        rounds: runs of each point.
        folder: where snapshots lie; the system's temporary folder if None.
        say: called with lines of progress.

    Returns:
        `records_per_second` with ABS and `records_per_second_none`, by parallelism, and all run
        times below `figure7`.
    """
    records = _work(parallelisms, folder, say)
    points = _points(parallelisms, rounds, records, folder, say)
    rates: Figures = {
        name: {key: round(records / point[name]["seconds"]) for key, point in points.items()}
        for name in ("abs", "none")
    }
    figures: Figures = {
        "figure7": {"records": records, "interval": INTERVAL, "points": points},
        "records_per_second": rates["abs"],
        "records_per_second_none": rates["none"],
    }
    if {1, 2} <= set(parallelisms):
        scattered = _scattered(rounds, folder, say)
        ratios = {"": rates["none"]["2"] / rates["none"]["1"], "_scattered": scattered}
        figures |= {f"two_workers_to_one{name}": round(ratios[name], 3) for name in ratios}
    return figures


def measure_on_spark(rounds: int, folder: str | None, say: Say) -> Figures:
    """Measure with the workers on executors of Spark, each a process with one core.

    Arguments:
        rounds: runs of each point.
        folder: where snapshots lie; the system's temporary folder if None.
        say: called with lines of progress.
    """
    from penstock.connectors.spark import spark_session
    from penstock.runtime.spark import SESSION_SETTINGS, SparkCluster
    from penstock.runtime.spark import preflight as checks

    records = _work((1, 2), folder, say)
    say("starting Spark")
    with scratch(folder) as place:
        own = {"spark.local.dir": f"{place}/local", "spark.sql.warehouse.dir": f"{place}/tables"}
        settings = {**SESSION_SETTINGS, **own, "spark.log.level": "OFF"}
        session = spark_session(settings, SPARK_MASTER)
        try:
            checks.await_slots(session, 2)
            points = _points((1, 2), rounds, records, folder, say, lambda: SparkCluster(session))
            version = session.version
        finally:
            session.stop()
    return {
        "spark": {
            "records": records,
            "interval": INTERVAL,
            "master": SPARK_MASTER,
            "version": version,
            "points": points,
        }
    }


def _work(parallelisms: Iterable[int], folder: str | None, say: Say) -> int:
    """Return the number of records of the work."""
    rates = []
    for parallelism in parallelisms:
        say(f"how fast is parallelism {parallelism}")
        job = Job(parallelism, seconds=WARM_SECONDS + 1.0, warm=WARM_SECONDS)
        rates.append(run_once(job, folder, say)["records_per_second"])
    return int(max(rates) * SECONDS)


def _scattered(rounds: int, folder: str | None, say: Say) -> float:
    """Return the rate of two workers by that of one, by medians, with scattered keys."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for parallelism, found in rates.items():
            say(f"scattered keys, round {number + 1} of {rounds}: parallelism {parallelism}")
            job = Job(
                parallelism, seconds=WARM_SECONDS + SECONDS, warm=WARM_SECONDS, scattered=True
            )
            found.append(run_once(job, folder, say)["records_per_second"])
    return statistics.median(rates[2]) / statistics.median(rates[1])


def _points(
    parallelisms: Iterable[int],
    rounds: int,
    records: int,
    folder: str | None,
    say: Say,
    cluster: Callable[[], AbstractContextManager[Any]] | None = None,
) -> Figures:
    """Return run times by parallelism, all in random order in each round."""
    kinds = [(p, mode) for p in parallelisms for mode in (None, CheckpointingMode.EXACTLY_ONCE)]
    times: dict[tuple[int, Any], list[float]] = {kind: [] for kind in kinds}
    completed: dict[int, list[int]] = {p: [] for p in parallelisms}
    rng = random.Random(1)
    for number in range(rounds):
        for parallelism, mode in rng.sample(kinds, len(kinds)):
            say(f"fixed work, round {number + 1} of {rounds}: parallelism {parallelism}")
            job = Job(parallelism, mode, INTERVAL, records=records, warm=0.0)
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

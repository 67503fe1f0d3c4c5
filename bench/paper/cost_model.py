"""The cost model of `paper`: what a snapshot costs, in processor time, from four figures.

A snapshot costs a fixed time, a time for each task, a time for each key that has changed since
the last snapshot, and a time for each record in flight that it holds:

    cost = fixed + tasks · task + keys · key + records · record

*Fitting.* The first three are measured on jobs that are nearly idle: there the processor time of
a run without snapshots is small, so the difference is exact. Three kinds of run differ in the
number of tasks and in the number of keys that change. The last is the time that the codec takes
to encode a record of this job.

*Checking.* The overhead that the model predicts for the word count and for the loop, at full
load, is compared with what is measured there. Neither is part of the fit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.common.harness import Figures, Say
from bench.paper import statistics as paper_statistics
from bench.paper.jobs import run_once, run_row
from bench.paper.programs import Job, build
from bench.paper.statistics import BASELINE
from penstock import CheckpointingMode
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry

__all__ = ["Costs", "fit", "measure", "predicted_overhead"]

#: Of the runs for the fit. Their snapshots are small, so many fit into a short run.
FIT_INTERVAL = 0.05
#: Records per second: few, so that few keys change; and more, so that thousands do.
FEW, MORE = 500.0, 40_000.0
FIT_KEYS = 70_001
CHECKS = {"words": 10_007, "loop": 10_007}


@dataclass(frozen=True)
class Costs:
    """Processor time of a snapshot, in seconds.

    Arguments:
        fixed: of each snapshot.
        task: for each task.
        key: for each changed key.
        record: for each record in flight.
    """

    fixed: float
    task: float
    key: float
    record: float

    def of(self, tasks: float, keys: float, records: float) -> float:
        """Return the processor time of one snapshot, in seconds.

        Arguments:
            tasks: number of tasks.
            keys: keys that changed since the last snapshot, over all tasks.
            records: records in flight that the snapshot holds.
        """
        return self.fixed + tasks * self.task + keys * self.key + records * self.record


@dataclass(frozen=True)
class Sample:
    """The measured cost of one snapshot of a job, in seconds of processor time."""

    tasks: int
    keys: float
    cost: float


def fit(one: Sample, two: Sample, changing: Sample, record: float) -> Costs:
    """Return the costs that three samples determine; none is below zero.

    Arguments:
        one: a job in which few keys change.
        two: the same with more tasks.
        changing: as `two`, but many keys change.
        record: the cost of a record in flight, in seconds.
    """
    key = max(0.0, (changing.cost - two.cost) / (changing.keys - two.keys))
    low, high = (sample.cost - sample.keys * key for sample in (one, two))
    task = max(0.0, (high - low) / (two.tasks - one.tasks))
    return Costs(max(0.0, high - two.tasks * task), task, key, record)


def predicted_overhead(costs: Costs, job: Job, base: Figures, run: Figures, tasks: int) -> float:
    """Return the predicted overhead in processor time, as a share of that without snapshots.

    Arguments:
        costs: of the run's protocol.
        job: the run.
        base: figures of runs without snapshots.
        run: figures of the run; its number of snapshots and the records in their logs are used.
        tasks: number of tasks of the job.
    """
    snapshots = run["snapshots_completed"]
    arrived = base["cpu_seconds"] / base["cpu_seconds_per_record"]
    records = arrived / job.outputs_per_record
    keys = job.keys_changed(records / (snapshots + 1))
    cost = costs.of(tasks, keys, run.get("log_records") or 0)
    return float(snapshots * cost / base["cpu_seconds"])


def measure(
    protocols: Mapping[str, CheckpointingMode],
    checked: Mapping[str, CheckpointingMode],
    intervals: Sequence[float],
    rounds: int,
    seconds: float,
    folder: str | None,
    say: Say,
) -> Figures:
    """Fit the model for each protocol, and check it.

    Arguments:
        protocols: by name.
        checked: those for which the model is checked.
        intervals: of the checks, in seconds.
        rounds: runs of each kind.
        seconds: time for which each run reads.
        folder: where snapshots lie; the system's temporary folder if None.
        say: called with lines of progress.

    Returns:
        `costs` by protocol (`fixed_ms`, `task_ms`, `key_us`, `record_us`), and `checks`: for each
        graph, protocol and interval the `predicted` and the `measured` overhead with its `band`.
    """
    costs = _costs(protocols, rounds, seconds, folder, say)
    checks: Figures = {}
    for graph, keys in CHECKS.items():
        job = Job(graph=graph, keys=keys, seconds=seconds)
        checks[graph] = _check(job, checked, costs, intervals, rounds, folder, say)
    told = {
        name: {
            "fixed_ms": round(1e3 * one.fixed, 3),
            "task_ms": round(1e3 * one.task, 3),
            "key_us": round(1e6 * one.key, 3),
            "record_us": round(1e6 * one.record, 3),
        }
        for name, one in costs.items()
    }
    return {"costs": told, "checks": checks}


def _record_cost() -> float:
    """Return the seconds that the codec takes for a record of the loop."""
    codec = Codec(TypeRegistry())
    records = [(i * 7919 % FIT_KEYS, i % 5) for i in range(4096)]
    codec.encode_batch(records)
    took = []
    for _ in range(50):
        began = time.process_time_ns()
        codec.encode_batch(records)
        took.append(time.process_time_ns() - began)
    return statistics.median(took) / len(records) / 1e9


def _costs(
    protocols: Mapping[str, CheckpointingMode],
    rounds: int,
    seconds: float,
    folder: str | None,
    say: Say,
) -> dict[str, Costs]:
    """Measure the samples, and return the costs of each protocol."""
    kinds = ((1, FEW), (2, FEW), (2, MORE))
    samples: dict[str, list[Sample]] = {name: [] for name in protocols}
    for number, (parallelism, rate) in enumerate(kinds):
        job = Job(parallelism, rate=rate, keys=FIT_KEYS, interval=FIT_INTERVAL, seconds=seconds)
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in protocols}
        for _ in range(rounds):
            say(f"model: job {number + 1} of {len(kinds)}")
            base = run_once(job, folder, say)["cpu_seconds"]
            for name, mode in protocols.items():
                run = run_once(replace(job, mode=mode), folder, say)
                snapshots = max(1, run["snapshots_completed"])
                keys = job.keys_changed(rate * seconds / snapshots)
                costs[name].append((keys, (run["cpu_seconds"] - base) / snapshots))
        for name, found in costs.items():
            keys, cost = (statistics.median(column) for column in zip(*found, strict=True))
            samples[name].append(Sample(_tasks(job), keys, cost))
    record = _record_cost()
    return {name: fit(of[0], of[1], of[2], record) for name, of in samples.items()}


def _check(
    job: Job,
    protocols: Mapping[str, CheckpointingMode],
    costs: dict[str, Costs],
    intervals: Sequence[float],
    rounds: int,
    folder: str | None,
    say: Say,
) -> Figures:
    """Compare predicted and measured overheads of one job."""
    jobs = {
        (name, interval): replace(job, mode=mode, interval=interval)
        for name, mode in protocols.items()
        for interval in intervals
    }
    kinds = {f"{name} {interval:g}": one for (name, interval), one in jobs.items()}
    row = run_row(kinds, job, rounds, folder, say)
    compared = paper_statistics.compare(row, "cpu_seconds_per_record")
    base = paper_statistics.medians([figures for kind, figures in row if kind == BASELINE])
    tasks = _tasks(job)
    found: Figures = {"control": compared.get(BASELINE)}
    for (name, interval), one in jobs.items():
        kind = f"{name} {interval:g}"
        run = paper_statistics.medians([figures for this, figures in row if this == kind])
        found.setdefault(name, {})[f"{interval:g}"] = {
            "predicted": round(predicted_overhead(costs[name], one, base, run, tasks), 4),
            "measured": compared[kind]["overhead"],
            "band": compared[kind]["band"],
        }
    return found


def _tasks(job: Job) -> int:
    """Return the number of tasks that a job runs as."""
    env = build(job, Path("unused"))
    return len(list(compile_graph(env._graph, env.config).tasks()))

"""`paper`: the evaluation of the ABS paper: what snapshots cost, by protocol, interval and state.

*Figure 6*: the added processor time and run time for ABS, synchronous and unaligned
(Chandy-Lamport) snapshots, against runs without snapshots, on the topology of the paper's figure
5 (`programs.py`), as fast as records are taken. It is measured by state size, since the
paper's state was small: 1,003, 10,007 and 70,001 keys for each of three aggregates. How runs are
ordered and compared is in `statistics.py`.

*Paced*: the same at 70 % of the rate that the job sustains: added processor time and latency.

*Cyclic*, which the paper does not have: the same on a keyed loop, with the sizes of its logs.

*Model*: what a snapshot costs, from four figures (`cost_model.py`).

*Figure 7*: the run time of fixed work by parallelism (`scaling.py`).
"""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.common.harness import Figures, Say, machine
from bench.paper import cost_model as paper_model
from bench.paper import scaling as paper_scaling
from bench.paper import statistics as paper_statistics
from bench.paper.jobs import run_row
from bench.paper.programs import HOPS, Job
from bench.paper.statistics import BASELINE, Row
from penstock import CheckpointingMode

__all__ = ["PARTS", "PROTOCOLS", "Plan", "measure"]

PARTS = ("figure6", "paced", "cyclic", "model", "figure7", "spark")
PROTOCOLS = {
    "abs": CheckpointingMode.EXACTLY_ONCE,
    "synchronous": CheckpointingMode.SYNCHRONOUS,
    "chandy_lamport": CheckpointingMode.UNALIGNED,
}
#: Keys of each aggregate by the name of the state size. The numbers have no common factor with
#: the steps in which a source goes through the keys.
SIZES = {"1000": 1_003, "10000": 10_007, "70000": 70_001}
CYCLIC_KEYS = 10_007
#: The processor time of a protocol is compared in the main figure, the run time beside it.
COSTS = {"overhead": "cpu_seconds_per_record", "run_time_overhead": "seconds_per_record"}
#: Intervals up to this one share one row, so that they share its baselines.
LONGEST_OF_ROW = 1.0
PACED_SHARE = 0.7


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long.

    Arguments:
        intervals: seconds between two snapshots.
        sizes: of `SIZES`.
        rounds: runs of each protocol at each interval.
        slow_rounds: the same for intervals of more than a second, and for figure 7.
        model_rounds: runs of each kind for the model.
        parallelisms: of figure 7.
        parts: of `PARTS`.
        protocols: of `PROTOCOLS`.
        checked: protocols for which the model is checked.
        checked_intervals: intervals at which it is checked.
        seconds: least measured time of a run.
        warm: seconds at the start of a run that are not measured.
    """

    intervals: Sequence[float] = (0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
    sizes: Sequence[str] = tuple(SIZES)
    rounds: int = 5
    slow_rounds: int = 3
    model_rounds: int = 3
    parallelisms: Sequence[int] = (1, 2, 4, 8)
    parts: Sequence[str] = ("figure6", "paced", "cyclic", "model", "figure7")
    protocols: Sequence[str] = tuple(PROTOCOLS)
    checked: Sequence[str] = tuple(PROTOCOLS)
    checked_intervals: Sequence[float] = (0.1, 1.0)
    seconds: float = 2.0
    warm: float = 0.5

    @staticmethod
    def quick(parts: Sequence[str] = ("figure6", "model")) -> Plan:
        """Return a plan of less than nine minutes."""
        return Plan(
            intervals=(0.1, 1.0, 3.0),
            sizes=("1000", "70000"),
            rounds=3,
            slow_rounds=2,
            model_rounds=1,
            parallelisms=(1, 2),
            parts=parts,
            checked=("abs",),
            checked_intervals=(0.1,),
        )

    def rows(self) -> list[tuple[Sequence[float], float, float, int]]:
        """Return the rows of runs: intervals, seconds that runs read, warm-up, and rounds.

        All runs of a row read for the same time. It is whole intervals and the warm-up, and with
        short intervals the first of them, since a job's first snapshot runs code for the first
        time.
        """
        quick = [interval for interval in self.intervals if interval <= LONGEST_OF_ROW]
        rows: list[tuple[Sequence[float], float, float, int]] = []
        if quick:
            warm = self.warm + max(quick)
            rows.append((quick, warm + max(self.seconds, max(quick)), warm, self.rounds))
        for interval in self.intervals:
            if interval > LONGEST_OF_ROW:
                whole = max(2, math.ceil(self.seconds / interval))
                seconds = self.warm + whole * interval
                rows.append(((interval,), seconds, self.warm, self.slow_rounds))
        return rows


def measure(
    plan: Plan,
    folder: str | None = None,
    say: Say = print,
    done: Callable[[Figures], None] | None = None,
) -> Figures:
    """Measure the parts of a plan.

    Arguments:
        plan: what is measured.
        folder: where snapshots lie; the system's temporary folder if None.
        say: called with lines of progress.
        done: called with the figures of each part when it is measured.

    Returns:
        `by_state_size`, and below the name of each size what `_of_intervals` returns; `paced` in
        the same way; `cyclic`; `model`; `figure7`; and `measured`: machine, versions and date of
        each part.

    Raises:
        WrongResultError: if not as many records arrive as were read.
    """
    measures: dict[str, Callable[[], Figures]] = {
        "figure6": lambda: {"by_state_size": _by_size(plan, folder, say)},
        "paced": lambda: {"paced": _paced(plan, folder, say)},
        "cyclic": lambda: {"cyclic": _cyclic(plan, folder, say)},
        "model": lambda: {"model": _model(plan, folder, say)},
        "figure7": lambda: paper_scaling.measure(plan.parallelisms, plan.slow_rounds, folder, say),
        "spark": lambda: paper_scaling.measure_on_spark(plan.slow_rounds, folder, say),
    }
    result: Figures = {"measured": {}}
    for part in plan.parts:
        figures = measures[part]()
        told = {part: {**provenance(), "rounds": plan.rounds}}
        if done is not None:
            done({**figures, "measured": told, "cores": told[part]["cores"]})
        result |= {**figures, "measured": {**result["measured"], **told}}
    return {**result, **machine()}


def _by_size(plan: Plan, folder: str | None, say: Say) -> Figures:
    """Figure 6."""
    return {
        size: _of_intervals(
            plan, Job(keys=SIZES[size]), folder, lambda s, n=size: say(f"{n} keys, {s}")
        )
        for size in plan.sizes
    }


def _paced(plan: Plan, folder: str | None, say: Say) -> Figures:
    """Figure 6 at a share of the sustained rate, which is that of runs without snapshots."""
    result: Figures = {}
    for size in plan.sizes:
        job = Job(keys=SIZES[size], seconds=plan.warm + plan.seconds, warm=plan.warm)
        full = run_row({"full": job}, job, 2, folder, say)
        rate = (
            PACED_SHARE * paper_statistics.medians([run for _, run in full])["records_per_second"]
        )
        paced = replace(job, rate=rate)
        result[size] = {"rate": round(rate), **_of_intervals(plan, paced, folder, say)}
    return result


def _cyclic(plan: Plan, folder: str | None, say: Say) -> Figures:
    """Measure the same on the cyclic graph."""
    job = Job(graph="loop", keys=CYCLIC_KEYS)
    return {**_of_intervals(plan, job, folder, say), "keys": CYCLIC_KEYS, "hops": HOPS}


def _model(plan: Plan, folder: str | None, say: Say) -> Figures:
    return paper_model.measure(
        {name: PROTOCOLS[name] for name in plan.protocols},
        {name: PROTOCOLS[name] for name in plan.checked},
        plan.checked_intervals,
        plan.model_rounds,
        plan.warm + plan.seconds,
        folder,
        say,
    )


def _of_intervals(plan: Plan, base: Job, folder: str | None, say: Say) -> Figures:
    """Run all protocols at all intervals.

    Returns:
        For each protocol *p*: `p_overhead`, the added processor time, and `p_run_time_overhead`,
        both as shares of those without snapshots and by interval, each with its 95 % interval
        below `…_95`; `p_snapshots_completed_share`. Then `snapshots_completed_share`, the least of
        these; `control` and `control_run_time`; for paced jobs `p_added_p99_ms`; `details`: the
        medians of all figures of the runs, by interval and protocol.
    """
    result: Figures = {"keys": base.keys}
    for number, (intervals, seconds, warm, rounds) in enumerate(plan.rows()):
        baseline = replace(base, seconds=seconds, warm=warm)
        jobs = {
            f"{name} {interval:g}": replace(baseline, mode=PROTOCOLS[name], interval=interval)
            for interval in intervals
            for name in plan.protocols
        }
        row = run_row(jobs, baseline, rounds, folder, say, number)
        for interval in intervals:
            _add_interval(result, f"{interval:g}", plan.protocols, row)
    return result


def _add_interval(result: Figures, key: str, protocols: Sequence[str], row: Row) -> None:
    """Add the figures of one interval of a row."""
    runs = {
        name: [figures for kind, figures in row if kind == f"{name} {key}"] for name in protocols
    }
    baselines = [figures for kind, figures in row if kind == BASELINE]
    for suffix, cost in COSTS.items():
        compared = paper_statistics.compare(row, cost)
        for name in protocols:
            found = compared[f"{name} {key}"]
            result.setdefault(f"{name}_{suffix}", {})[key] = found["overhead"]
            result.setdefault(f"{name}_{suffix}_95", {})[key] = found["band"]
        control = "control" if suffix == "overhead" else "control_run_time"
        result.setdefault(control, {})[key] = compared.get(BASELINE)
    shares = {name: paper_statistics.completed_share(runs[name]) for name in protocols}
    for name, share in shares.items():
        result.setdefault(f"{name}_snapshots_completed_share", {})[key] = share
    result.setdefault("snapshots_completed_share", {})[key] = min(shares.values())
    medians = {
        name: paper_statistics.medians(of) for name, of in (*runs.items(), (BASELINE, baselines))
    }
    result.setdefault("details", {})[key] = medians
    if "p99_ms" in medians[BASELINE]:
        for name in protocols:
            added = medians[name]["p99_ms"] - medians[BASELINE]["p99_ms"]
            result.setdefault(f"{name}_added_p99_ms", {})[key] = round(added, 2)


def provenance() -> Figures:
    """Return the machine, the versions and the date, for a result that is kept."""
    names = ("penstock", "trio", "msgpack", "rocksdict")
    return {
        **machine(),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {name: importlib.metadata.version(name) for name in names},
    }


def _cpu() -> str:
    """Return the name of the processor; "unknown" if the system does not give it."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"

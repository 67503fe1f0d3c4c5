"""What `paper` makes of its runs: their order, overheads, intervals, and which figures are void.

**The estimator.** The speed of a machine that others use, too, drifts, by more than what is to be
measured. So all runs of one interval are one row in time: each round has every protocol once, in
random order, and a baseline (no snapshots) stands before every two of them and at the end. A run
of a protocol is compared with the baseline *of its own moment*, on the straight line between the
nearest baselines before and after it; what is compared is seconds per record. An overhead is the
median of these ratios over the rounds, minus 1, with the 95 % interval of the median by bootstrap.

**The control.** Baselines between two others are evaluated in the same way, under the name `none`.
What they have for an overhead is what the method and the machine make up: a figure of a
protocol that is not clear of it says nothing.

This module runs nothing and draws nothing.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence

from bench.harness import Figures, WrongResultError

__all__ = ["BASELINE", "ENOUGH", "evaluate", "median_interval", "order", "overheads"]

BASELINE = "none"
#: A figure is void if a smaller share of the snapshots that its interval asks for completed.
ENOUGH = 0.9
#: What overheads are told of: the prefix of their key, and what a run used per record.
COSTS = {"overhead": "seconds_per_record", "cpu_overhead": "cpu_seconds_per_record"}


def order(protocols: Sequence[str], rounds: int, seed: int = 1) -> list[str]:
    """Who runs when: a baseline, then two protocols, a baseline, two protocols … and a baseline.

    Arguments:
        protocols: each once per round, in random order.
        rounds: how many.
        seed: of the order.
    """
    rng = random.Random(seed)
    runs: list[str] = []
    for _ in range(rounds):
        runs += rng.sample(protocols, len(protocols))
    row = [BASELINE]
    for position in range(0, len(runs), 2):
        row += [*runs[position : position + 2], BASELINE]
    return row


def overheads(row: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Each run's cost relative to the baseline of its moment, minus 1, by name.

    Arguments:
        row: name and cost of each run, in the order in which they ran; a baseline comes first
            and last.
    """
    baselines = [position for position, (name, _) in enumerate(row) if name == BASELINE]
    found: dict[str, list[float]] = {}
    for position, (name, cost) in enumerate(row):
        before = max((b for b in baselines if b < position), default=None)
        after = min((b for b in baselines if b > position), default=None)
        if before is None or after is None:
            continue  # the first and the last baseline
        share = (position - before) / (after - before)
        expected = row[before][1] * (1 - share) + row[after][1] * share
        found.setdefault(name, []).append(cost / expected - 1)
    return found


def median_interval(values: Sequence[float]) -> list[float]:
    """Where the median lies with 95 % confidence, by bootstrap (percentiles of 2,000 medians)."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return [round(medians[50], 4), round(medians[-51], 4)]


def evaluate(result: Figures, key: str, row: Sequence[tuple[str, Figures]]) -> None:
    """Add the figures of one interval to a result.

    For each protocol *p* of the row, and for the control: `p_overhead`, `p_overhead_95`,
    `p_cpu_overhead`, `p_cpu_overhead_95`, each by interval; None if void. Then
    `p_snapshots_completed_share`, and `snapshots_completed_share`, the least of them; and
    `details`: the medians of all figures of the runs.

    Arguments:
        result: is added to.
        key: the interval.
        row: name and figures of each run, in the order in which they ran.

    Raises:
        WrongResultError: if runs that are compared lack a figure.
    """
    runs: dict[str, list[Figures]] = {}
    for name, figures in row:
        runs.setdefault(name, []).append(figures)
    shares = {name: _share(done) for name, done in runs.items() if name != BASELINE}
    for prefix, cost in COSTS.items():
        if any(figures[cost] is None for _, figures in row):
            raise WrongResultError(f"a run has no {cost}, so it cannot be compared")
        ratios = overheads([(name, figures[cost]) for name, figures in row])
        for name, values in ratios.items():
            void = shares.get(name, 1.0) < ENOUGH
            _put(result, f"{name}_{prefix}", key, None if void else _rounded(values))
            _put(result, f"{name}_{prefix}_95", key, None if void else median_interval(values))
    for name, share in shares.items():
        _put(result, f"{name}_snapshots_completed_share", key, share)
    _put(result, "snapshots_completed_share", key, min(shares.values()))
    _put(result, "details", key, {name: medians(done) for name, done in runs.items()})


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of each figure over the runs that have it; of those named `…_max` the greatest."""
    names = dict.fromkeys(name for run in runs for name in run)
    found: Figures = {"runs": len(runs)}
    for name in names:
        values = [run[name] for run in runs if run.get(name) is not None]
        if values:
            found[name] = max(values) if name.endswith("_max") else statistics.median(values)
    return found


def _put(result: Figures, name: str, key: str, value: object) -> None:
    result.setdefault(name, {})[key] = value


def _rounded(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)


def _share(runs: Sequence[Figures]) -> float:
    asked = sum(run["snapshots_asked"] for run in runs)
    completed = sum(min(run["snapshots_completed"], run["snapshots_asked"]) for run in runs)
    return round(completed / asked, 3) if asked else 0.0

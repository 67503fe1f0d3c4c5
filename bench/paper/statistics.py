"""Compare the runs of `paper`: their order, overheads and the intervals around them.

**The estimator.** The speed of a machine that others use drifts by more than what is to be
measured. So all runs that are compared form one row in time: each round has every kind of run
once, in random order, and a baseline (no snapshots) stands before every two of them and at the
end. All runs of a row read for the same time. A run is compared with the baseline *of its own
moment*, on the straight line between the nearest baselines before and after it. An overhead is
the median of these ratios over the rounds, minus 1, with the 95 % interval of the median by
bootstrap.

**The control.** Baselines between two others are compared in the same way. Their overhead is the
error of the method and of the machine: an overhead that is not clear of it shows nothing.

This module runs nothing and draws nothing.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from bench.common.harness import Figures, WrongResultError

__all__ = ["BASELINE", "Row", "compare", "median_interval", "medians", "order", "ratios"]

BASELINE = "none"
#: Name and figures of each run, in the order in which they ran.
Row = Sequence[tuple[str, Figures]]


def order(kinds: Sequence[str], rounds: int, seed: int = 1) -> list[str]:
    """Return the order of runs: a baseline before every two others, and one at the end.

    Arguments:
        kinds: each once per round, in random order.
        rounds: number of rounds.
        seed: of the order.
    """
    rng = random.Random(seed)
    runs: list[str] = []
    for _ in range(rounds):
        runs += rng.sample(kinds, len(kinds))
    row = [BASELINE]
    for position in range(0, len(runs), 2):
        row += [*runs[position : position + 2], BASELINE]
    return row


def ratios(row: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Return each run's cost relative to the baseline of its moment, by name.

    Arguments:
        row: name and cost of each run, in order; a baseline comes first and last.
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
        found.setdefault(name, []).append(cost / expected)
    return found


def median_interval(values: Sequence[float]) -> list[float]:
    """Return the 95 % interval of the median, by bootstrap (percentiles of 2,000 medians)."""
    rng = random.Random(1)
    found = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return [round(found[50], 4), round(found[-51], 4)]


def compare(row: Row, cost: str) -> dict[str, Figures]:
    """Return the overhead of each kind of run, and of the control under the baseline's name.

    Arguments:
        row: the runs.
        cost: the figure to compare, such as "cpu_seconds_per_record".

    Returns:
        By name: `overhead`, its `band` (95 % interval) and `all` ratios minus 1.

    Raises:
        WrongResultError: if a run lacks the figure.
    """
    if any(figures.get(cost) is None for _, figures in row):
        raise WrongResultError(f"a run has no {cost}, so it cannot be compared")
    found = ratios([(name, figures[cost]) for name, figures in row])
    result: dict[str, Figures] = {}
    for name, values in found.items():
        more = [value - 1 for value in values]
        result[name] = {
            "overhead": round(statistics.median(more), 4),
            "band": median_interval(more),
            "all": [round(one, 4) for one in more],
        }
    return result


def completed_share(runs: Sequence[Figures]) -> float:
    """Return the share of the snapshots asked for that completed, over several runs."""
    asked = sum(run["snapshots_asked"] for run in runs)
    completed = sum(min(run["snapshots_completed"], run["snapshots_asked"]) for run in runs)
    return round(completed / asked, 3) if asked else 0.0


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the runs that have it; of `…_max` the greatest."""
    names = dict.fromkeys(name for run in runs for name in run)
    found: Figures = {"runs": len(runs)}
    for name in names:
        values = [run[name] for run in runs if run.get(name) is not None]
        if values:
            found[name] = max(values) if name.endswith("_max") else statistics.median(values)
    return found

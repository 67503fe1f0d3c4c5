"""`checkmate`: the queries of the CheckMate paper, also the cyclic one, with each protocol.

CheckMate (Siachamis et al., ICDE 2024) compares checkpointing protocols on q1, q3, q8 and q12 of
Nexmark and on a cyclic query. Its coordinated protocol cannot run the cyclic one. Here all
protocols can: the loop is snapshotted as in Algorithm 2 of the ABS paper.

For each query, without and with a hot key, two things are measured on two workers:

1. *Throughput*: records per second at full speed, and processor time per record. Runs with each
   protocol alternate with runs without snapshots, and each is compared with those of its moment
   (`bench/paper/statistics.py`). Other work of the machine changes processor time less than
   throughput.
2. *Recovery*: at a fixed rate, the same for all protocols, a worker is killed by SIGKILL. The
   protocols alternate in random order. `runs.py` says what is measured.

After each run its results are compared with the right ones. If one is lost or doubled, there are no
figures; at-least-once may double some, and their number is a figure.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.checkmate.queries import QUERIES
from bench.checkmate.runs import RunPlan, run_query
from bench.common.harness import Figures, Say, machine
from bench.paper.evaluation import PROTOCOLS as EXACTLY_ONCE
from bench.paper.evaluation import provenance
from bench.paper.statistics import BASELINE, compare, medians, order
from penstock import CheckpointingMode

__all__ = ["KEYS", "PROTOCOLS", "CheckmatePlan", "measure"]

PROTOCOLS = {**EXACTLY_ONCE, "at_least_once": CheckpointingMode.AT_LEAST_ONCE}
#: How the keys are distributed.
KEYS = ("uniform", "hot")


@dataclass(frozen=True)
class CheckmatePlan:
    """Says what is measured.

    Arguments:
        queries: of `QUERIES`.
        keys: of `KEYS`. A query without keys has no hot one.
        protocols: of `PROTOCOLS`.
        rounds: runs of each kind.
        interval: the time between two snapshots, in seconds.
        warm: the time of each run that is not measured, in seconds.
        steady: the measured time of each run, in seconds, without that of the recovery.
        share: the rate of the runs with a kill, as a share of the lowest throughput.
        highest_rate: a limit of this rate, in records per second.
    """

    queries: Sequence[str] = tuple(QUERIES)
    keys: Sequence[str] = KEYS
    protocols: Sequence[str] = tuple(PROTOCOLS)
    rounds: int = 3
    interval: float = 1.0
    warm: float = 1.0
    steady: float = 2.0
    share: float = 0.3
    highest_rate: int = 20_000

    @staticmethod
    def quick() -> CheckmatePlan:
        """Return a plan of about two minutes."""
        return CheckmatePlan(
            queries=("q12", "cyclic"),
            keys=("hot",),
            protocols=tuple(EXACTLY_ONCE),
            rounds=1,
            highest_rate=5_000,
        )

    def cases(self) -> list[tuple[str, str]]:
        """Return the queries, each with a distribution of keys."""
        return [
            (query, keys)
            for query in self.queries
            for keys in self.keys
            if keys == "uniform" or QUERIES[query].keyed
        ]


def measure(
    plan: CheckmatePlan,
    folder: str | None = None,
    say: Say = print,
    done: Callable[[Figures], None] | None = None,
) -> Figures:
    """Measure the cases of a plan.

    Arguments:
        plan: what is measured.
        folder: the folder for snapshots and output; the system's temporary folder if None.
        say: a function that is called with lines of progress.
        done: a function that is called with the figures of each case when it is measured.

    Returns:
        `cases`, by query and keys such as `q3 hot`, each with `rate`, `load_average` (the lowest
        and the highest), `throughput` (the median by protocol), `added_processor_time` (what
        `compare` returns: against runs without snapshots, with that of `none` as the control),
        `full_speed` (the medians of the figures of these runs, by protocol), and
        `recovery`: by protocol the medians of the figures of the runs, and all `runs`. `measured`
        has machine, versions and date by case.

    Raises:
        WrongResultError: if a result is lost or doubled.
    """
    result: Figures = {"cases": {}, "measured": {}}
    for number, (query, keys) in enumerate(plan.cases()):
        name = f"{query} {keys}"
        case = {
            "cases": {name: _case(plan, query, keys == "hot", number, folder, _under(say, name))}
        }
        case["measured"] = {name: {**provenance(), "rounds": plan.rounds}}
        if done is not None:
            done(case)
        for part, figures in case.items():
            result[part] |= figures
    return {**result, "interval_seconds": plan.interval, **machine()}


def _under(say: Say, name: str) -> Say:
    return lambda text: say(f"{name}: {text}")


def _case(
    plan: CheckmatePlan, query: str, hot: bool, seed: int, folder: str | None, say: Say
) -> Figures:
    base = RunPlan(query, hot, interval=plan.interval, warm=plan.warm, steady=plan.steady)
    loads = [os.getloadavg()[0]]
    row: list[tuple[str, Figures]] = []
    names = order(plan.protocols, plan.rounds, seed)
    for position, name in enumerate(names):
        say(f"throughput, run {position + 1} of {len(names)}: {name}")
        mode = None if name == BASELINE else PROTOCOLS[name]
        row.append((name, run_query(replace(base, mode=mode), folder, say)))
        loads.append(os.getloadavg()[0])
    throughput = {
        name: round(statistics.median(of["records_per_second"] for kind, of in row if kind == name))
        for name in (BASELINE, *plan.protocols)
    }
    rate = min(plan.highest_rate, round(plan.share * min(throughput.values()), -2))
    paced = replace(base, rate=int(rate), kill=True)
    killed = _with_kills(plan, paced, seed, folder, say, loads)
    return {
        "rate": paced.rate,
        "load_average": [round(min(loads), 1), round(max(loads), 1)],
        "throughput": throughput,
        "added_processor_time": compare(row, "cpu_seconds_per_record"),
        "full_speed": {
            name: medians([of for kind, of in row if kind == name]) for name in plan.protocols
        },
        "recovery": {name: {**medians(runs), "all": runs} for name, runs in killed.items()},
    }


def _with_kills(
    plan: CheckmatePlan, paced: RunPlan, seed: int, folder: str | None, say: Say, loads: list[float]
) -> dict[str, list[Figures]]:
    """Return the figures of the runs in which a worker is killed, by protocol."""
    rng = random.Random(seed)
    killed: dict[str, list[Figures]] = {name: [] for name in plan.protocols}
    for number in range(plan.rounds):
        # All protocols of a round lose the same worker after the same time.
        moment = rng.randrange(1 << 30)
        for name in rng.sample(list(plan.protocols), len(plan.protocols)):
            say(f"recovery, round {number + 1} of {plan.rounds}: {name}")
            run = replace(paced, mode=PROTOCOLS[name], seed=moment)
            killed[name].append(run_query(run, folder, say))
            loads.append(os.getloadavg()[0])
    return killed

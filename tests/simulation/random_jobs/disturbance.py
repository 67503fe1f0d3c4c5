"""Draws what happens to a run of a job: kills of workers and of the JobManager, orderly stops."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["Fault", "What", "draw_faults", "draw_kinds"]

What = Literal["worker", "all workers", "jobmanager", "stop"]


@dataclass(frozen=True)
class Fault:
    """Something that happens to a run.

    Arguments:
        what: a worker, all of them or the JobManager is killed, or the job is stopped in order.
        snapshots: how many more snapshots must have been completed before.
        delay_seconds: how long after that.
    """

    what: What
    snapshots: int
    delay_seconds: float


def draw_kinds(rng: random.Random) -> list[What]:
    """Draw what may happen to the runs of a case: anything, or stops alone."""
    if rng.random() < 0.25:
        return ["stop"]
    return ["worker", "worker", "all workers", "jobmanager", "stop"]


def draw_faults(rng: random.Random, kinds: list[What]) -> list[Fault]:
    """Draw up to three faults, in the order in which they happen."""
    faults = []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        what = rng.choice(kinds)
        if rng.random() < 0.4:
            faults.append(Fault(what, 0, rng.uniform(0.0, 0.2)))
        else:
            # Most that can go wrong goes wrong next to a snapshot.
            faults.append(Fault(what, rng.randint(1, 3), rng.choice([0.0, rng.uniform(0, 0.02)])))
        if what in ("jobmanager", "stop"):
            break
    return faults

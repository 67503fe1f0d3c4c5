"""Draws what happens to a run of a job: kills of workers and of the JobManager, orderly stops."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["Fault", "draw_faults"]

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


def draw_faults(rng: random.Random) -> list[Fault]:
    """Draw up to three faults, in the order in which they happen."""
    faults = []
    for _ in range(rng.randint(0, 3)):
        what: What = rng.choice(["worker", "worker", "all workers", "jobmanager", "stop"])
        if rng.random() < 0.5:
            faults.append(Fault(what, 0, rng.uniform(0.0, 0.3)))
        else:
            # Most that can go wrong goes wrong next to a snapshot.
            faults.append(Fault(what, rng.randint(1, 3), rng.uniform(0.0, 0.02)))
        if what in ("jobmanager", "stop"):
            break
    return faults

"""Draws what happens to a run of a job: kills of workers and of the JobManager, orderly stops."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["Fault", "Moment", "What", "draw_faults", "draw_kinds"]

What = Literal["worker", "all workers", "jobmanager", "stop"]
#: A run has begun to process records; a snapshot begins, is about to be published, or is complete;
#: output is about to be committed, or is committed.
Moment = Literal["running", "create", "publish", "snapshot", "commit", "committed"]
#: Those around a snapshot.
_SNAPSHOTS: list[Moment] = ["snapshot", "snapshot", "create", "publish", "commit", "committed"]


@dataclass(frozen=True)
class Fault:
    """Something that happens to a run.

    Arguments:
        what: a worker, all of them or the JobManager is killed, or the job is stopped in order.
        moment: what must have happened before.
        count: how many times more than when the fault before happened; 0 does not wait.
        delay_seconds: how long after that; 0 is within the very call.
    """

    what: What
    moment: Moment
    count: int
    delay_seconds: float


def draw_kinds(rng: random.Random) -> list[What]:
    """Draw what may happen to the runs of a case: anything, or stops alone."""
    if rng.random() < 0.25:
        return ["stop"]
    return ["worker", "worker", "all workers", "jobmanager", "jobmanager", "stop"]


def draw_faults(rng: random.Random, kinds: list[What], batch: bool) -> list[Fault]:
    """Draw up to three faults, in the order in which they happen.

    Arguments:
        rng: of all choices.
        kinds: what may happen.
        batch: of a job in batch mode, which has one snapshot, at its end.
    """
    faults = []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        what = rng.choice(kinds)
        if rng.random() < 0.4:
            begun = batch and rng.random() < 0.7
            faults.append(Fault(what, "running", int(begun), rng.uniform(0.0, 0.2)))
        else:
            # Most that can go wrong goes wrong next to a snapshot.
            count = 1 if batch else rng.randint(1, 3)
            delay = rng.choice([0.0, rng.uniform(0, 0.02)])
            faults.append(Fault(what, rng.choice(_SNAPSHOTS), count, delay))
        if what in ("jobmanager", "stop"):
            break
    return faults

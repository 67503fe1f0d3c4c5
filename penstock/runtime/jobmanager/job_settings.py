"""The settings of a job from its client, and the outcome that is sent back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["JobOutcome", "JobSettings"]


@dataclass(frozen=True)
class JobSettings:
    """The settings of one run of a job, beyond its configuration.

    Arguments:
        resume: None, "newest", a snapshot's number, or the path of a snapshot or job folder.
        fork: allow to resume from another snapshot than the newest.
        allow_dropped: allow to drop the state of operators that the program no longer has.
        collecting: commit often even if no snapshots are kept.
        shown: the client shows the progress where the job's log goes.
    """

    resume: str | int | None = None
    fork: bool = False
    allow_dropped: bool = False
    collecting: bool = False
    shown: bool = False


@dataclass(frozen=True)
class JobOutcome:
    """The result of a job that did not fail, with the figures of its report.

    Arguments:
        stopped: the job was stopped before its input had ended.
        restarts, snapshots: the last hundred of each.
        operators, loops: the figures of each operator and of each back-edge.
        lineage: the lineage of the job's snapshots.
        peak_bytes: the highest resident memory of each worker.
        totals: sums over all restarts and snapshots.
    """

    stopped: bool
    restarts: list[dict[str, Any]]
    snapshots: list[dict[str, Any]]
    operators: list[dict[str, Any]]
    lineage: str
    peak_bytes: list[int]
    loops: list[dict[str, Any]]
    totals: dict[str, Any]

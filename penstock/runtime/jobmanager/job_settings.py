"""The settings that a client sends for a job, and the outcome that it receives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class JobSettings:
    """The settings of one run of a job, in addition to its configuration.

    Arguments:
        resume: the snapshot from which to resume: "newest", its number, or the path of a snapshot
            or of a job folder. None requests no snapshot.
        fork: whether the run may resume from another snapshot than the newest.
        allow_dropped: whether the state of operators that the program no longer has may be dropped.
        collecting: whether the client receives the job's results while it runs. If so, output is
            committed often, even without checkpoints.
        shown: whether the client shows the job's progress in the place to which its log is written.
        python_files: the Python files of the job, as `pack_files` returns them.
        python: the path of the interpreter for the workers, which the JobManager's process sets.
            None is the interpreter of that process.
    """

    resume: str | int | None = None
    fork: bool = False
    allow_dropped: bool = False
    collecting: bool = False
    shown: bool = False
    python_files: bytes = b""
    python: str | None = None


@dataclass(frozen=True)
class JobOutcome:
    """The result of a job that did not fail, with the figures of its report.

    Arguments:
        stopped: whether the job was stopped before its input had ended.
        restarts, snapshots: the figures of the last hundred restarts and snapshots.
        operators, loops: the figures of each operator and of each back-edge.
        lineage: the lineage of the job's snapshots.
        peak_bytes: the highest resident memory of each worker, in bytes.
        totals: sums over all restarts and all snapshots, keyed by name.
        metrics: the metrics of the operators, as `JobMetrics.metrics` returns them.
    """

    stopped: bool
    restarts: list[dict[str, Any]]
    snapshots: list[dict[str, Any]]
    operators: list[dict[str, Any]]
    lineage: str
    peak_bytes: list[int]
    loops: list[dict[str, Any]]
    totals: dict[str, Any]
    metrics: list[dict[str, Any]] = field(default_factory=list)

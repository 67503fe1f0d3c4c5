"""The settings that a client sends for a job, and the outcome that it receives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.config import CheckpointingMode, JobConfig, RuntimeExecutionMode

#: The interval of commits, in seconds, in a job without checkpoints that sends results to its
#: client.
COMMIT_SECONDS = 0.2


@dataclass(frozen=True)
class JobSettings:
    """The settings of one run of a job, in addition to its configuration.

    Arguments:
        resume: the snapshot from which to resume: "newest", its number, or the path of a snapshot
            or of a job folder. None requests no snapshot.
        fork: whether the run may resume from another snapshot than the newest.
        allow_dropped: whether the state of operators that the program no longer has may be dropped.
        sink_markers: the newest snapshot whose output is in the target of a sink that has lost its
            marker, keyed by the uid of the sink; see `CommitterContext.marker`.
        collecting: whether the client receives the job's results while it runs. If so, output is
            committed often, even without checkpoints.
        shown: whether the client shows the job's progress in the place to which its log is written.
        lineage: the lineage that the run begins, if it begins one. If the newest snapshot in the
            job's folder has this lineage, an earlier JobManager of this run has died, and the run
            resumes from that snapshot. An empty text stands for a new lineage.
        successor: whether an earlier JobManager of the run has died.
        rejoin_address, rejoin_token: the address and the secret of the supervisor's `Rendezvous`,
            where workers wait for the next JobManager if this one dies. With an empty address, they
            end.
        python_files: the Python files of the job, as `pack_files` returns them.
        parallelism: the parallelism of the job; None for that of the program.
        python: the path of the interpreter for the workers, which the JobManager's process sets.
            None is the interpreter of that process.
        shadow: the folder of a shadow run, whose sinks are captured; empty for an ordinary run.
    """

    resume: str | int | None = None
    fork: bool = False
    allow_dropped: bool = False
    sink_markers: dict[str, int] = field(default_factory=dict)
    collecting: bool = False
    shown: bool = False
    lineage: str = ""
    successor: bool = False
    rejoin_address: str = ""
    rejoin_token: bytes = b""
    python_files: bytes = b""
    parallelism: int | None = None
    python: str | None = None
    shadow: str = ""


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
        rescales: the last hundred changes of the number of slots, as `SlotsChanged` has them, with
            the time.
        stragglers: the last hundred tasks that were slower than their peers, as `StragglerFound`
            has them, with the time.
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
    rescales: list[dict[str, Any]] = field(default_factory=list)
    stragglers: list[dict[str, Any]] = field(default_factory=list)


def checkpoint_interval(config: JobConfig, settings: JobSettings) -> float | None:
    """Return the seconds between two checkpoints; None if they are not periodic."""
    if config.runtime_mode is RuntimeExecutionMode.BATCH:
        return None
    interval = config.checkpoint_interval_seconds
    if config.checkpointing_mode is CheckpointingMode.NONE:
        interval = None
    return COMMIT_SECONDS if settings.collecting and interval is None else interval


def keeps_state(config: JobConfig, settings: JobSettings) -> bool:
    """Return whether the snapshots of a job hold state, or only commit output."""
    if config.keeps_state:
        return True
    # After a restart, the job must not produce output again that was committed before. So each
    # commit needs a snapshot with state. If the job has no folder, a temporary one is used.
    restarts = config.restart is not None and config.restart.kind != "none"
    return settings.collecting and restarts

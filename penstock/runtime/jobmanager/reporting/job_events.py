"""The events of a running job, for its client, its log and its report.

Each class is one kind of event. `to_wire` returns an event as a map, which is sent to the client.
The key `event` holds the name of the kind, and the other keys are the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.failures import describe
from penstock.runtime.control.state_queries import ANSWER
from penstock.runtime.jobmanager.job_settings import JobOutcome


@dataclass(frozen=True)
class JobEvent:
    """The base class of all events of a job."""

    #: The name of the kind of event, in the map that `to_wire` returns.
    NAME: ClassVar[str]

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map of plain values."""
        return {"event": self.NAME, **vars(self)}


@dataclass(frozen=True)
class JobStarted(JobEvent):
    """Reports that the JobManager process runs and has compiled the job.

    Arguments:
        pid: the process id of the JobManager.
        operators: [uid, name] of each operator.
        graph, config: the execution graph and the settings, as `describe_graph` and
            `describe_config` return them.
    """

    NAME: ClassVar[str] = "started"
    pid: int
    operators: list[list[str]]
    graph: dict[str, Any]
    config: dict[str, Any]


@dataclass(frozen=True)
class Note(JobEvent):
    """Carries a remark for the person who started the job."""

    NAME: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class StateAnswered(JobEvent):
    """Carries the answer to a query of keyed state; see `control/state_queries.py`."""

    NAME: ClassVar[str] = ANSWER
    answer: dict[str, Any]

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map of plain values."""
        return {"event": self.NAME, **self.answer}


@dataclass(frozen=True)
class JobWarning(JobEvent):
    """Reports that something is probably wrong. The job continues."""

    NAME: ClassVar[str] = "warning"
    text: str


@dataclass(frozen=True)
class StragglerFound(JobWarning):
    """Warns that a task is slower than its peers.

    Arguments:
        text: a text that names the task and the cause.
        straggler: the same as values: the uid of the task's first operator, the name of its chain
            as `operator`, `subtask`, `cause`, `ratio` and `share`. A hot key has `key`, and a
            source has `splits`.
    """

    straggler: dict[str, Any]


@dataclass(frozen=True)
class RecordClassesKnown(JobEvent):
    """Reports the record classes of the job and their numbers.

    Arguments:
        types: the schema of each class as `RecordSchema.to_wire` returns it, in the order of the
            classes' numbers.
    """

    NAME: ClassVar[str] = "types"
    types: list[Any]


@dataclass(frozen=True)
class Resumed(JobEvent):
    """Reports that the job starts from a snapshot of an earlier run.

    Arguments:
        number, lineage: the number and the lineage of the snapshot.
        log_records: the number of records in its in-flight logs.
        continues: the lineage of the snapshots that the job takes. It is another one in a fork.
    """

    NAME: ClassVar[str] = "resumed"
    number: int
    lineage: str
    log_records: int
    continues: str = ""


@dataclass(frozen=True)
class WorkersStarted(JobEvent):
    """Reports that the worker processes of an attempt were started."""

    NAME: ClassVar[str] = "workers"
    pids: list[int]


@dataclass(frozen=True)
class WorkerProfiled(JobEvent):
    """Has the call stacks of a worker that a client has requested.

    Arguments:
        worker, pid, samples, frames, stacks: as in `StacksSampled`.
    """

    NAME: ClassVar[str] = "stacks"
    worker: int
    pid: int
    samples: int
    frames: list[str]
    stacks: list[list[int]]


@dataclass(frozen=True)
class AttemptRunning(JobEvent):
    """Reports that all tasks of an attempt are open, and process records.

    Arguments:
        attempt: the number of restarts before this attempt.
    """

    NAME: ClassVar[str] = "running"
    attempt: int


@dataclass(frozen=True)
class JobSnapshotBegan(JobEvent):
    """Reports that the barriers of a snapshot with state are injected.

    Arguments:
        number, kind: the number and the kind of the snapshot.
        created_ms: the start of the snapshot, in milliseconds since the epoch.
    """

    NAME: ClassVar[str] = "began"
    number: int
    kind: str
    created_ms: int


@dataclass(frozen=True)
class JobSnapshotCompleted(JobEvent):
    """Reports that a snapshot with state is complete.

    Arguments:
        figures: the figures of the snapshot, as `PendingSnapshot.figures` returns them.
        tasks: the figures of each task, as `PendingSnapshot.tasks` has them.
    """

    NAME: ClassVar[str] = "snapshot"
    figures: dict[str, Any]
    tasks: list[list[Any]]

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map, with the names of the figures as keys."""
        return {"event": self.NAME, **self.figures, "tasks": self.tasks}


@dataclass(frozen=True)
class Committed(JobEvent):
    """Reports that the sinks have committed the output of a complete snapshot."""

    NAME: ClassVar[str] = "committed"


@dataclass(frozen=True)
class JobSnapshotAborted(JobEvent):
    """Reports that a snapshot was aborted, and for which reason."""

    NAME: ClassVar[str] = "aborted"
    number: int
    reason: str


@dataclass(frozen=True)
class JobSnapshotDelayed(JobEvent):
    """Reports that a snapshot has been in flight for a long time.

    Arguments:
        number: the number of the snapshot.
        seconds: the time since the snapshot began.
        waiting: a text that names the step for which the snapshot waits.
    """

    NAME: ClassVar[str] = "delayed"
    number: int
    seconds: float
    waiting: str


@dataclass(frozen=True)
class Restarting(JobEvent):
    """Reports that an attempt has failed, and that the job will be restarted.

    Arguments:
        error: the error of the attempt.
        delay_seconds: the time to wait before the restart.
        region: the name of the region that restarts alone; None if the whole job does.
    """

    NAME: ClassVar[str] = "restarting"
    error: PenstockError
    delay_seconds: float
    region: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map, with the fields of the error as keys."""
        told = {"cause": str(self.error), "delay_seconds": self.delay_seconds}
        region = {} if self.region is None else {"region": self.region}
        return {"event": self.NAME, **told, **region, **describe(self.error)}


@dataclass(frozen=True)
class Restarted(JobEvent):
    """Reports that the job processes records again after a restart.

    Arguments:
        figures: the figures of the restart, as they are in the report of the job.
    """

    NAME: ClassVar[str] = "restarted"
    figures: dict[str, Any]

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map, with the names of the figures as keys."""
        return {"event": self.NAME, **self.figures}


@dataclass(frozen=True)
class SlotsChanged(JobEvent):
    """Reports that the job continues with fewer or more workers than before.

    Arguments:
        slots: the number of workers of the next attempt.
        wanted: the number of workers for which the job asks.
        reason: the reason.
        graph: the execution graph of the next attempt, as `describe_graph` returns it.
    """

    NAME: ClassVar[str] = "slots"
    slots: int
    wanted: int
    reason: str
    graph: dict[str, Any]


@dataclass(frozen=True)
class GivingUp(JobEvent):
    """Reports that the job ends although its restart strategy would restart it."""

    NAME: ClassVar[str] = "giving_up"
    reason: str


@dataclass(frozen=True)
class JobFigures(JobEvent):
    """Reports the figures of a running job, at regular intervals.

    Arguments:
        operators, loops: the figures of each operator and of each back-edge.
        metrics: the metrics of the operators, as `JobMetrics.metrics` returns them.
        busy_workers: the slots of workers whose task loop has not reported for a while.
        tasks: the figures of each task, as `JobMetrics.tasks` returns them.
        subtasks: the figures of each operator's subtasks, as `JobMetrics.subtasks` returns them.
    """

    NAME: ClassVar[str] = "status"
    operators: list[dict[str, Any]]
    loops: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    busy_workers: Sequence[int]
    tasks: list[list[Any]] = field(default_factory=list)
    subtasks: dict[str, list[list[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobFinished(JobEvent):
    """Reports that the job has ended without a failure.

    Arguments:
        outcome: the outcome of the job.
        signal: the number of the signal with which another process has stopped the JobManager;
            None if there was none.
    """

    NAME: ClassVar[str] = "finished"
    outcome: JobOutcome
    signal: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map, with the fields of the outcome as keys."""
        return {"event": self.NAME, "signal": self.signal, **vars(self.outcome)}

    @property
    def stopped(self) -> bool:
        """Return whether the job was stopped before its input had ended."""
        return self.outcome.stopped


@dataclass(frozen=True)
class JobFailed(JobEvent):
    """Reports that the job has ended with a failure.

    Arguments:
        error: the error, as `describe` returns it.
        report: the fields of the `JobOutcome` until the failure; None if the job did not start.
    """

    NAME: ClassVar[str] = "failed"
    error: dict[str, Any]
    report: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map, with the fields of the error and the report as keys."""
        report = {} if self.report is None else {"report": self.report}
        return {"event": self.NAME, **self.error, **report}

"""The events of a running job: for its client, its log and its report.

Each class is one kind of event. `to_wire` returns the map in which it is sent: the key `event`
holds the name of the kind, and the other keys are the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.failures import describe
from penstock.runtime.jobmanager.job_settings import JobOutcome

__all__ = [
    "AttemptRunning",
    "Committed",
    "GivingUp",
    "JobEvent",
    "JobFailed",
    "JobFinished",
    "JobStarted",
    "JobStatus",
    "Note",
    "RecordClassesKnown",
    "Restarted",
    "Restarting",
    "Resumed",
    "JobSnapshotAborted",
    "JobSnapshotCompleted",
    "JobSnapshotDelayed",
    "WorkersStarted",
]


@dataclass(frozen=True)
class JobEvent:
    """The base of all events of a job."""

    #: The name of the kind, in the map that is sent.
    NAME: ClassVar[str]

    def to_wire(self) -> dict[str, Any]:
        """Return the event as a map of plain values."""
        return {"event": self.NAME, **vars(self)}


@dataclass(frozen=True)
class JobStarted(JobEvent):
    """The JobManager process runs and has compiled the job.

    Arguments:
        pid: the process id of the JobManager.
        operators: the uid and the name of each operator.
    """

    NAME: ClassVar[str] = "started"
    pid: int
    operators: list[list[str]]


@dataclass(frozen=True)
class Note(JobEvent):
    """A remark for the person who started the job."""

    NAME: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class RecordClassesKnown(JobEvent):
    """The record classes of the job are numbered.

    Arguments:
        types: `RecordSchema.to_wire` of each class, in the order of their numbers.
    """

    NAME: ClassVar[str] = "types"
    types: list[Any]


@dataclass(frozen=True)
class Resumed(JobEvent):
    """The job starts from a snapshot of an earlier run.

    Arguments:
        number, lineage: of the snapshot.
        log_records: the records in its logs.
    """

    NAME: ClassVar[str] = "resumed"
    number: int
    lineage: str
    log_records: int


@dataclass(frozen=True)
class WorkersStarted(JobEvent):
    """The worker processes of an attempt were started."""

    NAME: ClassVar[str] = "workers"
    pids: list[int]


@dataclass(frozen=True)
class AttemptRunning(JobEvent):
    """All tasks of an attempt are open, and process records.

    Arguments:
        attempt: the number of restarts before it.
    """

    NAME: ClassVar[str] = "running"
    attempt: int


@dataclass(frozen=True)
class JobSnapshotCompleted(JobEvent):
    """A snapshot that holds state is complete.

    Arguments:
        figures: `PendingSnapshot.figures`.
    """

    NAME: ClassVar[str] = "snapshot"
    figures: dict[str, Any]

    def to_wire(self) -> dict[str, Any]:
        """Return the figures, each under a key of its own."""
        return {"event": self.NAME, **self.figures}


@dataclass(frozen=True)
class Committed(JobEvent):
    """The sinks have committed the output of a complete snapshot."""

    NAME: ClassVar[str] = "committed"


@dataclass(frozen=True)
class JobSnapshotAborted(JobEvent):
    """A snapshot was aborted."""

    NAME: ClassVar[str] = "aborted"
    number: int
    reason: str


@dataclass(frozen=True)
class JobSnapshotDelayed(JobEvent):
    """A snapshot has been in flight for long.

    Arguments:
        number: of the snapshot.
        seconds: the time since it began.
        waiting: the step that it waits for.
    """

    NAME: ClassVar[str] = "delayed"
    number: int
    seconds: float
    waiting: str


@dataclass(frozen=True)
class Restarting(JobEvent):
    """An attempt has failed, and the job is about to be restarted.

    Arguments:
        error: the failure.
        delay_seconds: the wait before the restart.
    """

    NAME: ClassVar[str] = "restarting"
    error: PenstockError
    delay_seconds: float

    def to_wire(self) -> dict[str, Any]:
        """Return the error as plain values."""
        told = {"cause": str(self.error), "delay_seconds": self.delay_seconds}
        return {"event": self.NAME, **told, **describe(self.error)}


@dataclass(frozen=True)
class Restarted(JobEvent):
    """The job processes records again after a restart.

    Arguments:
        figures: the restart as the report of the job has it.
    """

    NAME: ClassVar[str] = "restarted"
    figures: dict[str, Any]

    def to_wire(self) -> dict[str, Any]:
        """Return the figures, each under a key of its own."""
        return {"event": self.NAME, **self.figures}


@dataclass(frozen=True)
class GivingUp(JobEvent):
    """The job ends although its restart strategy would restart it."""

    NAME: ClassVar[str] = "giving_up"
    reason: str


@dataclass(frozen=True)
class JobStatus(JobEvent):
    """The state of a running job, sent at regular times.

    Arguments:
        operators, loops: the figures of each operator and of each back-edge.
        busy_workers: the slots of workers whose task loop has not reported for a while.
    """

    NAME: ClassVar[str] = "status"
    operators: list[dict[str, Any]]
    loops: list[dict[str, Any]]
    busy_workers: Sequence[int]


@dataclass(frozen=True)
class JobFinished(JobEvent):
    """The job has ended without a failure."""

    NAME: ClassVar[str] = "finished"
    outcome: JobOutcome

    def to_wire(self) -> dict[str, Any]:
        """Return the fields of the outcome, each under a key of its own."""
        return {"event": self.NAME, **vars(self.outcome)}

    @property
    def stopped(self) -> bool:
        """Return whether the job was stopped before its input had ended."""
        return self.outcome.stopped


@dataclass(frozen=True)
class JobFailed(JobEvent):
    """The job has ended with a failure.

    Arguments:
        error: the failure, as `describe` returns it.
        report: the fields of the outcome so far; None if the job did not start.
    """

    NAME: ClassVar[str] = "failed"
    error: dict[str, Any]
    report: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the fields of the error, each under a key of its own, and the report."""
        report = {} if self.report is None else {"report": self.report}
        return {"event": self.NAME, **self.error, **report}

"""The state of a job, gathered from its events: for the HTTP API and the metrics.

The module does no I/O. An owner of the job passes each event to `JobState.handle`.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.dataflow.job_client import JobStatus
from penstock.runtime.control.event_log import EventLog
from penstock.snapshot.storage.job_paths import JobPaths

#: The number of snapshots and of failures that are kept.
KEPT_HISTORY = 100
#: The number of requests for snapshots that are kept.
KEPT_REQUESTS = 1_000
#: The number of shadow runs whose reports a job keeps.
KEPT_SHADOW_RUNS = 20
#: The time over which rates per second are measured, and between two samples, in seconds. Both are
#: Flink's.
RATE_SECONDS, SAMPLE_SECONDS = 60.0, 5.0
#: The time over which the busy and the blocked share of a task are measured, in seconds.
SHARE_SECONDS = 2.0


@dataclass
class SnapshotRequest:
    """A snapshot that a client has requested: a savepoint, or the final snapshot of a stop.

    Arguments:
        id: the id of the request.
        kind: "savepoint" or "final".
        location: the path of the snapshot; None until it is complete.
        failure: why there will be none; None otherwise.
        copied: whether the request is done only when a copy of the snapshot is complete.
    """

    id: str
    kind: str
    location: str | None = None
    failure: str | None = None
    copied: bool = False

    @property
    def done(self) -> bool:
        """Whether the snapshot is complete, or has failed."""
        return self.location is not None or self.failure is not None


@dataclass
class ShadowRequest:
    """A shadow run that a client has requested.

    Arguments:
        id: the id of the request.
        report: what `penstock upgrade --shadow --json` prints; None until the run has ended.
        failure: why there will be no report; None otherwise.
    """

    id: str
    report: dict[str, Any] | None = None
    failure: str | None = None

    @property
    def done(self) -> bool:
        """Whether the shadow run has ended."""
        return self.report is not None or self.failure is not None


@dataclass
class SnapshotRecord:
    """A snapshot of a job, as its events describe it.

    Arguments:
        number, kind: the number and the kind: "checkpoint", "savepoint" or "final".
        created_ms: the start, in milliseconds since the epoch.
        figures: the figures of the event `snapshot`; None if the snapshot is not complete.
        tasks: the figures of its tasks; see `PendingSnapshot.tasks`.
        acknowledged_ms: the time from the start to the last acknowledgement, in milliseconds; None
            if there is none.
        failure: why it was aborted; None if it was not.
        failed_ms: the time of the abortion, in milliseconds since the epoch.
    """

    number: int
    kind: str
    created_ms: int
    figures: dict[str, Any] | None = None
    tasks: list[list[Any]] = field(default_factory=list)
    acknowledged_ms: float | None = None
    failure: str | None = None
    failed_ms: int | None = None

    @property
    def status(self) -> str:
        """The status under Flink's name."""
        if self.failure is not None:
            return "FAILED"
        return "IN_PROGRESS" if self.figures is None else "COMPLETED"


@dataclass(frozen=True)
class FailureRecord:
    """A failure that has restarted or ended a job.

    Arguments:
        time_ms: the time, in milliseconds since the epoch.
        attempt: the attempt that has failed, counted from 0.
        error: the error, as `describe` returns it.
        region: the name of the region that restarts alone; None if the whole job does.
    """

    time_ms: int
    attempt: int
    error: dict[str, Any]
    region: str | None = None


@dataclass(frozen=True)
class Figures:
    """The figures of a running job at one time.

    Arguments:
        time: the time on the clock of the state, in seconds.
        tasks: (busy seconds, blocked seconds, queued elements) of each task, by chain and subtask.
        subtasks: (records in, records out, watermark) by the uid of the operator and the subtask.
        operators, loops, metrics: the figures of the event `status`.
    """

    time: float
    tasks: dict[tuple[int, int], tuple[float, float, int]]
    subtasks: dict[tuple[str, int], tuple[int, int, int | None]]
    operators: list[dict[str, Any]]
    loops: list[dict[str, Any]]
    metrics: list[dict[str, Any]]


class TaskShares(NamedTuple):
    """The shares of time of a task: each is between 0 and 1, and their sum is 1."""

    busy: float
    idle: float
    blocked: float


class JobState:
    """Gathers the state of one job from its events.

    Arguments:
        id, name: the id and the name of the job.
        clock: returns a time in seconds that never goes back.
        wall_clock: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        id: str,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.id, self.name = id, name
        self._clock, self._wall_clock = clock, wall_clock
        #: The time of the event that is handled, in milliseconds since the epoch; None for now.
        self._event_ms: int | None = None
        self.started_ms = self.now_ms()
        self.ended_ms: int | None = None
        self.status = JobStatus.INITIALIZING
        #: The time at which the job came into each status, in milliseconds since the epoch.
        self.since_ms = {JobStatus.INITIALIZING: self.started_ms}
        self.graph: dict[str, Any] = {"max_parallelism": 0, "vertices": [], "edges": []}
        self.config: dict[str, Any] = {}
        self.pid: int | None = None
        self.worker_pids: list[int] = []
        #: The number of workers that the job needs, as its service counts them; 0 without one.
        self.slots = 0
        #: The number of restarts of the whole job, and of restarts with those of regions.
        self.attempt, self.restarts = 0, 0
        self.snapshots: deque[SnapshotRecord] = deque(maxlen=KEPT_HISTORY)
        self.latest: dict[str, SnapshotRecord] = {}
        self.completed, self.failed, self.restored = 0, 0, 0
        #: The snapshot that the job has resumed from: its number, and the time, in milliseconds.
        self.resumed: tuple[int, int] | None = None
        self.failures: deque[FailureRecord] = deque(maxlen=KEPT_HISTORY)
        #: The requests for snapshots, by their id, oldest first.
        self.requests: dict[str, SnapshotRequest] = {}
        #: The shadow runs that a client has requested, by the ids of the requests.
        self.shadow_runs: dict[str, ShadowRequest] = {}
        #: The newest call stacks of each worker that a client has requested, by its number.
        self.profiles: dict[int, dict[str, Any]] = {}
        self.log = EventLog()
        self.figures: Figures | None = None
        self._samples: deque[Figures] = deque()
        self._recent: deque[Figures] = deque()

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch.

        While an event is handled that says when it was reported, it is that time.
        """
        if self._event_ms is not None:
            return self._event_ms
        return int(self._wall_clock() * 1000)

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.status.is_globally_terminal_state()

    # ---- events

    def handle(self, event: dict[str, Any]) -> None:
        """Record an event of the job.

        An event that was kept in a file says when it was reported, in seconds since the epoch.
        """
        self._event_ms = int(event["time"] * 1000) if "time" in event else None
        try:
            self._handle(event)
        finally:
            self._event_ms = None
        if event["event"] != "stacks":
            self.log.append(event)  # a profile is an answer to one client, and large

    def _handle(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "queued":
                self._become(JobStatus.CREATED)
            case "started":
                if self.ended:
                    self.begin_again()
                self._become(JobStatus.INITIALIZING)
                self.pid = event["pid"]
                self.graph, self.config = event["graph"], event["config"]
                # A JobManager that takes a job over aborts what the one before had begun.
                self._drop_pending("the JobManager was replaced")
            case "workers":
                self.worker_pids = list(event["pids"])
            case "running" | "restarted":
                self._become(JobStatus.RUNNING)
            case "resumed":
                self.resumed = event["number"], self.now_ms()
                self.restored += 1
            case "restarting":
                self._restarting(event)
            case "slots":
                self.graph = event["graph"]
            case "status":
                self._update_figures(event)
            case "stacks":
                profile = {key: value for key, value in event.items() if key != "event"}
                self.profiles[event["worker"]] = {**profile, "time_ms": self.now_ms()}
            case "began":
                self._add(SnapshotRecord(event["number"], event["kind"], event["created_ms"]))
            case "snapshot":
                self._complete(event)
            case "aborted":
                self._abort(event)
            case "finished":
                self.end(JobStatus.FINISHED, "the job has finished")
            case "failed":
                self._failed(event)

    def begin_again(self) -> None:
        """Record that a job that has ended is started again."""
        self.status, self.ended_ms = JobStatus.CREATED, None
        self.since_ms[self.status] = self.now_ms()
        self.log.closed = False
        self._forget_figures()

    def cancelling(self) -> None:
        """Record that the job is about to be cancelled."""
        self._become(JobStatus.CANCELLING)

    def connection_ended(self, how: str) -> None:
        """Record that no event will follow. A job that has not ended before has failed.

        Arguments:
            how: how the JobManager has ended.
        """
        if not self.ended:
            if self.status is JobStatus.CANCELLING:
                self.end(JobStatus.CANCELED, "the job was cancelled")
            else:
                message = f"the JobManager process {how}"
                self._failed({"family": "StoreError", "message": message})
        self.log.close()

    def _become(self, status: JobStatus) -> None:
        if not self.ended and self.status is not status:
            # A job that is being cancelled can only end.
            if self.status is JobStatus.CANCELLING and not status.is_globally_terminal_state():
                return
            self.status = status
            self.since_ms[status] = self.now_ms()

    def end(self, status: JobStatus, why: str) -> None:
        """Record that the job has ended, and that requested snapshots will not be taken.

        Arguments:
            status: how the job has ended.
            why: the same as a text.
        """
        self._become(status)
        self.ended_ms = self.now_ms()
        for request in self.requests.values():
            if not request.done and not request.copied:
                request.failure = f"{why} before it took the snapshot"
        self._drop_pending(why)

    def _failed(self, event: dict[str, Any]) -> None:
        if self.status is JobStatus.CANCELLING:
            self.end(JobStatus.CANCELED, "the job was cancelled")
            return
        error = {key: value for key, value in event.items() if key not in ("event", "report")}
        self.failures.append(FailureRecord(self.now_ms(), self.attempt, error))
        self.end(JobStatus.FAILED, "the job failed")

    def _restarting(self, event: dict[str, Any]) -> None:
        region = event.get("region")
        error = {key: value for key, value in event.items() if key not in ("event", "region")}
        self.failures.append(FailureRecord(self.now_ms(), self.attempt, error, region))
        self.restarts += 1
        self.restored += 1
        self._become(JobStatus.RESTARTING)
        if region is None:
            self.attempt += 1
            self._drop_pending("the job restarts")
        self._forget_figures()

    def _forget_figures(self) -> None:
        """Forget the figures of the last attempt: its tasks count from 0 again."""
        self._samples.clear()
        self._recent.clear()

    # ---- snapshots

    def request_snapshot(self, kind: str, *, copied: bool = False) -> SnapshotRequest:
        """Return a new request for a snapshot of a kind, which the next such snapshot fulfils.

        Arguments:
            kind: "savepoint" or "final".
            copied: whether the caller copies the snapshot, and fulfils the request.
        """
        request = SnapshotRequest(secrets.token_hex(16), kind, copied=copied)
        if self.ended:
            request.failure = "the job has ended"
        self.requests[request.id] = request
        while len(self.requests) > KEPT_REQUESTS:
            del self.requests[next(iter(self.requests))]
        return request

    def request_shadow_run(self) -> ShadowRequest:
        """Return a new request for a shadow run, which the caller fulfils."""
        request = ShadowRequest(secrets.token_hex(16))
        self.shadow_runs[request.id] = request
        while len(self.shadow_runs) > KEPT_SHADOW_RUNS:
            del self.shadow_runs[next(iter(self.shadow_runs))]
        return request

    def snapshot(self, number: int) -> SnapshotRecord | None:
        """Return the newest record of a snapshot; None if there is none."""
        return next((one for one in reversed(self.snapshots) if one.number == number), None)

    def location(self, number: int) -> str | None:
        """Return the path of a snapshot; None if the job has no checkpoint folder."""
        folder = self.config.get("checkpoint_dir")
        return None if folder is None else str(JobPaths(Path(folder)).snapshot(number))

    def _add(self, record: SnapshotRecord) -> SnapshotRecord:
        self.snapshots.append(record)
        return record

    def _pending(self, number: int, kind: str, created_ms: int) -> SnapshotRecord:
        record = self.snapshot(number)
        if record is not None and record.status == "IN_PROGRESS":
            return record
        return self._add(SnapshotRecord(number, kind, created_ms))

    def _complete(self, event: dict[str, Any]) -> None:
        number, kind = event["number"], event["kind"]
        record = self._pending(number, kind, event["created_ms"])
        record.tasks = event["tasks"]
        record.acknowledged_ms = max((row[2] for row in record.tasks), default=None)
        record.figures = {
            key: value for key, value in event.items() if key not in ("event", "tasks")
        }
        self.completed += 1
        self.latest["savepoint" if kind == "savepoint" else "completed"] = record
        for request in self.requests.values():
            if request.kind == kind and not request.done and not request.copied:
                request.location = self.location(number)
                if request.location is None:
                    request.failure = "the job has no checkpoint folder, so nothing was kept"

    def _abort(self, event: dict[str, Any]) -> None:
        record = self._pending(event["number"], "checkpoint", self.now_ms())
        record.failure, record.failed_ms = event["reason"], self.now_ms()
        self.failed += 1
        self.latest["failed"] = record

    def _drop_pending(self, why: str) -> None:
        for record in self.snapshots:
            if record.status == "IN_PROGRESS":
                record.failure, record.failed_ms = why, self.now_ms()
                self.failed += 1
                self.latest["failed"] = record

    # ---- figures

    def _update_figures(self, event: dict[str, Any]) -> None:
        now = self._clock()
        self.figures = figures = Figures(
            now,
            {(chain, subtask): tuple(rest) for chain, subtask, *rest in event["tasks"]},
            {
                (uid, subtask): tuple(rest)
                for uid, rows in event["subtasks"].items()
                for subtask, *rest in rows
            },
            event["operators"],
            event["loops"],
            event["metrics"],
        )
        _keep(self._recent, figures, SHARE_SECONDS, 0.0)
        _keep(self._samples, figures, RATE_SECONDS, SAMPLE_SECONDS)

    def records_in_per_second(self, uid: str, subtask: int) -> float:
        """Return the records that a subtask received per second, over the last minute."""
        return self._rate((uid, subtask), 0)

    def records_out_per_second(self, uid: str, subtask: int) -> float:
        """Return the records that a subtask emitted per second, over the last minute."""
        return self._rate((uid, subtask), 1)

    def _rate(self, subtask: tuple[str, int], column: Literal[0, 1]) -> float:
        if self.figures is None or not self._samples:
            return 0.0
        before = self._samples[0]
        seconds = self.figures.time - before.time
        now = self.figures.subtasks.get(subtask)
        if now is None or seconds <= 0:
            return 0.0
        then = before.subtasks.get(subtask)
        records = now[column] if then is None else now[column] - then[column]
        return max(0, records) / seconds

    def last_minute(self) -> tuple[Figures, Figures, float] | None:
        """Return the same as `recent` with figures of a minute ago, for rates."""
        if self.figures is None or not self._samples:
            return None
        before = self._samples[0]
        return before, self.figures, self.figures.time - before.time

    def recent(self) -> tuple[Figures, Figures, float] | None:
        """Return figures of some seconds ago, the newest ones, and the seconds between them.

        Return None if there are none.
        """
        if self.figures is None or not self._recent or self.ended:
            return None
        before = self._recent[0]
        return before, self.figures, self.figures.time - before.time

    def shares(self, chain: int, subtask: int) -> TaskShares:
        """Return how a task has spent the last seconds."""
        if self.figures is None or not self._recent or self.ended:
            return TaskShares(0.0, 1.0, 0.0)
        before = self._recent[0]
        seconds = self.figures.time - before.time
        now = self.figures.tasks.get((chain, subtask))
        if now is None or seconds <= 0:
            return TaskShares(0.0, 1.0, 0.0)
        then = before.tasks.get((chain, subtask), (0.0, 0.0, 0))
        busy = min(1.0, max(0.0, (now[0] - then[0]) / seconds))
        blocked = min(1.0 - busy, max(0.0, (now[1] - then[1]) / seconds))
        return TaskShares(busy, max(0.0, 1.0 - busy - blocked), blocked)


def _keep(samples: deque[Figures], figures: Figures, span: float, pause: float) -> None:
    """Add figures to samples of which the oldest is at least as old as a time span.

    Arguments:
        samples: the samples, oldest first.
        figures: the newest figures.
        span: the time span, in seconds.
        pause: the shortest time between two samples, in seconds.
    """
    if not samples or figures.time - samples[-1].time >= pause:
        samples.append(figures)
    while len(samples) > 1 and samples[1].time <= figures.time - span:
        samples.popleft()

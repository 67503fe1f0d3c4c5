"""The snapshot coordinator: when snapshots begin, complete, and are given up.

Sans-IO: an event goes in, an ordered list of commands comes out. Time is an event too. The
driver is `penstock.runtime.jobmanager.jobmanager`, which injects barriers, writes manifests and
tells sinks to commit when it is told to here.

One snapshot is in flight at a time:

    WAITING   ── interval ──▶ COLLECTING ── all acknowledged ──▶ PUBLISHING ── durable ──▶ WAITING
                                  │ declined, timed out              │ failed
                                  └────────────▶ WAITING ◀───────────┘      (aborted)

A snapshot is complete when its manifest is durable, and only then are sinks told to commit. A
number is used once; aborted ones are never used again. When every task has processed all its
input, or when the job is to stop, one final snapshot is taken and the job finishes with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.events import SnapshotKind

__all__ = [
    "AbortSnapshot",
    "Acknowledged",
    "CompleteSnapshot",
    "Coordinator",
    "CoordinatorCommand",
    "CoordinatorEvent",
    "Declined",
    "FailAttempt",
    "FinishJob",
    "TaskInputEnded",
    "InjectBarriers",
    "NumbersReserved",
    "PrepareSnapshot",
    "PublishSnapshot",
    "PublishFailed",
    "Published",
    "ReserveNumbers",
    "SavepointRequested",
    "CheckpointRequested",
    "State",
    "StopRequested",
    "Tick",
]


#: A snapshot is announced this time before it is due, or this share of the interval if that is
#: less.
LEAD_SECONDS, LEAD_SHARE = 0.3, 1 / 4


@dataclass(frozen=True)
class Tick:
    """It is `now`, in seconds on the driver's monotonic clock."""

    now: float


@dataclass(frozen=True)
class Acknowledged:
    """A task has written its state of snapshot `number`."""

    task: Hashable
    number: int


@dataclass(frozen=True)
class Declined:
    """A task cannot take part in snapshot `number`."""

    task: Hashable
    number: int
    reason: str


@dataclass(frozen=True)
class TaskInputEnded:
    """A task has processed all of its bounded input."""

    task: Hashable


@dataclass(frozen=True)
class Published:
    """The manifest of snapshot `number` is durable."""

    number: int


@dataclass(frozen=True)
class PublishFailed:
    """The manifest of snapshot `number` could not be written."""

    number: int
    reason: str


@dataclass(frozen=True)
class NumbersReserved:
    """These numbers are reserved durably, and are this coordinator's to use."""

    numbers: range


@dataclass(frozen=True)
class StopRequested:
    """The job is to end now, with a last snapshot."""


@dataclass(frozen=True)
class SavepointRequested:
    """A person wants a snapshot that retention never removes."""


@dataclass(frozen=True)
class CheckpointRequested:
    """A checkpoint is to begin within `delay_seconds` of the last `Tick`, so send one first.

    Asked for by `penstock.snapshot.coordination.loop_termination`, to see how a loop stands. The
    one in flight does not serve: its cut may have been too early. Any that begins afterwards does.
    """

    delay_seconds: float


@dataclass(frozen=True)
class PrepareSnapshot:
    """Snapshot `number` is due in so many seconds: do what can be done ahead of it.

    Nothing is begun by it. Another snapshot may come first, which has that number then.
    """

    number: int
    seconds: float


@dataclass(frozen=True)
class InjectBarriers:
    """Send barrier `number` to every source."""

    number: int
    kind: SnapshotKind


@dataclass(frozen=True)
class PublishSnapshot:
    """Write the manifest of snapshot `number` durably; every task has acknowledged."""

    number: int


@dataclass(frozen=True)
class CompleteSnapshot:
    """Snapshot `number` is complete: commit what it staged, apply retention, tell the tasks."""

    number: int


@dataclass(frozen=True)
class AbortSnapshot:
    """Snapshot `number` is given up; tell every task."""

    number: int
    reason: str


@dataclass(frozen=True)
class FailAttempt:
    """Too many snapshots failed in a row: fail the attempt."""

    reason: str


@dataclass(frozen=True)
class FinishJob:
    """The final snapshot is complete; commit it and end the job."""

    number: int


@dataclass(frozen=True)
class ReserveNumbers:
    """Reserve more numbers; few or none are left."""


CoordinatorEvent = (
    Tick
    | Acknowledged
    | Declined
    | TaskInputEnded
    | Published
    | PublishFailed
    | NumbersReserved
    | StopRequested
    | SavepointRequested
    | CheckpointRequested
)
CoordinatorCommand = (
    PrepareSnapshot
    | InjectBarriers
    | PublishSnapshot
    | CompleteSnapshot
    | AbortSnapshot
    | FailAttempt
    | FinishJob
    | ReserveNumbers
)


class State(Enum):
    """What the coordinator is doing."""

    WAITING = "waiting"
    COLLECTING = "collecting"
    PUBLISHING = "publishing"
    FINISHED = "finished"


class Coordinator:
    """Coordinates the snapshots of one execution attempt.

    Arguments:
        tasks: all tasks of the attempt.
        now: the time at which it starts.
        interval: seconds between the starts of snapshots; None takes only those that are asked
            for, and the final one.
        timeout: a snapshot older than this is given up.
        min_pause: seconds between the end of one and the start of the next that is due by the
            clock or wanted; without an interval there is none.
        tolerable_failures: so many failures in a row are borne.
        numbers: reserved snapshot numbers.
        announce: whether a snapshot that is due by the clock is announced before.
    """

    LOW_WATER = 8

    def __init__(
        self,
        tasks: Iterable[Hashable],
        *,
        now: float,
        interval: float | None,
        timeout: float,
        min_pause: float = 0.0,
        tolerable_failures: int = 0,
        numbers: range,
        announce: bool = False,
    ) -> None:
        self.tasks = frozenset(tasks)
        self.interval, self.timeout, self.min_pause = interval, timeout, min_pause
        self.tolerable_failures = tolerable_failures
        #: Seconds between the announcement and the snapshot; 0 if there is none.
        self.lead = min(LEAD_SECONDS, (interval or 0.0) * LEAD_SHARE) if announce else 0.0
        self.state = State.WAITING
        #: The number in flight and its kind; None exactly while WAITING or FINISHED.
        self.number: int | None = None
        self.kind = SnapshotKind.CHECKPOINT
        #: Tasks that have acknowledged the number in flight.
        self.acknowledged: set[Hashable] = set()
        #: Tasks that have processed all their input.
        self.ended: set[Hashable] = set()
        self.failures = 0
        self._numbers = list(numbers)
        self._reserving = False
        self._now = now
        self._started = now
        self._due = None if interval is None else now + interval
        #: When a snapshot that is wanted has to begin, and the end of the pause before it.
        self._wanted: float | None = None
        self._pause_until = now
        self._stopping = False
        self._savepoints = 0
        #: The number that was announced last.
        self._announced = -1
        #: Whether the snapshot in flight ends the job.
        self._final = False

    def handle(self, event: CoordinatorEvent) -> list[CoordinatorCommand]:
        """What to do about an event, in this order."""
        if self.state is State.FINISHED:
            return []
        match event:
            case Tick(now):
                self._now = max(self._now, now)
                commands = self._time_out()
            case Acknowledged(task, number):
                commands = self._acknowledge(task, number)
            case Declined(task, number, reason):
                in_flight = self.state is State.COLLECTING and number == self.number
                commands = self._abort(f"{task}: {reason}") if in_flight else []
            case TaskInputEnded(task):
                if task not in self.tasks:
                    raise ProtocolError(f"input of unknown task {task} ended")
                self.ended.add(task)
                commands = []
            case Published(number):
                commands = self._published(number)
            case PublishFailed(number, reason):
                commands = self._abort(reason) if number == self.number else []
            case NumbersReserved(numbers):
                self._numbers += numbers
                self._reserving = False
                commands = []
            case StopRequested():
                self._stopping = True
                commands = []
            case SavepointRequested():
                self._savepoints += 1
                commands = []
            case CheckpointRequested(delay_seconds):
                at = self._now + delay_seconds
                self._wanted = at if self._wanted is None else min(at, self._wanted)
                commands = []
        if self.state is State.WAITING:
            commands += self._begin() or self._announce()
        return commands

    def next_tick(self) -> float | None:
        """When to send the next `Tick`, at the latest; None: none is needed."""
        if self.state is State.COLLECTING:
            return self._started + self.timeout
        if self.state is State.WAITING:
            times = (self._announcement(), self._next_checkpoint())
            return min((at for at in times if at is not None), default=None)
        return None

    def _announcement(self) -> float | None:
        """When the next snapshot is to be announced; None: it need not be."""
        if not self.lead or self._due is None or not self._numbers:
            return None
        return None if self._announced == self._numbers[0] else self._due - self.lead

    def _announce(self) -> list[CoordinatorCommand]:
        at = self._announcement()
        if at is None or self._due is None or self._now < at:
            return []
        self._announced = self._numbers[0]
        return [PrepareSnapshot(self._announced, max(0.0, self._due - self._now))]

    def _next_checkpoint(self) -> float | None:
        """When the next checkpoint is due, by the clock or because it is wanted."""
        if self._wanted is None:
            return self._due
        wanted = max(self._wanted, self._pause_until)
        return wanted if self._due is None else min(wanted, self._due)

    def _begin(self) -> list[CoordinatorCommand]:
        final = self._stopping or self.ended == self.tasks
        due = self._next_checkpoint()
        if not (final or self._savepoints or (due is not None and self._now >= due)):
            return []
        if not self._numbers:
            return self._reserve()
        if final:
            self.kind = SnapshotKind.FINAL
        elif self._savepoints:
            self.kind, self._savepoints = SnapshotKind.SAVEPOINT, self._savepoints - 1
        else:
            self.kind = SnapshotKind.CHECKPOINT
        self._final, self._wanted = final, None
        self.number = self._numbers.pop(0)
        self.state, self.acknowledged, self._started = State.COLLECTING, set(), self._now
        commands: list[CoordinatorCommand] = [InjectBarriers(self.number, self.kind)]
        if len(self._numbers) < self.LOW_WATER:
            commands += self._reserve()
        return commands

    def _reserve(self) -> list[CoordinatorCommand]:
        if self._reserving:
            return []
        self._reserving = True
        return [ReserveNumbers()]

    def _acknowledge(self, task: Hashable, number: int) -> list[CoordinatorCommand]:
        if task not in self.tasks:
            raise ProtocolError(f"unknown task {task} acknowledged snapshot {number}")
        if self.state is not State.COLLECTING or number != self.number:
            return []  # of a snapshot that was given up
        if task in self.acknowledged:
            raise ProtocolError(f"task {task} acknowledged snapshot {number} twice")
        self.acknowledged.add(task)
        if self.acknowledged != self.tasks:
            return []
        self.state = State.PUBLISHING
        return [PublishSnapshot(number)]

    def _published(self, number: int) -> list[CoordinatorCommand]:
        if self.state is not State.PUBLISHING or number != self.number:
            raise ProtocolError(f"snapshot {number} published in state {self.state.value}")
        self.failures = 0
        # One that was begun before the last task ended is not the final one: what was emitted
        # behind its barrier still waits to be committed.
        if self._final:
            self.state, self.number = State.FINISHED, None
            return [FinishJob(number)]
        self._rest()
        return [CompleteSnapshot(number)]

    def _abort(self, reason: str) -> list[CoordinatorCommand]:
        assert self.number is not None
        number = self.number
        self.failures += 1
        self._rest()
        if self.failures > self.tolerable_failures:
            return [
                AbortSnapshot(number, reason),
                FailAttempt(f"snapshot {number} failed: {reason}"),
            ]
        return [AbortSnapshot(number, reason)]

    def _rest(self) -> None:
        self.state, self.number = State.WAITING, None
        if self.interval is not None:
            self._pause_until = self._now + self.min_pause
            self._due = max(self._started + self.interval, self._pause_until)

    def _time_out(self) -> list[CoordinatorCommand]:
        if self.state is State.COLLECTING and self._now >= self._started + self.timeout:
            missing = sorted(map(str, self.tasks - self.acknowledged))
            return self._abort(
                f"not done after {self.timeout:g} s; no acknowledgement from {', '.join(missing)}"
            )
        return []

"""Decide when snapshots begin, when they are complete, and when they are aborted.

The coordinator is sans-IO: it takes an event, and returns an ordered list of commands. The current
time is an event, too. The driver in `penstock.runtime.jobmanager` executes the commands: it injects
barriers, writes manifests and commits the output of sinks.

One snapshot is in flight at a time:

    WAITING   ── interval ──▶ COLLECTING ── all acknowledged ──▶ PUBLISHING ── durable ──▶ WAITING
                                  │ declined, timed out              │ failed
                                  └────────────▶ WAITING ◀───────────┘      (aborted)

A snapshot is complete when its manifest is durable. Only then may sinks commit. Each number is used
only once, even if its snapshot is aborted.

A savepoint commits nothing. When all tasks have acknowledged it, it is *held*, and a checkpoint
begins at once. The output up to the savepoint is committed with that checkpoint, or with the final
snapshot. Only then the manifest of the savepoint is written. So a complete savepoint holds no
output that is not published, and is never the newest snapshot, from which the job recovers. See
`docs/inside/decisions/075-savepoints-commit-nothing.md`.

Tasks without a path to other tasks may be lost and restart alone. Then the snapshot in flight is
aborted. Until they return, checkpoints are *partial*: they contain no new state of the lost tasks.
Their parts of the newest snapshot stay valid, since no record passes between them and other tasks.
If records pass, there is no snapshot until the lost tasks have returned.

When every task has processed all its input, or when the user stops the job, the coordinator takes a
final snapshot. Then the job ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.coordination.checkpoint_schedule import CheckpointSchedule
from penstock.snapshot.protocols.events import SnapshotKind


@dataclass(frozen=True)
class Tick:
    """Gives the coordinator the current time: `now`, in seconds on the caller's monotonic clock."""

    now: float


@dataclass(frozen=True)
class Acknowledged:
    """A task has written its part of snapshot `number`."""

    task: Hashable
    number: int


@dataclass(frozen=True)
class Declined:
    """A task has declined snapshot `number`, for the given reason."""

    task: Hashable
    number: int
    reason: str


@dataclass(frozen=True)
class TaskInputEnded:
    """A task has processed all of its bounded input."""

    task: Hashable


@dataclass(frozen=True)
class TasksLost:
    """Some tasks have failed, and restart from the newest snapshot without the others.

    Arguments:
        tasks: the tasks.
        alone: whether no record passes between them and the others. Otherwise there is no snapshot
            before they have returned.
    """

    tasks: frozenset[Hashable]
    alone: bool = True


@dataclass(frozen=True)
class TasksReturned:
    """Lost tasks process records again.

    Arguments:
        tasks: the tasks.
        numbers: the snapshot numbers to use from now on. They are higher than all used before.
    """

    tasks: frozenset[Hashable]
    numbers: range


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
    """These snapshot numbers are reserved durably; the coordinator may use them."""

    numbers: range


@dataclass(frozen=True)
class StopRequested:
    """The user requested to stop the job with a final snapshot."""


@dataclass(frozen=True)
class SavepointRequested:
    """The user requested a savepoint: a snapshot that retention never removes."""


@dataclass(frozen=True)
class CheckpointRequested:
    """A checkpoint must begin within `delay_seconds` after the last `Tick`.

    The driver must send a `Tick` before this event. `loop_termination` requests checkpoints to find
    out whether a loop has ended. A snapshot in flight does not fulfil the request, because some
    tasks may have captured their state already. A snapshot that begins after the request does.
    """

    delay_seconds: float


@dataclass(frozen=True)
class PrepareSnapshot:
    """Notify the tasks that snapshot `number` will begin in `seconds`.

    The tasks can then prepare for the snapshot. This command does not begin the snapshot. If
    another snapshot begins earlier, such as a savepoint, that snapshot gets the number.
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
    """Write the manifest of snapshot `number`, which all tasks have acknowledged."""

    number: int


@dataclass(frozen=True)
class HoldSavepoint:
    """Keep savepoint `number`, which all tasks have acknowledged, until the next snapshot.

    The tasks must keep the committables of the savepoint, and send them with the next snapshot.
    """

    number: int


@dataclass(frozen=True)
class CompleteSnapshot:
    """Commit the staged output of snapshot `number`, and notify the tasks.

    The driver then writes the manifests of the held `savepoints`, and removes old snapshots.
    """

    number: int
    savepoints: tuple[int, ...] = ()


@dataclass(frozen=True)
class AbortSnapshot:
    """Notify every task that snapshot `number` is aborted."""

    number: int
    reason: str


@dataclass(frozen=True)
class FailAttempt:
    """Fail the execution attempt, because too many snapshots failed in a row."""

    reason: str


@dataclass(frozen=True)
class FinishJob:
    """Commit the final snapshot, write the manifests of held savepoints, and end the job."""

    number: int
    savepoints: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReserveNumbers:
    """Reserve more snapshot numbers, because few or none are left."""


CoordinatorEvent = (
    Tick
    | Acknowledged
    | Declined
    | TaskInputEnded
    | TasksLost
    | TasksReturned
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
    | HoldSavepoint
    | CompleteSnapshot
    | AbortSnapshot
    | FailAttempt
    | FinishJob
    | ReserveNumbers
)


#: The reason for which snapshots of lost tasks are aborted.
_LOST = "tasks were lost, and restart without the others"


class CoordinatorState(Enum):
    """The phase of the coordinator, as in the diagram in the module's docstring."""

    WAITING = "waiting"
    COLLECTING = "collecting"
    PUBLISHING = "publishing"
    FINISHED = "finished"


class Coordinator:
    """Coordinates the snapshots of one execution attempt.

    Arguments:
        tasks: all tasks of the attempt.
        now: the time at which the attempt starts, in seconds.
        interval: the number of seconds between the starts of two periodic checkpoints. With None,
            there are only requested snapshots and the final one.
        timeout: the number of seconds after which an incomplete snapshot is aborted.
        min_pause: the shortest time between the end of a snapshot and the start of the next
            checkpoint, in seconds. Ignored if `interval` is None.
        tolerable_failures: the number of consecutive failed snapshots that do not fail the attempt.
        numbers: the reserved snapshot numbers.
        announce: whether the tasks are notified before a periodic checkpoint begins.
    """

    #: The number of unused snapshot numbers below which the coordinator reserves more.
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
        self.timeout, self.tolerable_failures = timeout, tolerable_failures
        self.state = CoordinatorState.WAITING
        #: The number of the snapshot in flight; None while the state is WAITING or FINISHED.
        self.number: int | None = None
        self.kind = SnapshotKind.CHECKPOINT
        #: The tasks that have acknowledged the snapshot in flight.
        self.acknowledged: set[Hashable] = set()
        #: The tasks that have processed all their input.
        self.ended: set[Hashable] = set()
        #: The tasks that take part in the snapshot in flight, or in the last one.
        self.members: frozenset[Hashable] = self.tasks
        self.failures = 0
        self._lost: frozenset[Hashable] = frozenset()
        #: The lost tasks without which no snapshot is taken.
        self._awaited: frozenset[Hashable] = frozenset()
        #: Whether a snapshot of all tasks is complete. A partial one takes parts of it.
        self._has_whole = False
        self._numbers = list(numbers)
        self._highest = numbers[-1] if numbers else 0
        self._reserving = False
        self._now = now
        self._started = now
        self._schedule = CheckpointSchedule(now, interval, min_pause, announce=announce)
        self._stopping = False
        self._savepoints = 0
        #: The savepoints that all tasks have acknowledged, and whose output is not committed yet.
        self._held: tuple[int, ...] = ()
        #: Whether the snapshot in flight ends the job.
        self._final = False

    def handle(self, event: CoordinatorEvent) -> list[CoordinatorCommand]:
        """Process an event, and return the commands to execute, in this order.

        Raises:
            ProtocolError: if the event is impossible in the current state.
        """
        if self.state is CoordinatorState.FINISHED:
            return []
        match event:
            case Tick(now):
                self._now = max(self._now, now)
                commands = self._time_out()
            case Acknowledged(task, number):
                commands = self._acknowledge(task, number)
            case Declined(task, number, reason):
                in_flight = self.state is CoordinatorState.COLLECTING and number == self.number
                commands = self._abort(f"{task}: {reason}") if in_flight else []
            case TaskInputEnded(task):
                if task not in self.tasks:
                    raise ProtocolError(f"input of unknown task {task} ended")
                self.ended.add(task)
                commands = []
            case TasksLost(tasks, alone):
                self._awaited = self._awaited - tasks if alone else self._awaited | tasks
                commands = self._lose(tasks)
            case TasksReturned(tasks, numbers):
                self._lost -= tasks
                self._awaited -= tasks
                self._numbers = []
                self._add_numbers(numbers)
                commands = []
            case Published(number):
                commands = self._published(number)
            case PublishFailed(number, reason):
                commands = self._abort(reason) if number == self.number else []
            case NumbersReserved(numbers):
                self._add_numbers(numbers)
                self._reserving = False
                commands = []
            case StopRequested():
                self._stopping = True
                commands = []
            case SavepointRequested():
                self._savepoints += 1
                commands = []
            case CheckpointRequested(delay_seconds):
                self._schedule.request(self._now + delay_seconds)
                commands = []
        if self.state is CoordinatorState.WAITING:
            commands += self._begin() or self._announce()
        return commands

    def next_tick(self) -> float | None:
        """Return the time at which the next `Tick` is needed, in seconds, or None."""
        if self.state is CoordinatorState.COLLECTING:
            return self._started + self.timeout
        if self.state is CoordinatorState.WAITING and not self._needs_lost_tasks():
            times = [self._schedule.next_checkpoint()]
            if self._numbers:
                times.append(self._schedule.next_announcement(self._numbers[0]))
            return min((at for at in times if at is not None), default=None)
        return None

    def _announce(self) -> list[CoordinatorCommand]:
        if not self._numbers:
            return []
        number = self._numbers[0]
        seconds = self._schedule.announce(number, self._now)
        return [] if seconds is None else [PrepareSnapshot(number, seconds)]

    def _begin(self) -> list[CoordinatorCommand]:
        final = self._stopping or self.ended == self.tasks
        due = self._schedule.next_checkpoint()
        if not (final or self._savepoints or (due is not None and self._now >= due)):
            return []
        if self._needs_lost_tasks():
            return []
        if not self._numbers:
            return self._reserve()
        if final:
            self.kind = SnapshotKind.FINAL
        elif self._savepoints:
            self.kind, self._savepoints = SnapshotKind.SAVEPOINT, self._savepoints - 1
        else:
            self.kind = SnapshotKind.CHECKPOINT
        self._final = final
        self.members = self.tasks - self._lost
        self._schedule.snapshot_began()
        self.number = self._numbers.pop(0)
        self.state, self.acknowledged, self._started = CoordinatorState.COLLECTING, set(), self._now
        commands: list[CoordinatorCommand] = [InjectBarriers(self.number, self.kind)]
        if len(self._numbers) < self.LOW_WATER:
            commands += self._reserve()
        return commands

    def _needs_lost_tasks(self) -> bool:
        """Return whether the next snapshot cannot begin before the lost tasks have returned.

        A savepoint and the last snapshot have all tasks. A partial checkpoint needs an earlier
        snapshot of the lost tasks, and that no record passes between them and the others.
        """
        whole = self._stopping or self._savepoints > 0 or not self._has_whole
        awaits = bool(self._awaited) or self._lost == self.tasks
        return awaits or (bool(self._lost) and whole)

    def _add_numbers(self, numbers: range) -> None:
        # Numbers that were reserved before lost tasks returned are too low to be used.
        self._numbers += [number for number in numbers if number > self._highest]
        self._highest = max([self._highest, *numbers])

    def _reserve(self) -> list[CoordinatorCommand]:
        if self._reserving:
            return []
        self._reserving = True
        return [ReserveNumbers()]

    def _acknowledge(self, task: Hashable, number: int) -> list[CoordinatorCommand]:
        if task not in self.tasks:
            raise ProtocolError(f"unknown task {task} acknowledged snapshot {number}")
        if self.state is not CoordinatorState.COLLECTING or number != self.number:
            return []  # The snapshot was aborted before the acknowledgement arrived.
        if task not in self.members:
            raise ProtocolError(f"task {task} acknowledged snapshot {number} without its barrier")
        if task in self.acknowledged:
            raise ProtocolError(f"task {task} acknowledged snapshot {number} twice")
        self.acknowledged.add(task)
        if self.acknowledged != self.members:
            return []
        if self.kind is SnapshotKind.SAVEPOINT:
            # The pause after a snapshot is left out: the savepoint waits for the checkpoint.
            self.state, self.number = CoordinatorState.WAITING, None
            self._held += (number,)
            self._schedule.request(self._now)
            return [HoldSavepoint(number)]
        self.state = CoordinatorState.PUBLISHING
        return [PublishSnapshot(number)]

    def _published(self, number: int) -> list[CoordinatorCommand]:
        if self.state is not CoordinatorState.PUBLISHING or number != self.number:
            raise ProtocolError(f"snapshot {number} published in state {self.state.value}")
        self.failures = 0
        self._has_whole |= self.members == self.tasks
        # If the snapshot began before the last task ended, it is not the final one. Tasks may have
        # emitted records after its barrier, and the output of these is not committed yet.
        savepoints, self._held = self._held, ()
        if self._final:
            self.state, self.number = CoordinatorState.FINISHED, None
            return [FinishJob(number, savepoints)]
        self._rest()
        return [CompleteSnapshot(number, savepoints)]

    def _lose(self, tasks: frozenset[Hashable]) -> list[CoordinatorCommand]:
        self._lost |= tasks
        self.ended -= tasks
        if self.state is CoordinatorState.PUBLISHING:
            # All tasks have acknowledged the snapshot that is being published. It can complete, and
            # the lost tasks restart from it.
            return []
        aborted = self._drop_held()
        if self.state is CoordinatorState.COLLECTING and tasks & self.members:
            assert self.number is not None
            aborted.append(AbortSnapshot(self.number, _LOST))
            # The failure of the tasks is handled as such, so it does not count as one of the
            # snapshot.
            self._rest()
        return aborted

    def _drop_held(self) -> list[CoordinatorCommand]:
        """Abort the held savepoints, since lost tasks restart from an earlier snapshot."""
        held, self._held = self._held, ()
        return [AbortSnapshot(number, _LOST) for number in held]

    def _abort(self, reason: str) -> list[CoordinatorCommand]:
        assert self.number is not None
        number = self.number
        self.failures += 1
        self._rest()
        commands: list[CoordinatorCommand] = [AbortSnapshot(number, reason)]
        if self._lost:
            commands += self._drop_held()
        if self.failures > self.tolerable_failures:
            commands.append(FailAttempt(f"snapshot {number} failed: {reason}"))
        return commands

    def _rest(self) -> None:
        self.state, self.number = CoordinatorState.WAITING, None
        self._schedule.snapshot_ended(self._started, self._now)

    def _time_out(self) -> list[CoordinatorCommand]:
        if self.state is CoordinatorState.COLLECTING and self._now >= self._started + self.timeout:
            missing = sorted(map(str, self.members - self.acknowledged))
            return self._abort(
                f"not done after {self.timeout:g} s; no acknowledgement from {', '.join(missing)}"
            )
        return []

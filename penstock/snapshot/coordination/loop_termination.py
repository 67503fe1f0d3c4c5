"""Detect that a loop has ended, using the statuses that its tasks report.

A task of a loop reports its status with each snapshot. Outside a loop, a task has ended when all
its inputs have ended. In a loop (a strongly connected component of the graph of chains) each task
waits for the other tasks. So the JobManager must detect that the loop has no more work. A loop is
called *idle* here if its outside input has ended, no record is left in it, and no timer waits for
processing time. This is a stable property: an idle loop stays idle, since its tasks act only when
they receive a record or a command, or when a timer fires.
If the property holds in a consistent cut, it still holds now. Chandy and Lamport (1985) invented
snapshots to detect such properties. Snapshots are consistent cuts:

* In an aligned snapshot, a regular channel inside the loop contains no record from before the cut,
  because each task aligns the barriers of all these channels. In an unaligned snapshot it may
  contain such records. They are logged and counted.
* A back-edge contains exactly the records of its log.
* All input from outside the loop has arrived if each outside channel has delivered `EndOfInput`.

* Timers are part of the state of a task. Its status shows whether some wait for processing time.

So a loop is idle if, in one snapshot, the outside input of all its tasks had ended, all logs were
empty and no timer was waiting. The snapshot need not be complete. It is enough that each task of
the loop has acknowledged it, because the parts of these tasks are a consistent cut of the loop.

In an idle loop, the last watermark fires all timers. These may emit records into the loop, which
set further timers. When no timers are left, the end-of-input hooks run in rounds: a hook may emit
records into the loop, so that other tasks have work again. The state of a task contains the number
of rounds that it has run, and whether the last round emitted a record into the loop. So a restored
attempt continues with the right round, even if the snapshot was taken in the middle of one. Let R
be the highest number of rounds that a task of the loop has run:

    not idle                                    nothing; decide again at the next snapshot
    idle, timers wait for the last watermark    run round 0
    idle, some tasks have run fewer than R      run round R in those tasks
    idle, all R = 0, a function has a hook      run round 1
    idle, all R > 0, a task emitted in round R  run round R + 1
    idle, all R, no task emitted                terminate the loop

Only the records that the last round emitted matter. Records of earlier rounds have been processed,
since the loop is idle. All tasks run a round before the next one begins, so each task reports on
round R. The detector commands each round once in an attempt. Until all tasks have reported that
they ran the round, the detector waits. If hooks emit records in every round, the loop never ends.

The detector requests the snapshots that it needs, from the end of the loop's outside input until
the loop is terminated. The first snapshot begins soon. While there is no progress, the detector
doubles the delay before the next snapshot. It decides on each loop separately. So a loop can end
although a source in another part of the job never ends. If a loop reads from another loop, its
outside input ends when the other loop is terminated.

Tasks of a loop may restart while other parts of the job continue, but not when the outside input of
the whole loop has ended.

The detector is sans-IO, as all protocols are. Its driver is in `penstock.runtime.jobmanager`.

`docs/inside/decisions/019-end-of-loops.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from penstock.dataflow.errors import ProtocolError


@dataclass(frozen=True)
class LoopStatus:
    """The status of one task of a loop at the time of a snapshot.

    Arguments:
        outside_ended: whether all channels from outside the loop had delivered `EndOfInput`. It is
            true if the task has no such channel.
        log_records: the number of records in all logs that the task wrote for the snapshot, and of
            its requests in flight.
        rounds: the number of rounds of end-of-input hooks that the task had run. A task without
            hooks counts rounds, too.
        emitted: whether the task emitted a record into the loop in its last round.
        pending_timers: whether the state of the task had timers that fire by processing time.
        must_fire: whether timers of the task wait for a watermark.
    """

    outside_ended: bool
    log_records: int
    rounds: int
    emitted: bool
    pending_timers: bool = False
    must_fire: bool = False


@dataclass(frozen=True)
class Loop:
    """A strongly connected component of the graph of chains.

    Arguments:
        index: the position of the loop in `ExecutionGraph.loops`, which identifies the loop.
        tasks: all tasks of the loop.
        hooks: whether a function in the loop has an end-of-input hook.
    """

    index: int
    tasks: frozenset[Hashable]
    hooks: bool


@dataclass(frozen=True)
class ExternalInputEnded:
    """All input of a task from outside its loop has ended.

    The channels from outside have delivered `EndOfInput`. A task without such channels also reports
    this event.
    """

    task: Hashable


@dataclass(frozen=True)
class TasksRestart:
    """Some tasks restart while others continue. They report again that their input has ended.

    Tasks that are in no loop may be among them.
    """

    tasks: frozenset[Hashable]


@dataclass(frozen=True)
class StatusReported:
    """A task of a loop has acknowledged snapshot `number`, and reported its status."""

    task: Hashable
    number: int
    status: LoopStatus


@dataclass(frozen=True)
class SnapshotEnded:
    """Snapshot `number` is complete or aborted."""

    number: int


@dataclass(frozen=True)
class RunEndOfInputHooks:
    """Run a round of the end-of-input hooks in the tasks of a loop.

    Tasks that have already run the round do nothing. In round 0, the tasks run no hooks, but fire
    the timers that wait for the last watermark.
    """

    loop: int
    round: int


@dataclass(frozen=True)
class TerminateLoop:
    """Terminate a loop: all its tasks send `EndOfInput` on all their output channels."""

    loop: int


@dataclass(frozen=True)
class RequestCheckpoint:
    """Take a checkpoint within `delay_seconds`."""

    delay_seconds: float


LoopEvent = ExternalInputEnded | TasksRestart | StatusReported | SnapshotEnded
LoopCommand = RunEndOfInputHooks | TerminateLoop | RequestCheckpoint


@dataclass
class _Watched:
    """The reports that the tasks of one loop have sent in this attempt."""

    loop: Loop
    #: The tasks whose input from outside the loop has ended.
    ended: set[Hashable] = field(default_factory=set)
    #: The number of the newest snapshot that a task of the loop has acknowledged, or -1.
    number: int = -1
    #: The statuses that the tasks have reported with this snapshot, by task.
    statuses: dict[Hashable, LoopStatus] = field(default_factory=dict)
    #: The highest round of end-of-input hooks that the detector has commanded.
    commanded: int = 0
    closed: bool = False

    @property
    def waits(self) -> bool:
        """Whether all outside input of the loop has ended, but the loop is not terminated."""
        return not self.closed and len(self.ended) == len(self.loop.tasks)


class LoopTerminationDetector:
    """Detects the termination of the loops of one execution attempt.

    Arguments:
        loops: the loops of the execution graph, in topological order.
    """

    #: The delay before the next requested snapshot if there was progress, in seconds.
    SOON_SECONDS = 0.02
    #: The longest delay before the next requested snapshot, in seconds.
    LATEST_SECONDS = 1.0

    def __init__(self, loops: Iterable[Loop]) -> None:
        self._watched = [_Watched(loop) for loop in loops]
        self._of_task = {task: watched for watched in self._watched for task in watched.loop.tasks}
        if len(self._of_task) != sum(len(watched.loop.tasks) for watched in self._watched):
            raise ProtocolError("a task is in two loops")
        self._delay = self.SOON_SECONDS

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        """Process an event, and return the commands to execute, in this order.

        Raises:
            ProtocolError: if the event is impossible in the current state.
        """
        match event:
            case ExternalInputEnded(task):
                return self._outside_ended(self._find(event), task)
            case StatusReported():
                return self._status(self._find(event), event)
            case TasksRestart(tasks):
                for watched in self._watched:
                    watched.ended -= tasks
                return []
            case SnapshotEnded():
                return self._over()

    def is_ending(self, tasks: frozenset[Hashable]) -> bool:
        """Return whether the outside input of a whole loop has ended that contains one of `tasks`.

        So it is terminated now, or will be soon.
        """
        loops = [watched for watched in self._watched if watched.loop.tasks & tasks]
        return any(watched.closed or watched.waits for watched in loops)

    def _find(self, event: ExternalInputEnded | StatusReported) -> _Watched:
        if event.task not in self._of_task:
            raise ProtocolError(f"{event} of a task that is in no loop")
        return self._of_task[event.task]

    def _outside_ended(self, watched: _Watched, task: Hashable) -> list[LoopCommand]:
        if task in watched.ended:
            raise ProtocolError(f"the outside input of task {task} ended twice")
        watched.ended.add(task)
        if not watched.waits:
            return []
        # A new snapshot is needed, since tasks may have reported for the current one already.
        self._delay = self.SOON_SECONDS
        return [RequestCheckpoint(self._delay)]

    def _over(self) -> list[LoopCommand]:
        if not any(watched.waits for watched in self._watched):
            return []
        delay, self._delay = self._delay, min(2 * self._delay, self.LATEST_SECONDS)
        return [RequestCheckpoint(delay)]

    def _status(self, watched: _Watched, event: StatusReported) -> list[LoopCommand]:
        if watched.closed or event.number < watched.number:
            return []
        if event.number > watched.number:
            watched.number, watched.statuses = event.number, {}
        if event.task in watched.statuses:
            raise ProtocolError(f"task {event.task} acknowledged snapshot {event.number} twice")
        watched.statuses[event.task] = event.status
        if len(watched.statuses) < len(watched.loop.tasks):
            return []
        commands = self._decide(watched)
        if commands:
            self._delay = self.SOON_SECONDS
        return commands

    def _decide(self, watched: _Watched) -> list[LoopCommand]:
        statuses = watched.statuses.values()
        if not all(
            s.outside_ended and not s.log_records and not s.pending_timers for s in statuses
        ):
            return []
        if any(s.must_fire for s in statuses):
            return [RunEndOfInputHooks(watched.loop.index, 0)]
        rounds = max(s.rounds for s in statuses)
        if any(s.rounds < rounds for s in statuses):
            wanted = rounds
        elif any(s.emitted for s in statuses) if rounds else watched.loop.hooks:
            wanted = rounds + 1
        else:
            watched.closed = True
            return [TerminateLoop(watched.loop.index)]
        if wanted <= watched.commanded:
            return []
        watched.commanded = wanted
        return [RunEndOfInputHooks(watched.loop.index, wanted)]

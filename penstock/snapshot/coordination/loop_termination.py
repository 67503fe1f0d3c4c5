"""Detect that a loop has ended, from what its tasks report with their snapshots.

Outside a loop, a task has ended when all its inputs have. In a loop (a strongly connected component
of the graph of chains) each task waits for the others, so the JobManager must detect that nothing
more can happen. That a loop is *quiet* is a stable property: once it holds it continues to hold,
since tasks act only on what they receive. If it holds in a consistent cut, it holds now: Chandy and
Lamport (1985) devised snapshots for this. Snapshots are consistent cuts:

* Regular channels inside the loop contain no record sent before the cut, since a task takes its
  snapshot behind the barriers on all of them. In unaligned snapshots they may contain records;
  these are logged, and counted.
* Back-edges contain exactly the records of the logs.
* All input from outside the loop has arrived: each channel from there delivered its `EndOfInput`.

So a loop is quiet if, in one snapshot, the outside input of all its tasks had ended and all logs
were empty. The snapshot need not complete. It suffices that each task of the loop has acknowledged
it: that is a consistent cut of the loop, whatever happens to other tasks.

In a quiet loop the end-of-input hooks run, in rounds: a hook may emit into the loop, which gives
other functions work again. The state of a task contains the number of rounds that it has run, and
whether the last one emitted into the loop. So an attempt that is restored from a snapshot continues
there, in the middle of a round, too. R is the highest number of rounds in the loop:

    not quiet                                    nothing; decide again at the next snapshot
    quiet, some tasks have run fewer than R      run round R in those
    quiet, all R = 0, a function has a hook      run round 1
    quiet, all R > 0, some round emitted         run round R + 1
    quiet, all R, no round emitted               terminate the loop

Only emissions of the last round count: those of earlier rounds have been processed, since the loop
is quiet. A task reports the flag of round R, because all tasks run a round before the next begins.
A round is commanded once per attempt; while its command is under way during a snapshot, the
detector waits. Hooks that always emit keep their loop open forever.

The detector requests its snapshots itself, from the time that the outside input of a loop has ended
until the loop is terminated: soon at first, then with growing delays while there is no progress.
Each loop is decided by itself, so one that has ended is terminated although a source elsewhere
never ends. The outside input of a loop behind another one ends when the other is terminated.

Sans-IO, as all protocols here; the driver is in `penstock.runtime.jobmanager`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from penstock.dataflow.errors import ProtocolError

__all__ = [
    "TerminateLoop",
    "RunEndOfInputHooks",
    "Loop",
    "LoopCommand",
    "LoopEvent",
    "LoopStatus",
    "LoopTerminationDetector",
    "ExternalInputEnded",
    "SnapshotEnded",
    "StatusReported",
    "RequestCheckpoint",
]


@dataclass(frozen=True)
class LoopStatus:
    """The status of a task of a loop at its snapshot.

    Arguments:
        outside_ended: whether all channels from outside the loop had delivered `EndOfInput`; true
            for a task that has no such channel.
        log_records: number of records in all its logs of the snapshot.
        rounds: number of rounds of end-of-input hooks that it had run; counted also for a task
            without a hook.
        emitted: whether the last round emitted into the loop.
    """

    outside_ended: bool
    log_records: int
    rounds: int
    emitted: bool


@dataclass(frozen=True)
class Loop:
    """A strongly connected component.

    Arguments:
        index: its position in `ExecutionGraph.loops`, which identifies it in commands.
        tasks: all its tasks.
        hooks: whether a function in it has an end-of-input hook.
    """

    index: int
    tasks: frozenset[Hashable]
    hooks: bool


@dataclass(frozen=True)
class ExternalInputEnded:
    """All channels of a task from outside its loop have delivered `EndOfInput`, or it has none."""

    task: Hashable


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
    """Run round `round` of the end-of-input hooks in all tasks of a loop that have run fewer."""

    loop: int
    round: int


@dataclass(frozen=True)
class TerminateLoop:
    """Let all tasks of a loop send `EndOfInput` on all outputs: the loop has ended."""

    loop: int


@dataclass(frozen=True)
class RequestCheckpoint:
    """Take a checkpoint within `delay_seconds`."""

    delay_seconds: float


LoopEvent = ExternalInputEnded | StatusReported | SnapshotEnded
LoopCommand = RunEndOfInputHooks | TerminateLoop | RequestCheckpoint


@dataclass
class _Watched:
    """The reports about one loop in this attempt."""

    loop: Loop
    #: Tasks whose outside input has ended.
    ended: set[Hashable] = field(default_factory=set)
    #: The newest snapshot that a task has acknowledged, and the statuses reported with it.
    number: int = -1
    statuses: dict[Hashable, LoopStatus] = field(default_factory=dict)
    #: The highest round that was commanded.
    commanded: int = 0
    closed: bool = False

    @property
    def waits(self) -> bool:
        """Whether a snapshot could show that the loop has ended."""
        return not self.closed and len(self.ended) == len(self.loop.tasks)


class LoopTerminationDetector:
    """Detects the termination of the loops of one execution attempt.

    Arguments:
        loops: in topological order.
    """

    #: Seconds to the next snapshot after progress, and the longest delay without progress.
    SOON_SECONDS = 0.02
    LATEST_SECONDS = 1.0

    def __init__(self, loops: Iterable[Loop]) -> None:
        self._watched = [_Watched(loop) for loop in loops]
        self._of_task = {task: watched for watched in self._watched for task in watched.loop.tasks}
        if len(self._of_task) != sum(len(watched.loop.tasks) for watched in self._watched):
            raise ProtocolError("a task is in two loops")
        self._delay = self.SOON_SECONDS

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        """Return the commands that an event leads to, in the order of execution.

        Raises:
            ProtocolError: if the event is impossible.
        """
        match event:
            case ExternalInputEnded(task):
                return self._outside_ended(self._find(event), task)
            case StatusReported():
                return self._status(self._find(event), event)
            case SnapshotEnded():
                return self._over()

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
        # A snapshot in flight does not serve: tasks may have taken theirs before this event.
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
        if not all(s.outside_ended and not s.log_records for s in statuses):
            return []
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

"""When a loop has come to its end: decided by what its tasks say with their snapshots.

Outside a loop, a task has ended when all its inputs have. In a loop (a strongly connected component
of the graph of chains) each task waits for the others, so somebody has to see that nothing more can
happen. That the loop is *quiet* is a stable property: once it holds it goes on to hold, since tasks
act only on what they receive. If it holds in a consistent cut it holds now (Chandy & Lamport 1985,
who made snapshots for this). Snapshots are such cuts:

* Regular channels inside the loop are empty of what was sent before the cut: a task makes its cut
  only behind the barriers on all of them. Not so in Chandy-Lamport's mode; there what is in them
  is logged, and counted.
* Back-edges hold exactly what the logs hold.
* What comes from outside has come: each channel from there had delivered its `EndOfInput`.

So a loop is quiet when, as of one snapshot, the outside of all its tasks had ended, all logs were
empty and no task had anything of its own to wait for (timers, requests in flight). The snapshot
need not complete: each task of the loop has to have acknowledged it, and that is a consistent cut
of the loop, whatever becomes of the other tasks.

A quiet loop gets its end-of-input hooks run, in rounds, for what a hook emits into the loop may
give other functions work again. The rounds that a task has run are in its state, as is whether the
last one emitted into the loop, so that an attempt that starts from a snapshot goes on where that
stood, in the middle of a round too. R is the highest number of rounds in the loop:

    not quiet                                    nothing; look again at the next snapshot
    quiet, some tasks have run fewer than R      run round R in those
    quiet, all R = 0, a function has a hook      run round 1
    quiet, all R > 0, some round emitted         run round R + 1
    quiet, all R, nothing was emitted            close the loop

Only the last round's emissions count: what earlier ones emitted has been processed, since the loop
is quiet. A task's flag is that of round R because each round is run by all tasks before the next
is begun. A round is commanded once per attempt; one whose command is under way during a snapshot is
waited for. Hooks that emit whenever they are asked keep their loop open for ever.

Nobody has to take these snapshots by the clock. From the moment that the outside of a loop has
ended until the loop is closed, the watch asks for them: soon at first, ever later while nothing
comes of it. Each loop is looked at by itself, so one that has ended is closed though a source
elsewhere never ends. A loop behind another sees its outside end when the other has been closed.

Sans-IO, as all protocols here; the driver is in `penstock.runtime.jobmanager.attempt`.
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
    """What a task of a loop says about itself as of its cut of a snapshot.

    Arguments:
        outside_ended: all its channels from outside the loop had delivered `EndOfInput`; true for
            a task that has none.
        log_records: records in all its logs of the cut.
        waiting: timers and requests in flight that may make it emit. There are neither yet, so it
            is 0; the watch and the wire have it for when there are.
        rounds: how often its end-of-input hooks had run; counted also if it has none.
        emitted: whether the last of these runs emitted into the loop.
    """

    outside_ended: bool
    log_records: int
    waiting: int
    rounds: int
    emitted: bool


@dataclass(frozen=True)
class Loop:
    """A strongly connected component.

    Arguments:
        index: its place in `ExecutionGraph.loops`; commands name it by this.
        tasks: all its tasks.
        hooks: whether some function in it has an end-of-input hook.
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
    """A task of a loop has acknowledged snapshot `number`, and this is how it stood at its cut."""

    task: Hashable
    number: int
    status: LoopStatus


@dataclass(frozen=True)
class SnapshotEnded:
    """Snapshot `number` is complete, or was given up."""

    number: int


@dataclass(frozen=True)
class RunEndOfInputHooks:
    """Tell all tasks of a loop to run their end-of-input hooks, unless `round` rounds have run."""

    loop: int
    round: int


@dataclass(frozen=True)
class TerminateLoop:
    """Tell all tasks of a loop to send `EndOfInput` on all outputs: they have ended."""

    loop: int


@dataclass(frozen=True)
class RequestCheckpoint:
    """Take a snapshot no later than this many seconds from now."""

    delay_seconds: float


LoopEvent = ExternalInputEnded | StatusReported | SnapshotEnded
LoopCommand = RunEndOfInputHooks | TerminateLoop | RequestCheckpoint


@dataclass
class _Watched:
    """What is known of one loop in this attempt."""

    loop: Loop
    #: Tasks whose outside has ended.
    ended: set[Hashable] = field(default_factory=set)
    #: The newest snapshot that a task has acknowledged, and what was said with it.
    number: int = -1
    statuses: dict[Hashable, LoopStatus] = field(default_factory=dict)
    #: The highest round that was commanded.
    commanded: int = 0
    closed: bool = False

    @property
    def waits(self) -> bool:
        """Whether a snapshot could bring it further."""
        return not self.closed and len(self.ended) == len(self.loop.tasks)


class LoopTerminationDetector:
    """Watches the loops of one execution attempt.

    Arguments:
        loops: in topological order.
    """

    #: Seconds to the next snapshot after progress, and the most that it grows to without any.
    SOON_SECONDS = 0.02
    LATEST_SECONDS = 1.0

    def __init__(self, loops: Iterable[Loop]) -> None:
        self._watched = [_Watched(loop) for loop in loops]
        self._of_task = {task: watched for watched in self._watched for task in watched.loop.tasks}
        if len(self._of_task) != sum(len(watched.loop.tasks) for watched in self._watched):
            raise ProtocolError("a task is in two loops")
        self._delay = self.SOON_SECONDS

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        """What to do about an event, in this order; `ProtocolError` for an impossible one."""
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
            raise ProtocolError(f"the outside of task {task} ended twice")
        watched.ended.add(task)
        if not watched.waits:
            return []
        # A snapshot may be in flight; that its cut came too early for this loop is well possible.
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
        if not all(s.outside_ended and not s.log_records and not s.waiting for s in statuses):
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

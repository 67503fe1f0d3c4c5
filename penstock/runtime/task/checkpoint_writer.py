"""Writes a task's snapshots while its records flow, one after the other.

What must be one cut is captured by the task at the barrier, in `capture`; the work that follows
is done here in slices between batches, with flushes and syncs off the loop. A cut with records in
flight is complete when their logs are, which are written last. Sinks' output that
was made durable stays here until a snapshot that holds it is complete, so what an aborted
snapshot staged is acknowledged again with the next one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from penstock.dataflow.errors import PenstockError, Recoverability, recoverability_of
from penstock.dataflow.sink import Committable
from penstock.runtime.network.channel_log import InFlightLog
from penstock.runtime.task.write_scheduler import WriteScheduler
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.coordination.loop_termination import LoopStatus
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.state import KeyedBackend, StateSnapshot
from penstock.snapshot.storage.in_flight_log import LogPart, write_log
from penstock.snapshot.storage.job_paths import JobPaths

__all__ = ["Acknowledgement", "TaskSnapshot", "CheckpointWriter", "CheckpointResponder", "drive"]

#: An announced snapshot that has not come so long after it was due is not waited for any more.
LATE_SECONDS = 0.1
#: A snapshot that is announced later than this before it is due leaves no time for work ahead.
LEAST_LEAD_SECONDS = 0.05

Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass
class TaskSnapshot:
    """What a task captured at a barrier, and what has become of it.

    Arguments:
        number, kind: the snapshot.
        root: uid of the task's first operator.
        hooked: uids of its operators with an end-of-input hook.
        ended, emitted: of the end-of-input hooks; see `OperatorHandle`.
        outside_ended: in a loop, whether all input from outside had ended; else None.
        captures: per keyed operator uid, its captured state.
        small: per operator uid, a small value.
        staged: per sink uid, what makes its staged output durable.
        aligned_seconds: from the first barrier to the cut.
        blocked_seconds: of that, how long each input channel was blocked.
        aborted: the snapshot was given up meanwhile.
        logs: of records in flight, and whether they are still being taken.
        handles, size, problem: what was made durable so far, or why that failed. Handles are
            by uid and subtask: what a barrier overtook belongs to the task that it was sent to.
        write_seconds: how long it took.
    """

    number: int
    kind: SnapshotKind
    root: str
    hooked: tuple[str, ...] = ()
    ended: int = 0
    emitted: bool = False
    outside_ended: bool | None = None
    captures: dict[str, StateSnapshot] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    staged: dict[str, Callable[[], list[Any]]] = field(default_factory=dict)
    aligned_seconds: float = 0.0
    blocked_seconds: list[float] = field(default_factory=list)
    aborted: bool = False
    logs: list[InFlightLog] = field(default_factory=list)
    logging: bool = False
    handles: dict[tuple[str, int], OperatorHandle] = field(default_factory=dict)
    size: SnapshotBytes = field(default_factory=SnapshotBytes)
    problem: str | None = None
    write_seconds: float = 0.0


@dataclass(frozen=True)
class Acknowledgement:
    """A task's part of a snapshot, durable.

    Arguments:
        number: the snapshot.
        handles: the state of its operators.
        committables: all output staged and not known to be in a complete snapshot.
        size: how much was written and linked.
        aligned_seconds, write_seconds: how long each phase took.
        blocked_seconds: for how long each input channel was blocked for it.
        final: it is the job's last.
        log_records: in all logs of the cut.
        log_bytes: of these logs.
        loop: what the end of the task's loop is found out by; None if it is in none.
    """

    number: int
    handles: tuple[OperatorHandle, ...]
    committables: tuple[Committable, ...]
    size: SnapshotBytes
    aligned_seconds: float
    blocked_seconds: list[float]
    write_seconds: float
    final: bool
    log_records: int = 0
    log_bytes: int = 0
    loop: LoopStatus | None = None


class CheckpointResponder(Protocol):
    """Hears how snapshots go; the TaskManager, which tells the JobManager."""

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """A cut is durable."""

    def decline(self, number: int, reason: str) -> None:
        """A cut cannot be made durable."""


async def drive(
    steps: Generator[Callable[[], Any] | None, Any, Any],
    offload: Offload,
    pause: Callable[[], Awaitable[None]],
) -> Any:
    """Run a generator of slices: between them others run, and callables run off the loop."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as stop:
            return stop.value
        answer = failure = None
        if step is None:
            await pause()
            continue
        try:
            answer = await offload(step)
        except Exception as error:
            failure = error


class CheckpointWriter:
    """Makes the cuts of one task durable, in order.

    Arguments:
        subtask, lineage, attempt: identify what sinks staged.
        backends: per keyed operator uid.
        reporter: hears the outcome.
        paths: where the files of snapshots are.
        clock: seconds.
        write_scheduler: shared by all that write in the process; without it there is no other.
        inline_threshold: a log up to so many bytes travels in the manifest.
    """

    def __init__(
        self,
        *,
        subtask: int,
        lineage: str,
        attempt: int,
        backends: dict[str, KeyedBackend],
        reporter: CheckpointResponder,
        paths: JobPaths,
        clock: Callable[[], float],
        write_scheduler: WriteScheduler | None = None,
        inline_threshold: int = 0,
    ) -> None:
        self._subtask, self._lineage, self._attempt = subtask, lineage, attempt
        self._backends = backends
        self._reporter = reporter
        self._paths = paths
        self._clock = clock
        self._write_scheduler = write_scheduler or WriteScheduler(clock, lambda: 0, lambda: True)
        self._inline_threshold = inline_threshold
        self._cuts: deque[TaskSnapshot] = deque()
        #: Cuts whose state is written, and whose logs are being taken or are to be written.
        self._logging: deque[TaskSnapshot] = deque()
        self._uncommitted: list[Committable] = []
        #: When a snapshot was last announced for.
        self._due = -math.inf
        #: Set by the task while it has nothing else to do.
        self.idle = False

    @property
    def pending(self) -> bool:
        """Whether a cut is being written."""
        return bool(self._cuts) or self._log_is_complete()

    def _log_is_complete(self) -> bool:
        return bool(self._logging) and not self._logging[0].logging

    def prepare(self, number: int, seconds: float) -> None:
        """Begin work for a snapshot that is announced, even if the task is busy.

        Arguments:
            number: of the snapshot.
            seconds: time until it is due. If it is short, nothing is done ahead.
        """
        if seconds < LEAST_LEAD_SECONDS:
            return
        self._due = self._clock() + seconds
        for uid, backend in self._backends.items():
            backend.announce_snapshot(number, seconds, self._folder(number, uid))

    def _folder(self, number: int, uid: str) -> Path:
        """Of the files of an operator's keyed state."""
        return self._paths.task(number, uid, self._subtask, self._attempt)

    def add(self, cut: TaskSnapshot) -> None:
        """Take over a cut."""
        self._cuts.append(cut)

    def start_log(self, number: int, logs: Iterable[InFlightLog]) -> None:
        """The cut of this snapshot has these logs too, and is not complete before `end_log`."""
        for cut in (*self._cuts, *self._logging):
            if cut.number == number:
                cut.logs += logs
                cut.logging = True

    def end_log(self, number: int) -> None:
        """All logs of the cut are taken."""
        for cut in (*self._cuts, *self._logging):
            if cut.number == number:
                cut.logging = False

    def abort(self, number: int) -> None:
        """A snapshot was given up: its state is still written, but no checkpoint is made."""
        for cut in (*self._cuts, *self._logging):
            if cut.number == number:
                cut.aborted, cut.logging = True, False
                for capture in cut.captures.values():
                    capture.abort()

    def complete(self, number: int) -> None:
        """A snapshot is complete: what it holds of sinks' output is no longer ours to keep."""
        self._uncommitted = [item for item in self._uncommitted if item.snapshot > number]

    def has_work(self) -> bool:
        """Whether `work` would do something now."""
        if self.pending:
            return True
        backends = self._backends.values()
        if any(backend.over_memory_limit for backend in backends):
            return True
        due = self._is_due()
        if not (due or self.idle):
            return False
        if due and any(backend.wants_preparation for backend in backends):
            return True
        ahead = any(backend.wants_eager_flush or backend.wants_checksums for backend in backends)
        return ahead and (due or self._write_scheduler.quiet())

    def _is_due(self) -> bool:
        """Whether a snapshot is about to be taken, so that nobody waits until the task is idle."""
        return self._clock() < self._due + LATE_SECONDS and not self._cuts

    async def work(self, offload: Offload, pause: Callable[[], Awaitable[None]]) -> None:
        """Do what there is to do now: a cut, eviction, or something ahead of a cut."""
        if self._log_is_complete():
            await self._acknowledge(self._logging[0], offload, pause)
            self._logging.popleft()
            return
        if self._cuts:
            cut = self._cuts[0]
            await self._persist(cut, offload, pause)
            if cut.logging or self._logging:
                # The barrier has yet to come round a loop, which takes as long as it takes.
                # Entries can be evicted meanwhile, or the loop might wait for just that.
                self._logging.append(cut)
            else:
                await self._acknowledge(cut, offload, pause)
            self._cuts.popleft()
            return
        for backend in self._backends.values():
            if backend.over_memory_limit:
                await drive(backend.evict(), offload, pause)
            elif backend.wants_preparation and self._is_due():
                await drive(backend.prepare_checkpoint(), offload, pause)
            elif backend.wants_eager_flush and (self.idle or self._is_due()):
                # It may be given up after any slice, and is when the task has records again.
                for _ in backend.flush_eagerly():
                    await pause()
                    if self._is_due():
                        if backend.wants_preparation:
                            break
                        continue
                    # Twice: who has slept until now is awake after the first, and at work after
                    # the second.
                    await pause()
                    if not self.idle or self._cuts or not self._write_scheduler.quiet():
                        break
            elif backend.wants_checksums and (self.idle or self._is_due()):
                while await drive(backend.compute_checksum(), offload, pause):
                    if self._cuts or not (self.idle or self._is_due()):
                        break

    async def _after_slice(self, pause: Callable[[], Awaitable[None]]) -> None:
        if any(backend.over_memory_limit for backend in self._backends.values()):
            # Our own task's records wait for just this to be written.
            await pause()
        else:
            await self._write_scheduler.after_slice(pause)

    async def _persist(
        self, cut: TaskSnapshot, offload: Offload, pause: Callable[[], Awaitable[None]]
    ) -> None:
        """Write the state of a cut, and make durable what sinks staged."""
        began = self._clock()
        for uid, small in cut.small.items():
            cut.handles[uid, self._subtask] = OperatorHandle(uid, self._subtask, None, small)
        try:
            for uid, capture in cut.captures.items():
                folder = self._folder(cut.number, uid)
                steps = capture.write(folder)
                written = await drive(steps, offload, partial(self._after_slice, pause))
                if written is not None:
                    keyed, part = written
                    cut.size += part
                    handle = OperatorHandle(uid, self._subtask, keyed, cut.small.get(uid))
                    cut.handles[uid, self._subtask] = handle
        except (PenstockError, OSError) as error:
            over = all(capture.over for capture in cut.captures.values())
            if not over or recoverability_of(error) is Recoverability.NON_RECOVERABLE:
                raise  # no later one could be written either
            cut.problem = f"{type(error).__name__}: {error}"
        # Whatever became of the state: the next snapshot must hold this output. If it cannot be
        # made durable it is gone, so the error fails the task, and it is produced again.
        for uid, finish in cut.staged.items():
            for payload in await self._finish(uid, finish, offload):
                self._uncommitted.append(
                    Committable(
                        self._lineage, uid, self._subtask, cut.number, self._attempt, payload
                    )
                )
        cut.write_seconds = self._clock() - began

    async def _acknowledge(
        self, cut: TaskSnapshot, offload: Offload, pause: Callable[[], Awaitable[None]]
    ) -> None:
        """Write the logs of a cut, if it has any, and tell the outcome."""
        began = self._clock()
        log_bytes = 0
        try:
            if cut.problem is None and not cut.aborted:
                log_bytes = await self._write_logs(cut, offload, pause)
        except (PenstockError, OSError) as error:
            if recoverability_of(error) is Recoverability.NON_RECOVERABLE:
                raise
            cut.problem = f"{type(error).__name__}: {error}"
        finally:
            for log in cut.logs:
                log.release()
        if cut.problem is not None:
            self._reporter.decline(cut.number, cut.problem)
            return
        if cut.aborted:
            return
        if cut.ended:
            # Of each operator with a hook, too: it may be in another chain when it is restored.
            for uid in (cut.root, *cut.hooked):
                at = (uid, self._subtask)
                handle = cut.handles.get(at) or OperatorHandle(*at)
                cut.handles[at] = replace(handle, ended=cut.ended, emitted=cut.emitted)
        log_records = sum(log.records for log in cut.logs)
        loop = None
        if cut.outside_ended is not None:
            # There is nothing yet that a task could be waiting for, such as a timer.
            loop = LoopStatus(cut.outside_ended, log_records, 0, cut.ended, cut.emitted)
        self._reporter.acknowledge(
            Acknowledgement(
                cut.number,
                tuple(cut.handles.values()),
                tuple(item for item in self._uncommitted if item.snapshot <= cut.number),
                cut.size,
                cut.aligned_seconds,
                cut.blocked_seconds,
                cut.write_seconds + self._clock() - began,
                cut.kind is SnapshotKind.FINAL,
                log_records,
                log_bytes,
                loop,
            )
        )

    async def _write_logs(
        self, cut: TaskSnapshot, offload: Offload, pause: Callable[[], Awaitable[None]]
    ) -> int:
        total = 0
        for place, log in enumerate(cut.logs):
            if not log.keep or not log.records:
                continue
            edge = log.edge
            parts: list[LogPart] = []
            for part in log.parts():
                if part is None:
                    await pause()
                else:
                    parts.append(part)
            steps = write_log(
                parts,
                producer=edge.producer,
                input=edge.input,
                source=log.source,
                partitioning=edge.partitioning,
                records=log.records,
                folder=self._paths.log(
                    # Not by the consumer's uid: what was overtaken goes to another task.
                    cut.number,
                    cut.root,
                    self._subtask,
                    self._attempt,
                    place,
                ),
                inline_threshold=self._inline_threshold,
            )
            handle, size = await drive(steps, offload, pause)
            total += handle.size
            cut.size += size
            at = (edge.consumer, log.target)
            before = cut.handles.get(at) or OperatorHandle(*at)
            cut.handles[at] = replace(before, logs=(*before.logs, handle))
        return total

    @staticmethod
    async def _finish(uid: str, finish: Callable[[], list[Any]], offload: Offload) -> list[Any]:
        """Make what a sink staged durable; `JobError` if that cannot be."""

        def call() -> list[Any]:
            with calling(f"sink {uid}", "output could not be staged"):
                return finish()

        payloads: list[Any] = await offload(call)
        return payloads

"""Write the snapshots of a task in the background, one after the other.

The task captures its state at the barrier, and then processes records again. The checkpoint writer
writes the captured state in slices between batches. It calls blocking functions off the event loop.
The in-flight logs of a snapshot are written last.

The checkpoint writer remembers the committables of sinks until a snapshot that contains them is
complete. If a snapshot is aborted, its committables are acknowledged with the next snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from penstock.dataflow.sink import Committable
from penstock.runtime.network.channel_log import InFlightLog
from penstock.runtime.task.snapshots.background_work import (
    BackgroundWork,
    CheckpointPreparation,
    Checksums,
    EagerFlush,
    Eviction,
    LeadTime,
    Offload,
    Pause,
)
from penstock.runtime.task.snapshots.task_snapshot import CheckpointResponder, TaskSnapshot
from penstock.runtime.task.snapshots.task_snapshot_writer import TaskSnapshotWriter
from penstock.runtime.task.snapshots.write_scheduler import WriteScheduler
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.storage.job_paths import JobPaths


class CheckpointWriter:
    """Makes the snapshots of one task durable, in order.

    Arguments:
        subtask: the index of the subtask.
        lineage: the id of the lineage to which the run's snapshots belong.
        attempt: the number of the execution attempt.
        backends: the keyed state of the task's operators, keyed by the uids of the operators.
        responder: the object that reports to the JobManager whether a snapshot was written.
        paths: the paths of the files of snapshots.
        clock: a function that returns the time in seconds.
        write_scheduler: the scheduler that all writers of the worker share; None if there is no
            other writer.
        inline_threshold: the maximum size of a log that is stored in the manifest, in bytes.
    """

    def __init__(
        self,
        *,
        subtask: int,
        lineage: str,
        attempt: int,
        backends: dict[str, KeyedBackend],
        responder: CheckpointResponder,
        paths: JobPaths,
        clock: Callable[[], float],
        write_scheduler: WriteScheduler | None = None,
        inline_threshold: int = 0,
    ) -> None:
        self._backends = backends
        self._responder = responder
        self._scheduler = write_scheduler or WriteScheduler(clock, lambda: 0, lambda: True)
        self._writer = TaskSnapshotWriter(subtask, lineage, attempt, paths, clock, inline_threshold)
        self._subtask = subtask
        #: The snapshots whose state is not written yet. The first of them may be in progress.
        self._snapshots: deque[TaskSnapshot] = deque()
        #: The snapshots whose state is written, but whose logs are not complete or not written.
        self._logging: deque[TaskSnapshot] = deque()
        self._uncommitted: list[Committable] = []
        lead = self._lead_time = LeadTime(clock, self._scheduler, lambda: bool(self._snapshots))
        keyed = backends.values()
        self._evictions = [Eviction(backend, lead) for backend in keyed]
        #: The kinds of work ahead of a snapshot for each backend, the most urgent kind first.
        self._work_ahead: list[BackgroundWork] = [
            kind(backend, lead)
            for kind in (CheckpointPreparation, EagerFlush, Checksums)
            for backend in keyed
        ]

    # ---- methods that the task calls

    @property
    def pending(self) -> bool:
        """Return whether there is a snapshot, or a complete log, to write now."""
        return bool(self._snapshots) or self._logs_are_taken()

    def prepare(self, number: int, seconds: float) -> None:
        """Announce a snapshot, so that the writer works ahead even while the task is busy.

        Arguments:
            number: the number of the snapshot.
            seconds: the time until the snapshot is due, in seconds. If it is too short, the writer
                does not work ahead.
        """
        if self._lead_time.announce(seconds):
            for uid, backend in self._backends.items():
                backend.announce_snapshot(number, seconds, self._writer.folder(number, uid))

    def set_idle(self, idle: bool) -> None:
        """Record whether the task is idle, so that there is time for background work."""
        self._lead_time.set_idle(idle)

    def add(self, snapshot: TaskSnapshot) -> None:
        """Queue a snapshot. It is written after all snapshots that were added before."""
        self._snapshots.append(snapshot)

    def start_log(self, number: int, logs: Iterable[InFlightLog]) -> None:
        """Add logs to a snapshot, which is not acknowledged before `end_log` is called."""
        for snapshot in self._numbered(number):
            snapshot.start_logs(logs)

    def end_log(self, number: int) -> None:
        """Record that all logs of a snapshot are complete, so that they can be written."""
        for snapshot in self._numbered(number):
            snapshot.end_logs()

    def abort(self, number: int) -> None:
        """Abort a snapshot: its state is still written, but it is not acknowledged."""
        for snapshot in self._numbered(number):
            snapshot.abort()

    def complete(self, number: int) -> None:
        """Forget the committables of a complete snapshot: the JobManager commits them."""
        self._uncommitted = [item for item in self._uncommitted if item.snapshot > number]

    def _numbered(self, number: int) -> Iterator[TaskSnapshot]:
        return (s for s in (*self._snapshots, *self._logging) if s.number == number)

    # ---- methods that work in the background

    def has_work(self) -> bool:
        """Return whether `work` has something to do now."""
        return self.pending or self._background_work() is not None

    async def work(self, offload: Offload, pause: Pause) -> None:
        """Do the most urgent piece of work.

        Arguments:
            offload: a function that runs a blocking call off the event loop.
            pause: a function that lets the other coroutines of the event loop run once.
        """
        if self._logs_are_taken():
            await self._finish(self._logging[0], offload, pause)
            self._logging.popleft()
        elif self._snapshots:
            await self._write_first(offload, pause)
        elif (work := self._background_work()) is not None:
            await work.run(offload, pause)

    def _background_work(self) -> BackgroundWork | None:
        for eviction in self._evictions:
            if eviction.is_wanted():
                return eviction
        if self._work_ahead and self._lead_time.is_open():
            return next((work for work in self._work_ahead if work.is_wanted()), None)
        return None

    def _logs_are_taken(self) -> bool:
        return bool(self._logging) and not self._logging[0].logging

    async def _write_first(self, offload: Offload, pause: Pause) -> None:
        snapshot = self._snapshots[0]
        after_slice = partial(self._after_slice, pause)
        committables = await self._writer.write_state(snapshot, offload, after_slice)
        self._uncommitted += committables
        if snapshot.logging or self._logging:
            # The logs are complete when the barrier has come back through the loop, which may take
            # long. Meanwhile the writer does other work, since the loop may wait for an eviction.
            self._logging.append(snapshot)
        else:
            await self._finish(snapshot, offload, pause)
        self._snapshots.popleft()

    async def _after_slice(self, pause: Pause) -> None:
        if any(backend.over_memory_limit for backend in self._backends.values()):
            # The task waits for memory, which this snapshot frees, so the next slice is urgent.
            await pause()
        else:
            await self._scheduler.after_slice(pause)

    async def _finish(self, snapshot: TaskSnapshot, offload: Offload, pause: Pause) -> None:
        """Write the logs of a snapshot, and then acknowledge or decline the snapshot."""
        log_bytes = await self._writer.write_logs(snapshot, offload, pause)
        if snapshot.problem is not None:
            self._responder.decline(snapshot.number, snapshot.problem)
        elif not snapshot.aborted:
            snapshot.add_end_of_input(self._subtask)
            snapshot.add_event_times(self._subtask)
            staged = tuple(c for c in self._uncommitted if c.snapshot <= snapshot.number)
            self._responder.acknowledge(snapshot.acknowledgement(staged, log_bytes))

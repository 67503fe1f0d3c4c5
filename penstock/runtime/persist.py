"""Writes a task's snapshots while its records flow, one after the other.

What must be one cut is captured by the task at the barrier, in `capture`; the work that follows
is done here in slices between batches, with flushes and syncs off the loop. Sinks' output that
was made durable stays here until a snapshot that holds it is complete, so what an aborted
snapshot staged is acknowledged again with the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.dataflow.errors import JobError, PenstockError
from penstock.dataflow.sink import Committable
from penstock.snapshot.events import SnapshotKind
from penstock.snapshot.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.state import Capture, KeyedBackend

__all__ = ["Acknowledgement", "Cut", "Persister", "Reporter", "drive"]

Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass
class Cut:
    """What a task captured at a barrier.

    Arguments:
        number, kind: the snapshot.
        captures: per keyed operator uid, its captured state.
        small: per operator uid, a small value.
        staged: per sink uid, what makes its staged output durable.
        aligned_seconds: from the first barrier to the cut.
        aborted: the snapshot was given up meanwhile.
    """

    number: int
    kind: SnapshotKind
    captures: dict[str, Capture] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    staged: dict[str, Callable[[], list[Any]]] = field(default_factory=dict)
    aligned_seconds: float = 0.0
    aborted: bool = False


@dataclass(frozen=True)
class Acknowledgement:
    """A task's part of a snapshot, durable.

    Arguments:
        number: the snapshot.
        handles: the state of its operators.
        committables: all output staged and not known to be in a complete snapshot.
        size: how much was written and linked.
        aligned_seconds, write_seconds: how long each phase took.
        final: it is the job's last.
    """

    number: int
    handles: tuple[OperatorHandle, ...]
    committables: tuple[Committable, ...]
    size: SnapshotBytes
    aligned_seconds: float
    write_seconds: float
    final: bool


class Reporter(Protocol):
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


class Persister:
    """Makes the cuts of one task durable, in order.

    Arguments:
        subtask, lineage, attempt: identify what sinks staged.
        backends: per keyed operator uid.
        reporter: hears the outcome.
        folder: (snapshot number, uid) to the folder for a RocksDB checkpoint.
        clock: seconds.
        quiet: whether nothing else in the process has anything to do now.
    """

    def __init__(
        self,
        *,
        subtask: int,
        lineage: str,
        attempt: int,
        backends: dict[str, KeyedBackend],
        reporter: Reporter,
        folder: Callable[[int, str], Path],
        clock: Callable[[], float],
        quiet: Callable[[], bool] = lambda: True,
    ) -> None:
        self._subtask, self._lineage, self._attempt = subtask, lineage, attempt
        self._backends = backends
        self._reporter = reporter
        self._folder = folder
        self._clock = clock
        self._quiet = quiet
        self._cuts: deque[Cut] = deque()
        self._uncommitted: list[Committable] = []
        #: Set by the task while it has nothing else to do.
        self.idle = False

    @property
    def pending(self) -> bool:
        """Whether a cut is being written."""
        return bool(self._cuts)

    def add(self, cut: Cut) -> None:
        """Take over a cut."""
        self._cuts.append(cut)

    def abort(self, number: int) -> None:
        """A snapshot was given up: its state is still written, but no checkpoint is made."""
        for cut in self._cuts:
            if cut.number == number:
                cut.aborted = True
                for capture in cut.captures.values():
                    capture.abort()

    def complete(self, number: int) -> None:
        """A snapshot is complete: what it holds of sinks' output is no longer ours to keep."""
        self._uncommitted = [item for item in self._uncommitted if item.snapshot > number]

    def has_work(self) -> bool:
        """Whether `work` would do something now."""
        if self._cuts:
            return True
        backends = self._backends.values()
        if any(backend.must_relieve for backend in backends):
            return True
        return self.idle and any(b.wants_prewrite for b in backends) and self._quiet()

    async def work(self, offload: Offload, pause: Callable[[], Awaitable[None]]) -> None:
        """Do what there is to do now: a cut, relief of memory, or writing ahead."""
        if self._cuts:
            await self._persist(self._cuts[0], offload, pause)
            self._cuts.popleft()
            return
        for backend in self._backends.values():
            if backend.must_relieve:
                await drive(backend.relieve(), offload, pause)
            elif self.idle and backend.wants_prewrite:
                # It may be given up after any slice, and is when the task has records again.
                for _ in backend.prewrite():
                    await pause()
                    if not self.idle or self._cuts or not self._quiet():
                        break

    async def _persist(
        self, cut: Cut, offload: Offload, pause: Callable[[], Awaitable[None]]
    ) -> None:
        began = self._clock()
        handles: dict[str, OperatorHandle] = {
            uid: OperatorHandle(uid, self._subtask, None, small) for uid, small in cut.small.items()
        }
        size = SnapshotBytes()
        problem: Exception | None = None
        try:
            for uid, capture in cut.captures.items():
                written = await drive(capture.write(self._folder(cut.number, uid)), offload, pause)
                if written is not None:
                    keyed, part = written
                    size += part
                    handles[uid] = OperatorHandle(uid, self._subtask, keyed, cut.small.get(uid))
        except (PenstockError, OSError) as error:
            problem = error
        # Whatever became of the state: the next snapshot must hold this output. If it cannot be
        # made durable it is gone, so the error fails the task, and it is produced again.
        for uid, finish in cut.staged.items():
            for payload in await self._finish(uid, finish, offload):
                self._uncommitted.append(
                    Committable(
                        self._lineage, uid, self._subtask, cut.number, self._attempt, payload
                    )
                )
        if problem is not None:
            self._reporter.decline(cut.number, f"{type(problem).__name__}: {problem}")
            return
        if cut.aborted:
            return
        self._reporter.acknowledge(
            Acknowledgement(
                cut.number,
                tuple(handles.values()),
                tuple(item for item in self._uncommitted if item.snapshot <= cut.number),
                size,
                cut.aligned_seconds,
                self._clock() - began,
                cut.kind is SnapshotKind.FINAL,
            )
        )

    @staticmethod
    async def _finish(uid: str, finish: Callable[[], list[Any]], offload: Offload) -> list[Any]:
        """Make what a sink staged durable; `JobError` if that cannot be."""
        try:
            payloads: list[Any] = await offload(finish)
        except OSError as error:
            raise JobError(
                f"output could not be staged: {type(error).__name__}: {error}",
                operator=f"sink {uid}",
            ) from error
        return payloads

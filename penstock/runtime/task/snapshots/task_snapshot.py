"""One task's part of a snapshot: the state captured at the barrier, and its durable handles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.dataflow.sink import Committable
from penstock.runtime.network.channel_log import InFlightLog
from penstock.snapshot.coordination.loop_termination import LoopStatus
from penstock.snapshot.metadata.handles import LogHandle, OperatorHandle, SnapshotBytes
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.state import StateSnapshot

__all__ = ["Acknowledgement", "CheckpointResponder", "TaskSnapshot"]


@dataclass(frozen=True)
class Acknowledgement:
    """A task's part of a snapshot, durable.

    Arguments:
        number: of the snapshot.
        handles: the state of the task's operators.
        committables: all output that is staged and not known to be in a complete snapshot.
        size: number of bytes written and linked.
        aligned_seconds: time from the first barrier to the capture.
        blocked_seconds: for each input channel, the time for which it was blocked.
        write_seconds: time that writing took.
        final: whether the snapshot is the job's last.
        log_records: number of records in all logs.
        log_bytes: size of these logs.
        loop: from which the end of the task's loop is detected; None if it is in no loop.
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
    """Reports a task's snapshots to the JobManager. (Flink: `CheckpointResponder`.)"""

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Report that a task's part of a snapshot is durable."""

    def decline(self, number: int, reason: str) -> None:
        """Report that a task's part of a snapshot cannot be made durable."""


@dataclass
class TaskSnapshot:
    """The state that a task captured at a barrier, and the progress of writing it.

    Arguments:
        number: of the snapshot.
        kind: of the snapshot.
        root: uid of the task's first operator.
        hooked: uids of the operators with an end-of-input hook.
        ended: round of end-of-input hooks that has run; see `OperatorHandle`.
        emitted: whether that round emitted into the loop.
        outside_ended: in a loop, whether all input from outside had ended; else None.
        captures: captured state, by the uid of the keyed operator.
        small: small values, by the uid of the operator.
        staged: by the uid of a sink, a function that makes its staged output durable.
        aligned_seconds: time from the first barrier to the capture.
        blocked_seconds: for each input channel, the time for which it was blocked.
        logs: of records in flight.
        logging: whether logs are still being taken.
        aborted: whether the snapshot was given up.
        handles: of durable state, by uid and subtask. Records that a barrier overtook belong to
            the subtask that they were sent to.
        size: number of bytes written and linked.
        problem: why the snapshot cannot be made durable.
        write_seconds: time that writing has taken.
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
    logs: list[InFlightLog] = field(default_factory=list)
    logging: bool = False
    aborted: bool = False
    handles: dict[tuple[str, int], OperatorHandle] = field(default_factory=dict)
    size: SnapshotBytes = field(default_factory=SnapshotBytes)
    problem: str | None = None
    write_seconds: float = 0.0

    def start_logs(self, logs: Iterable[InFlightLog]) -> None:
        """Add logs; the snapshot is not complete before `end_logs`."""
        self.logs += logs
        self.logging = True

    def end_logs(self) -> None:
        """Note that all logs are taken."""
        self.logging = False

    def abort(self) -> None:
        """Give the snapshot up: its state is still written, but no checkpoint is made of it."""
        self.aborted, self.logging = True, False
        for capture in self.captures.values():
            capture.abort()

    def fail(self, error: Exception) -> None:
        """Note that the snapshot cannot be made durable."""
        self.problem = f"{type(error).__name__}: {error}"

    def add_handle(self, handle: OperatorHandle, size: SnapshotBytes | None = None) -> None:
        """Add the state of an operator that is durable."""
        self.handles[handle.uid, handle.subtask] = handle
        if size is not None:
            self.size += size

    def add_log_handle(
        self, consumer: str, subtask: int, log: LogHandle, size: SnapshotBytes
    ) -> None:
        """Add a log that is durable to the state of its consumer."""
        before = self.handles.get((consumer, subtask)) or OperatorHandle(consumer, subtask)
        self.add_handle(replace(before, logs=(*before.logs, log)), size)

    def add_end_of_input(self, subtask: int) -> None:
        """Add the round of end-of-input hooks to the state of all operators with a hook.

        An operator with a hook may be in another chain when it is restored.
        """
        if self.ended:
            for uid in (self.root, *self.hooked):
                handle = self.handles.get((uid, subtask)) or OperatorHandle(uid, subtask)
                self.add_handle(replace(handle, ended=self.ended, emitted=self.emitted))

    def add_write_seconds(self, seconds: float) -> None:
        """Add to the time that writing has taken."""
        self.write_seconds += seconds

    def release_logs(self) -> None:
        """Release what the logs hold."""
        for log in self.logs:
            log.release()

    def acknowledgement(
        self, committables: tuple[Committable, ...], log_bytes: int
    ) -> Acknowledgement:
        """Return the acknowledgement of this snapshot.

        Arguments:
            committables: all output that is staged and not known to be in a complete snapshot.
            log_bytes: size of the logs.
        """
        log_records = sum(log.records for log in self.logs)
        loop = None
        if self.outside_ended is not None:
            # There is nothing yet that a task could be waiting for, such as a timer.
            loop = LoopStatus(self.outside_ended, log_records, self.ended, self.emitted)
        return Acknowledgement(
            self.number,
            tuple(self.handles.values()),
            committables,
            self.size,
            self.aligned_seconds,
            self.blocked_seconds,
            self.write_seconds,
            self.kind is SnapshotKind.FINAL,
            log_records,
            log_bytes,
            loop,
        )

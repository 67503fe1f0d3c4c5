"""A task snapshot: the state captured at the barrier, and its durable handles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.dataflow.sink import Committable
from penstock.runtime.network.channel_log import InFlightLog
from penstock.snapshot.coordination.loop_termination import LoopStatus
from penstock.snapshot.metadata.handles import (
    EventTimeState,
    LogHandle,
    OperatorHandle,
    SnapshotBytes,
)
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.state import StateSnapshot
from penstock.snapshot.state.operator_state import OperatorStateSnapshot


@dataclass(frozen=True)
class Acknowledgement:
    """The report that a task snapshot is durable, for the JobManager.

    Arguments:
        number: the number of the snapshot.
        handles: the handles of the operators' state.
        committables: all staged output that is not known to be in a complete snapshot.
        size: the number of bytes that were written, and the number of bytes that were linked.
        aligned_seconds: the time from the first barrier to the capture, in seconds.
        capture_seconds: the time for the capture, in seconds.
        blocked_seconds: for each input channel, the seconds for which it was blocked.
        write_seconds: the time for writing the snapshot, in seconds.
        final: whether the snapshot is the last of the job.
        log_records: the number of records in all logs.
        log_bytes: the total size of the logs, in bytes.
        loop: the status from which the JobManager detects the end of the task's loop; None if the
            task is in no loop.
    """

    number: int
    handles: tuple[OperatorHandle, ...]
    committables: tuple[Committable, ...]
    size: SnapshotBytes
    aligned_seconds: float
    capture_seconds: float
    blocked_seconds: list[float]
    write_seconds: float
    final: bool
    log_records: int = 0
    log_bytes: int = 0
    loop: LoopStatus | None = None


class CheckpointResponder(Protocol):
    """Reports a task's snapshots to the JobManager. (Flink: `CheckpointResponder`.)

    In a worker it is a `SnapshotReporter` of `penstock.runtime.taskmanager.reports`.
    """

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Report that a task snapshot is durable."""

    def decline(self, number: int, reason: str) -> None:
        """Report that a task snapshot cannot be made durable, with the reason."""


@dataclass
class TaskSnapshot:
    """The state that a task captured at a barrier, and the progress of writing it.

    Arguments:
        number: the number of the snapshot.
        kind: the kind of the snapshot.
        root: the uid of the task's first operator.
        hooked: the uids of the operators with an end-of-input hook.
        ended: the last round of end-of-input hooks that has run; see `OperatorHandle`.
        emitted: whether that round emitted records into the loop.
        outside_ended: whether all input from outside of the loop has ended; None if the task is in
            no loop.
        pending_timers: whether timers of the task's operators wait for processing time.
        requests: the number of requests in flight in the task's operators.
        must_fire: whether timers of a task in a loop wait for a watermark.
        captures: the captured keyed state, keyed by the uid of the operator.
        operator_states: the captured operator state, keyed by the uid of the operator.
        small: the other state, which is small, keyed by the uid of the operator.
        event_times: the watermarks and the states of watermark generators, keyed by the uid of the
            operator.
        staged: for each uid of a sink, a function that makes its staged output durable.
        aligned_seconds: the time from the first barrier to the capture, in seconds.
        capture_seconds: the time for the capture, in seconds.
        blocked_seconds: for each input channel, the seconds for which it was blocked.
        logs: the logs of records in flight.
        logging: whether some logs are not complete yet.
        aborted: whether the snapshot was aborted.
        handles: the handles of durable state, by uid and subtask. Records that a barrier overtook
            belong to the subtask to which they were sent.
        size: the number of bytes that were written, and the number of bytes that were linked.
        problem: the reason why the snapshot cannot be made durable; None if there is none.
        write_seconds: the time for writing the snapshot until now, in seconds.
    """

    number: int
    kind: SnapshotKind
    root: str
    hooked: tuple[str, ...] = ()
    ended: int = 0
    emitted: bool = False
    outside_ended: bool | None = None
    pending_timers: bool = False
    requests: int = 0
    must_fire: bool = False
    captures: dict[str, StateSnapshot] = field(default_factory=dict)
    operator_states: dict[str, OperatorStateSnapshot] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    event_times: dict[str, EventTimeState] = field(default_factory=dict)
    staged: dict[str, Callable[[], list[Any]]] = field(default_factory=dict)
    aligned_seconds: float = 0.0
    capture_seconds: float = 0.0
    blocked_seconds: list[float] = field(default_factory=list)
    logs: list[InFlightLog] = field(default_factory=list)
    logging: bool = False
    aborted: bool = False
    handles: dict[tuple[str, int], OperatorHandle] = field(default_factory=dict)
    size: SnapshotBytes = field(default_factory=SnapshotBytes)
    problem: str | None = None
    write_seconds: float = 0.0

    def start_logs(self, logs: Iterable[InFlightLog]) -> None:
        """Add logs to the snapshot, which is not complete before `end_logs` is called."""
        self.logs += logs
        self.logging = True

    def end_logs(self) -> None:
        """Record that all logs of the snapshot are complete."""
        self.logging = False

    def abort(self) -> None:
        """Abort the snapshot: its state is still written, but it is not acknowledged."""
        self.aborted, self.logging = True, False
        for capture in self.captures.values():
            capture.abort()

    def fail(self, error: Exception) -> None:
        """Record the error that prevents the snapshot from becoming durable."""
        self.problem = f"{type(error).__name__}: {error}"

    def handle(self, uid: str, subtask: int) -> OperatorHandle:
        """Return the handle of an operator's durable state, which may still be empty."""
        return self.handles.get((uid, subtask)) or OperatorHandle(uid, subtask)

    def add_handle(self, handle: OperatorHandle, size: SnapshotBytes | None = None) -> None:
        """Add the handle of an operator's durable state, with the size of its files."""
        self.handles[handle.uid, handle.subtask] = handle
        if size is not None:
            self.size += size

    def add_log_handle(
        self, consumer: str, subtask: int, log: LogHandle, size: SnapshotBytes
    ) -> None:
        """Add the handle of a durable log to the handle of its consumer.

        Arguments:
            consumer: the uid of the consuming operator.
            subtask: the index of the consuming subtask.
            log: the handle of the log.
            size: the size of the log.
        """
        before = self.handle(consumer, subtask)
        self.add_handle(replace(before, logs=(*before.logs, log)), size)

    def add_end_of_input(self, subtask: int) -> None:
        """Add the round of end-of-input hooks to the handles of all operators with a hook.

        Each operator needs the round, because it may be in another chain after a restore.
        """
        if self.ended:
            for uid in (self.root, *self.hooked):
                handle = self.handle(uid, subtask)
                self.add_handle(replace(handle, ended=self.ended, emitted=self.emitted))

    def add_event_times(self, subtask: int) -> None:
        """Add the watermarks to the handles of the operators."""
        for uid, state in self.event_times.items():
            handle = self.handles.get((uid, subtask)) or OperatorHandle(uid, subtask)
            self.add_handle(replace(handle, event_time=state))

    def add_write_seconds(self, seconds: float) -> None:
        """Add `seconds` to the time for writing the snapshot."""
        self.write_seconds += seconds

    def release_logs(self) -> None:
        """Release the memory and the files of all logs."""
        for log in self.logs:
            log.release()

    def acknowledgement(
        self, committables: tuple[Committable, ...], log_bytes: int
    ) -> Acknowledgement:
        """Return the acknowledgement of this snapshot.

        Arguments:
            committables: all staged output that is not known to be in a complete snapshot.
            log_bytes: the total size of the logs, in bytes.
        """
        log_records = sum(log.records for log in self.logs)
        loop = None
        if self.outside_ended is not None:
            loop = LoopStatus(
                self.outside_ended,
                log_records + self.requests,
                self.ended,
                self.emitted,
                self.pending_timers,
                self.must_fire,
            )
        return Acknowledgement(
            self.number,
            tuple(self.handles.values()),
            committables,
            self.size,
            self.aligned_seconds,
            self.capture_seconds,
            self.blocked_seconds,
            self.write_seconds,
            self.kind is SnapshotKind.FINAL,
            log_records,
            log_bytes,
            loop,
        )

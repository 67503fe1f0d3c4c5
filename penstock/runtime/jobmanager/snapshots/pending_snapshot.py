"""Gather a snapshot's acknowledgements. (Flink: `PendingCheckpoint`.)"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.sink import Committable
from penstock.runtime.control import messages as m
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.protocols.events import SnapshotKind


@dataclass
class PendingSnapshot:
    """Gathers the acknowledgements of one snapshot.

    Arguments:
        number, kind: the number and the kind of the snapshot.
        began: the start of the snapshot on the clock of the JobManager, in seconds.
        wall_ms: the start of the snapshot, in milliseconds since the epoch.
        enumerators: the state of each enumerator, keyed by the uid of the source.
        handles: the handles of the tasks' state, and of the logs of their own input.
        overtaken: the handles of logs that a task wrote for the input of another task.
        committables: the staged output.
        size: the size of all files, in bytes.
        aligned_seconds, write_seconds: the longest alignment and the longest write of a task.
        blocked_seconds: for each input channel, the time for which it was blocked.
        log_records, log_bytes: the size of all in-flight logs.
        sent_files, sent_bytes: the number and the size of the files that were sent to an object
            store.
        tasks: the figures of each task that has acknowledged. A row is [chain, subtask,
            milliseconds from the start of the snapshot to the acknowledgement, milliseconds of the
            alignment, milliseconds of the write, new bytes, all bytes, records in its logs,
            milliseconds of the capture].
    """

    number: int
    kind: SnapshotKind
    began: float
    wall_ms: int
    enumerators: dict[str, Any] = field(default_factory=dict)
    handles: list[OperatorHandle] = field(default_factory=list)
    overtaken: list[OperatorHandle] = field(default_factory=list)
    committables: list[Committable] = field(default_factory=list)
    size: SnapshotBytes = field(default_factory=SnapshotBytes)
    aligned_seconds: float = 0.0
    blocked_seconds: list[float] = field(default_factory=list)
    write_seconds: float = 0.0
    log_records: int = 0
    log_bytes: int = 0
    tasks: list[list[Any]] = field(default_factory=list)
    sent_files: int = 0
    sent_bytes: int = 0

    def add_enumerators(self, states: dict[str, Any]) -> None:
        """Add the state of enumerators, keyed by the uid of the source."""
        self.enumerators |= states

    def add_handles(
        self, handles: Iterable[OperatorHandle], uids: Collection[str], subtask: int
    ) -> None:
        """Add the handles that a task has acknowledged.

        Arguments:
            handles: the handles that the task has sent.
            uids: the uids of the task's operators.
            subtask: the index of the subtask.
        """
        for handle in handles:
            # A handle of another task has a log of records that this task's barrier has overtaken
            # on their way to that task. The log is read after the log that the other task itself
            # wrote of the same channel.
            own = handle.subtask == subtask and handle.uid in uids
            (self.handles if own else self.overtaken).append(handle)

    def carry_over(self, handles: Sequence[OperatorHandle], enumerators: dict[str, Any]) -> None:
        """Add the parts of tasks without a part of their own, from an earlier snapshot."""
        self.handles += handles
        self.enumerators |= enumerators
        size = sum({file.name: file.size for one in handles for file in one.files}.values())
        self.size += SnapshotBytes(0, size)

    def add(self, message: m.Acknowledge, committables: Iterable[Committable], now: float) -> None:
        """Add the figures and the committables of an acknowledgement.

        Arguments:
            message: the acknowledgement.
            committables: its committables.
            now: the current time on the clock of the JobManager, in seconds.
        """
        self.committables += committables
        self.size += SnapshotBytes(message.new, message.linked)
        self.aligned_seconds = max(self.aligned_seconds, message.aligned_seconds)
        self.blocked_seconds += message.blocked_seconds
        self.write_seconds = max(self.write_seconds, message.write_seconds)
        self.log_records += message.log_records
        self.log_bytes += message.log_bytes
        self.tasks.append(
            [
                message.chain,
                message.subtask,
                _milliseconds(now - self.began),
                _milliseconds(message.aligned_seconds),
                _milliseconds(message.write_seconds),
                message.new,
                message.new + message.linked,
                message.log_records,
                _milliseconds(message.capture_seconds),
            ]
        )

    def add_sent(self, files: int, size: int) -> None:
        """Count files that were sent to an object store, and their size in bytes."""
        self.sent_files += files
        self.sent_bytes += size

    def figures(self, now: float, attempt: int) -> dict[str, Any]:
        """Return the figures of the complete snapshot, for events and the report."""
        return {
            "number": self.number,
            "kind": self.kind.value,
            "created_ms": self.wall_ms,
            "duration_ms": _milliseconds(now - self.began),
            "aligned_ms": _milliseconds(self.aligned_seconds),
            "channel_aligned_ms": _milliseconds(statistics.median(self.blocked_seconds or [0])),
            "write_ms": _milliseconds(self.write_seconds),
            "bytes_new": self.size.new,
            "bytes_linked": self.size.linked,
            "bytes_total": self.size.total,
            "files_sent": self.sent_files,
            "bytes_sent": self.sent_bytes,
            "log_records": self.log_records,
            "log_bytes": self.log_bytes,
            "attempt": attempt,
        }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)

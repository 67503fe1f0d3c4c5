"""Gather a snapshot's acknowledgements. (Flink: `PendingCheckpoint`.)"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable
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

    def add_enumerators(self, states: dict[str, Any]) -> None:
        """Set the state of the enumerators, keyed by the uid of the source."""
        self.enumerators = states

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

    def add(self, message: m.Acknowledge, committables: Iterable[Committable]) -> None:
        """Add the figures and the committables of an acknowledgement."""
        self.committables += committables
        self.size += SnapshotBytes(message.new, message.linked)
        self.aligned_seconds = max(self.aligned_seconds, message.aligned_seconds)
        self.blocked_seconds += message.blocked_seconds
        self.write_seconds = max(self.write_seconds, message.write_seconds)
        self.log_records += message.log_records
        self.log_bytes += message.log_bytes

    def figures(self, now: float, attempt: int) -> dict[str, Any]:
        """Return the figures of the complete snapshot, for events and the report."""
        return {
            "number": self.number,
            "kind": self.kind.value,
            "created_ms": self.wall_ms,
            "duration_ms": round((now - self.began) * 1000, 3),
            "aligned_ms": round(self.aligned_seconds * 1000, 3),
            "channel_aligned_ms": round(1000 * statistics.median(self.blocked_seconds or [0]), 3),
            "write_ms": round(self.write_seconds * 1000, 3),
            "bytes_new": self.size.new,
            "bytes_linked": self.size.linked,
            "bytes_total": self.size.total,
            "log_records": self.log_records,
            "log_bytes": self.log_bytes,
            "attempt": attempt,
        }

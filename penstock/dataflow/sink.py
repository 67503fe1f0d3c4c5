"""The interface of sinks: writers that stage output, and a committer that publishes it.

A two-phase commit. A writer stages its records, and ends the staged part at barrier *n*. That part
is made durable before the snapshot is acknowledged, and the committer publishes it once snapshot
*n* is complete. A committable stays in every later manifest until its commit is confirmed, and is
committed again after a failure, so committing must be idempotent. (Flink:
`TwoPhaseCommittingSink`.)

The sinks themselves are in `penstock.connectors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Committable", "Committer", "Sink", "SinkWriter", "WriterContext"]


@dataclass(frozen=True)
class Committable:
    """Staged output that is to be published. (Flink: `Committer.CommitRequest`.)

    Arguments:
        lineage: line of snapshots that it belongs to; a fork has a new one.
        uid: uid of the sink's operator.
        subtask: index of the writer.
        snapshot: number of the snapshot at whose barrier the staged part ended.
        attempt: number of the execution attempt that staged it.
        payload: describes the output to the committer; str, int, float, bool, None, bytes, and
            lists and dicts of these.
    """

    lineage: str
    uid: str
    subtask: int
    snapshot: int
    attempt: int
    payload: Any

    @property
    def identity(self) -> tuple[str, str, int, int, int]:
        """All but the payload; unique among committables."""
        return (self.lineage, self.uid, self.subtask, self.snapshot, self.attempt)


@dataclass(frozen=True)
class WriterContext:
    """Describes the subtask that a writer runs in.

    Arguments:
        uid: uid of the sink's operator.
        name: name of the operator.
        subtask: index of the writer.
        parallelism: number of writers.
        attempt: number of the execution attempt; a restart has a higher one.
        lineage: line of snapshots that this run belongs to.
    """

    uid: str
    name: str
    subtask: int
    parallelism: int
    attempt: int
    lineage: str


class SinkWriter(ABC):
    """Writes the records of one subtask. (Flink: `SinkWriter`.)"""

    #: A function that does all that `write` does with one record. The engine then calls it for
    #: each record in place of `write`. None: the engine calls `write`.
    per_record: Callable[[Any], object] | None = None

    @abstractmethod
    def write(self, batch: list[Any]) -> None:
        """Write a batch; the writer must not change the list or its records."""

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """End the staged part at barrier `snapshot`; later writes belong to the next snapshot.

        Must be quick. Returns None if nothing is staged. Otherwise it returns a function that is
        called off the event loop. That function makes the staged part durable, and returns the
        payloads of its committables. If it raises, the job restarts from its last snapshot and
        produces the output again.

        The engine keeps the committables of an aborted snapshot, and commits them with the next.
        """
        del snapshot
        return None

    def flush(self) -> None:
        """Make buffered output visible; called when the task is idle."""

    def close(self) -> None:
        """Release resources; discard output that is staged and not prepared."""


class Committer(ABC):
    """Publishes committables; runs in the JobManager. (Flink: `Committer`.)"""

    @abstractmethod
    def commit(self, committables: list[Committable]) -> None:
        """Publish all of these, in order; do nothing for those that are published already.

        Called off the event loop. If it raises, the job restarts and commits again.
        """

    def finish(self, lineage: str, uid: str) -> None:
        """Complete the output; called when the job has finished and all is committed.

        Not called for a job that was stopped. Must be idempotent: it is called again if the
        JobManager dies before the job has ended, or if a finished job is resumed. Called off the
        event loop.
        """
        del lineage, uid

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Remove output that earlier attempts staged and no snapshot contains.

        Called when all committables of all snapshots are published. Returns the number of items
        that were removed.
        """
        del lineage, uid, before_attempt
        return 0


class Sink(ABC):
    """Receives the records of a stream. (Flink: `Sink`.)

    Attributes:
        exactly_once: whether output is published in two phases.
        needs_all_output: whether output is complete only together with all earlier output of the
            job. A fork begins a new line of snapshots, and is therefore refused.
    """

    exactly_once: bool = False
    needs_all_output: bool = False

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return the writer of one subtask."""

    def create_committer(self) -> Committer | None:
        """Return the committer; None for a sink that publishes at once."""
        return None

    def validate(self) -> None:
        """Raise `GraphError` for mistakes that can be found before the job starts."""

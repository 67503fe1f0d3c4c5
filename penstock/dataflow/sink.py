"""The contract of sinks: writers that stage, and a committer that publishes.

Two phases: a writer stages what it gets and at barrier *n* cuts its staging; what was staged is
made durable before the barrier is acknowledged, and is published by the committer once snapshot
*n* is durable. A committable stays in every later manifest until its commit is confirmed, and
is committed again after a crash, so committing must be idempotent.

This module is the contract only; sinks are made in `penstock.connectors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Committable", "Committer", "Sink", "SinkWriter", "WriterContext"]


@dataclass(frozen=True)
class Committable:
    """Something staged that waits to be published, with its own identity.

    Arguments:
        lineage: the line of snapshots it belongs to; a fork has a new one.
        uid: uid of the sink's operator.
        subtask: index of the writer.
        snapshot: number of the snapshot at whose barrier it was cut.
        attempt: number of the execution attempt that staged it.
        payload: what the committer needs; str, int, float, bool, None, bytes, list, dict.
    """

    lineage: str
    uid: str
    subtask: int
    snapshot: int
    attempt: int
    payload: Any

    @property
    def identity(self) -> tuple[str, str, int, int, int]:
        """Everything but the payload; no two committables share it."""
        return (self.lineage, self.uid, self.subtask, self.snapshot, self.attempt)


@dataclass(frozen=True)
class WriterContext:
    """Where a writer runs.

    Arguments:
        uid: uid of the sink's operator.
        name: its name as shown.
        subtask: index of the writer.
        parallelism: how many writers there are.
        attempt: number of the execution attempt; a restart has a higher one.
        lineage: the line of snapshots this run belongs to.
    """

    uid: str
    name: str
    subtask: int
    parallelism: int
    attempt: int
    lineage: str


class SinkWriter(ABC):
    """Takes the records of one subtask."""

    #: All that `write` does with each record, if it does nothing else; it is then called instead.
    per_record: Callable[[Any], object] | None = None

    @abstractmethod
    def write(self, batch: list[Any]) -> None:
        """Take a batch. The list and its records are not the writer's to change."""

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """Cut at barrier `snapshot`: later writes belong to the next snapshot.

        Must be quick. Returns None if nothing was staged, else a function that is called off
        the event loop, makes what was staged durable and returns the payloads of its
        committables (none, one or more). Output of an aborted snapshot is kept by the engine
        and committed with the next one; the writer need not care. If the function raises, the
        output is lost, and the job goes back to its last snapshot to produce it again.
        """
        del snapshot
        return None

    def flush(self) -> None:
        """The task is idle: hand on what a reader would want to see now (print, sockets)."""

    def close(self) -> None:
        """Let go of what is open; what was staged and not prepared is thrown away."""


class Committer(ABC):
    """Publishes committables, beside the JobManager."""

    @abstractmethod
    def commit(self, committables: list[Committable]) -> None:
        """Publish all of them, in order. Those that already are published are done already.

        Runs off the event loop. Raises if any cannot be published; the job then restarts
        and tries again.
        """

    def finish(self, lineage: str, uid: str) -> None:
        """The job has read all of its input, and all of its output has been committed.

        Not called when a job is stopped. Called again if the JobManager dies before the job has
        ended, or if a job that has ended is resumed, so it must be idempotent. Runs off the event
        loop.
        """
        del lineage, uid

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Remove what attempts before this one staged and no snapshot knows of.

        Called when all that any snapshot holds has been published. Returns how much was removed.
        """
        del lineage, uid, before_attempt
        return 0

    def abandon(self, committables: list[Committable]) -> None:
        """They will never be committed (the job was discarded); staged data may be removed."""


class Sink(ABC):
    """Where records go.

    `exactly_once` says whether output is published in two phases, `needs_all_output` whether it is
    of use only together with all that the job has put out before. A fork, whose line of
    snapshots begins with it, is then refused.
    """

    exactly_once: bool = False
    needs_all_output: bool = False

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Make the writer of one subtask."""

    def create_committer(self) -> Committer | None:
        """Make the committer; None for sinks that only append."""
        return None

    def validate(self) -> None:
        """Raise a `GraphError` for what can be seen to be wrong before the job starts."""

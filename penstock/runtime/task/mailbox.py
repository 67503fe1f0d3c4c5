"""The mailbox of a task: the JobManager's messages that it has not handled yet.

The task handles them between two slices of work. (Flink: the mailbox model of a `StreamTask`.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.dataflow.source import Split
from penstock.runtime.network.elements import Barrier

__all__ = [
    "BarrierMail",
    "EndOfInputMail",
    "LoopClosedMail",
    "Mail",
    "Mailbox",
    "NoMoreSplitsMail",
    "SplitMail",
]


@dataclass(frozen=True)
class BarrierMail:
    """Requests that a source task begins a snapshot with this barrier."""

    barrier: Barrier


@dataclass(frozen=True)
class SplitMail:
    """Assigns a split to a source task, which reads it from its start."""

    split: Split


@dataclass(frozen=True)
class NoMoreSplitsMail:
    """Notifies a source task that it gets no more splits."""


@dataclass(frozen=True)
class EndOfInputMail:
    """Requests a round of end-of-input hooks: the task's loop has no records left."""

    round: int


@dataclass(frozen=True)
class LoopClosedMail:
    """Notifies a task that its loop has ended. The task then ends."""


Mail = BarrierMail | SplitMail | NoMoreSplitsMail | EndOfInputMail | LoopClosedMail


class Mailbox(deque[Mail]):
    """The messages that a task has not handled yet, in the order of their arrival."""

    @property
    def next_emits(self) -> bool:
        """Return whether handling the first message makes the task emit elements."""
        return isinstance(self[0], EndOfInputMail | LoopClosedMail)

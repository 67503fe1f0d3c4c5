"""The mailbox of a task: what the JobManager asks of it, in the order of arrival.

The task reads its mailbox between two slices of work. (Flink: the mailbox model of a `StreamTask`.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

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
    """A source is to begin a snapshot with this barrier."""

    barrier: Barrier


@dataclass(frozen=True)
class SplitMail:
    """A source is to read this split, from a position if it was read before."""

    split: Split
    position: Any


@dataclass(frozen=True)
class NoMoreSplitsMail:
    """There are no more splits for this source."""


@dataclass(frozen=True)
class EndOfInputMail:
    """The loop of the task is quiet: the end-of-input hooks are to run, in this round."""

    round: int


@dataclass(frozen=True)
class LoopClosedMail:
    """The loop of the task has ended, and the task ends with it."""


Mail = BarrierMail | SplitMail | NoMoreSplitsMail | EndOfInputMail | LoopClosedMail


class Mailbox(deque[Mail]):
    """The mails of a task, the oldest first."""

    @property
    def next_emits(self) -> bool:
        """Return whether the first mail makes the task emit something without any input."""
        return isinstance(self[0], EndOfInputMail | LoopClosedMail)

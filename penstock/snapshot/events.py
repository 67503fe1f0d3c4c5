"""What the protocols of a task hear and say.

Events are in the past tense, commands in the imperative. Commands come as an ordered list, and
their order is part of the protocol: state is copied before the barrier is broadcast, and the
inputs are unblocked last.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "BarrierArrived",
    "Block",
    "Broadcast",
    "Command",
    "CopyState",
    "Event",
    "SnapshotAborted",
    "SnapshotKind",
    "Unblock",
]


class SnapshotKind(StrEnum):
    """Why a snapshot is taken. The values are on disk: never change them.

    A checkpoint is taken by the clock and deleted by retention; a savepoint by a person, and kept.
    A final one is the job's last: sources do not emit after its barrier, and every sink commits.
    """

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    FINAL = "final"


@dataclass(frozen=True)
class BarrierArrived:
    """Barrier `number` was taken from `channel`; None is the paper's *Nil*, the coordinator."""

    channel: Hashable | None
    number: int


@dataclass(frozen=True)
class SnapshotAborted:
    """The coordinator has given up snapshot `number`."""

    number: int


@dataclass(frozen=True)
class Block:
    """Deliver nothing more from `channel` until it is unblocked."""

    channel: Hashable


@dataclass(frozen=True)
class CopyState:
    """Capture the task's state for snapshot `number` now, and write and acknowledge it."""

    number: int


@dataclass(frozen=True)
class Broadcast:
    """Send barrier `number` on every output channel, behind all that was emitted before."""

    number: int


@dataclass(frozen=True)
class Unblock:
    """Deliver again from these channels."""

    channels: tuple[Hashable, ...]


Event = BarrierArrived | SnapshotAborted
Command = Block | CopyState | Broadcast | Unblock

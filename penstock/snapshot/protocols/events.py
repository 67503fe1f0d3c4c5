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
    "BarrierAnnounced",
    "BarrierSent",
    "BlockChannel",
    "Broadcast",
    "Command",
    "CopyState",
    "DropLog",
    "EndLog",
    "Event",
    "Halt",
    "Overtake",
    "Resume",
    "SnapshotAborted",
    "SnapshotCompleted",
    "SnapshotKind",
    "StartLog",
    "StartAlignmentTimer",
    "AlignmentTimedOut",
    "UnblockChannels",
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
    """Barrier `number` was taken from `channel`; None is the paper's *Nil*, the coordinator.

    `align`: the snapshot is a savepoint or the job's last, and holds each record exactly once in
    every mode. A protocol that is exactly once anyhow takes no notice of it.
    """

    channel: Hashable | None
    number: int
    align: bool = False


@dataclass(frozen=True)
class BarrierAnnounced:
    """Barrier `number` has come to the gate on `channel`, and is not taken yet.

    Algorithm 2 hears it of back-edges while they are logged: a log ends where the barrier
    arrives, and not where it is taken, so that a snapshot does not wait for a loop to drain.
    Unaligned protocols hear it of every channel, always. `urgent`: it has overtaken records, and
    is not to be waited with.
    """

    channel: Hashable
    number: int
    urgent: bool = False


@dataclass(frozen=True)
class SnapshotAborted:
    """The coordinator has given up snapshot `number`."""

    number: int


@dataclass(frozen=True)
class SnapshotCompleted:
    """Snapshot `number` is complete."""

    number: int


@dataclass(frozen=True)
class BarrierSent:
    """Barrier `number` has left the task on all its output channels."""

    number: int


@dataclass(frozen=True)
class AlignmentTimedOut:
    """The time that `StartAlignmentTimer` of snapshot `number` gave is over."""

    number: int


@dataclass(frozen=True)
class BlockChannel:
    """Deliver nothing more from `channel` until it is unblocked."""

    channel: Hashable


@dataclass(frozen=True)
class CopyState:
    """Capture the task's state for snapshot `number` now, and write and acknowledge it."""

    number: int


@dataclass(frozen=True)
class StartLog:
    """Log these channels from now on: what waits there, and what arrives before the barrier."""

    number: int
    channels: tuple[Hashable, ...]


@dataclass(frozen=True)
class EndLog:
    """All logs of snapshot `number` are complete: acknowledge it with state and logs."""

    number: int


@dataclass(frozen=True)
class DropLog:
    """Snapshot `number` was given up while it was being logged."""

    number: int


@dataclass(frozen=True)
class Broadcast:
    """Send barrier `number` on every output channel, behind all that was emitted before."""

    number: int


@dataclass(frozen=True)
class Overtake:
    """Send barrier `number` on every output channel, ahead of what waits there, and log that.

    If the barrier waits there itself, it is that which gets ahead.
    """

    number: int


@dataclass(frozen=True)
class StartAlignmentTimer:
    """Tell `AlignmentTimedOut` of snapshot `number` after the aligned checkpoint timeout."""

    number: int


@dataclass(frozen=True)
class Halt:
    """Until `Resume`, read no source, run no end-of-input hooks and do not end."""


@dataclass(frozen=True)
class Resume:
    """Go on as before `Halt`."""


@dataclass(frozen=True)
class UnblockChannels:
    """Deliver again from these channels."""

    channels: tuple[Hashable, ...]


Event = (
    BarrierArrived
    | BarrierAnnounced
    | BarrierSent
    | AlignmentTimedOut
    | SnapshotAborted
    | SnapshotCompleted
)
Command = (
    BlockChannel
    | CopyState
    | StartLog
    | Broadcast
    | Overtake
    | UnblockChannels
    | EndLog
    | DropLog
    | StartAlignmentTimer
    | Halt
    | Resume
)

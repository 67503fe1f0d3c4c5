"""The events that protocols handle, and the commands that they return.

Events are in the past tense, commands in the imperative. The order of commands is part of the
protocol: state is copied before the barrier is broadcast, and the inputs are unblocked last.
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
    """The reason for a snapshot. The values are on disk: never change them.

    A checkpoint is taken periodically and deleted by retention. A savepoint is requested by the
    user, and kept. A final snapshot is the job's last: sources emit nothing after its barrier, and
    every sink commits.
    """

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    FINAL = "final"


@dataclass(frozen=True)
class BarrierArrived:
    """Barrier `number` was taken from a channel.

    Arguments:
        channel: the input; None is the paper's *Nil*, the coordinator.
        number: of the snapshot.
        align: whether the snapshot is a savepoint or the final one, which is exactly once in every
            mode. Exactly-once protocols ignore it.
    """

    channel: Hashable | None
    number: int
    align: bool = False


@dataclass(frozen=True)
class BarrierAnnounced:
    """Barrier `number` has arrived at the gate on a channel, and is not taken yet.

    Aligned protocols receive this event for back-edges while these are logged: a log ends where
    the barrier arrives, not where it is taken, so that a snapshot does not wait for a loop to
    drain. Unaligned protocols receive it for every channel.

    Arguments:
        channel: the input.
        number: of the snapshot.
        urgent: whether the barrier has overtaken records, so that the task must not align first.
    """

    channel: Hashable
    number: int
    urgent: bool = False


@dataclass(frozen=True)
class SnapshotAborted:
    """The coordinator has aborted snapshot `number`."""

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
    """The timer that `StartAlignmentTimer` of snapshot `number` started has expired."""

    number: int


@dataclass(frozen=True)
class BlockChannel:
    """Deliver nothing more from `channel` until it is unblocked."""

    channel: Hashable


@dataclass(frozen=True)
class CopyState:
    """Capture the task's state for snapshot `number` now; write and acknowledge it later."""

    number: int


@dataclass(frozen=True)
class StartLog:
    """Log the records that wait in these channels, or arrive there before the barrier."""

    number: int
    channels: tuple[Hashable, ...]


@dataclass(frozen=True)
class EndLog:
    """Acknowledge snapshot `number` with state and logs: all its logs are complete."""

    number: int


@dataclass(frozen=True)
class DropLog:
    """Discard the logs of snapshot `number`, which was aborted or superseded."""

    number: int


@dataclass(frozen=True)
class Broadcast:
    """Send barrier `number` on every output channel, behind all records emitted before."""

    number: int


@dataclass(frozen=True)
class Overtake:
    """Send barrier `number` on every output channel, ahead of the records that wait there.

    The overtaken records are logged. If the barrier itself waits there, it is moved to the front.
    """

    number: int


@dataclass(frozen=True)
class StartAlignmentTimer:
    """Raise `AlignmentTimedOut` for snapshot `number` after the aligned checkpoint timeout."""

    number: int


@dataclass(frozen=True)
class Halt:
    """Read no source, run no end-of-input hooks and do not end until `Resume`."""


@dataclass(frozen=True)
class Resume:
    """Continue after `Halt`."""


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

"""The events that snapshot protocols handle, and the commands that they return.

The names of events are in the past tense, the names of commands in the imperative. The order of
commands is part of the protocol: the task copies its state before it broadcasts the barrier, and
unblocks its inputs last.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum


class SnapshotKind(StrEnum):
    """The reason for a snapshot. The values are stored on disk, so never change them.

    A checkpoint is taken periodically, and removed when enough newer ones exist. A savepoint is
    requested by the user, and never removed. The final snapshot is the last one of a job: sources
    emit no records after its barrier, and every sink commits.
    """

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    FINAL = "final"


@dataclass(frozen=True)
class BarrierArrived:
    """The task has taken the barrier of snapshot `number` from an input channel.

    Arguments:
        channel: the input channel, or None if the coordinator sent the barrier (*Nil* in ABS).
        number: the number of the snapshot.
        align: whether the snapshot is a savepoint or the final one. The at-least-once protocol
            aligns for these snapshots. Other protocols ignore this argument.
    """

    channel: Hashable | None
    number: int
    align: bool = False


@dataclass(frozen=True)
class BarrierAnnounced:
    """The barrier of snapshot `number` has arrived at the input gate.

    The task has not taken the barrier from its channel yet. Aligned protocols receive this event
    for back-edges that are being logged, and the unaligned protocol receives it for all channels.
    The log ends when the barrier arrives, not when the task takes it. So the snapshot does not
    wait until the task has processed all records of a loop.

    Arguments:
        channel: the input channel.
        number: the number of the snapshot.
        urgent: whether the barrier has overtaken records. If it has, the task must copy its state
            at once, without alignment.
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
    """The coordinator has completed snapshot `number`."""

    number: int


@dataclass(frozen=True)
class BarrierSent:
    """The task has sent the barrier of snapshot `number` on all its output channels."""

    number: int


@dataclass(frozen=True)
class AlignmentTimedOut:
    """The aligned checkpoint timeout of snapshot `number` has expired."""

    number: int


@dataclass(frozen=True)
class BlockChannel:
    """Stop processing records from `channel` until it is unblocked."""

    channel: Hashable


@dataclass(frozen=True)
class CopyState:
    """Capture the state of the task for snapshot `number` now.

    The state is written and acknowledged later.
    """

    number: int


@dataclass(frozen=True)
class StartLog:
    """Log the records that wait in `channels`, and the records that arrive before the barrier."""

    number: int
    channels: tuple[Hashable, ...]


@dataclass(frozen=True)
class EndLog:
    """End the logs of snapshot `number`, and acknowledge it with the state and the logs."""

    number: int


@dataclass(frozen=True)
class DropLog:
    """Discard the logs of snapshot `number`, which was given up."""

    number: int


@dataclass(frozen=True)
class Broadcast:
    """Send barrier `number` on all output channels, behind the records that wait there."""

    number: int


@dataclass(frozen=True)
class Overtake:
    """Send barrier `number` on all output channels, ahead of the records that wait there.

    The task logs the records that the barrier overtakes. If the barrier already waits in an output
    channel, the task moves it to the front.
    """

    number: int


@dataclass(frozen=True)
class StartAlignmentTimer:
    """Start the timer that sends `AlignmentTimedOut` after the aligned checkpoint timeout."""

    number: int


@dataclass(frozen=True)
class Halt:
    """Halt the task until it receives the command `Resume`.

    A halted task reads no source, runs no end-of-input hooks, and does not end.
    """


@dataclass(frozen=True)
class Resume:
    """Let the task continue after `Halt`."""


@dataclass(frozen=True)
class UnblockChannels:
    """Process records from these blocked channels again."""

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

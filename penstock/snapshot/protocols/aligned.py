"""ABS Algorithm 1: barrier alignment of one task without back-edge inputs.

Theory: Carbone et al. 2015 (ABS), section 4.2. Line numbers refer to the listing in the paper. When
a barrier arrives on an input, the task blocks this input until the barrier has arrived on all
inputs (lines 7-9). Then the task broadcasts the barrier, snapshots its state and unblocks the
inputs (lines 10-15). Records behind a barrier are not processed before the state is copied. So the
states of all tasks form one consistent cut of the streams. Channels are FIFO and every task is
reachable from a source, so the barrier arrives on all inputs.

    state      event                                    commands                    next
    IDLE       barrier n on Nil                         copy, broadcast             IDLE
    IDLE       barrier n, one input only                copy, broadcast             IDLE
    IDLE       barrier n, several inputs                block                       ALIGNING n
    ALIGNING n barrier n, others still missing          block                       ALIGNING n
    ALIGNING n barrier n, the last one                  copy, broadcast, unblock    IDLE
    ALIGNING n barrier m > n                            unblock all, then as IDLE   …
    ALIGNING n abort of n or a higher one               unblock all                 IDLE
    any        barrier ≤ the newest taken or given up   nothing (stale)             same

The implementation differs from the listing in two points. The state is *captured* before the
broadcast, without a copy of its values, and written later, while the task processes records. Each
barrier and abort has a snapshot number; see `base.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from penstock.snapshot.protocols.base import Phase, SnapshotProtocol
from penstock.snapshot.protocols.events import (
    BarrierArrived,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    Event,
    SnapshotAborted,
    SnapshotCompleted,
    UnblockChannels,
)


class AlignedProtocol(SnapshotProtocol):
    """Aligned snapshots of one task without back-edges (ABS Algorithm 1).

    Arguments:
        inputs: the input channels. A source has none; its barriers arrive on channel None.
    """

    def __init__(self, inputs: Iterable[Hashable]) -> None:
        super().__init__(inputs)
        self.phase = Phase.IDLE
        #: The blocked inputs, in the order in which their barriers arrived.
        self.blocked: dict[Hashable, None] = {}

    def handle(self, event: Event) -> list[Command]:
        """Handle an event, and return the commands that the task must execute."""
        match event:
            case SnapshotAborted(number):
                return self._abort(number)
            case BarrierArrived():
                return self._barrier(event)
            case SnapshotCompleted():
                return []
        raise self._error(f"{event} at a task without back-edges")

    def validate(self) -> None:
        """Check all invariants, and raise `ProtocolError` if one does not hold. Tests call it."""
        aligning = self.phase is Phase.ALIGNING
        if aligning != (self.number is not None) or aligning != bool(self.blocked):
            raise self._error("inconsistent")
        if self.blocked.keys() - set(self.inputs):
            raise self._error("blocked channels that are no inputs")
        if aligning and len(self.blocked) == len(self.inputs):
            raise self._error("all inputs blocked")
        if self.number is not None and self.number <= self.settled:
            raise self._error("aligning a settled number")

    def _barrier(self, event: BarrierArrived) -> list[Command]:
        channel, number = event.channel, event.number
        self._require_input(channel, number)
        if channel in self.blocked:
            raise self._error(f"{event} on a blocked channel")
        commands = self._supersede(number)
        if commands is None:
            return []
        if channel is None:
            return [*commands, *self._take_snapshot(number)]
        self.phase, self.number = Phase.ALIGNING, number  # These are lines 7-9 of ABS Algorithm 1.
        self.blocked[channel] = None
        if len(self.blocked) < len(self.inputs):
            return [*commands, BlockChannel(channel)]
        return [*commands, *self._take_snapshot(number)]  # This is line 10 of ABS Algorithm 1.

    def _take_snapshot(self, number: int) -> list[Command]:
        # The channel on which the barrier arrived last was never blocked, so only the other
        # channels are unblocked. A task with one input therefore never blocks a channel.
        others = tuple(self.blocked)[:-1]
        self._settle(number)
        # These commands are lines 12-13 of ABS Algorithm 1, and then lines 14-15.
        commands: list[Command] = [CopyState(number), Broadcast(number)]
        return [*commands, UnblockChannels(others)] if others else commands

    def _give_up(self) -> list[Command]:
        assert self.number is not None
        blocked = tuple(self.blocked)
        self._settle(self.number)
        return [UnblockChannels(blocked)]

    def _settle(self, number: int) -> None:
        self.settled = max(self.settled, number)
        self.phase, self.number, self.blocked = Phase.IDLE, None, {}

    def _describe(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, "
            f"blocked {list(self.blocked)}, inputs {list(self.inputs)}"
        )

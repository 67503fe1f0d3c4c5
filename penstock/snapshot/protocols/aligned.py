"""ABS Algorithm 1: barrier alignment of one task without back-edge inputs.

Theory (Carbone et al. 2015, section 4.2; `upon` line numbers are the paper's). A task that has
the barrier on some inputs blocks those until it has it on all (lines 7-9); then it broadcasts
the barrier, snapshots its state and unblocks (lines 10-15). Nothing that came behind a barrier
is processed before the state is taken, so the states of all tasks are one cut of the streams.
Channels are FIFO and every task is reachable from a source, so the barrier comes on all inputs.

    state      event                                    commands                    next
    IDLE       barrier n on Nil                         copy, broadcast             IDLE
    IDLE       barrier n, one input only                copy, broadcast             IDLE
    IDLE       barrier n, several inputs                block                       ALIGNING n
    ALIGNING n barrier n, others still missing          block                       ALIGNING n
    ALIGNING n barrier n, the last one                  copy, broadcast, unblock    IDLE
    ALIGNING n barrier m > n                            unblock all, then as IDLE   …
    ALIGNING n abort n                                  unblock all                 IDLE
    any        barrier ≤ the newest done or given up    nothing (stale)             same

Two things differ from the listing. The state is *copied* before the broadcast (an O(1) capture),
and written afterwards, while records flow. And everything belongs to a snapshot number: a higher
number on any channel gives up a lower one whether or not its abort has come, and stale barriers
are dropped without being marked.

Nothing here waits, reads a clock or touches a channel: `penstock.runtime.task.task` does, on
command.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum

from penstock.dataflow.errors import ProtocolError
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

__all__ = ["AlignedProtocol", "Phase"]


class Phase(Enum):
    """What a task is doing about snapshots.

    Algorithm 1 never logs. In the other protocols a task is logging from its copy until the last
    of its logs has ended, which is at once where there is nothing to log.
    """

    IDLE = "idle"
    ALIGNING = "aligning"
    LOGGING = "logging"


class AlignedProtocol:
    """Algorithm 1 for one task.

    Arguments:
        inputs: its input channels; empty for a source, whose barriers arrive on None.
    """

    def __init__(self, inputs: Iterable[Hashable]) -> None:
        self.inputs = tuple(inputs)
        self.phase = Phase.IDLE
        #: Number being aligned; None exactly when the phase is IDLE.
        self.number: int | None = None
        #: Inputs that have delivered the barrier, in order; they are the blocked ones.
        self.blocked: dict[Hashable, None] = {}
        #: The highest number that was completed or given up here; lower barriers are stale.
        self.settled = -1

    def handle(self, event: Event) -> list[Command]:
        """What to do about an event, in this order; `ProtocolError` for an impossible one."""
        match event:
            case SnapshotAborted(number):
                return self._abort(number)
            case BarrierArrived():
                return self._barrier(event)
            case SnapshotCompleted():
                return []
        raise ProtocolError(f"{event} at a task without back-edges: {self._story()}")

    def validate(self) -> None:
        """Raise `ProtocolError` unless every invariant holds; for tests."""
        aligning = self.phase is Phase.ALIGNING
        if aligning != (self.number is not None) or aligning != bool(self.blocked):
            raise ProtocolError(f"inconsistent: {self._story()}")
        if self.blocked.keys() - set(self.inputs):
            raise ProtocolError(f"blocked channels that are no inputs: {self._story()}")
        if aligning and len(self.blocked) == len(self.inputs):
            raise ProtocolError(f"all inputs blocked: {self._story()}")
        if self.number is not None and self.number <= self.settled:
            raise ProtocolError(f"aligning a settled number: {self._story()}")

    def _barrier(self, event: BarrierArrived) -> list[Command]:
        channel, number = event.channel, event.number
        if (channel is None) != (not self.inputs) or not (
            channel is None or channel in self.inputs
        ):
            raise ProtocolError(f"{event} on a channel that is no input: {self._story()}")
        if channel in self.blocked:
            raise ProtocolError(f"{event} on a blocked channel: {self._story()}")
        if number <= self.settled or (self.number is not None and number < self.number):
            return []
        commands: list[Command] = []
        if self.number is not None and number > self.number:
            commands += self._give_up()
        if channel is None:
            return [*commands, *self._complete(number)]
        self.phase, self.number = Phase.ALIGNING, number  # lines 7-9
        self.blocked[channel] = None
        if len(self.blocked) < len(self.inputs):
            return [*commands, BlockChannel(channel)]
        return [*commands, *self._complete(number)]  # line 10

    def _complete(self, number: int) -> list[Command]:
        # The last channel was never blocked, so only the others are unblocked; a task with one
        # input therefore never blocks at all.
        others = tuple(self.blocked)[:-1]
        self._settle(number)
        done: list[Command] = [CopyState(number), Broadcast(number)]  # lines 12-13
        return [*done, UnblockChannels(others)] if others else done  # lines 14-15

    def _abort(self, number: int) -> list[Command]:
        if number == self.number:
            return self._give_up()
        if self.number is None:
            self.settled = max(self.settled, number)
        return []

    def _give_up(self) -> list[Command]:
        assert self.number is not None
        blocked = tuple(self.blocked)
        self._settle(self.number)
        return [UnblockChannels(blocked)]

    def _settle(self, number: int) -> None:
        self.settled = max(self.settled, number)
        self.phase, self.number, self.blocked = Phase.IDLE, None, {}

    def _story(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, "
            f"blocked {list(self.blocked)}, inputs {list(self.inputs)}"
        )

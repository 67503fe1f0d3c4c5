"""At least once: barriers without blocking.

For jobs that would rather process a record twice after a failure than hold one back. A task copies
its state when the barrier has come on all regular inputs, as in Algorithms 1 and 2, but nothing is
blocked meanwhile: records from behind a barrier get into the state that is copied, and come again
after a failure. None is lost: all that came before the barriers is in the states, or in the logs of
back-edges, which are taken from the cut until the barrier arrives, as in Algorithm 2. (Flink:
`CheckpointingMode.AT_LEAST_ONCE`; ABS section 4 names it as what is left without line 9.)

    state      event                                commands                    next
    IDLE       barrier n on Nil                     copy, log, broadcast        IDLE
    IDLE       barrier n, a regular one missing     nothing                     ALIGNING n
    ALIGNING n barrier n, the last regular one      copy, log, broadcast        LOGGING n
    LOGGING n  no back-edge is missing (any more)   end log                     IDLE
    ALIGNING n barrier m > n                        nothing; then as IDLE       …
    LOGGING n  barrier m > n, or its arrival        drop log, then as IDLE      …
    any        abort of n or a higher one           drop log, if there is one   IDLE
    any        a stale barrier                      nothing                     same

*Aligning* is only counting here, except for savepoints and the job's last snapshot. A job that is
stopped in order and resumed has not failed, so it must double nothing. The barriers of such a
snapshot block their channels until the cut, as in Algorithms 1 and 2, and it takes as long as with
`EXACTLY_ONCE`. Without that, records that a loop emits behind its barrier would be in the states of
the tasks behind it, and come again from the loop's log.

Nothing here waits, reads a clock or touches a channel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.aligned import Phase
from penstock.snapshot.protocols.events import (
    BarrierAnnounced,
    BarrierArrived,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    DropLog,
    EndLog,
    Event,
    SnapshotAborted,
    SnapshotCompleted,
    StartLog,
    UnblockChannels,
)

__all__ = ["AtLeastOnceProtocol"]


class AtLeastOnceProtocol:
    """Barriers without blocking, for one task.

    Arguments:
        inputs: all its input channels; empty for a source, whose barriers arrive on None.
        back_edges: those of them that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable] = ()) -> None:
        self.inputs = tuple(inputs)
        self.back_edges = frozenset(back_edges)
        self.regular = frozenset(self.inputs) - self.back_edges
        self.phase = Phase.IDLE
        #: Number being counted or logged; None exactly when the phase is IDLE.
        self.number: int | None = None
        #: Inputs whose barrier of this number was taken, or arrived while logging.
        self.marked: set[Hashable] = set()
        #: Those of them that are blocked until the cut, in order.
        self.blocked: dict[Hashable, None] = {}
        #: The highest number whose cut was made, or that was given up.
        self.settled = -1

    def handle(self, event: Event) -> list[Command]:
        """What to do about an event, in this order; `ProtocolError` for an impossible one."""
        match event:
            case BarrierArrived(channel, number, align):
                return self._barrier(channel, number, align)
            case BarrierAnnounced(channel, number):
                return self._reached(channel, number)
            case SnapshotAborted(number):
                return self._abort(number)
            case SnapshotCompleted():
                return []
        raise ProtocolError(f"{event} at a task that blocks nothing: {self._story()}")

    def validate(self) -> None:
        """Raise `ProtocolError` unless every invariant holds; for tests."""
        if (self.phase is Phase.IDLE) != (self.number is None) or (
            self.phase is Phase.IDLE and self.marked
        ):
            raise ProtocolError(f"inconsistent: {self._story()}")
        if self.blocked and (self.phase is not Phase.ALIGNING or self.blocked.keys() - self.marked):
            raise ProtocolError(f"the wrong channels are blocked: {self._story()}")
        if self.phase is Phase.ALIGNING and self.regular <= self.marked:
            raise ProtocolError(f"the cut is overdue: {self._story()}")
        if self.phase is Phase.LOGGING and len(self.marked) == len(self.inputs):
            raise ProtocolError(f"nothing to log: {self._story()}")

    def _barrier(self, channel: Hashable | None, number: int, align: bool) -> list[Command]:
        if (channel is None) != (not self.inputs) or not (
            channel is None or channel in self.inputs
        ):
            raise ProtocolError(
                f"barrier {number} on {channel}, which is no input: {self._story()}"
            )
        if number <= self.settled or (self.number is not None and number < self.number):
            return []
        commands = self._give_up() if self.number is not None and number > self.number else []
        self.phase, self.number = Phase.ALIGNING, number
        if channel is not None:
            self.marked.add(channel)
        if not self.regular <= self.marked:
            if align:
                self.blocked[channel] = None
                commands.append(BlockChannel(channel))
            return commands
        missing = tuple(c for c in self.inputs if c not in self.marked)
        self.phase, self.settled = Phase.LOGGING, number
        cut: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        return [*commands, *cut, *self._unblock(), *self._end()]

    def _reached(self, channel: Hashable, number: int) -> list[Command]:
        if self.phase is not Phase.LOGGING or number < self.settled:
            return []
        if number > self.settled:
            return self._give_up()
        self.marked.add(channel)
        return self._end()

    def _end(self) -> list[Command]:
        if len(self.marked) < len(self.inputs):
            return []
        self._rest()
        return [EndLog(self.settled)]

    def _abort(self, number: int) -> list[Command]:
        if self.number is not None and number < self.number:
            return []
        commands = [] if self.number is None else self._give_up()
        self.settled = max(self.settled, number)
        return commands

    def _give_up(self) -> list[Command]:
        number, phase = self.number, self.phase
        assert number is not None
        self.settled = number
        commands = self._unblock()
        self._rest()
        return [DropLog(number)] if phase is Phase.LOGGING else commands

    def _unblock(self) -> list[Command]:
        blocked, self.blocked = tuple(self.blocked), {}
        return [UnblockChannels(blocked)] if blocked else []

    def _rest(self) -> None:
        self.phase, self.number, self.marked = Phase.IDLE, None, set()

    def _story(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, "
            f"marked {sorted(map(str, self.marked))}, blocked {list(self.blocked)}, "
            f"inputs {list(self.inputs)}, "
            f"back-edges {sorted(map(str, self.back_edges))}"
        )

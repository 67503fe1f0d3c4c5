"""ABS Algorithm 2: one task that has back-edges among its inputs.

Theory (Carbone et al. 2015, section 4.3; `upon` line numbers are the paper's). Without its
back-edges the graph is acyclic, and on what is left Algorithm 1 runs: a task makes its cut (it
copies its state and broadcasts, lines 13-17) when the barrier is there on all *regular* inputs. It
cannot wait for its back-edges, whose barriers come only after it has sent its own round the loop.
So regular channels hold nothing at a cut, and what is under way on a back-edge is logged: that
which waits in the channel at the cut, and that which arrives before the barrier (lines 24-26). The
snapshot is the copy and the logs; it is done when the barrier has come on every back-edge
(lines 19-22). On recovery the logs are processed before any input is read.

    state      event                                   commands                         next
    IDLE       barrier n, a regular one still missing  block                            ALIGNING n
    ALIGNING n barrier n, a regular one still missing  block                            ALIGNING n
    either     barrier n, the last regular one         copy, log, broadcast, unblock    LOGGING n
    LOGGING n  no back-edge is missing (any more)      end log                          IDLE
    LOGGING n  barrier n reached, others missing       nothing                          LOGGING n
    ALIGNING n barrier m > n                           unblock all, then as IDLE        …
    LOGGING n  barrier m > n                           drop log, then as IDLE           …
    LOGGING n  barrier m > n reached                   drop log                         IDLE
    ALIGNING n abort of n or a higher one              unblock all                      IDLE
    LOGGING n  abort of n or a higher one              drop log                         IDLE
    any        barrier ≤ the newest cut or given up    nothing (stale)                  same
    the others barrier reached                         nothing: it will be taken        same

*Barrier n* is one that was taken from its channel, *reached* one that has come to the gate.

What differs from the listing, beside what `aligned.py` says:

* Back-edges are found on operators, and tasks are parallel, so a barrier can come round before the
  cut: another task of the loop was earlier. Line 13 as printed (`marked = regular`) then never
  holds. With `regular ⊆ marked` alone, records from behind that barrier get into the copy, and are
  doubled on recovery. So line 11 blocks a back-edge too, until the cut, which unblocks all
  (line 16). All that such a channel held ahead of the barrier has been processed: its log is empty.
* The log is taken as records arrive at the gate and not as they are processed, so that a snapshot
  does not wait until a loop has drained. A task processes what it logs as usual meanwhile.

The gate may find that a barrier has been reached while it does what is commanded here. It may say
so at once, once all channels of a `StartLog` are being logged, or after the last command. Nothing
here waits, reads a clock or touches a channel.
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

__all__ = ["AlignedCyclicProtocol"]


class AlignedCyclicProtocol:
    """Algorithm 2 for one task.

    Arguments:
        inputs: all its input channels; at least one is regular.
        back_edges: those of them that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable]) -> None:
        self.inputs = tuple(inputs)
        self.back_edges = frozenset(back_edges)
        self.regular = frozenset(self.inputs) - self.back_edges
        self.phase = Phase.IDLE
        #: Number being aligned or logged; None exactly when the phase is IDLE.
        self.number: int | None = None
        #: Inputs that have delivered the barrier and wait for the cut, in order.
        self.blocked: dict[Hashable, None] = {}
        #: Inputs whose barrier of this number is here: taken, or reached while logging.
        self.marked: dict[Hashable, None] = {}
        #: The highest number whose cut was made, or that was given up; barriers up to it are stale.
        self.settled = -1
        if not self.regular or not self.back_edges <= set(self.inputs):
            raise ProtocolError(
                f"back-edges {sorted(map(str, self.back_edges))} of a task with inputs "
                f"{list(self.inputs)}: they must be inputs, and leave one that is regular"
            )

    def handle(self, event: Event) -> list[Command]:
        """What to do about an event, in this order; `ProtocolError` for an impossible one."""
        match event:
            case BarrierArrived():
                return self._barrier(event)
            case BarrierAnnounced():
                return self._reached(event)
            case SnapshotAborted(number):
                return self._abort(number)
            case SnapshotCompleted():
                return []
        raise ProtocolError(f"{event} at a task that aligns: {self._story()}")

    def validate(self) -> None:
        """Raise `ProtocolError` unless every invariant holds; for tests."""
        phase, number = self.phase, self.number
        if (phase is Phase.IDLE) != (number is None) or (number is None) == bool(self.marked):
            raise ProtocolError(f"inconsistent: {self._story()}")
        if self.marked.keys() - set(self.inputs):
            raise ProtocolError(f"marked channels that are no inputs: {self._story()}")
        if self.blocked != (self.marked if phase is Phase.ALIGNING else {}):
            # What is marked before the cut is blocked, and nothing is blocked after it.
            raise ProtocolError(f"the wrong channels are blocked: {self._story()}")
        if phase is Phase.ALIGNING:
            assert number is not None
            if number <= self.settled:
                raise ProtocolError(f"aligning a settled number: {self._story()}")
            if self.regular <= self.marked.keys():
                raise ProtocolError(f"the cut is overdue: {self._story()}")
        if phase is Phase.LOGGING:
            if number != self.settled:
                raise ProtocolError(f"logging a number that has no cut: {self._story()}")
            if not self.regular <= self.marked.keys() or len(self.marked) == len(self.inputs):
                raise ProtocolError(f"nothing to log: {self._story()}")

    def _barrier(self, event: BarrierArrived) -> list[Command]:
        channel, number = event.channel, event.number
        if channel is None or channel not in self.inputs:
            raise ProtocolError(f"{event} on a channel that is no input: {self._story()}")
        if channel in self.blocked:
            raise ProtocolError(f"{event} on a blocked channel: {self._story()}")
        if number <= self.settled or (self.number is not None and number < self.number):
            return []
        commands: list[Command] = []
        if self.number is not None and number > self.number:
            commands += self._give_up()
        self.phase, self.number = Phase.ALIGNING, number
        self.marked[channel] = None  # line 9
        if self._may_cut():
            return [*commands, *self._cut(number)]
        self.blocked[channel] = None  # lines 11-12, for back-edges as well
        return [*commands, BlockChannel(channel)]

    def _may_cut(self) -> bool:
        return self.regular <= self.marked.keys()  # line 13

    def _cut(self, number: int) -> list[Command]:
        # A back-edge that is marked already was blocked at its barrier: nothing of it is to be
        # logged. The channel that completes the cut was never blocked.
        missing = tuple(channel for channel in self.inputs if channel not in self.marked)
        blocked = tuple(self.blocked)
        self.phase, self.blocked, self.settled = Phase.LOGGING, {}, number
        # Lines 14-17. The logs begin before the barrier goes out, since it may come straight back.
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        if blocked:
            commands.append(UnblockChannels(blocked))
        return [*commands, *self._end()]

    def _reached(self, event: BarrierAnnounced) -> list[Command]:
        channel, number = event.channel, event.number
        if channel not in self.back_edges:
            raise ProtocolError(f"{event} on a channel that is no back-edge: {self._story()}")
        if self.phase is not Phase.LOGGING or number < self.settled:
            return []
        if number > self.settled:
            return self._give_up()
        if channel in self.marked:
            raise ProtocolError(f"{event} for the second time: {self._story()}")
        self.marked[channel] = None  # line 9
        return self._end()

    def _end(self) -> list[Command]:
        if len(self.marked) < len(self.inputs):  # line 19
            return []
        number = self.settled
        self._rest()
        return [EndLog(number)]  # lines 20-22

    def _abort(self, number: int) -> list[Command]:
        if self.number is not None and number < self.number:
            return []
        commands = [] if self.number is None else self._give_up()
        self.settled = max(self.settled, number)
        return commands

    def _give_up(self) -> list[Command]:
        number, phase, blocked = self.number, self.phase, tuple(self.blocked)
        assert number is not None
        self.settled = number
        self._rest()
        return [DropLog(number)] if phase is Phase.LOGGING else [UnblockChannels(blocked)]

    def _rest(self) -> None:
        self.phase, self.number, self.blocked, self.marked = Phase.IDLE, None, {}, {}

    def _story(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, "
            f"blocked {list(self.blocked)}, marked {list(self.marked)}, "
            f"inputs {list(self.inputs)}, back-edges {sorted(map(str, self.back_edges))}"
        )

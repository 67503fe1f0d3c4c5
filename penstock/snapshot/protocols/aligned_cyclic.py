"""ABS Algorithm 2: barrier alignment of one task with back-edge inputs.

Theory: Carbone et al. 2015 (ABS), section 4.3. Line numbers refer to the listing in the paper.
Without its back-edges the graph is acyclic, so Algorithm 1 applies to the *regular* inputs. When
the barrier has arrived on all of them, the task copies its state and broadcasts the barrier (lines
13-17). The task cannot wait for the barriers of its back-edges: they arrive only after the task
has sent its own barrier into the loop.

At the snapshot, no records are in flight on the regular channels. The records in flight on
back-edges are logged: the records that wait in the channel at the snapshot, and the records that
arrive there before the barrier (lines 24-26). The snapshot consists of the copied state and the
logs. It ends when the barrier has arrived on every back-edge (lines 19-22). After a restore, the
task processes the logs before it reads any input.

    state      event                                    commands                        next
    IDLE       barrier n, a regular one still missing   block                           ALIGNING n
    ALIGNING n barrier n, a regular one still missing   block                           ALIGNING n
    either     barrier n, the last regular one          copy, log, broadcast, unblock   LOGGING n
    LOGGING n  no back-edge is missing (any more)       end log                         IDLE
    LOGGING n  barrier n announced, others missing      nothing                         LOGGING n
    ALIGNING n barrier m > n                            unblock all, then as IDLE       …
    LOGGING n  barrier m > n                            drop log, then as IDLE          …
    LOGGING n  barrier m > n announced                  drop log                        IDLE
    ALIGNING n abort of n or a higher one               unblock all                     IDLE
    LOGGING n  abort of n or a higher one               drop log                        IDLE
    any        barrier ≤ the newest taken or given up   nothing (stale)                 same
        the others barrier announced                        nothing; the task takes it later    same

In the table, *barrier* means that the task took the barrier from its channel. *Announced* means
that the barrier has arrived at the input gate and still waits there.

The implementation differs from the listing in the two points that `aligned.py` describes, and in
these:

* Tasks are parallel. If another task of the loop takes its snapshot earlier, its barrier can reach
  this task over a back-edge before this task's snapshot. Then line 13 as printed (`marked =
  regular`) never holds. With `regular ⊆ marked` alone, the copied state would contain records from
  behind that barrier, and they would be processed twice after a restore. So line 11 also blocks
  back-edges, until the snapshot unblocks all channels (line 16). The log of such a back-edge is
  empty, since the task has processed all records ahead of the barrier.
* Records are logged when they arrive at the gate, not when they are processed. So a snapshot does
  not wait until all records of a loop are processed. The task also processes the logged records.

A barrier may be announced while the task executes the commands of this protocol. The input gate may
report it as soon as all channels of `StartLog` are logged, or after the last command.

`docs/inside/decisions/017-algorithm-2-cut.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.base import Phase, SnapshotProtocol
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


class AlignedCyclicProtocol(SnapshotProtocol):
    """Aligned snapshots of one task that has back-edges (ABS Algorithm 2).

    Arguments:
        inputs: all input channels; at least one of them is not a back-edge.
        back_edges: the inputs that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable]) -> None:
        super().__init__(inputs, back_edges)
        self.phase = Phase.IDLE
        #: The inputs that are blocked until the snapshot, in the order of their barriers' arrival.
        self.blocked: dict[Hashable, None] = {}
        #: The inputs whose barrier of the current snapshot was taken. In the logging phase, the
        #: inputs whose barrier was announced are also in the collection.
        self.marked: dict[Hashable, None] = {}
        if not self.regular or not self.back_edges <= set(self.inputs):
            raise ProtocolError(
                f"back-edges {sorted(map(str, self.back_edges))} of a task with inputs "
                f"{list(self.inputs)}: they must be inputs, and leave one that is regular"
            )

    def handle(self, event: Event) -> list[Command]:
        """Handle an event, and return the commands that the task must execute."""
        match event:
            case BarrierArrived():
                return self._barrier(event)
            case BarrierAnnounced():
                return self._announced(event)
            case SnapshotAborted(number):
                return self._abort(number)
            case SnapshotCompleted():
                return []
        raise self._error(f"{event} at a task that aligns")

    def validate(self) -> None:
        """Check all invariants, and raise `ProtocolError` if one does not hold. Tests call it."""
        phase, number = self.phase, self.number
        if (phase is Phase.IDLE) != (number is None) or (number is None) == bool(self.marked):
            raise self._error("inconsistent")
        if self.marked.keys() - set(self.inputs):
            raise self._error("marked channels that are no inputs")
        if self.blocked != (self.marked if phase is Phase.ALIGNING else {}):
            # Before the snapshot all marked channels are blocked. After it no channel is blocked.
            raise self._error("the wrong channels are blocked")
        if phase is Phase.ALIGNING:
            assert number is not None
            if number <= self.settled:
                raise self._error("aligning a settled number")
            if self.regular <= self.marked.keys():
                raise self._error("the snapshot is overdue")
        if phase is Phase.LOGGING:
            if number != self.settled:
                raise self._error("logging a number of which no snapshot was taken")
            if not self.regular <= self.marked.keys() or len(self.marked) == len(self.inputs):
                raise self._error("nothing to log")

    def _barrier(self, event: BarrierArrived) -> list[Command]:
        channel, number = event.channel, event.number
        self._require_input(channel, number)
        if channel in self.blocked:
            raise self._error(f"{event} on a blocked channel")
        commands = self._supersede(number)
        if commands is None:
            return []
        self.phase, self.number = Phase.ALIGNING, number
        self.marked[channel] = None  # This is line 9 of ABS Algorithm 2.
        if self._is_aligned():
            return [*commands, *self._take_snapshot(number)]
        # These are lines 11-12 of ABS Algorithm 2. Here they also apply to back-edges.
        self.blocked[channel] = None
        return [*commands, BlockChannel(channel)]

    def _is_aligned(self) -> bool:
        return self.regular <= self.marked.keys()  # This is line 13 of ABS Algorithm 2.

    def _take_snapshot(self, number: int) -> list[Command]:
        # A back-edge whose barrier was already taken is blocked, and needs no log. The channel
        # whose barrier arrived last was never blocked.
        missing = tuple(channel for channel in self.inputs if channel not in self.marked)
        blocked = tuple(self.blocked)
        self.phase, self.blocked, self.settled = Phase.LOGGING, {}, number
        # These are lines 14-17 of ABS Algorithm 2. The logs begin before the barrier is sent,
        # since a loop may return the barrier at once.
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        if blocked:
            commands.append(UnblockChannels(blocked))
        return [*commands, *self._end_log()]

    def _announced(self, event: BarrierAnnounced) -> list[Command]:
        channel, number = event.channel, event.number
        if channel not in self.back_edges:
            raise self._error(f"{event} on a channel that is no back-edge")
        if self.phase is not Phase.LOGGING or number < self.settled:
            return []
        if number > self.settled:
            return self._give_up()
        if channel in self.marked:
            raise self._error(f"{event} for the second time")
        self.marked[channel] = None  # This is line 9 of ABS Algorithm 2.
        return self._end_log()

    def _end_log(self) -> list[Command]:
        """Return the command that ends the logs if all inputs have the barrier, else no command."""
        if len(self.marked) < len(self.inputs):  # This is line 19 of ABS Algorithm 2.
            return []
        number = self.settled
        self._reset()
        return [EndLog(number)]  # These are lines 20-22 of ABS Algorithm 2.

    def _give_up(self) -> list[Command]:
        number, phase, blocked = self.number, self.phase, tuple(self.blocked)
        assert number is not None
        self.settled = number
        self._reset()
        return [DropLog(number)] if phase is Phase.LOGGING else [UnblockChannels(blocked)]

    def _reset(self) -> None:
        self.phase, self.number, self.blocked, self.marked = Phase.IDLE, None, {}, {}

    def _describe(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, "
            f"blocked {list(self.blocked)}, marked {list(self.marked)}, "
            f"inputs {list(self.inputs)}, back-edges {sorted(map(str, self.back_edges))}"
        )

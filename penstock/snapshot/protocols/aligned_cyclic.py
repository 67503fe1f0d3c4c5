"""ABS Algorithm 2: one task that has back-edges among its inputs.

Theory (Carbone et al. 2015, section 4.3; `upon` line numbers are the paper's). Without its
back-edges the graph is acyclic, and Algorithm 1 runs on the rest: a task takes its snapshot (copies
its state and broadcasts, lines 13-17) when it has the barrier on all *regular* inputs. It cannot
wait for its back-edges: their barriers come only after it has sent its own around the loop. So the
regular channels hold nothing at the snapshot, and the records in flight on back-edges are logged:
those that wait in the channel at the snapshot, and those that arrive before the barrier
(lines 24-26). The snapshot consists of the copy and the logs. It is done when the barrier has come
on every back-edge (lines 19-22). On recovery the logs are processed before any input is read.

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
    the others barrier announced                        nothing: it will be taken       same

A *barrier* was taken from its channel; an *announced* one has only arrived at the gate.

Differences from the listing, besides those of `aligned.py`:

* Back-edges belong to operators, and tasks are parallel. So a barrier can come around the loop
  before this task's snapshot, if another task of the loop was earlier. Line 13 as printed
  (`marked = regular`) then never holds. With `regular ⊆ marked` alone, records from behind that
  barrier get into the copy and are doubled on recovery. So line 11 blocks back-edges, too, until
  the snapshot unblocks all (line 16). The log of such a channel is empty: the task has processed
  everything that was ahead of the barrier.
* Records are logged when they arrive at the gate and not when they are processed, so that a
  snapshot does not wait until a loop has drained. Meanwhile the task processes them as usual.

The gate may find that a barrier has been announced while it executes these commands. It may report
that as soon as all channels of a `StartLog` are logged, or after the last command.
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

__all__ = ["AlignedCyclicProtocol"]


class AlignedCyclicProtocol(SnapshotProtocol):
    """Algorithm 2 for one task.

    Arguments:
        inputs: all input channels; at least one is regular.
        back_edges: the inputs that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable]) -> None:
        super().__init__(inputs, back_edges)
        self.phase = Phase.IDLE
        #: Inputs that have delivered the barrier and wait for the snapshot, in order.
        self.blocked: dict[Hashable, None] = {}
        #: Inputs whose barrier of this number was taken, or announced while logging.
        self.marked: dict[Hashable, None] = {}
        if not self.regular or not self.back_edges <= set(self.inputs):
            raise ProtocolError(
                f"back-edges {sorted(map(str, self.back_edges))} of a task with inputs "
                f"{list(self.inputs)}: they must be inputs, and leave one that is regular"
            )

    def handle(self, event: Event) -> list[Command]:
        """Return the commands that an event leads to; see the table above."""
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
        """Raise `ProtocolError` unless every invariant holds; for tests."""
        phase, number = self.phase, self.number
        if (phase is Phase.IDLE) != (number is None) or (number is None) == bool(self.marked):
            raise self._error("inconsistent")
        if self.marked.keys() - set(self.inputs):
            raise self._error("marked channels that are no inputs")
        if self.blocked != (self.marked if phase is Phase.ALIGNING else {}):
            # All that is marked before the snapshot is blocked, and nothing is blocked after it.
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
        self.marked[channel] = None  # line 9
        if self._is_aligned():
            return [*commands, *self._take_snapshot(number)]
        self.blocked[channel] = None  # lines 11-12, for back-edges as well
        return [*commands, BlockChannel(channel)]

    def _is_aligned(self) -> bool:
        return self.regular <= self.marked.keys()  # line 13

    def _take_snapshot(self, number: int) -> list[Command]:
        # A back-edge that is marked already was blocked at its barrier, and needs no log. The
        # channel whose barrier came last was never blocked.
        missing = tuple(channel for channel in self.inputs if channel not in self.marked)
        blocked = tuple(self.blocked)
        self.phase, self.blocked, self.settled = Phase.LOGGING, {}, number
        # Lines 14-17. The logs begin before the barrier is sent, since it may come straight back.
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
        self.marked[channel] = None  # line 9
        return self._end_log()

    def _end_log(self) -> list[Command]:
        """End the log unless a back-edge's barrier is missing."""
        if len(self.marked) < len(self.inputs):  # line 19
            return []
        number = self.settled
        self._reset()
        return [EndLog(number)]  # lines 20-22

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

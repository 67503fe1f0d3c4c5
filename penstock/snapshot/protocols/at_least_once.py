"""At-least-once snapshots: the task waits for barriers, but blocks no channel.

This mode is for jobs in which low latency matters more than duplicates after a failure. As in
Algorithms 1 and 2, a task copies its state when the barrier has arrived on all regular inputs.
Until then the task blocks no channel. So the copied state may contain records from behind a
barrier, and these records are processed again after a failure. No record is lost: each record ahead
of the barriers is contained in the state of a task, or in the log of a back-edge. A back-edge is
logged from the snapshot until its barrier arrives, as in Algorithm 2. (Flink:
`CheckpointingMode.AT_LEAST_ONCE`. Section 4 of the ABS paper describes this mode as the algorithm
without line 9.)

    state      event                                 commands                    next
    IDLE       barrier n on Nil                      copy, log, broadcast        IDLE
    IDLE       barrier n, a regular one missing      nothing                     ALIGNING n
    ALIGNING n barrier n, the last regular one       copy, log, broadcast        LOGGING n
    LOGGING n  no back-edge is missing (any more)    end log                     IDLE
    ALIGNING n barrier m > n                         nothing; then as IDLE       …
    LOGGING n  barrier m > n, taken or announced     drop log, then as IDLE      …
    any        abort of n or a higher one            drop log, if there is one   IDLE
    any        a stale barrier                       nothing                     same

While it aligns, the task only counts barriers. Savepoints and the final snapshot of the job are the
exception: their barriers block the channels until the snapshot, as in Algorithms 1 and 2. A job
that is stopped with a savepoint has not failed, so it must not process a record twice when it
resumes. If the channels were not blocked, records that a loop emits behind its barrier would be in
the states of later tasks. The log of the loop would then produce the same records again. Such a
snapshot takes as long as with `EXACTLY_ONCE`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

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


class AtLeastOnceProtocol(SnapshotProtocol):
    """At-least-once snapshots of one task.

    Arguments:
        inputs: all input channels. A source has none; its barriers arrive on channel None.
        back_edges: the inputs that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable] = ()) -> None:
        super().__init__(inputs, back_edges)
        self.phase = Phase.IDLE
        #: The inputs whose barrier of the current snapshot was taken. In the logging phase, the
        #: inputs whose barrier was announced are also in the collection.
        self.marked: set[Hashable] = set()
        #: The inputs that are blocked until the snapshot, in the order of their barriers' arrival.
        self.blocked: dict[Hashable, None] = {}

    def handle(self, event: Event) -> list[Command]:
        """Handle an event, and return the commands that the task must execute."""
        match event:
            case BarrierArrived(channel, number, align):
                return self._barrier(channel, number, align)
            case BarrierAnnounced(channel, number):
                return self._announced(channel, number)
            case SnapshotAborted(number):
                return self._abort(number)
            case SnapshotCompleted():
                return []
        raise self._error(f"{event} at a task that blocks nothing")

    def validate(self) -> None:
        """Check all invariants, and raise `ProtocolError` if one does not hold. Tests call it."""
        if (self.phase is Phase.IDLE) != (self.number is None) or (
            self.phase is Phase.IDLE and self.marked
        ):
            raise self._error("inconsistent")
        if self.blocked and (self.phase is not Phase.ALIGNING or self.blocked.keys() - self.marked):
            raise self._error("the wrong channels are blocked")
        if self.phase is Phase.ALIGNING and self.regular <= self.marked:
            raise self._error("the snapshot is overdue")
        if self.phase is Phase.LOGGING and len(self.marked) == len(self.inputs):
            raise self._error("nothing to log")

    def _barrier(self, channel: Hashable | None, number: int, align: bool) -> list[Command]:
        self._require_input(channel, number)
        commands = self._supersede(number)
        if commands is None:
            return []
        self.phase, self.number = Phase.ALIGNING, number
        if channel is not None:
            self.marked.add(channel)
        if self.regular <= self.marked:
            return [*commands, *self._take_snapshot(number)]
        if align:
            self.blocked[channel] = None
            commands.append(BlockChannel(channel))
        return commands

    def _take_snapshot(self, number: int) -> list[Command]:
        missing = tuple(channel for channel in self.inputs if channel not in self.marked)
        self.phase, self.settled = Phase.LOGGING, number
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        return [*commands, *self._unblock(), *self._end_log()]

    def _announced(self, channel: Hashable, number: int) -> list[Command]:
        if self.phase is not Phase.LOGGING or number < self.settled:
            return []
        if number > self.settled:
            return self._give_up()
        self.marked.add(channel)
        return self._end_log()

    def _end_log(self) -> list[Command]:
        """Return the command that ends the logs if all inputs have the barrier, else no command."""
        if len(self.marked) < len(self.inputs):
            return []
        self._reset()
        return [EndLog(self.settled)]

    def _give_up(self) -> list[Command]:
        number, phase = self.number, self.phase
        assert number is not None
        self.settled = number
        commands = self._unblock()
        self._reset()
        return [DropLog(number)] if phase is Phase.LOGGING else commands

    def _unblock(self) -> list[Command]:
        blocked, self.blocked = tuple(self.blocked), {}
        return [UnblockChannels(blocked)] if blocked else []

    def _reset(self) -> None:
        self.phase, self.number, self.marked = Phase.IDLE, None, set()

    def _describe(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, "
            f"marked {sorted(map(str, self.marked))}, blocked {list(self.blocked)}, "
            f"inputs {list(self.inputs)}, "
            f"back-edges {sorted(map(str, self.back_edges))}"
        )

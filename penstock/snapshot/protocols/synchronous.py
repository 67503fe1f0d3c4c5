"""Synchronous snapshots, as in Naiad: halt all tasks, take the snapshot, resume.

This mode is the baseline in the evaluation of the ABS paper (section 7). When a snapshot begins,
each source sends its barrier as its last element, and halts. A task that has the barrier on all
regular inputs has processed all records, so it copies its state. It then has nothing to do until
the snapshot is complete or aborted. After that the sources resume. Records in a loop would continue
to circulate, so a task blocks its back-edges at its snapshot and logs their records.

    state     event                                commands                           next
    IDLE      barrier n on Nil                     copy, broadcast, halt              HALTED n
    IDLE      barrier n, a regular one missing     nothing                            ALIGNING n
    ALIGNING  barrier n, the last regular one      copy, log, broadcast, block, halt  HALTED n
    HALTED n  no back-edge is missing (any more)   end log                            HALTED n
    HALTED n  n is complete                        resume, unblock                    IDLE
    any       n is aborted, or barrier m > n       drop log, resume, unblock          IDLE, or m

On a regular channel no record follows a barrier: the task that sent the barrier emits no records
until the snapshot is over. Therefore no channel is blocked before the snapshot, not even a
back-edge whose barrier arrives early. End-of-input hooks could also emit records. The end of a
loop may be detected while other tasks have not taken their snapshots. So a halted task runs no
end-of-input hooks, and does not end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from penstock.snapshot.protocols.base import SnapshotProtocol
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
    Halt,
    Resume,
    SnapshotAborted,
    SnapshotCompleted,
    StartLog,
    UnblockChannels,
)


class SynchronousProtocol(SnapshotProtocol):
    """Synchronous snapshots of one task, which halts until the snapshot is over.

    Arguments:
        inputs: all input channels. A source has none; its barriers arrive on channel None.
        back_edges: the inputs that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable] = ()) -> None:
        super().__init__(inputs, back_edges)
        #: Whether the task has taken its snapshot and is halted.
        self.halted = False
        #: Whether the records of back-edges are logged for the current snapshot.
        self.logging = False
        #: The inputs whose barrier of the current snapshot was taken. In the logging phase, the
        #: inputs whose barrier was announced are also in the collection.
        self.marked: set[Hashable] = set()

    def handle(self, event: Event) -> list[Command]:
        """Handle an event, and return the commands that the task must execute."""
        match event:
            case BarrierArrived(channel, number):
                return self._barrier(channel, number)
            case BarrierAnnounced(channel, number):
                return self._announced(channel, number)
            case SnapshotAborted(number) | SnapshotCompleted(number):
                return self._abort(number)
        raise self._error(f"{event} at a task that halts for snapshots")

    def validate(self) -> None:
        """Check all invariants, and raise `ProtocolError` if one does not hold. Tests call it."""
        if self.number is None and (self.halted or self.logging or self.marked):
            raise self._error("inconsistent")
        if self.logging and not self.halted:
            raise self._error("logging before the snapshot")

    def _barrier(self, channel: Hashable | None, number: int) -> list[Command]:
        self._require_input(channel, number)
        commands = self._supersede(number)
        if commands is None:
            return []
        if self.halted:
            return commands  # The protocol handled this barrier when the input gate announced it.
        self.number = number
        if channel is not None:
            self.marked.add(channel)
        if not self.regular <= self.marked:
            return commands
        return [*commands, *self._take_snapshot(number)]

    def _take_snapshot(self, number: int) -> list[Command]:
        missing = tuple(channel for channel in self.inputs if channel not in self.marked)
        self.halted = self.logging = True
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        commands += [BlockChannel(channel) for channel in self._held()]
        return [*commands, Halt(), *self._end_log()]

    def _announced(self, channel: Hashable, number: int) -> list[Command]:
        if not self.logging or self.number is None or number < self.number:
            return []
        if number > self.number:
            return self._give_up()
        self.marked.add(channel)
        return self._end_log()

    def _end_log(self) -> list[Command]:
        """Return the command that ends the logs if all inputs have the barrier, else no command."""
        if self.number is None or len(self.marked) < len(self.inputs):
            return []
        self.logging = False
        return [EndLog(self.number)]

    def _give_up(self) -> list[Command]:
        assert self.number is not None
        commands: list[Command] = [DropLog(self.number)] if self.logging else []
        if self.halted:
            commands.append(Resume())
            if self.back_edges:
                commands.append(UnblockChannels(self._held()))
        self.settled = max(self.settled, self.number)
        self.number, self.halted, self.logging, self.marked = None, False, False, set()
        return commands

    def _held(self) -> tuple[Hashable, ...]:
        """Return the back-edges, which are blocked while the task is halted."""
        return tuple(channel for channel in self.inputs if channel in self.back_edges)

    def _describe(self) -> str:
        return (
            f"number {self.number}, halted {self.halted}, logging {self.logging}, settled "
            f"{self.settled}, marked {sorted(map(str, self.marked))}, inputs {list(self.inputs)}, "
            f"back-edges {sorted(map(str, self.back_edges))}"
        )

"""Synchronous snapshots, as Naiad takes them: stop the world, snapshot, go on.

The baseline of the paper's evaluation (ABS section 7). A source halts when it is told to take
part; its barrier is the last that it sends. The graph drains: a task that has the barrier on all
regular inputs has processed all there is, copies its state, and has nothing to do until the
snapshot is complete, or given up. Then the sources resume. On cyclic graphs a loop would go on
by itself, so a task holds its back-edges at the cut as well, and logs what is in them.

    state     event                                commands                           next
    IDLE      barrier n on Nil                     copy, broadcast, halt              HALTED n
    IDLE      barrier n, a regular one missing     nothing                            ALIGNING n
    ALIGNING  barrier n, the last regular one      copy, log, broadcast, block, halt  HALTED n
    HALTED n  no back-edge is missing (any more)   end log                            HALTED n
    HALTED n  n is complete                        resume, unblock                    IDLE
    any       n is given up, or barrier m > n      drop log, resume, unblock          IDLE, or m

Nothing comes behind a barrier on a regular channel: the task that sent it emits nothing until the
snapshot is over. That holds for end-of-input hooks too. A loop may be found quiet while other tasks
have yet to make their cuts, so a halted task runs no hooks and does not end. So nothing needs to be
blocked before the cut, also not a back-edge whose barrier comes early. Nothing here waits, reads a
clock or touches a channel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from penstock.dataflow.errors import ProtocolError
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

__all__ = ["SynchronousProtocol"]


class SynchronousProtocol:
    """Stop, snapshot, go on, for one task.

    Arguments:
        inputs: all its input channels; empty for a source, whose barriers arrive on None.
        back_edges: those of them that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable] = ()) -> None:
        self.inputs = tuple(inputs)
        self.back_edges = tuple(back_edges)
        self.regular = frozenset(self.inputs) - frozenset(self.back_edges)
        #: Number that is taken; None exactly while the task runs freely.
        self.number: int | None = None
        #: The cut of `number` was made, and the task is held.
        self.halted = False
        #: Logs of `number` are being taken.
        self.logging = False
        self.marked: set[Hashable] = set()
        #: The highest number that is over.
        self.settled = -1

    def handle(self, event: Event) -> list[Command]:
        """What to do about an event, in this order; `ProtocolError` for an impossible one."""
        match event:
            case BarrierArrived(channel, number):
                return self._barrier(channel, number)
            case BarrierAnnounced(channel, number):
                return self._reached(channel, number)
            case SnapshotAborted(number) | SnapshotCompleted(number):
                return self._over(number)
        raise ProtocolError(f"{event} at a task that stops for snapshots: {self._story()}")

    def validate(self) -> None:
        """Raise `ProtocolError` unless every invariant holds; for tests."""
        if self.number is None and (self.halted or self.logging or self.marked):
            raise ProtocolError(f"inconsistent: {self._story()}")
        if self.logging and not self.halted:
            raise ProtocolError(f"logging before the cut: {self._story()}")

    def _barrier(self, channel: Hashable | None, number: int) -> list[Command]:
        if (channel is None) != (not self.inputs) or not (
            channel is None or channel in self.inputs
        ):
            raise ProtocolError(
                f"barrier {number} on {channel}, which is no input: {self._story()}"
            )
        if number <= self.settled or (self.number is not None and number < self.number):
            return []
        commands = (
            self._over(self.number) if self.number is not None and number > self.number else []
        )
        if self.halted:
            return commands  # a back-edge's, whose barrier had arrived while it was logged
        self.number = number
        if channel is not None:
            self.marked.add(channel)
        if not self.regular <= self.marked:
            return commands
        missing = tuple(c for c in self.inputs if c not in self.marked)
        self.halted = self.logging = True
        cut: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        cut += [BlockChannel(channel) for channel in self.back_edges]
        return [*commands, *cut, Halt(), *self._end()]

    def _reached(self, channel: Hashable, number: int) -> list[Command]:
        if not self.logging or self.number is None or number < self.number:
            return []
        if number > self.number:
            return self._over(self.number)
        self.marked.add(channel)
        return self._end()

    def _end(self) -> list[Command]:
        if self.number is None or len(self.marked) < len(self.inputs):
            return []
        self.logging = False
        return [EndLog(self.number)]

    def _over(self, number: int) -> list[Command]:
        if self.number is not None and number < self.number:
            return []
        commands: list[Command] = []
        if self.number is not None and self.logging:
            commands.append(DropLog(self.number))
        if self.halted:
            commands.append(Resume())
            if self.back_edges:
                commands.append(UnblockChannels(self.back_edges))
        self.settled = max(self.settled, number)
        self.number, self.halted, self.logging, self.marked = None, False, False, set()
        return commands

    def _story(self) -> str:
        return (
            f"number {self.number}, halted {self.halted}, logging {self.logging}, settled "
            f"{self.settled}, marked {sorted(map(str, self.marked))}, inputs {list(self.inputs)}, "
            f"back-edges {sorted(map(str, self.back_edges))}"
        )

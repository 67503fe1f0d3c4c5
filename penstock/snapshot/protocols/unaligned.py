"""Chandy & Lamport's snapshots, today's unaligned checkpoints: nobody blocks, channels are logged.

Under backpressure a barrier that waits its turn in every queue takes as long as the queues do. Here
it does not wait (Chandy & Lamport 1985; Flink: unaligned checkpoints): when the first barrier
*arrives* at the gate of a task, whatever waits before it, the task copies its state at once and
sends the barrier on ahead of all that waits in its outputs. What a barrier has overtaken is in
flight, and part of the snapshot: what waited in the inputs, what arrives on them until their
barrier does, what the task has in hand, and what waited in the outputs. On recovery it is processed
first. Back-edges are channels like all others.

With *patience* a task aligns first, as in Algorithms 1 and 2, and does the above only when the
aligned checkpoint timeout is over: a snapshot of a job that keeps up has then no records in it. The
barrier that it sends then is *urgent*, so that the tasks behind it lose no more time.

    state      event                                commands                            next
    IDLE       barrier n on Nil                     copy, overtake (aligned: broadcast) LOGGING n
    IDLE       barrier n reaches the gate           copy, log all, overtake             LOGGING n
      align first:                                  start timer                         ALIGNING n
    ALIGNING n barrier n, a regular one missing     block                               ALIGNING n
    ALIGNING n barrier n, the last regular one      copy, log, broadcast, unblock       LOGGING n
    ALIGNING n timed out, or an urgent barrier n    copy, log, overtake, unblock        LOGGING n
    LOGGING n  timed out, the barrier waits yet     overtake                            LOGGING n
    LOGGING n  all barriers are here, ours is sent  end log                             IDLE
    any        a barrier m > n reaches the gate     as if n was given up, then as IDLE  …
    ALIGNING n given up                             unblock                             IDLE
    LOGGING n  given up                             drop log                            IDLE
    any        a stale barrier                      nothing                             same

Feasible: FIFO channels, and each record is in exactly one of the sender's state (not yet sent), the
receiver's state (processed before its cut) and a log (neither). Terminates: barriers wait for
nobody. Nothing here waits, reads a clock or touches a channel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.aligned import Phase
from penstock.snapshot.protocols.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierSent,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    DropLog,
    EndLog,
    Event,
    Overtake,
    SnapshotAborted,
    SnapshotCompleted,
    StartAlignmentTimer,
    StartLog,
    UnblockChannels,
)

__all__ = ["UnalignedProtocol"]


class UnalignedProtocol:
    """Unaligned snapshots of one task.

    Arguments:
        inputs: all its input channels; empty for a source, whose barriers arrive on None.
        back_edges: those of them that are back-edges; they matter only while aligning.
        align_first: whether the task aligns first, until the aligned checkpoint timeout.
    """

    def __init__(
        self,
        inputs: Iterable[Hashable],
        back_edges: Iterable[Hashable] = (),
        *,
        align_first: bool = False,
    ) -> None:
        self.inputs = tuple(inputs)
        self.regular = frozenset(self.inputs) - frozenset(back_edges)
        self.align_first = align_first
        self.phase = Phase.IDLE
        #: Number being aligned or logged; None exactly when the phase is IDLE.
        self.number: int | None = None
        #: While aligning, inputs whose barrier was taken, in order; they are blocked.
        self.blocked: dict[Hashable, None] = {}
        #: While logging, inputs whose barrier is here.
        self.marked: set[Hashable] = set()
        #: While logging, whether the task's own barrier has left it.
        self.sent = False
        #: The highest number whose cut was made, or that was given up.
        self.settled = -1

    def handle(self, event: Event) -> list[Command]:
        """What to do about an event, in this order; `ProtocolError` for an impossible one."""
        match event:
            case BarrierAnnounced(channel, number, urgent):
                return self._reached(channel, number, urgent)
            case BarrierArrived(channel, number):
                return self._taken(channel, number)
            case BarrierSent(number):
                return self._sent(number)
            case AlignmentTimedOut(number):
                return self._timed_out(number)
            case SnapshotAborted(number):
                return self._abort(number)
            case SnapshotCompleted():
                return []

    def validate(self) -> None:
        """Raise `ProtocolError` unless every invariant holds; for tests."""
        if (self.phase is Phase.IDLE) != (self.number is None):
            raise ProtocolError(f"inconsistent: {self._story()}")
        if self.blocked and self.phase is not Phase.ALIGNING:
            raise ProtocolError(f"blocked for nothing: {self._story()}")
        if self.phase is Phase.ALIGNING and (
            not self.align_first or self.regular <= self.blocked.keys()
        ):
            raise ProtocolError(f"the cut is overdue: {self._story()}")
        if self.phase is Phase.LOGGING and self.sent and self.marked >= set(self.inputs):
            raise ProtocolError(f"nothing to wait for: {self._story()}")

    def _reached(self, channel: Hashable, number: int, urgent: bool) -> list[Command]:
        if channel not in self.inputs:
            raise ProtocolError(f"barrier {number} on {channel}, no input: {self._story()}")
        if number == self.number:
            if self.phase is Phase.ALIGNING:
                return self._cut_now(number) if urgent else []
            self.marked.add(channel)
            return self._end()
        commands = self._begin(number)
        if commands is None:
            return []
        if self.align_first and not urgent:
            return [*commands, StartAlignmentTimer(number)]
        return [*commands, *self._cut_now(number)]

    def _taken(self, channel: Hashable | None, number: int) -> list[Command]:
        if channel is None:
            commands = self._begin(number)
            if commands is None:
                return []
            if not self.align_first:
                return [*commands, *self._cut_now(number)]
            return [*commands, StartAlignmentTimer(number), *self._cut_aligned(number)]
        if self.phase is not Phase.ALIGNING or number != self.number:
            return []  # its arrival was heard of, and that was enough
        self.blocked[channel] = None
        if self.regular <= self.blocked.keys():
            return self._cut_aligned(number)
        return [BlockChannel(channel)]

    def _begin(self, number: int) -> list[Command] | None:
        """Give up what is older; None if it is `number` that is old."""
        if number <= self.settled or (self.number is not None and number <= self.number):
            return None
        commands = [] if self.number is None else self._give_up()
        self.phase, self.number = Phase.ALIGNING, number
        return commands

    def _cut_now(self, number: int) -> list[Command]:
        """Copy the state between two records, and overtake everything."""
        blocked = tuple(self.blocked)
        missing = self._settle_at(number, sent=True)
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Overtake(number)]
        if blocked:
            commands.append(UnblockChannels(blocked))
        return [*commands, *self._end()]

    def _cut_aligned(self, number: int) -> list[Command]:
        """Copy the state behind the barriers of all regular inputs."""
        # The channel that completes the cut was never blocked.
        blocked = tuple(self.blocked)[:-1]
        missing = self._settle_at(number, sent=False)
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        if blocked:
            commands.append(UnblockChannels(blocked))
        return commands  # `BarrierSent` comes, sooner or later

    def _settle_at(self, number: int, *, sent: bool) -> tuple[Hashable, ...]:
        """The cut is made; returns the channels whose records in flight are to be logged."""
        self.marked = set(self.blocked)
        self.phase, self.settled, self.blocked, self.sent = Phase.LOGGING, number, {}, sent
        return tuple(channel for channel in self.inputs if channel not in self.marked)

    def _sent(self, number: int) -> list[Command]:
        if self.phase is not Phase.LOGGING or number != self.number or self.sent:
            return []
        self.sent = True
        return self._end()

    def _timed_out(self, number: int) -> list[Command]:
        if number != self.number:
            return []
        if self.phase is Phase.ALIGNING:
            return self._cut_now(number)
        if self.sent:
            return []
        self.sent = True
        return [Overtake(number), *self._end()]

    def _end(self) -> list[Command]:
        if not self.sent or len(self.marked) < len(self.inputs):
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
        number, phase, blocked = self.number, self.phase, tuple(self.blocked)
        assert number is not None
        self.settled = number
        self._rest()
        if phase is Phase.LOGGING:
            return [DropLog(number)]
        return [UnblockChannels(blocked)] if blocked else []

    def _rest(self) -> None:
        self.phase, self.number, self.sent = Phase.IDLE, None, False
        self.blocked, self.marked = {}, set()

    def _story(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, blocked "
            f"{list(self.blocked)}, marked {sorted(map(str, self.marked))}, sent {self.sent}, "
            f"inputs {list(self.inputs)}"
        )

"""Unaligned snapshots (Chandy and Lamport): barriers overtake records.

No channel is blocked, and the records in flight are logged.

Under backpressure an aligned barrier waits behind the records of every queue. An unaligned barrier
overtakes the records (Chandy & Lamport 1985; Flink: unaligned checkpoints). When the first
barrier *arrives* at the input gate of a task, the task copies its state at once. It then sends the
barrier ahead of all records that wait in its output channels.

The records that a barrier overtakes are in flight, and belong to the snapshot:

* the records that wait in the input channels;
* the records that arrive there before the barrier of their channel;
* the records that the task is processing;
* the records that wait in the output channels.

After a restore, these records are processed first. Back-edges are treated like other channels.

Barriers do not overtake records on broadcast edges, whose subtasks each get a copy of a record. The
task waits until the barriers of these inputs have arrived, as in Algorithm 1. So each record was
processed by all subtasks or by none, and the state can be divided among other subtasks. (Flink does
the same: FLINK-22815.) See record 065.

With `align_first`, a task first aligns as in Algorithms 1 and 2. Only when the aligned checkpoint
timeout expires, it takes an unaligned snapshot. So without backpressure a snapshot contains no
records in flight, except for records in loops. A barrier that is sent after the timeout is
*urgent*: the tasks that receive it do not align.

    state      event                                commands                            next
    IDLE       barrier n on Nil                     copy, overtake (*) or broadcast     LOGGING n
    IDLE       barrier n announced (*)              copy, log all, overtake             LOGGING n
    IDLE       the same, with aligned inputs        -                                   ALIGNING n
    ALIGNING n barrier n, the last of these         copy, log, overtake, unblock        LOGGING n
    IDLE       barrier n announced, aligning first  start timer                         ALIGNING n
    ALIGNING n barrier n, a regular one missing     block                               ALIGNING n
    ALIGNING n barrier n, the last regular one      copy, log, broadcast, unblock       LOGGING n
    ALIGNING n timed out, or an urgent barrier n    copy, log, overtake, unblock        LOGGING n
    LOGGING n  timed out, own barrier not yet sent  overtake                            LOGGING n
    LOGGING n  all barriers are here, own is sent   end log                             IDLE
    any        barrier m > n announced              as for an abort of n, then as IDLE  …
    ALIGNING n abort of n or a higher one           unblock                             IDLE
    LOGGING n  abort of n or a higher one           drop log                            IDLE
    any        a stale barrier                      nothing                             same

(*) Without `align_first`. With aligned inputs, the task waits for their barriers after a time-out
and after an urgent barrier, too.

The snapshot is consistent, since channels are FIFO and each record is covered exactly once. There
are three cases: the sender's state does not contain the record as sent, or the receiver's state
contains it as processed, or it is in a log. The protocol terminates, since barriers do not wait for
records.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from penstock.snapshot.protocols.base import Phase, SnapshotProtocol
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


class UnalignedProtocol(SnapshotProtocol):
    """Unaligned snapshots of one task.

    Arguments:
        inputs: all input channels. A source has none; its barriers arrive on channel None.
        back_edges: the inputs that are back-edges. Alignment does not wait for their barriers.
        aligned: the regular inputs whose barriers overtake no records.
        align_first: whether the task aligns first, until the aligned checkpoint timeout expires.
    """

    def __init__(
        self,
        inputs: Iterable[Hashable],
        back_edges: Iterable[Hashable] = (),
        *,
        aligned: Iterable[Hashable] = (),
        align_first: bool = False,
    ) -> None:
        super().__init__(inputs, back_edges)
        self.aligned = frozenset(aligned)
        self.align_first = align_first
        self.phase = Phase.IDLE
        #: The inputs that are blocked while aligning, in the order in which their barriers arrived.
        self.blocked: dict[Hashable, None] = {}
        #: Whether the task waits only for the barriers of the aligned inputs. The value is used in
        #: the aligning phase only.
        self.overdue = False
        #: The inputs whose barrier has arrived. The set is used in the logging phase only.
        self.marked: set[Hashable] = set()
        #: Whether the task has sent its own barrier. The value is used in the logging phase only.
        self.sent = False

    def handle(self, event: Event) -> list[Command]:
        """Handle an event, and return the commands that the task must execute."""
        match event:
            case BarrierAnnounced(channel, number, urgent):
                return self._announced(channel, number, urgent)
            case BarrierArrived(channel, number):
                return self._barrier(channel, number)
            case BarrierSent(number):
                return self._sent(number)
            case AlignmentTimedOut(number):
                return self._timed_out(number)
            case SnapshotAborted(number):
                return self._abort(number)
            case SnapshotCompleted():
                return []

    def validate(self) -> None:
        """Check all invariants, and raise `ProtocolError` if one does not hold. Tests call it."""
        if (self.phase is Phase.IDLE) != (self.number is None):
            raise self._error("inconsistent")
        if self.blocked and self.phase is not Phase.ALIGNING:
            raise self._error("blocked for nothing")
        if self.phase is Phase.ALIGNING and (
            not (self.align_first or self.overdue)
            or self.regular <= self.blocked.keys()
            or (self.overdue and self.aligned <= self.blocked.keys())
        ):
            raise self._error("the snapshot is overdue")
        if self.phase is Phase.LOGGING and self.sent and self.marked >= set(self.inputs):
            raise self._error("nothing to wait for")

    def _announced(self, channel: Hashable, number: int, urgent: bool) -> list[Command]:
        if channel not in self.inputs:
            raise self._error(f"barrier {number} on {channel}, which is no input")
        if number == self.number:
            if self.phase is Phase.ALIGNING:
                return self._hurry(number) if urgent else []
            self.marked.add(channel)
            return self._end_log()
        commands = self._begin(number)
        if commands is None:
            return []
        if self.align_first and not urgent:
            return [*commands, StartAlignmentTimer(number)]
        return [*commands, *self._hurry(number)]

    def _hurry(self, number: int) -> list[Command]:
        """Take an unaligned snapshot as soon as the aligned inputs have their barriers."""
        self.overdue = True
        if self.aligned <= self.blocked.keys():
            return self._snapshot_unaligned(number, tuple(self.blocked))
        return []

    def _barrier(self, channel: Hashable | None, number: int) -> list[Command]:
        if channel is None:
            commands = self._begin(number)
            if commands is None:
                return []
            if not self.align_first:
                return [*commands, *self._snapshot_unaligned(number)]
            return [*commands, StartAlignmentTimer(number), *self._snapshot_aligned(number)]
        if self.phase is not Phase.ALIGNING or number != self.number:
            return []  # The protocol handled this barrier when the input gate announced it.
        self.blocked[channel] = None
        if self.overdue and self.aligned <= self.blocked.keys():
            # The channel whose barrier arrived last was never blocked.
            return self._snapshot_unaligned(number, tuple(self.blocked)[:-1])
        if self.regular <= self.blocked.keys():
            return self._snapshot_aligned(number)
        return [BlockChannel(channel)]

    def _begin(self, number: int) -> list[Command] | None:
        """Begin snapshot `number`, and give up an older one that is in progress.

        Returns:
            The commands that give up the older snapshot, or None if `number` is stale.
        """
        commands = None if number == self.number else self._supersede(number)
        if commands is not None:
            self.phase, self.number, self.overdue = Phase.ALIGNING, number, False
        return commands

    def _snapshot_unaligned(self, number: int, blocked: tuple[Hashable, ...] = ()) -> list[Command]:
        """Return the commands that take an unaligned snapshot now, and unblock these inputs."""
        missing = self._begin_log(number, sent=True)
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Overtake(number)]
        if blocked:
            commands.append(UnblockChannels(blocked))
        return [*commands, *self._end_log()]

    def _snapshot_aligned(self, number: int) -> list[Command]:
        """Return the commands that take an aligned snapshot now."""
        # The channel whose barrier arrived last was never blocked.
        blocked = tuple(self.blocked)[:-1]
        missing = self._begin_log(number, sent=False)
        commands: list[Command] = [CopyState(number), StartLog(number, missing), Broadcast(number)]
        if blocked:
            commands.append(UnblockChannels(blocked))
        return commands  # The log ends after the event `BarrierSent`.

    def _begin_log(self, number: int, *, sent: bool) -> tuple[Hashable, ...]:
        """Enter the logging phase, and return the channels whose records must be logged."""
        self.marked = set(self.blocked)
        self.phase, self.settled, self.blocked, self.sent = Phase.LOGGING, number, {}, sent
        return tuple(channel for channel in self.inputs if channel not in self.marked)

    def _sent(self, number: int) -> list[Command]:
        if self.phase is not Phase.LOGGING or number != self.number or self.sent:
            return []
        self.sent = True
        return self._end_log()

    def _timed_out(self, number: int) -> list[Command]:
        if number != self.number:
            return []
        if self.phase is Phase.ALIGNING:
            return self._hurry(number)
        if self.sent:
            return []
        self.sent = True
        return [Overtake(number), *self._end_log()]

    def _end_log(self) -> list[Command]:
        """Return the command that ends the logs, if no barrier is missing.

        All inputs must have the barrier, and the task must have sent its barrier.
        """
        if not self.sent or len(self.marked) < len(self.inputs):
            return []
        self._reset()
        return [EndLog(self.settled)]

    def _give_up(self) -> list[Command]:
        number, phase, blocked = self.number, self.phase, tuple(self.blocked)
        assert number is not None
        self.settled = number
        self._reset()
        if phase is Phase.LOGGING:
            return [DropLog(number)]
        return [UnblockChannels(blocked)] if blocked else []

    def _reset(self) -> None:
        self.phase, self.number, self.sent = Phase.IDLE, None, False
        self.blocked, self.marked, self.overdue = {}, set(), False

    def _describe(self) -> str:
        return (
            f"phase {self.phase.value}, number {self.number}, settled {self.settled}, blocked "
            f"{list(self.blocked)}, marked {sorted(map(str, self.marked))}, sent {self.sent}, "
            f"inputs {list(self.inputs)}"
        )

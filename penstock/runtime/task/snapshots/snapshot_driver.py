"""Drive the snapshot protocol of a task: deliver events to it, and execute its commands.

The protocol does no I/O itself (`penstock.snapshot.protocols`). It returns commands, and the driver
blocks channels, captures state, sends barriers and starts logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial

from penstock.runtime.network.elements import Barrier
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.in_flight_data import REPLAY_BYTES, InFlightRecorder
from penstock.runtime.task.snapshots.state_capture import StateCapture
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.snapshot.protocols.base import SnapshotProtocol
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
    Halt,
    Overtake,
    Resume,
    SnapshotAborted,
    SnapshotCompleted,
    SnapshotKind,
    StartAlignmentTimer,
    StartLog,
    UnblockChannels,
)


class SnapshotDriver:
    """Runs the snapshot protocol of one task.

    Arguments:
        protocol: the snapshot protocol of the task.
        gate: the task's input gate.
        outputs: the task's output channels.
        writer: the checkpoint writer, which makes captured state durable.
        capture: captures the task's state.
        end_of_input: the tracker that runs end-of-input hooks. Meanwhile no state is captured.
        clock: a function that returns the time in seconds.
        in_flight: the recorder of records that barriers overtake; None if barriers overtake no
            records.
        at_barrier: called with the number of a snapshot before its barrier is sent and before the
            state is captured, perhaps twice.
    """

    def __init__(
        self,
        protocol: SnapshotProtocol,
        gate: InputGate,
        outputs: TaskOutputs,
        writer: CheckpointWriter,
        capture: StateCapture,
        end_of_input: EndOfInputTracker,
        clock: Callable[[], float],
        in_flight: InFlightRecorder | None,
        at_barrier: Callable[[int], None],
    ) -> None:
        self.protocol = protocol
        self._gate = gate
        self._outputs = outputs
        self._writer = writer
        self._capture = capture
        self._end_of_input = end_of_input
        self._clock = clock
        self._in_flight = in_flight
        self._at_barrier = at_barrier
        #: The events that the protocol has not handled yet, in order.
        self.events: deque[Event] = deque()
        self._notifying = False
        #: The time at which the alignment of a snapshot times out, in seconds, and the number of
        #: the snapshot.
        self.timer: tuple[float, int] | None = None
        #: Whether the protocol has halted the task. A halted task reads no source and runs no
        #: end-of-input hooks.
        self.halted = False
        self._kinds: dict[int, SnapshotKind] = {}
        #: The number of the newest snapshot whose barrier has arrived but whose state is not
        #: captured, and the time at which its first barrier arrived.
        self._aligning: tuple[int, float] | None = None
        #: The number of the newest snapshot whose state is captured.
        self.last_snapshot = 0
        #: Whether the final barrier has passed. After it, a source emits no records.
        self.final_barrier_passed = False
        for channel in gate.recorded.values():
            channel.report_barriers(self.barrier_announced)

    @property
    def busy(self) -> bool:
        """Return whether no state can be captured now.

        This is the case while end-of-input hooks run or logs are replayed. Records that are emitted
        later would be neither in the state nor in a log. If the rest of the replayed logs is small,
        it can be logged again. Then state can be captured during the replay.
        """
        if self._end_of_input.running:
            return True
        can_log_again = self._in_flight is not None and self._gate.replay_bytes <= REPLAY_BYTES
        return self._gate.replaying and not can_log_again

    @property
    def may_emit(self) -> bool:
        """Return whether the task may read its source, fire timers by the clock, and so on.

        A task emits nothing on its own after the final barrier, or while it is halted.
        """
        return not (self.final_barrier_passed or self.halted)

    def timed_out(self) -> bool:
        """Return whether the alignment of a snapshot has timed out."""
        return self.timer is not None and self._clock() >= self.timer[0]

    # ---- methods that deliver events

    def inject(self, barrier: Barrier) -> None:
        """Begin a snapshot at this source task."""
        self._kinds[barrier.number] = barrier.kind
        self.notify(BarrierArrived(None, barrier.number))

    def barrier_arrived(self, channel: Hashable, barrier: Barrier) -> None:
        """Handle a barrier that the task has taken from a channel."""
        self._record_barrier(barrier)
        align = barrier.kind is not SnapshotKind.CHECKPOINT
        self.notify(BarrierArrived(channel, barrier.number, align))

    def barrier_announced(self, channel: Hashable, barrier: Barrier) -> None:
        """Handle a barrier that was put into a channel. Records may still wait before it."""
        self._record_barrier(barrier)
        self.events.append(BarrierAnnounced(channel, barrier.number, barrier.urgent))
        if self._in_flight is None:
            self.notify()
        else:
            self._in_flight.relay(self.notify)
        self._gate.wake()

    def abort(self, number: int) -> None:
        """Abort the snapshot `number`, since the JobManager has given it up."""
        self.notify(SnapshotAborted(number))
        self._writer.abort(number)

    def complete(self, number: int) -> None:
        """Handle the completion of snapshot `number`."""
        self._writer.complete(number)
        self.notify(SnapshotCompleted(number))

    def check_timer(self) -> None:
        """Notify the protocol if the alignment of a snapshot has timed out."""
        if self.timer is not None and self.timed_out():
            (_, number), self.timer = self.timer, None
            self.notify(AlignmentTimedOut(number))

    def notify(self, event: Event | None = None) -> None:
        """Deliver an event to the protocol, and execute the commands that it returns.

        Events that occur meanwhile are queued. While `busy` is true, all events are queued.
        """
        if event is not None:
            self.events.append(event)
        if self._notifying or self.busy:
            return
        self._notifying = True
        try:
            while self.events:
                for command in self.protocol.handle(self.events.popleft()):
                    self._execute(command)
        finally:
            self._notifying = False

    def _record_barrier(self, barrier: Barrier) -> None:
        self._kinds.setdefault(barrier.number, barrier.kind)
        if barrier.number > max(self.last_snapshot, self._aligning[0] if self._aligning else 0):
            self._aligning = (barrier.number, self._clock())

    # ---- methods that execute commands

    def _execute(self, command: Command) -> None:
        gate, writer = self._gate, self._writer
        match command:
            case BlockChannel(channel):
                gate.channels[channel].block()  # type: ignore[index]
            case UnblockChannels(channels):
                for channel in channels:
                    gate.channels[channel].unblock()  # type: ignore[index]
            case CopyState(number):
                self._at_barrier(number)
                self._copy_state(number)
            case StartLog(number, channels):
                recorded = (gate.recorded[channel] for channel in channels)  # type: ignore[index]
                keep = self._capture.keep_state
                writer.start_log(number, [channel.start_log(number, keep) for channel in recorded])
            case EndLog(number):
                writer.end_log(number)
            case DropLog(number):
                for recorded_channel in gate.recorded.values():
                    recorded_channel.drop_log()
                writer.abort(number)
            case Broadcast(number):
                self._at_barrier(number)
                barrier = Barrier(number, self._kind(number))
                sent = partial(self.notify, BarrierSent(number))
                self._outputs.broadcast(barrier, sent if self._in_flight is not None else None)
            case Overtake(number):
                assert self._in_flight is not None
                barrier = Barrier(number, self._kind(number), urgent=True)
                overtaken = self._in_flight.overtake(self._outputs.channels, barrier)
                writer.start_log(number, overtaken)
                self._outputs.push()  # for barriers that have overtaken nothing
            case StartAlignmentTimer(number):
                assert self._in_flight is not None
                self.timer = (self._clock() + self._in_flight.timeout, number)
            case Halt():
                self.halted = True
            case Resume():
                self.halted = False
                gate.wake()

    def _kind(self, number: int) -> SnapshotKind:
        self._kinds = {n: kind for n, kind in self._kinds.items() if n >= number}
        return self._kinds.get(number, SnapshotKind.CHECKPOINT)

    def _copy_state(self, number: int) -> None:
        aligned_seconds = 0.0
        if self._aligning is not None and self._aligning[0] == number:
            aligned_seconds = self._clock() - self._aligning[1]
        self._aligning, self.last_snapshot = None, number
        kind = self._kinds[number]
        began = self._clock()
        snapshot = self._capture.capture(number, kind, aligned_seconds)
        snapshot.capture_seconds = self._clock() - began
        self._writer.add(snapshot)
        if kind is SnapshotKind.FINAL:
            self.final_barrier_passed = True

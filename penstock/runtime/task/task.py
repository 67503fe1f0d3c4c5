"""A task: one chain's parallel instance, at work.

The core is synchronous: `step` takes one element from the gate (or reads its source), processes
a slice of a batch, or does what the snapshot protocol commands, and returns. It never awaits, so
every interleaving of channels can be tested through it. `run` is the loop around it: it waits
when there is nothing to do, and yields between slices.

User code runs in slices of about 1 ms (`sizer.py`); outputs are looked at after each slice, so
that a record does not wait long in a buffer behind a busy function.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.source import Split
from penstock.runtime.network.elements import Barrier, Batch, Element, EncodedBatch, EndOfInput
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import OutputChannel, seal_due
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.endpoints import SinkOperator
from penstock.runtime.operators.multiplexed_source import SourceInput
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import Records, rows_of
from penstock.runtime.task.batch_sizing import SLICE_SECONDS, TARGET_SECONDS, BatchSizer
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.checkpoint_writer import CheckpointWriter, TaskSnapshot
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.in_flight_data import REPLAY_BYTES, InFlightRecorder
from penstock.runtime.task.operator_chain import (
    ChainNode,
    SnapshotProtocol,
    TaskListener,
    close_all,
)
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error
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
from penstock.snapshot.state import KeyedBackend

__all__ = ["ChainNode", "SnapshotProtocol", "Task", "TaskListener"]


class Task:
    """One parallel instance of a chain.

    Arguments:
        id: (chain, subtask).
        name: of the chain.
        root: the chain's operators.
        gate: its input channels.
        outputs: all its outputs, over all links.
        protocol: the snapshot protocol of this task.
        outside: its channels from outside of its loop; None if it is in no loop.
        checkpoint_writer: makes cuts durable.
        codec: decodes batches.
        listener: hears what becomes of it.
        clock: seconds, for waiting; virtual in a simulation.
        timer: seconds, finer, for how long work takes.
        source_input: the source's reader and splits, if the chain begins with a source.
        backends: keyed state per operator uid.
        buffer_timeout: a record waits in a buffer at most so many seconds.
        target: what is in flight to it may take so many seconds, roughly.
        keep_state: False if snapshots are kept nowhere, and only commit.
        in_flight: what it needs if barriers may overtake records.
    """

    def __init__(
        self,
        *,
        id: tuple[int, int],
        name: str,
        root: ChainNode,
        gate: InputGate,
        outputs: list[OutputChannel],
        protocol: SnapshotProtocol,
        checkpoint_writer: CheckpointWriter,
        codec: Codec,
        listener: TaskListener,
        clock: Callable[[], float],
        timer: Callable[[], float] = time.perf_counter,
        source_input: SourceInput | None = None,
        outside: Iterable[Hashable] | None = None,
        backends: dict[str, KeyedBackend] | None = None,
        buffer_timeout: float = 0.005,
        target: float = TARGET_SECONDS,
        keep_state: bool = True,
        in_flight: InFlightRecorder | None = None,
    ) -> None:
        self.id, self.name = id, name
        self.root, self.gate, self.outputs = root, gate, outputs
        self.checkpoint_writer = checkpoint_writer
        self.source_input = source_input
        self.backends = backends or {}
        self._protocol = protocol
        self._codec = codec
        self._by_column = root.operator.takes_columns
        self._decode = codec.decode_columns if self._by_column else codec.decode_batch
        self._listener = listener
        self._clock, self._timer = clock, timer
        self._seal = partial(seal_due, outputs, clock, buffer_timeout)
        self._keep_state = keep_state
        self._operators: list[RunningOperator] = [node.operator for node in root.walk()]
        #: Barriers and splits from the JobManager, in the order in which it sent them.
        self._inbox: deque[tuple[str, Any]] = deque()
        #: A batch that is processed in slices, from here on; empty when all of it is.
        self._rest: Records = []
        self._at = 0
        self._sizer = BatchSizer(target)
        self.end_of_input = EndOfInputTracker(gate.channels, outside, self._operators)
        self._chain = ChainRunner(root, codec, self.end_of_input)
        #: What the protocol has yet to hear; it is told one thing after the other.
        self._events: deque[Event] = deque()
        self._telling = False
        for logged in gate.recorded.values():
            logged.report_barriers(self._barrier_reached)
        self._in_flight = in_flight
        #: When the protocol wants to be told that a snapshot's time is over, and of which.
        self._timer_due: tuple[float, int] | None = None
        #: The barrier whose leaving the protocol wants to be told of.
        self._unsent: int | None = None
        #: Where `_rest` came from; None in a source.
        self._rest_channel: InputChannel | None = None
        #: The protocol has halted the task: it emits nothing that no input causes.
        self._halted = False
        self._kinds: dict[int, SnapshotKind] = {}
        #: The newest snapshot that it has heard of and not made its cut for, and since when.
        self._aligning: tuple[int, float] | None = None
        #: The newest snapshot that it has made its cut for.
        self.last_snapshot = 0
        self.ended = False
        #: A final barrier has passed: the source does not emit any more.
        self.paused = False
        #: There is nothing that it could do now.
        self.waiting = False
        self.busy_seconds = 0.0
        self._blocked_seconds = 0.0
        self._blocked_since: float | None = None

    @property
    def operators(self) -> list[RunningOperator]:
        """The chain's operators, parents first."""
        return self._operators

    @property
    def blocked_seconds(self) -> float:
        """How long it has waited for room in its outputs, until now."""
        since = self._blocked_since
        return self._blocked_seconds + (0.0 if since is None else self._clock() - since)

    # ---- from the JobManager

    def inject(self, number: int, kind: SnapshotKind) -> None:
        """Barrier `number` for a source."""
        self._inbox.append(("barrier", Barrier(number, kind)))
        if self._in_flight is not None and not self._busy():
            # It does not wait for room in the outputs.
            while self._inbox:
                self._obey(*self._inbox.popleft())

    def assign(self, split: Split, position: Any = None) -> None:
        """A split for a source."""
        self._inbox.append(("split", (split, position)))

    def no_more_splits(self) -> None:
        """There are no more splits for this source."""
        self._inbox.append(("no more", None))

    def abort(self, number: int) -> None:
        """Snapshot `number` was given up."""
        self._tell(SnapshotAborted(number))
        self.checkpoint_writer.abort(number)

    def complete(self, number: int) -> None:
        """Snapshot `number` is complete."""
        self.checkpoint_writer.complete(number)
        self._tell(SnapshotCompleted(number))

    def end_input(self, round: int) -> None:
        """The task's loop is quiet: run the end-of-input hooks."""
        self._inbox.append(("end input", round))

    def close_loop(self) -> None:
        """The task's loop has ended."""
        self._inbox.append(("close loop", None))

    # ---- life

    def open(self) -> None:
        """Open all functions, the last of the chain first, so that each can be fed."""
        for operator in reversed(self._operators):
            operator_at_work.set(operator.context)
            try:
                operator.open()
            except BaseException as error:
                raise to_job_error(error, operator, []) from error
        operator_at_work.set(None)
        if self.end_of_input.in_loop and self.end_of_input.over:
            self._listener.outside_ended(self)  # nothing ever comes from outside

    def close(self) -> None:
        """Close functions, readers, writers and state; all of them, whatever one raises."""
        root = self.root.operator
        closers = [(operator, operator.close) for operator in self._operators]
        if self.source_input is not None:
            closers.append((root, self.source_input.close))
        closers += [(root, backend.close) for backend in self.backends.values()]
        closers += [(root, back_edge.close) for back_edge in self.gate.back_edges.values()]
        close_all(closers)

    # ---- the core

    def step(self) -> bool:
        """Make one piece of progress; False if there is nothing to do, or no room for output."""
        if self._timer_due is not None and self._clock() >= self._timer_due[0]:
            (_, number), self._timer_due = self._timer_due, None
            self._tell(AlignmentTimedOut(number))
        if self._events and not self._busy():
            # What could not be told while the task was busy; it does not wait for room.
            self._tell()
        clear = self.push()
        if self._rest:
            if clear:
                self._process_slice()
            return clear
        if self.backends and any(backend.over_memory_limit for backend in self.backends.values()):
            return False
        if not clear:
            # A barrier needs no room in the outputs: it waits there behind the records.
            return bool(self._inbox) and self._take_order()
        if self.end_of_input.running:
            self._run_hooks()
            return True
        if self._inbox and self._take_order():
            return True
        replaying = self.gate.replaying
        taken = self.gate.take()
        if taken is None:
            return replaying or (self.source_input is not None and self._read(self.source_input))
        self._rest_channel, element = taken
        self._receive(self._rest_channel, element)
        return True

    def _take_order(self) -> bool:
        """Execute the next order of the JobManager; False if it has to wait."""
        if not self._may_obey():
            return False
        self._obey(*self._inbox.popleft())
        return True

    def push(self) -> bool:
        """Send what is sealed as far as credits go; False if some of it must wait."""
        clear = True
        for output in self.outputs:
            if output.waiting and not output.push():
                clear = False
        if clear:
            if self._blocked_since is not None:
                waited, self._blocked_since = self._clock() - self._blocked_since, None
                self._blocked_seconds += waited
                if waited > 0:
                    self._sizer.waited(waited)
                    self.gate.follow(self._sizer)
            if self._unsent is not None:
                number, self._unsent = self._unsent, None
                self._tell(BarrierSent(number))
        elif self._blocked_since is None:
            self._blocked_since = self._clock()
        return clear

    def flush(self) -> bool:
        """The task is about to wait: seal and send everything. False if some must wait."""
        for output in self.outputs:
            if output.buffer:
                output.seal()
        for operator in self._operators:
            if isinstance(operator, SinkOperator):
                operator_at_work.set(operator.context)
                operator.flush()
        return self.push()

    def _receive(self, channel: InputChannel | None, element: Element) -> None:
        if isinstance(element, EncodedBatch):
            self._rest = self._decode(element.payload)
            self._process_slice()
        elif isinstance(element, Batch):
            self._rest = element.records if self._by_column else rows_of(element.records)
            self._process_slice()
        elif channel is None:
            raise ProtocolError(f"{element} was replayed")
        elif isinstance(element, Barrier):
            self._heard_of(element)
            align = element.kind is not SnapshotKind.CHECKPOINT
            self._tell(BarrierArrived(channel.id, element.number, align))
        elif self.end_of_input.channel_ended(channel.id):
            self._input_over()

    def _obey(self, what: str, value: Any) -> None:
        if what == "barrier":
            self._kinds[value.number] = value.kind
            self._tell(BarrierArrived(None, value.number))
            return
        if what == "end input":
            self.end_of_input.begin(value)
            return
        if what == "close loop":
            if not self.ended:
                self._end()
            return
        if self.source_input is None:
            raise ProtocolError(f"{what} for task {self.id}, which is no source")
        if what == "split":
            self.source_input.assign(*value)
        else:
            self.source_input.no_more()

    def _read(self, source_input: SourceInput) -> bool:
        if self.ended or self.paused or self._halted:
            return False
        if source_input.ended:
            self._input_over()
            return True
        operator = self.root.operator
        operator_at_work.set(operator.context)
        began = self._timer()
        try:
            records = source_input.read(self._sizer.slice)
        except BaseException as error:
            raise to_job_error(error, operator, []) from error
        if records is None:
            return source_input.ended
        if records:
            self._rest, self._rest_channel = records, None
            self._process_slice(began)
            return True
        # Nothing is due: wait until it is, unless the split has just ended.
        return source_input.wake_at is None and not source_input.pumping

    def _input_over(self) -> None:
        """All channels have ended, or all from outside of the loop."""
        if self.end_of_input.in_loop:
            self._listener.outside_ended(self)
        elif not self.end_of_input.begin(1):
            self._end()

    def _run_hooks(self) -> None:
        try:
            output = self.end_of_input.next()
        except BaseException as error:
            raise to_job_error(error, self.end_of_input.at_work, []) from error
        if output is None:
            if not self.end_of_input.in_loop:
                self._end()
            return
        self._chain.emit_from(output.operator, output.records)
        self._seal()
        self.push()

    def _end(self) -> None:
        for output in self.outputs:
            output.mark(EndOfInput())
        self.ended = True
        self.push()
        self._listener.input_ended(self)

    def _process_slice(self, began: float | None = None) -> None:
        """Process some of what the task has in hand; reading it may have begun before."""
        rest, at, size = self._rest, self._at, self._sizer.slice
        # Half as much again at once: a short rest would cost as much by itself as a slice does.
        if len(rest) - at <= size + size // 2:
            records = rest[at:] if at else rest
            self._rest, self._at = [], 0
        else:
            # The rest stays where it is. To copy it would touch each record once for each slice.
            records = rest[at : at + size]
            self._at = at + size
        if began is None:
            began = self._timer()
        self._chain.run(records)
        seconds = self._timer() - began
        self.busy_seconds += seconds
        if self._sizer.took(len(records), seconds):
            self.gate.follow(self._sizer)
        self._seal()
        self.push()

    # ---- snapshots

    def _barrier_reached(self, channel: Hashable, barrier: Barrier) -> None:
        self._heard_of(barrier)
        self._events.append(BarrierAnnounced(channel, barrier.number, barrier.urgent))
        if self._in_flight is None:
            self._tell()
        else:
            self._in_flight.relay(self._tell)
        self.gate.wake()

    def _heard_of(self, barrier: Barrier) -> None:
        self._kinds.setdefault(barrier.number, barrier.kind)
        if barrier.number > max(self.last_snapshot, self._aligning[0] if self._aligning else 0):
            self._aligning = (barrier.number, self._clock())

    def _busy(self) -> bool:
        """Whether no cut can be made now: what is being done is in no state and no log."""
        # What is left of a replay can be logged again, if it is not too much.
        again = self._in_flight is not None and self.gate.replay_bytes <= REPLAY_BYTES
        return self.end_of_input.running or (self.gate.replaying and not again)

    def _may_obey(self) -> bool:
        """Return whether the next message of the JobManager can be acted on now."""
        if self._busy():
            return False
        # Hooks and the end of a loop emit something, which a halted task must not do.
        return not self._halted or self._inbox[0][0] not in ("end input", "close loop")

    def _tell(self, event: Event | None = None) -> None:
        """Tell the protocol, and do what it says; what that brings about is told afterwards."""
        if event is not None:
            self._events.append(event)
        if self._telling or self._busy():
            return
        self._telling = True
        try:
            while self._events:
                self._do(self._protocol.handle(self._events.popleft()))
        finally:
            self._telling = False

    def _do(self, commands: list[Command]) -> None:
        """Do what the protocol says, in its order."""
        for command in commands:
            match command:
                case BlockChannel(channel):
                    self.gate.channels[channel].block()  # type: ignore[index]
                case UnblockChannels(channels):
                    for channel in channels:
                        self.gate.channels[channel].unblock()  # type: ignore[index]
                case CopyState(number):
                    self._copy_state(number)
                case StartLog(number, channels):
                    logged = (self.gate.recorded[channel] for channel in channels)  # type: ignore[index]
                    logs = [channel.start_log(number, self._keep_state) for channel in logged]
                    self.checkpoint_writer.start_log(number, logs)
                case EndLog(number):
                    self.checkpoint_writer.end_log(number)
                case DropLog(number):
                    for logged_channel in self.gate.recorded.values():
                        logged_channel.drop_log()
                    self.checkpoint_writer.abort(number)
                case Broadcast(number):
                    barrier = Barrier(number, self._kind(number))
                    for output in self.outputs:
                        output.mark(barrier)
                    self._unsent = number if self._in_flight is not None else None
                    self.push()
                case Overtake(number):
                    assert self._in_flight is not None
                    barrier = Barrier(number, self._kind(number), urgent=True)
                    self.checkpoint_writer.start_log(
                        number, self._in_flight.overtake(self.outputs, barrier)
                    )
                case StartAlignmentTimer(number):
                    assert self._in_flight is not None
                    self._timer_due = (self._clock() + self._in_flight.timeout, number)
                case Halt():
                    self._halted = True
                case Resume():
                    self._halted = False
                    self.gate.wake()

    def _kind(self, number: int) -> SnapshotKind:
        self._kinds = {n: kind for n, kind in self._kinds.items() if n >= number}
        return self._kinds.get(number, SnapshotKind.CHECKPOINT)

    def _copy_state(self, number: int) -> None:
        kind = self._kinds[number]
        end_of_input = self.end_of_input
        cut = TaskSnapshot(number, kind, self.root.operator.context.uid, end_of_input.hooked)
        cut.ended, cut.emitted = end_of_input.rounds, end_of_input.emitted
        cut.outside_ended = end_of_input.over if end_of_input.in_loop else None
        if self._aligning is not None and self._aligning[0] == number:
            cut.aligned_seconds = self._clock() - self._aligning[1]
        cut.blocked_seconds = [channel.blocked_seconds for channel in self.gate.channels.values()]
        self._aligning, self.last_snapshot = None, number
        if self._keep_state:
            cut.captures = {uid: b.capture(number) for uid, b in self.backends.items()}
            if self.source_input is not None:
                cut.small[self.root.operator.context.uid] = self.source_input.snapshot()
        for operator in self._operators:
            if isinstance(operator, SinkOperator):
                operator_at_work.set(operator.context)
                staged = operator.prepare(number)
                if staged is not None:
                    cut.staged[operator.context.uid] = staged
        operator_at_work.set(None)
        if kind is SnapshotKind.FINAL:
            self.paused = True
        if self._in_flight is not None:
            # A cut in the middle of a batch, or of a replay.
            rest = [(channel, batch.records) for channel, batch in self.gate.rest_of_replay()]
            in_hand = (self._rest_channel, self._rest[self._at :])
            cut.logs += self._in_flight.in_hand([in_hand, *rest])
        self.checkpoint_writer.add(cut)

    # ---- the loop

    async def run(
        self,
        wait: Callable[[float | None], Awaitable[None]],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        """Work for ever; cancelled when the job is over.

        Arguments:
            wait: until the task is woken, or until a time on its clock.
            pause: let others run.
        """
        yielded = self._timer()
        while True:
            if self.step():
                now = self._timer()
                if now - yielded >= SLICE_SECONDS or self.checkpoint_writer.pending:
                    await pause()
                    yielded = self._timer()
                continue
            if self.flush() and self._can_go_on():
                continue
            self.checkpoint_writer.idle, self.waiting = not self.gate.ready, True
            await wait(self._wake_at())
            self.checkpoint_writer.idle = self.waiting = False
            yielded = self._timer()

    def _wake_at(self) -> float | None:
        """When the source has records again; None if something else must happen before."""
        held = self.paused or bool(self._rest) or self._blocked_since is not None
        held = held or self.end_of_input.running or self._halted
        feed_at = None if held or self.source_input is None else self.source_input.wake_at
        if self._timer_due is None:
            return feed_at
        due = self._timer_due[0]
        return due if feed_at is None else min(due, feed_at)

    def _can_go_on(self) -> bool:
        """Whether there is something to take after a flush that was not there before it."""
        blocked = any(backend.over_memory_limit for backend in self.backends.values())
        has_work = bool(self._rest) or self.gate.ready or self.end_of_input.running
        if self._inbox or self._events:
            obeying = bool(self._inbox) and self._may_obey()
            has_work = has_work or obeying or (bool(self._events) and not self._busy())
        return not blocked and has_work

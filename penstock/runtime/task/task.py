"""A task: one parallel instance of a chain.

`Task.step` takes an element from the gate, reads the source, processes a slice of a batch, or
handles a message. It is synchronous and never waits, so that tests can try every order of steps.
`run_task` (`task_loop.py`) calls `step` until there is nothing to do, then waits, and yields
between slices.

A task has these parts: `mailbox` (messages of the JobManager), `slice_runner` and `chain_runner`
(user code), `task_outputs`, `snapshot_driver`, and `end_of_input`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.source import Split
from penstock.dataflow.time.watermark import MAX_WATERMARK, Watermark
from penstock.runtime.network.elements import (
    Barrier,
    Element,
    EncodedBatch,
    EndOfInput,
    LoopElement,
    TimeElement,
)
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.operators.async_wait.operator import AsyncWaitOperator
from penstock.runtime.operators.async_wait.request_queues import Held
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.loops.loop_time_tracker import LoopTimeTracker
from penstock.runtime.task.mailbox import (
    BarrierMail,
    EndOfInputMail,
    LoopClosedMail,
    Mail,
    Mailbox,
    NoMoreSplitsMail,
    SplitMail,
)
from penstock.runtime.task.processing_time import ProcessingTime
from penstock.runtime.task.slice_runner import slice_runner
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.in_flight_data import InFlightRecorder
from penstock.runtime.task.snapshots.snapshot_driver import SnapshotDriver
from penstock.runtime.task.snapshots.state_capture import StateCapture
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.runtime.task.task_settings import TaskSettings
from penstock.runtime.task.watermark_tracker import WatermarkTracker
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error
from penstock.snapshot.protocols.base import SnapshotProtocol
from penstock.snapshot.protocols.events import SnapshotKind

__all__ = ["Task", "TaskListener"]


class TaskListener(Protocol):
    """Receives notifications about the end of a task's input. The TaskManager implements it."""

    def input_ended(self, task: Task) -> None:
        """Handle the end of the task's bounded input."""

    def outside_ended(self, task: Task) -> None:
        """Handle the end of all input from outside of the task's loop."""


class Task:
    """One parallel instance of a chain.

    Arguments:
        id: the number of the chain and the index of the subtask.
        name: the name of the chain.
        chain: the chain runner, which runs the operators of the chain.
        gate: the input gate.
        outputs: the output channels of all links.
        protocol: the snapshot protocol of this task.
        checkpoint_writer: the writer that makes captured state durable.
        end_of_input: the tracker of the end of this task's input.
        listener: an object that is notified when the input has ended.
        settings: the clocks and settings of the task.
        source_input: the source's splits and readers; None if the chain begins with no source.
        in_flight: the recorder of records that barriers overtake; None if barriers overtake no
            records.
    """

    def __init__(
        self,
        *,
        id: tuple[int, int],
        name: str,
        chain: ChainRunner,
        gate: InputGate,
        outputs: list[OutputChannel],
        protocol: SnapshotProtocol,
        checkpoint_writer: CheckpointWriter,
        end_of_input: EndOfInputTracker,
        listener: TaskListener,
        settings: TaskSettings,
        source_input: SourceInput | None = None,
        in_flight: InFlightRecorder | None = None,
    ) -> None:
        self.id, self.name = id, name
        self.chain, self.gate, self.source_input = chain, gate, source_input
        self.checkpoint_writer = checkpoint_writer
        self.end_of_input = end_of_input
        self.backends = chain.backends()
        self._backends = [*self.backends.values()]
        clock, self._timer = settings.clock, settings.timer
        self._clock = clock
        self._listener = listener
        self._mailbox = Mailbox()
        slices = self.slices = slice_runner(chain, gate, outputs, settings)
        self.outputs = TaskOutputs(outputs, clock, self.slices.output_waited)
        #: The watermark of the task. In a loop, it follows the rule of `docs/cycles.md`.
        self.event_time = (
            WatermarkTracker(chain, gate.channels, source_input is not None)
            if chain.loop is None
            else LoopTimeTracker(chain, chain.loop)
        )
        capture = StateCapture(
            chain, gate, source_input, end_of_input, slices, self.event_time, in_flight, settings
        )
        self.snapshots = SnapshotDriver(
            protocol, gate, self.outputs, checkpoint_writer, capture, end_of_input, clock, in_flight
        )
        #: Whether barriers overtake records, and therefore are sent even if there is no credit.
        self._barriers_overtake = in_flight is not None
        #: Runs timers by processing time; None if no operator of the task may have some.
        self.processing_time = ProcessingTime.of(chain, clock, settings.wall_clock)
        if source_input is not None and source_input.watermarks is not None:
            source_input.watermarks.connect(self.event_time.add)
        self.ended = False
        self.waiting = False  #: Whether the task waits because it has nothing to do.

    @property
    def operators(self) -> list[RunningOperator]:
        """Return the chain's operators. Each operator comes after its parent."""
        return self.chain.operators

    # ---- methods for the messages of the JobManager

    def inject(self, number: int, kind: SnapshotKind) -> None:
        """Begin a snapshot at this source task."""
        self._mailbox.append(BarrierMail(Barrier(number, kind)))
        if self._barriers_overtake and not self.snapshots.busy:
            # The barrier overtakes records, so it does not wait for credits.
            while self._mailbox:
                self._handle_mail(self._mailbox.popleft())

    def assign(self, split: Split) -> None:
        """Add a split, which the task reads from its start."""
        self._mailbox.append(SplitMail(split))

    def no_more_splits(self) -> None:
        """Record that there are no more splits for this source task."""
        self._mailbox.append(NoMoreSplitsMail())

    def abort(self, number: int) -> None:
        """Abort the snapshot `number`, since the JobManager has given it up."""
        self.snapshots.abort(number)

    def complete(self, number: int) -> None:
        """Handle the completion of snapshot `number`."""
        self.snapshots.complete(number)

    def end_input(self, round: int) -> None:
        """Run a round of end-of-input hooks, since no records are left in the task's loop.

        In round 0, the task only fires timers and windows for the last watermark.
        """
        self._mailbox.append(EndOfInputMail(round))

    def close_loop(self) -> None:
        """End the task, since its loop has ended."""
        self._mailbox.append(LoopClosedMail())

    # ---- methods that open and close the task

    def open(self) -> None:
        """Open all operators, and report if there is no input from outside of the loop."""
        self.chain.open()
        if self.end_of_input.in_loop and self.end_of_input.over:
            self._listener.outside_ended(self)  # No channel comes from outside of the loop.

    def close(self) -> None:
        """Close all operators, readers and state, and then raise the first of their errors."""
        self.chain.close(self.source_input, self.gate)

    # ---- methods of one step

    def step(self) -> bool:
        """Do one piece of work: process a slice, or handle an element or a message.

        Return False if there is nothing to do, or if output must wait for credits.
        """
        snapshots = self.snapshots
        if snapshots.timer is not None:
            snapshots.check_timer()
        if snapshots.events:
            snapshots.notify()  # Handle the barriers that arrived while the task was busy.
        clear = self.outputs.push()
        if self.slices.batch is not None and not self.slices.waits:
            if clear:
                self.slices.run()
                self.outputs.send_full()
            return clear
        for backend in self._backends:
            if backend.over_memory_limit:
                return False
        if not clear:
            # Messages are handled even without credits: a barrier can wait in the output channels,
            # behind the records. But all that the source has read must come before it.
            unsent = self.source_input is not None and self.event_time.running
            return not unsent and bool(self._mailbox) and self._take_mail()
        if self.event_time.running:
            element = self.event_time.step()
            if isinstance(element, RecordBatch):
                self.slices.start(element, None)
            elif element is not None and not self.end_of_input.begin(1):
                self._end()  # no operator of the chain has an end-of-input hook
            self.outputs.send_full()
            return True
        if self.end_of_input.running:
            self._run_hooks()
            return True
        if self.processing_time is not None and (done := self._work_unasked()) is not None:
            return done
        if self._mailbox and self._take_mail():
            return True
        replaying = self.gate.replaying
        taken = self.gate.take()
        if taken is None:
            return replaying or (self.source_input is not None and self._read(self.source_input))
        self._receive(*taken)
        return True

    def _work_unasked(self) -> bool | None:
        """Do what is due by the clock, or emit results. Return None to go on with the step."""
        requests = self.chain.requests
        if self._may_emit():
            if self.processing_time is not None and self.processing_time.is_due():
                self.processing_time.step()
                self.outputs.send_full()
                return True
            if requests is not None and requests.ready:
                self._emit_results(requests)
                return True
        # The rest of a batch waits for requests.
        return None if self.slices.batch is None else False

    def _may_emit(self) -> bool:
        """Return whether timers by processing time and requests may emit records now."""
        snapshots = self.snapshots
        return not (self.ended or snapshots.final_barrier_passed or snapshots.halted)

    def flush(self) -> None:
        """Flush the sinks, and send all records in the output buffers as far as credits allow."""
        self.flush_sinks()
        self.outputs.seal()
        self.outputs.push()

    def flush_sinks(self) -> None:
        """Flush the sinks, before the task waits."""
        for sink in self.chain.sinks_to_flush:
            operator_at_work.set(sink.context)
            sink.flush()

    def _receive(self, channel: InputChannel | None, element: Element) -> None:
        """Handle an element of a channel; None for replayed records of the task's source."""
        if isinstance(element, EncodedBatch):
            element = self.chain.decode(element.payload)
        if isinstance(element, RecordBatch):
            self.slices.start(element, channel)
            self.outputs.send_full()
        elif channel is None and isinstance(element, TimeElement):
            self.event_time.add(element)
        elif channel is None:
            raise ProtocolError(f"{element} was replayed")
        elif isinstance(element, Barrier):
            self.snapshots.barrier_arrived(channel.id, element)
        elif self.chain.requests is not None and self.chain.requests.holds:
            self.chain.requests.hold(channel.id, element)
        else:
            self._receive_marker(channel.id, element)

    def _receive_marker(
        self, channel: Hashable, element: TimeElement | LoopElement | EndOfInput
    ) -> None:
        """Handle an element without records, when all records before it are processed."""
        if not isinstance(element, EndOfInput):
            if not self.ended:
                self.event_time.receive(channel, element)
            return
        self.event_time.end_channel(channel)
        if self.end_of_input.channel_ended(channel):
            self._input_over()

    def _emit_results(self, requests: AsyncWaitOperator) -> None:
        """Emit the next results of requests, or handle an element that has waited for them."""
        output = requests.next_output()
        if isinstance(output, Held):
            self._receive_marker(output.channel, output.element)
        else:
            self.chain.emit_from(requests, output)
            self.outputs.send_full()

    def _read(self, source_input: SourceInput) -> bool:
        """Read the source and process the records. Return False if it has none now."""
        if self.ended or self.snapshots.final_barrier_passed or self.snapshots.halted:
            return False
        if source_input.ended:
            self._input_over()
            return True
        operator = self.chain.root.operator
        operator_at_work.set(operator.context)
        began = self._timer()
        try:
            batch = source_input.read(self.slices.sizer.slice)
        except BaseException as error:
            raise to_job_error(error, operator, []) from error
        if batch is None:
            return source_input.ended
        if batch.count:
            self.slices.start(batch, None, began)
            self.outputs.send_full()
            return True
        # The source has no records now. If it has returned no time to wait for, for example after
        # the end of a split, it is read again at once.
        return source_input.wake_at is None and not source_input.pumping

    # ---- methods that handle messages

    def _take_mail(self) -> bool:
        """Handle the first message of the mailbox. Return False if it must wait."""
        if not self._may_handle_mail():
            return False
        self._handle_mail(self._mailbox.popleft())
        return True

    def _may_handle_mail(self) -> bool:
        if self.snapshots.busy:
            return False
        return not (self.snapshots.halted and self._mailbox.next_emits)

    def _handle_mail(self, mail: Mail) -> None:
        match mail:
            case BarrierMail(barrier):
                self.snapshots.inject(barrier)
            case EndOfInputMail(round):
                self.event_time.fire_last()
                if round:
                    self.end_of_input.begin(round)
            case LoopClosedMail():
                if not self.ended:
                    self._end()
            case _ if self.source_input is None:
                raise ProtocolError(f"{mail} for task {self.id}, which is no source")
            case SplitMail(split):
                self.source_input.assign(split)
            case NoMoreSplitsMail():
                self.source_input.no_more()

    # ---- methods for the end of the input

    def _input_over(self) -> None:
        """Handle the end of all awaited channels, or the end of the source."""
        if self.end_of_input.in_loop:
            self._listener.outside_ended(self)
            return
        if self.source_input is not None:
            self.event_time.add(Watermark(MAX_WATERMARK))
        self.event_time.add(EndOfInput())  # timers may still fire before the hooks run

    def _run_hooks(self) -> None:
        output = self.end_of_input.next()
        if output is None:
            if not self.end_of_input.in_loop:
                self._end()
            return
        self.chain.emit_from(output.operator, output.records)
        self.outputs.send_full()

    def _end(self) -> None:
        self.ended = True
        for operator in self.operators:
            operator.drop_timers()
        self.chain.end_sinks()
        if self.end_of_input.in_loop or not self.event_time.at_end:
            self.outputs.broadcast(Watermark(MAX_WATERMARK))
        self.outputs.broadcast(EndOfInput())
        self._listener.input_ended(self)

    # ---- methods that the loop of the task calls

    def set_waiting(self, waiting: bool) -> None:
        """Note whether the task waits because it has nothing to do."""
        self.waiting = waiting
        self.checkpoint_writer.set_idle(waiting and not self.gate.ready)

    def wake_at(self) -> float | None:
        """Return when the source has records, or a timer, write or timeout is due; else None."""
        snapshots, times = self.snapshots, []
        held = (
            snapshots.final_barrier_passed
            or snapshots.halted
            or (self.slices.batch is not None and not self.slices.waits)
            or self.outputs.blocked
            or self.end_of_input.running
            or self.event_time.running
        )
        if not held and self.source_input is not None and self.source_input.wake_at is not None:
            times.append(self.source_input.wake_at)
        if not held and self.processing_time is not None and self._may_emit():
            due = self.processing_time.wake_at()
            if due is not None:
                times.append(due)
        if snapshots.timer is not None:
            times.append(snapshots.timer[0])
        for sink in self.chain.sinks_to_flush:
            if (delay := sink.write_delay) is not None:
                times.append(self._clock() + delay)
        return min(times, default=None)

    def has_work(self) -> bool:
        """Return whether the task can work again, because output was sent."""
        if self.outputs.blocked:
            return False
        for backend in self._backends:
            if backend.over_memory_limit:
                return False
        if self.slices.batch is not None:
            busy = self.snapshots.busy or not self.snapshots.events
            return not self.slices.waits or self.event_time.running or not busy
        return bool(
            self.gate.ready
            or self.end_of_input.running
            or self.event_time.running
            or (self._mailbox and self._may_handle_mail())
            or (self.snapshots.events and not self.snapshots.busy)
        )

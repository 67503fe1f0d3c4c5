"""A task: one parallel instance of a chain.

A task has *activities* (`activities/`), in the order of their priority. `Task.step` does one piece
of the first activity that is ready: it processes a slice of a batch, fires timers, handles a
message, takes an element from the gate, or reads the source. It is synchronous and never waits, so
that tests can try every order of steps. `TaskRunner.process` (`taskmanager/task_runner.py`) calls
`step` until there is nothing to do, then waits, and yields between slices.

The activities share these parts: `slice_runner` and `chain_runner` (user code), `task_outputs`,
`watermark_tracker`, `snapshot_driver`, `end_of_input`, and `task_end`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from penstock.dataflow.source import Split
from penstock.runtime.network.elements import Barrier
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.task.activities.activity import Activity
from penstock.runtime.task.activities.batches import CurrentBatch, RestOfBatch, StateMemory
from penstock.runtime.task.activities.by_clock import (
    ProcessingTimeWork,
    RequestResults,
    SnapshotEvents,
)
from penstock.runtime.task.activities.event_time import EndOfInputHooks, EventTime
from penstock.runtime.task.activities.input import ChannelInput, SourceReading
from penstock.runtime.task.activities.logged_reading import LoggedReading
from penstock.runtime.task.activities.mail import (
    BarrierMail,
    EndOfInputMail,
    LoopClosedMail,
    Mailbox,
    NoMoreSplitsMail,
    SplitMail,
)
from penstock.runtime.task.activities.repeatable import (
    RepeatableInput,
    RepeatableResults,
    RepeatableTime,
)
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.key_sampler import KeySampler
from penstock.runtime.task.loop_time_tracker import LoopTimeTracker
from penstock.runtime.task.processing_time import ProcessingTime
from penstock.runtime.task.slice_runner import slice_runner
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.in_flight_data import InFlightRecorder
from penstock.runtime.task.snapshots.snapshot_driver import SnapshotDriver
from penstock.runtime.task.snapshots.state_capture import StateCapture
from penstock.runtime.task.state_reading import StateReading
from penstock.runtime.task.task_end import TaskEnd
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.runtime.task.task_settings import TaskSettings
from penstock.runtime.task.watermark_tracker import WatermarkTracker
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error
from penstock.snapshot.protocols.base import SnapshotProtocol
from penstock.snapshot.protocols.events import SnapshotKind


class TaskListener(Protocol):
    """Receives notifications about the end of a task's input. The TaskManager implements it."""

    def input_ended(self, task: Task) -> None:
        """Handle the end of the task's bounded input."""

    def outside_ended(self, task: Task) -> None:
        """Handle the end of all input from outside the task's loop."""


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
        keys: looks at the keys of some records; None if the task has no keys.
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
        keys: KeySampler | None = None,
    ) -> None:
        self.id, self.name = id, name
        self.chain, self.gate, self.source_input = chain, gate, source_input
        self.checkpoint_writer = checkpoint_writer
        self.end_of_input = end_of_input
        self.backends = chain.backends()
        self.keys = KeySampler({}) if keys is None else keys
        self._listener = listener
        self._clock = clock = settings.clock
        is_source = source_input is not None
        self.slices = slices = slice_runner(chain, gate, outputs, settings)
        self.outputs = TaskOutputs(outputs, clock, slices.output_waited)
        #: The watermark of the task. In a loop, it follows the rule of `docs/guides/cycles.md`.
        self.event_time = (
            WatermarkTracker(chain, gate.channels, is_source)
            if chain.loop is None
            else LoopTimeTracker(chain, chain.loop)
        )
        capture = StateCapture(
            chain, gate, source_input, end_of_input, slices, self.event_time, in_flight, settings
        )
        self._steps, self._reads = settings.steps, settings.reads
        self.snapshots = SnapshotDriver(
            protocol,
            gate,
            self.outputs,
            checkpoint_writer,
            capture,
            end_of_input,
            clock,
            in_flight,
            self._log_barrier,
        )
        self._end = TaskEnd(
            chain,
            self.event_time,
            end_of_input,
            self.outputs,
            is_source,
            outside_ended=partial(listener.outside_ended, self),
            input_ended=partial(listener.input_ended, self),
        )
        self._mailbox = Mailbox(
            slices,
            self.event_time,
            self.snapshots,
            end_of_input,
            self._end,
            self.outputs,
            source_input,
        )
        #: Whether barriers overtake records, and therefore are sent even if there is no credit.
        self._barriers_overtake = in_flight is not None
        if source_input is not None and source_input.watermarks is not None:
            source_input.watermarks.connect(self.event_time.add)
        by_uid = {operator.context.uid: operator for operator in chain.operators}
        #: The queries of the keyed state, by clients of the job.
        self.queries = StateReading(by_uid, self.backends, settings.timer, clock)
        self.waiting = False  #: Whether the task waits because it has nothing to do.
        #: All activities in the order of their priority, and those that need no credits.
        self._activities = list(self._create_activities(settings))
        self._without_credits = [one for one in self._activities if not one.needs_credits]

    def _create_activities(self, settings: TaskSettings) -> Iterator[Activity]:
        """Yield the activities of the task in the order of their priority."""
        chain, outputs, slices = self.chain, self.outputs, self.slices
        snapshots, end = self.snapshots, self._end
        yield SnapshotEvents(snapshots)
        yield CurrentBatch(slices, outputs)
        yield self.queries
        for backend in self.backends.values():
            yield StateMemory(backend)
        yield EventTime(self.event_time, slices, self.end_of_input, end, outputs)
        yield EndOfInputHooks(self.end_of_input, chain, end, outputs)
        steps = settings.steps
        timers: ProcessingTime
        make_input: Callable[..., ChannelInput]
        results: RequestResults | None = None
        if steps is None:
            if chain.requests is not None:
                results = RequestResults(chain.requests, chain, snapshots, end, outputs)
            timers = ProcessingTime(chain, settings.clock, settings.wall_clock)
            make_input = ChannelInput
        else:
            logged = None
            if chain.requests is not None:
                logged = RepeatableResults(steps, chain.requests, chain, snapshots, end, outputs)
            results = logged
            timers = repeatable = RepeatableTime(steps, chain, settings.clock, settings.wall_clock)
            make_input = partial(RepeatableInput, steps, repeatable, logged)
        if timers.is_needed:
            own_log = None if self.source_input is None else self.gate
            yield ProcessingTimeWork(timers, own_log, snapshots, end, outputs)
        if results is not None:
            yield results
            yield RestOfBatch(slices)
        yield self._mailbox
        yield make_input(
            self.gate, chain, slices, self.event_time, snapshots, end, outputs, self.keys
        )
        if self.source_input is not None:
            read = SourceReading if self._reads is None else partial(LoggedReading, self._reads)
            yield read(self.source_input, chain, slices, snapshots, end, outputs, settings.timer)

    def _log_barrier(self, number: int) -> None:
        """Log that the task takes a snapshot, if it must be able to repeat its steps."""
        if self._steps is not None:
            self._steps.barrier(number, self.event_time)
        if self._reads is not None:
            self._reads.barrier(number)

    @property
    def ended(self) -> bool:
        """Return whether the task has ended. It emits nothing more."""
        return self._end.ended

    # ---- methods for the messages of the JobManager

    def inject(self, number: int, kind: SnapshotKind) -> None:
        """Begin a snapshot at this source task."""
        self._mailbox.append(BarrierMail(Barrier(number, kind)))
        if self._barriers_overtake and not self.snapshots.busy:
            # The barrier overtakes records, so it does not wait for credits.
            self._mailbox.handle_all()

    def assign(self, split: Split) -> None:
        """Add a split, which the task reads from its start."""
        self._mailbox.append(SplitMail(split))

    def no_more_splits(self) -> None:
        """Record that there are no more splits for this source task."""
        self._mailbox.append(NoMoreSplitsMail())

    def snapshot_completed(self, number: int) -> None:
        """Handle the completion of snapshot `number`. Raise `JobError` if the source fails."""
        self.snapshots.complete(number)
        for channel in self.gate.resumable.values():
            channel.snapshot_completed(number)
        if self.source_input is not None:
            operator = self.chain.root.operator
            operator_at_work.set(operator.context)
            try:
                self.source_input.snapshot_completed(number)
            except BaseException as error:
                raise to_job_error(error, operator, []) from error

    def snapshot_aborted(self, number: int) -> None:
        """Abort the snapshot `number`, since the JobManager has given it up."""
        self.snapshots.abort(number)
        for channel in self.gate.resumable.values():
            channel.snapshot_aborted(number)
        if self.source_input is not None:
            self.source_input.snapshot_aborted(number)

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
        if self._steps is not None:
            self._steps.begin(self.event_time)
        if self.end_of_input.in_loop and self.end_of_input.over:
            self._listener.outside_ended(self)  # No channel comes from outside of the loop.

    def close(self) -> None:
        """Close all operators, readers and state, and then raise the first of their errors."""
        self.chain.close(self.source_input, self.gate)

    # ---- methods of one step

    def step(self) -> bool:
        """Do one piece of work. Return False if there is nothing to do, or output must wait."""
        activities = self._activities if self.outputs.push() else self._without_credits
        for activity in activities:
            if activity.ready():
                return activity.step()
        return False

    def has_work(self) -> bool:
        """Return whether the task can work again, because output was sent."""
        for activity in self._reachable():
            if activity.ready():
                return activity.is_certain
        return False

    def wake_at(self) -> float | None:
        """Return the time at which the waiting task must be woken; None for no time."""
        delays = [sink.write_delay for sink in self.chain.sinks_to_flush]
        times = [self._clock() + delay for delay in delays if delay is not None]
        for activity in self._reachable():
            if (time := activity.wake_at()) is not None:
                times.append(time)
            if activity.ready():
                break  # The others wait for it.
        return min(times, default=None)

    def _reachable(self) -> list[Activity]:
        """Return the activities that need not wait for credits."""
        return self._without_credits if self.outputs.blocked else self._activities

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

    # ---- methods that the loop of the task calls

    def set_waiting(self, waiting: bool) -> None:
        """Note whether the task waits because it has nothing to do."""
        self.waiting = waiting
        self.checkpoint_writer.set_idle(waiting and not self.gate.ready)

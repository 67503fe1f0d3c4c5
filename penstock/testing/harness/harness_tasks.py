"""Create the tasks of a harness, and run their steps without an event loop.

The tasks, operators, channels and protocols are those of a job. A job has an event loop for each
worker; here, the steps of all tasks run one after the other, until no task has anything to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from penstock.dataflow.errors import JobError, PenstockError, StoreError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.sink import Committable
from penstock.runtime import codegen
from penstock.runtime.control.job_code import JobCode, unpack
from penstock.runtime.network.elements import Element, EncodedBatch
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.system.launcher import Launcher
from penstock.runtime.system.processor import WholeProcessor
from penstock.runtime.system.system import System
from penstock.runtime.system.transport import Transport
from penstock.runtime.task.snapshots.task_snapshot import Acknowledgement
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.channel_factory import ChannelFactory
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.state_restorer import StateRestorer
from penstock.runtime.taskmanager.task_factory import TaskFactory
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.testing.harness.harness_snapshot import HarnessFolder


class TaskSnapshots:
    """The acknowledgements of a snapshot. It is the responder of all tasks."""

    def __init__(self) -> None:
        self._acknowledged: list[Acknowledgement] = []

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Keep the acknowledgement of a task."""
        self._acknowledged.append(acknowledgement)

    def decline(self, number: int, reason: str) -> None:
        """Raise `StoreError`, since the snapshot cannot be written."""
        raise StoreError(f"snapshot {number} of the harness cannot be written: {reason}")

    @property
    def handles(self) -> tuple[OperatorHandle, ...]:
        """The state of all operators."""
        return tuple(handle for one in self._acknowledged for handle in one.handles)

    @property
    def committables(self) -> tuple[Committable, ...]:
        """The staged output of all sinks."""
        return tuple(item for one in self._acknowledged for item in one.committables)

    @property
    def size(self) -> SnapshotBytes:
        """The number of bytes that the tasks have written."""
        return sum((one.size for one in self._acknowledged), SnapshotBytes())

    def clear(self) -> None:
        """Forget the acknowledgements."""
        self._acknowledged = []


class HarnessTasks:
    """All tasks of a program, in one attempt.

    Arguments:
        code: the code, with its execution graph.
        copy: the code as bytes, from which each slot unpacks its own copy. It is None if there is
            only one slot, which then uses `code` itself.
        folder: the folder for large state.
        attempt: the number of earlier harnesses of this program.
        types: the record classes, numbered as in the snapshot.
        restored: the number of the snapshot to restore, or None.
        allow_dropped: whether restored states that the program no longer has are dropped.
        handles: for each slot, the handles of its tasks; see `RestoredSnapshot.handles_for`.
    """

    def __init__(
        self,
        code: JobCode,
        copy: bytes | None,
        folder: HarnessFolder,
        attempt: int,
        types: TypeRegistry,
        restored: int | None = None,
        *,
        allow_dropped: bool = False,
        handles: Sequence[dict[str, list[Any]]] = (),
    ) -> None:
        self._code, self._folder = code, folder
        self.paths = JobPaths(folder.path)
        #: The processing time, in milliseconds since the epoch.
        self.now = 0
        self.snapshots = TaskSnapshots()
        self._tasks: list[Task] = []
        assert code.plan is not None
        self.plan = code.plan
        self._descriptors = [
            DeploymentDescriptor(
                code if copy is None else replace(unpack(copy), plan=self.plan, config=code.config),
                slot,
                attempt,
                attempt,
                "harness",
                folder.path,
                True,
                Codec(types),
                restored,
                allow_dropped,
                handles[slot] if handles else {},
            )
            for slot in range(self.plan.slots)
        ]
        with _without_codegen():
            self._create()

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    @property
    def operators(self) -> list[RunningOperator]:
        """The operators of all tasks."""
        return [operator for task in self._tasks for operator in task.chain.operators]

    # ---- the start

    def _create(self) -> None:
        system = System(
            clock=lambda: self.now / 1000,
            transport=cast(Transport, None),  # Channels between slots are `DirectSender`s.
            launcher=cast(Launcher, None),
            offload=_call,
            rng=random.Random(0),
            runnable=lambda: 0,
            processor=WholeProcessor(lambda: self.now / 1000),
            wall_clock=lambda: self.now,
        )
        channels: dict[ChannelId, InputChannel] = {}
        factories = [ChannelFactory(one, system) for one in self._descriptors]
        for factory in factories:
            channels.update(factory.create_inputs())
        credits = self._code.config.channel_batches
        for descriptor, factory in zip(self._descriptors, factories, strict=True):
            senders = {id: DirectSender(channels[id], credits) for id in factory.remote_outputs()}
            tasks = TaskFactory(descriptor, system, factory)
            created = tasks.create_tasks(
                dict(senders), self, lambda _: self.snapshots, lambda _: None
            )
            self._tasks += [runner.task for runner in created]

    def start(self) -> None:
        """Restore the tasks, and open them."""
        with self._running():
            restorers = [StateRestorer(one, _call, _no_pause) for one in self._descriptors]
            for task in self._tasks:
                _finish(restorers[task.id[1]].restore(task))
            for task in self._tasks:
                task.open()
                restorers[task.id[1]].require_all_states(task)
        self.run()

    # ---- the steps

    def set_time(self, now: int) -> None:
        """Set the processing time, in milliseconds since the epoch."""
        self.now = now

    def process(self, task: Task, batch: RecordBatch) -> None:
        """Process a batch in an input task, and then run all tasks until they are idle."""
        with self._running():
            task.slices.start(batch, None)
        self.run()

    def run(self) -> None:
        """Run the steps of all tasks until none has anything to do."""
        with self._running():
            worked = True
            while worked:
                worked = False
                for task in self._tasks:
                    worked |= self._run_task(task)

    def _run_task(self, task: Task) -> bool:
        """Run the steps of a task. Return whether another task may have something to do now."""
        worked = False
        while True:
            if task.step():
                worked = True
            elif task.checkpoint_writer.has_work():
                _finish(task.checkpoint_writer.work(_call, _no_pause))
                worked = True
            else:
                # The flush sends these records, so their receivers must run again.
                worked |= task.outputs.has_partial
                task.flush()
                return worked

    def begin_snapshot(self, number: int) -> None:
        """Send the barrier of a snapshot into all inputs, and write the snapshot."""
        self.snapshots.clear()
        self.paths.snapshot(number).mkdir(parents=True, exist_ok=True)
        for task in self._tasks:
            if task.source_input is not None:
                task.inject(number, SnapshotKind.CHECKPOINT)
        self.run()
        for task in self._tasks:
            task.snapshots.complete(number)

    def input_ended(self, task: Task) -> None:
        """Do nothing: the harness sees that a task has ended."""

    def outside_ended(self, task: Task) -> None:
        """Do nothing: there are no loops."""

    def close(self) -> None:
        """Close the functions and the state of all tasks."""
        with self._running():
            for task in self._tasks:
                task.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Raise the exceptions of user code as they are, with a note that names the operator."""
        with _without_codegen():
            try:
                yield
            except JobError as error:
                cause = error.__cause__
                if cause is None or isinstance(cause, PenstockError) or not error.user_traceback:
                    raise
                cause.add_note(str(_without_traceback(error)))
                raise cause from cause.__cause__
            finally:
                operator_at_work.set(None)


def _without_traceback(error: JobError) -> JobError:
    """Return an error without the traceback of the user's code."""
    return JobError(error.message, operator=error.operator, record=error.record)


@contextmanager
def _without_codegen() -> Iterator[None]:
    """Call each function of the user, so that breakpoints and coverage work."""
    before = codegen.is_enabled()
    codegen.set_enabled(False)
    try:
        yield
    finally:
        codegen.set_enabled(before)


async def _call(function: Callable[[], Any]) -> Any:
    return function()


async def _no_pause() -> None:
    return None


def _finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a coroutine of a harness waits")


class DirectSender:
    """A `Sender` to a task in another slot, which puts each element into its channel at once.

    Arguments:
        channel: the input channel.
        credits: the number of batches that may be in the channel.
    """

    def __init__(self, channel: InputChannel, credits: int) -> None:
        self._channel = channel
        self.credits = credits
        channel.attach_sender(self._return_credit)

    @property
    def desired_records(self) -> int:
        """Return the number of records that the receiver wants in a batch."""
        return self._channel.desired_records

    @property
    def takes_partial(self) -> bool:
        """Return whether the channel has no batches."""
        return self._channel.room >= self._channel.capacity

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Do nothing: the sender asks the channel itself."""

    def send_batch(self, payload: bytes, count: int) -> None:
        """Put an encoded batch of `count` records into the channel."""
        self.credits -= 1
        self._channel.put(EncodedBatch(payload, count))

    def send_marker(self, element: Element) -> None:
        """Put a marker, such as a barrier, into the channel."""
        self._channel.put(element)

    def send_steps(self, data: bytes) -> None:
        """Pass steps to the channel."""
        self._channel.learn_steps(data)

    def _return_credit(self) -> None:
        self.credits += 1

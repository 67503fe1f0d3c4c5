"""A whole job in one thread, whose processes have virtual clocks of their own.

The process whose clock is behind takes the next turn. A function of the job spends time by calling
`spend`. So it can be seen how long a barrier travels behind slow functions, on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from penstock import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.source import SplitEnumerator
from penstock.runtime.control.job_code import JobCode, pack, unpack
from penstock.runtime.network.elements import Element, EncodedBatch
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.remote_channel import ReceivingHalf, credit_group
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.system.processor import WholeProcessor
from penstock.runtime.system.system import System
from penstock.runtime.task.partial_batches import PartialBatches
from penstock.runtime.task.snapshots.task_snapshot import Acknowledgement
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.channel_factory import ChannelFactory
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.task_factory import TaskFactory
from penstock.runtime.taskmanager.task_runner import TaskRunner
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.job_paths import JobPaths

__all__ = ["Flow", "now", "spend"]

#: The engine's own work between two looks at the timer takes so long.
LOOK_SECONDS = 1e-5
#: A process in which nothing can be done looks again after so long.
IDLE_SECONDS = 1e-4


class _Process:
    """One worker: its clock, and its tasks."""

    current: _Process

    def __init__(self) -> None:
        self.now = 0.0
        self.runners: list[TaskRunner] = []
        self.partial_batches = PartialBatches((), self.timer, WholeProcessor(self.timer), 0.0)

    @property
    def tasks(self) -> list[Task]:
        return [runner.task for runner in self.runners]

    def start(self, runners: list[TaskRunner], buffer_timeout: float) -> None:
        processor = WholeProcessor(lambda: self.now)
        self.runners = runners
        self.partial_batches = PartialBatches(runners, lambda: self.now, processor, buffer_timeout)
        for task in self.tasks:
            task.set_waiting(True)  # whether a task can run is found out by its step

    def timer(self) -> float:
        self.now += LOOK_SECONDS
        return self.now


def spend(seconds: float) -> None:
    """Let the process that runs now take so long."""
    _Process.current.now += seconds


def now() -> float:
    """Return the time in the process that runs now."""
    return _Process.current.now


class _Wire:
    """The sending half of a connection; credits come from a real receiving half."""

    def __init__(self, channel: InputChannel, credits: int) -> None:
        self._channel, self.credits, self._window = channel, credits, credits
        self.desired_records = channel.desired_records
        self._listener: Callable[[], None] | None = None
        ReceivingHalf(self._take, channel)

    def _take(self, _: bytes, payload: bytes) -> None:
        """Take a frame from the receiving half."""
        count, self.desired_records, self._window = msgpack.unpackb(payload)
        self.credits += count
        if self._listener is not None:
            self._listener()

    @property
    def takes_partial(self) -> bool:
        return self._window - self.credits < credit_group(self._window)

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        self._listener = listener

    def send_batch(self, payload: bytes, count: int) -> None:
        self.credits -= 1
        self._channel.put(EncodedBatch(payload, count))

    def send_marker(self, element: Element) -> None:
        self._channel.put(element)


class Flow:
    """All tasks of a program; a context manager.

    Arguments:
        env: the program.
        folder: for snapshots.
    """

    def __init__(self, env: StreamExecutionEnvironment, folder: Path) -> None:
        program = env._program()
        self.plan = plan = compile_graph(program.graph, program.config)
        packed = pack(JobCode(program.graph, program.config))
        self._paths = JobPaths(folder)
        self._number = 0
        self._acknowledged = 0
        self._enumerators: dict[int, SplitEnumerator] = {}
        self.processes = [_Process() for _ in range(plan.slots)]
        slots, channels = [], {}
        for slot, process in enumerate(self.processes):
            system = System(
                clock=lambda process=process: process.now,  # type: ignore[misc]
                transport=None,  # type: ignore[arg-type]
                launcher=None,  # type: ignore[arg-type]
                offload=_at_once,
                pid=0,
                rng=random.Random(slot),
                runnable=lambda: 0,
                timer=process.timer,
                processor=WholeProcessor(process.timer),
            )
            code = replace(unpack(packed), plan=plan)
            codec = Codec(TypeRegistry())
            descriptor = DeploymentDescriptor(code, slot, 1, 0, "l", folder, True, codec)
            factory = ChannelFactory(descriptor, system)
            slots.append((descriptor, system, factory, process))
            channels.update(factory.create_inputs())
        for descriptor, system, factory, process in slots:
            credits = program.config.channel_batches
            built = TaskFactory(descriptor, system, factory).create_tasks(
                {id: _Wire(channels[id], credits) for id in factory.remote_outputs()},  # type: ignore[misc]
                self,
                lambda _: self,
                lambda chain, process=process, slot=descriptor.slot: self._deal(
                    chain, process, slot
                ),  # type: ignore[misc]
            )
            process.start(built, program.config.buffer_timeout_seconds)
            functions = {op.id: op.function for op in descriptor.code.graph.operators}
            for chain in descriptor.chains:
                if chain.is_source and chain.id not in self._enumerators:
                    _Process.current = process  # an enumerator may look at the clock
                    source = functions[chain.root.operator.id]
                    enumerator = source.create_enumerator(chain.parallelism)
                    enumerator.start()
                    self._enumerators[chain.id] = enumerator
        for process in self.processes:
            _Process.current = process
            for task in process.tasks:
                task.open()

    def _deal(self, chain: int, process: _Process, slot: int) -> None:
        (task,) = (task for task in process.tasks if task.id[0] == chain)
        split = self._enumerators[chain].next_split(slot)
        if split is None:
            task.no_more_splits()
        else:
            task.assign(split)

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            for task in process.tasks:
                task.close()

    # ---- what tasks tell

    def input_ended(self, task: Task) -> None:
        """It can be seen from the task."""

    def outside_ended(self, task: Task) -> None:
        """There are no loops."""

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Count it."""
        assert acknowledgement.number == self._number
        self._acknowledged += 1

    def decline(self, number: int, reason: str) -> None:
        """Fail the test."""
        raise AssertionError(f"snapshot {number} was declined: {reason}")

    # ---- what is done with it

    @property
    def tasks(self) -> list[Task]:
        """All tasks."""
        return [task for process in self.processes for task in process.tasks]

    @property
    def now(self) -> float:
        """The time that all processes have reached."""
        return min(process.now for process in self.processes)

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        until = self.now + seconds
        while self.now < until:
            self._turn()

    def snapshot(self) -> float:
        """Take a snapshot; return how long it took."""
        self._number += 1
        self._acknowledged, began = 0, self.now
        self._paths.snapshot(self._number).mkdir(parents=True)
        for task in self.tasks:
            if task.source_input is not None:
                task.inject(self._number, SnapshotKind.CHECKPOINT)
        while self._acknowledged < len(self.tasks):
            self._turn()
        for task in self.tasks:
            task.snapshots.complete(self._number)
        return self.now - began

    def records(self, name: str) -> tuple[int, int]:
        """Return how many records the operator of this name has taken, and given out."""
        found = [o for task in self.tasks for o in task.chain.operators if o.context.name == name]
        assert found, name
        return sum(o.records_in for o in found), sum(o.records_out for o in found)

    def _turn(self) -> None:
        process = min(self.processes, key=lambda process: process.now)
        _Process.current = process
        moved = False
        for task in process.tasks:
            if task.step():
                moved = True
                process.partial_batches.send_due()
            while task.checkpoint_writer.has_work():
                _finish(task.checkpoint_writer.work(_at_once, _no_pause))
        if not moved:
            process.partial_batches.task_waits(process.runners[0])
            process.now += IDLE_SECONDS


async def _at_once(function: Callable[[], Any]) -> Any:
    return function()


async def _no_pause() -> None:
    return None


def _finish(work: Coroutine[Any, Any, None] | Awaitable[None]) -> None:
    """Run what never waits to its end."""
    try:
        work.send(None)  # type: ignore[union-attr]
    except StopIteration:
        return
    raise AssertionError("a checkpoint writer waits, in a job in which nothing is awaited")

"""Run one task alone, restore a copy of it, and let the copy repeat the steps of the first one.

The test is the sender and the receiver of all channels of the task. What it sends is drawn from a
seed: the order of the channels, the sizes of batches, the watermarks, idle channels, times of day,
and how much of its input the task has taken. The copy gets the same records of each channel, but
everything else is drawn again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from penstock import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.graph.partial_restart import chains_to_log
from penstock.dataflow.time.watermark import MIN_WATERMARK, Watermark
from penstock.runtime import codegen
from penstock.runtime.control.job_code import JobCode, pack, unpack
from penstock.runtime.control.record_class_search import record_classes
from penstock.runtime.network.elements import (
    Barrier,
    Element,
    EncodedBatch,
    TimeElement,
    WatermarkStatus,
)
from penstock.runtime.network.step_logs import StepLogs
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.system.launcher import Launcher
from penstock.runtime.system.processor import WholeProcessor
from penstock.runtime.system.system import System
from penstock.runtime.system.transport import Transport
from penstock.runtime.taskmanager.channel_factory import ChannelFactory
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.state_restorer import StateRestorer
from penstock.runtime.taskmanager.task_factory import TaskFactory
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.testing.harness.harness_program import HarnessInput
from penstock.testing.harness.harness_snapshot import HarnessFolder
from penstock.testing.harness.harness_tasks import TaskSnapshots

#: A record with its event time.
Timed = tuple[Any, int]
#: A watermark or a status, with the number of records before it.
Marked = tuple[int, TimeElement]
#: What each channel has carried of them.
History = dict[ChannelId, list[Marked]]
#: Builds a program. It takes the streams of its inputs and returns the streams that are sent on.
Build = Callable[..., list[Any]]
ATTEMPT = 1


def program(build: Build, inputs: int) -> tuple[bytes, int]:
    """Return the code of a program, and the chain of the task to test.

    Each input is a source with two subtasks. The task has a single subtask, and sends each of its
    streams to two subtasks.

    Arguments:
        build: builds the part of the program whose first operator is tested.
        inputs: the number of inputs.
    """
    env = StreamExecutionEnvironment().set_parallelism(1).set_max_parallelism(8)
    env.config.channel_batches = 1000
    env.get_config().set_auto_watermark_interval(20)
    sources = [
        env.from_source(HarnessInput(number), None, f"input {number}").set_parallelism(2)
        for number in range(inputs)
    ]
    for stream in build(*sources):
        stream.key_by(repr).map(lambda record: record).set_parallelism(2).print()
    graph, config = env._graph_of(env._executions.pending()), env.config
    code = JobCode(graph, config, types=record_classes(graph, []))
    compiled = compile_graph(graph, config)
    plan = replace(compiled, isolated=True, logged=chains_to_log(compiled))
    (tested,) = plan.logged & {plan.links[link].target for link in plan.chains[0].outputs}
    return pack(replace(code, plan=plan)), tested


def _finish(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a coroutine waits")


async def _call(function: Callable[[], Any]) -> Any:
    return function()


async def _no_pause() -> None:
    return None


class _Receiver:
    """A `Sender` that keeps what is sent."""

    takes_partial = True
    desired_records = 1 << 20

    def __init__(self, decode: Callable[[bytes], RecordBatch], learn: Callable[[bytes], None]):
        self.credits = 1 << 30
        self._decode, self._learn = decode, learn
        self.records: list[Timed] = []
        #: The watermarks and statuses, each with the number of records before it.
        self.times: list[Marked] = []
        #: The number of records before each barrier.
        self.before: dict[int, int] = {}
        self.times_before: dict[int, int] = {}

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Do nothing."""

    def send_batch(self, payload: bytes, count: int) -> None:
        batch = self._decode(payload)
        self.records += zip(batch.rows(), batch.times(), strict=True)

    def send_marker(self, element: Element) -> None:
        if isinstance(element, Barrier):
            self.before[element.number] = len(self.records)
            self.times_before[element.number] = len(self.times)
        elif isinstance(element, TimeElement):
            self.times.append((len(self.records), element))

    def send_steps(self, data: bytes) -> None:
        self._learn(data)


class LoneTask:
    """A task without others.

    Arguments:
        code: the code of the program.
        chain: the chain of the task.
        now: the time of day, in milliseconds since the epoch.
        folder: the folder for large state.
        handles: the handles of the task in the restored snapshot.
        restored: the number of the snapshot; None for none.
        steps: the steps to repeat.
        callers: creates the callers of asynchronous functions; None if there are none.
    """

    def __init__(
        self,
        code: bytes,
        chain: int,
        now: int,
        folder: HarnessFolder,
        handles: tuple[OperatorHandle, ...] = (),
        restored: int | None = None,
        steps: Any = (),
        callers: Any = None,
    ) -> None:
        self.now = now
        self.snapshots = TaskSnapshots()
        own = unpack(code)
        plan = own.plan
        assert plan is not None
        self._codec = Codec(TypeRegistry(own.types))
        parts = [[str(folder.path), one.to_wire(), False, [], 1] for one in handles]
        descriptor = DeploymentDescriptor(
            own,
            plan.slot_of(chain, 0),
            ATTEMPT if restored is None else ATTEMPT + restored,
            ATTEMPT,
            "lone",
            folder.path,
            True,
            self._codec,
            restored,
            False,
            {f"{chain}:0": parts},
            steps,
        )
        system = System(
            clock=lambda: self.now / 1000,
            transport=cast(Transport, None),
            launcher=cast(Launcher, None),
            offload=_call,
            rng=random.Random(0),
            runnable=lambda: 0,
            processor=WholeProcessor(lambda: self.now / 1000),
            wall_clock=lambda: self.now,
        )
        self.repeated = not steps or not steps[1]
        factory = ChannelFactory(descriptor, system)
        self.inputs = factory.create_inputs()
        #: The logs of a worker behind the task.
        self.known = StepLogs(restored or 0)
        decode = self._codec.decode_record_batch
        self.receivers = {
            id: _Receiver(decode, self.known.learn) for id in factory.remote_outputs()
        }
        tasks = TaskFactory(descriptor, system, factory, callers, self._has_repeated)
        (runner,) = tasks.create_tasks(
            dict(self.receivers), self, lambda _: self.snapshots, lambda _: None
        )
        self.task = runner.task
        restorer = StateRestorer(descriptor, _call, _no_pause)
        _finish(restorer.restore(self.task))
        self.task.open()
        restorer.require_all_states(self.task)

    def _has_repeated(self) -> None:
        self.repeated = True

    def input_ended(self, task: object) -> None:
        """Do nothing."""

    def outside_ended(self, task: object) -> None:
        """Do nothing."""

    # ---- what the test does

    def put(self, channel: ChannelId, element: Element | list[Timed]) -> None:
        """Send an element, or a batch of records."""
        if isinstance(element, list):
            records, times = [one for one, _ in element], [time for _, time in element]
            payload = self._codec.encode_record_batch(RecordBatch(records, None, times))
            element = EncodedBatch(payload, len(records))
        self.inputs[channel].put(element)

    def run(self, steps: int | None = None) -> None:
        """Run some steps of the task; with None, all that it can do now."""
        for _ in count() if steps is None else range(steps):
            if self.task.step():
                continue
            if self.task.checkpoint_writer.has_work():
                _finish(self.task.checkpoint_writer.work(_call, _no_pause))
            else:
                break

    def output(self, after: int | None = None) -> dict[ChannelId, list[Timed]]:
        """Return all records of each output channel, or those behind a barrier."""
        self.task.flush()
        return {
            id: one.records[0 if after is None else one.before[after] :]
            for id, one in self.receivers.items()
        }

    def watermarks(self, history: History, after: int | None = None) -> History:
        """Return the changes of the watermark and of the status of each channel.

        Arguments:
            history: what the channels have carried before.
            after: the barrier behind which the changes are; None for all of them.
        """
        found = {}
        for id, one in self.receivers.items():
            begin, first = (0, 0) if after is None else (one.times_before[after], one.before[after])
            times = [(count - first, element) for count, element in one.times[begin:]]
            known = len(_changes(history[id]))
            found[id] = _changes([*history[id], *times])[known:]
        return found

    def history(self, snapshot: int) -> History:
        """Return the watermarks and statuses that each channel has carried before a barrier."""
        return {id: one.times[: one.times_before[snapshot]] for id, one in self.receivers.items()}


def _changes(times: list[Marked]) -> list[Marked]:
    """Return the watermarks and statuses that are not known from those before them."""
    found: list[Marked] = []
    watermark, idle = MIN_WATERMARK, False
    for place, element in times:
        if isinstance(element, Watermark):
            changes, watermark = element.timestamp > watermark, max(watermark, element.timestamp)
        else:
            changes, idle = element.idle != idle, element.idle
        if changes:
            found.append((place, element))
    return found


@dataclass
class Input:
    """What one channel gets, as long as the test runs.

    Arguments:
        records: the records, of which the first `sent` have been sent since the snapshot.
        highest: the highest watermark that may be sent: no record behind has a lower time, but for
            late ones.
    """

    id: ChannelId
    records: list[Timed] = field(default_factory=list)
    sent: int = 0
    time: int = 0
    idle: bool = False


class Interleaving:
    """Sends records to a task in an order that is drawn from a seed.

    Arguments:
        rng: draws the order.
        draw: draws a record for an input and a time.
    """

    def __init__(self, rng: random.Random, inputs: list[ChannelId], draw: Any) -> None:
        self.rng, self._draw = rng, draw
        self.inputs = {id: Input(id) for id in inputs}
        self._second: dict[int, int] = {}

    def _new_records(self, one: Input, number: int) -> list[Timed]:
        rng, found = self.rng, []
        for _ in range(number):
            one.time += rng.choice((0, 0, 1, 2, 5, 30))
            late = rng.choice((0, 0, 0, 3, 8, 40))
            found.append((self._draw(rng), max(0, one.time - late)))
        one.records += found
        return found

    def act(self, task: LoneTask) -> None:
        """Send an element to the task, run it for a while, or let time pass."""
        rng = self.rng
        one = rng.choice(list(self.inputs.values()))
        match rng.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                if one.idle:
                    one.idle = False
                    task.put(one.id, WatermarkStatus(False))
                task.put(one.id, self._new_records(one, rng.randint(1, 5)))
            case 5 | 6 | 7:
                if not one.idle:
                    task.put(one.id, Watermark(one.time - rng.choice((1, 1, 6))))
            case 8:
                if rng.random() < 0.3:
                    one.idle = not one.idle
                    task.put(one.id, WatermarkStatus(one.idle))
            case 9:
                task.now += rng.choice((-10, 1, 3, 7, 20, 60))
            case 10:
                task.run(rng.randint(1, 4))
            case _:
                task.run()

    def barrier(self, task: LoneTask, number: int) -> None:
        """Send the barrier of a snapshot into each channel, between other elements."""
        left = list(self.inputs.values())
        self.rng.shuffle(left)
        for one in left:
            task.put(one.id, Barrier(number))
            one.records, one.sent = [], 0
            others = left[left.index(one) + 1 :]
            for other in self.rng.sample(others, min(1, len(others))):
                task.put(other.id, self._new_records(other, 2))
            if self.rng.random() < 0.5:
                task.run()
        # Otherwise the snapshot is written when the task has done other steps.
        if self.rng.random() < 0.5:
            task.run()


def repeat(rng: random.Random, task: LoneTask, given: dict[ChannelId, list[Timed]]) -> None:
    """Send the records of each channel in another order, until the task has taken all of them."""
    left = {id: deque(records) for id, records in given.items() if records}
    while left:
        id = rng.choice(list(left))
        records = left[id]
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                task.put(
                    id, [records.popleft() for _ in range(min(len(records), rng.randint(1, 7)))]
                )
                if not records:
                    del left[id]
            case 4:
                task.put(id, Watermark(min(time for _, time in records) - 1))
            case 5:
                task.now += rng.choice((1, 20))
            case 6:
                task.run(rng.randint(1, 3))
            case _:
                task.run()
    task.run()
    assert task.repeated


def without_codegen() -> Iterator[None]:
    """Call the functions as they are, which needs less time for short runs."""
    before = codegen.is_enabled()
    codegen.set_enabled(False)
    try:
        yield
    finally:
        codegen.set_enabled(before)


def steps_behind(task: LoneTask, chain: int, snapshot: int) -> list[Any]:
    """Return the steps of a task behind a barrier, as far as a worker behind it knows them.

    They are behind the number of those before the barrier.
    """
    found = task.known.restart([(chain, 0)], snapshot)
    return found[0][2:] if found else [0, []]  # the task has sent nothing

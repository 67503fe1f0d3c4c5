"""Small jobs with a fixed input, run in one process and one thread, whose work can be counted.

Compiler, factory, tasks, gates, channels, outputs, partitioners, operators, codec, protocols, keyed
state and persisters are the real ones, for two workers; made up is what joins them: a wire instead
of a socket, tasks stepped in turns instead of an event loop, a clock that moves on by the same
little bit in each turn, and a timer that does whenever it is asked. So the same code does the same
work each time, whatever else the machine does. `bench.counts.work` counts it; nothing here does.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.runtime.control.job_code import JobCode, pack, unpack
from penstock.runtime.network.elements import Element, EncodedBatch
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.system.system import System
from penstock.runtime.task.snapshots.task_snapshot import Acknowledgement
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.channel_factory import ChannelFactory
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.task_factory import TaskFactory
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.job_paths import JobPaths

__all__ = ["SCENARIOS", "Scenario"]

WORKERS = 2
RECORDS = 8_192
#: Of the word count; a line has ten words.
WORDS, LINES = 1_009, 500
#: What the timer moves on by; a slice of work so takes 20 µs, and no slice is cut short.
TICK_SECONDS = 2e-5


@dataclass(frozen=True)
class Scenario:
    """Something to count.

    Arguments:
        what: for people, what there is so much of; "word", "record", "entry".
        count: how much.
        ready: a context in which the work can be done; gives the function that does it.
        sends: whether that function returns how many messages tasks have sent.
    """

    what: str
    count: int
    ready: Callable[[], Any]
    sends: bool = True


class _Given(Source):
    """Gives each subtask its share of some records.

    Arguments:
        records: all of them.
        at_once: how many at a time, with nothing due in between; None for as many as are taken.
    """

    def __init__(self, records: list[Any], at_once: int | None = None) -> None:
        self.records, self.at_once = records, at_once

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return SubtaskEnumerator([[i] for i in range(parallelism)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        share = self.records[context.subtask :: context.parallelism]
        return _GivenReader(share, self.at_once)


class _GivenReader(SourceReader):
    def __init__(self, records: list[Any], at_once: int | None) -> None:
        self._records, self._at_once = records, at_once
        self._next = 0
        self._due = True

    def open(self, split: Split, position: Any) -> None:
        del split, position

    def read(self, max_records: int) -> Read:
        count = max_records
        if self._at_once is not None:
            # A wait that is over in the next turn; but the task sees it.
            self._due = not self._due
            if self._due:
                return Read([], self._next, wait_seconds=1e-9)
            count = min(count, self._at_once)
        records = self._records[self._next : self._next + count]
        self._next += len(records)
        return Read(records, self._next, finished=self._next >= len(self._records))


class _Wire:
    """The sending half of a connection whose other end is a channel in this process."""

    def __init__(self, channel: InputChannel, credits: int) -> None:
        self._channel, self.credits = channel, credits
        self.sent = 0
        self.desired_records = 1 << 30
        channel.attach_sender(self._credit)

    def _credit(self) -> None:
        self.credits += 1

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Return the number, which never changes."""

    def send_batch(self, payload: bytes, count: int) -> None:
        self.sent += 1
        self.credits -= 1
        self._channel.put(EncodedBatch(payload, count))

    def send_marker(self, element: Element) -> None:
        self.sent += 1
        self._channel.put(element)


class LocalJob:
    """All tasks of a program, in this thread.

    Arguments:
        env: the program.
        folder: for snapshots.
    """

    def __init__(self, env: StreamExecutionEnvironment, folder: Path) -> None:
        program = env._program()
        plan = compile_graph(program.graph, program.config)
        packed = pack(JobCode(program.graph, program.config))
        self._ticks, self._now = 0.0, 0.0
        self._paths = JobPaths(folder)
        self._acknowledged = 0
        system = System(
            clock=lambda: self._now,
            transport=None,  # type: ignore[arg-type]
            launcher=None,  # type: ignore[arg-type]
            offload=_at_once,
            pid=0,
            rng=random.Random(0),
            runnable=lambda: 0,
            timer=self._timer,
        )
        self.tasks: list[Task] = []
        self._wires: list[_Wire] = []
        slots, channels = [], {}
        for slot in range(plan.slots):
            # Each has functions of its own, as a worker has.
            code = replace(unpack(packed), plan=plan)
            codec = Codec(TypeRegistry())
            descriptor = DeploymentDescriptor(code, slot, 1, 0, "l", folder, True, codec)
            factory = ChannelFactory(descriptor, system)
            slots.append((descriptor, factory))
            channels.update(factory.create_inputs())
        for descriptor, factory in slots:
            credits = program.config.channel_batches
            senders = {id: _Wire(channels[id], credits) for id in factory.remote_outputs()}
            self._wires += senders.values()
            built = TaskFactory(descriptor, system, factory).create_tasks(
                senders,  # type: ignore[arg-type]
                self,
                lambda _: self,
                lambda _: None,
            )
            self.tasks += [one.task for one in built]
        for task in self.tasks:
            if task.source_input is not None:
                task.source_input.assign(Split("0"))
                task.source_input.no_more()
            task.open()

    def _timer(self) -> float:
        self._ticks += TICK_SECONDS
        return self._ticks

    def input_ended(self, task: Task) -> None:
        """Can be seen from the task."""

    def outside_ended(self, task: Task) -> None:
        """There are no loops."""

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Count a task snapshot that is durable."""
        del acknowledgement
        self._acknowledged += 1

    def decline(self, number: int, reason: str) -> None:
        """Raise: a snapshot failed, so nothing can be counted."""
        raise RuntimeError(f"snapshot {number} was declined: {reason}")

    def process(self) -> int:
        """Process all input, and return how many messages tasks have sent meanwhile."""
        before = self._messages()
        while not all(task.ended for task in self.tasks):
            self._turn()
        return self._messages() - before

    def snapshot(self) -> int:
        """Take a snapshot, to the last acknowledgement, and return as `process` does."""
        before = self._messages()
        self._paths.snapshot(1).mkdir(parents=True)
        for task in self.tasks:
            if task.source_input is not None:
                task.inject(1, SnapshotKind.CHECKPOINT)
        while self._acknowledged < len(self.tasks):
            self._turn()
        return self._messages() - before

    def _messages(self) -> int:
        """Return the number of frames between workers, and of acknowledgements."""
        return self._acknowledged + sum(wire.sent for wire in self._wires)

    def _turn(self) -> None:
        self._now += 1e-6
        for task in self.tasks:
            if not task.step():
                task.flush()
            while task.checkpoint_writer.has_work():
                _finish(task.checkpoint_writer.work(_at_once, _no_pause))

    def close(self) -> None:
        """Close all tasks."""
        for task in self.tasks:
            task.close()


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
    raise RuntimeError("a checkpoint writer waits, in a job in which nothing is awaited")


# ---- the programs


def _environment() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS)
    # So that state goes to RocksDB, as it does when there is much of it.
    env.get_checkpoint_config().set_inline_threshold(0)
    return env


def _ignore(record: Any) -> None:
    del record


def _wordcount() -> StreamExecutionEnvironment:
    """As in `bench wordcount`."""
    env = _environment()
    words = [f"word{n * n * 7919 % WORDS}" for n in range(LINES * 10)]
    lines = [" ".join(words[n : n + 10]) for n in range(0, len(words), 10)]
    counts = (
        env.from_source(_Given(lines))
        .flat_map(lambda line: [(word, 1) for word in line.split()])
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    counts.add_sink(_ignore)
    return env


def _map_chain() -> StreamExecutionEnvironment:
    """As the shape `map` in `bench limit`."""
    from bench.throughput.limit_shapes import flip, not_by_five, not_by_seven, triple

    env = _environment()
    numbers = env.from_source(_Given(list(range(RECORDS))))
    numbers.map(triple).filter(not_by_five).map(flip).filter(not_by_seven).add_sink(_ignore)
    return env


class _Both(KeyedProcessFunction):
    """Keeps the newest record of each of two sides."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sides = [
            runtime_context.get_state(ValueStateDescriptor(name)) for name in ("left", "right")
        ]

    def process_element(
        self, value: Any, ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[int, Any, Any]]:
        del ctx
        side, key, number = value
        self._sides[side].update(number)
        return ((key, self._sides[0].value(), self._sides[1].value()),)


def _join() -> StreamExecutionEnvironment:
    """About as the shape `join` in `bench limit`."""
    env = _environment()
    records = [(n % 2, n * 31 % WORDS, n) for n in range(RECORDS)]
    joined = env.from_source(_Given(records)).key_by(lambda record: record[1]).process(_Both())
    joined.add_sink(_ignore)
    return env


def _one_by_one() -> StreamExecutionEnvironment:
    """Run a keyed reduce whose records come one by one, each in a batch of its own."""
    env = _environment()
    records = [(n % WORDS, n) for n in range(RECORDS // 16)]
    newest = env.from_source(_Given(records, at_once=1)).key_by(lambda record: record[0])
    newest.reduce(lambda _, new: new).add_sink(_ignore)
    return env


def _few_keys() -> StreamExecutionEnvironment:
    """Run a keyed reduce over ten keys, whose state is small enough to be acknowledged."""
    env = _environment()
    env.get_checkpoint_config().set_inline_threshold(64 * 1024)
    records = [(n % 10, n) for n in range(100)]
    newest = env.from_source(_Given(records)).key_by(lambda record: record[0])
    newest.reduce(lambda _, new: new).add_sink(_ignore)
    return env


def _many_keys() -> StreamExecutionEnvironment:
    """Run a keyed reduce with a key for each record."""
    env = _environment()
    records = [(f"key{n}", n) for n in range(RECORDS)]
    newest = env.from_source(_Given(records)).key_by(lambda record: record[0])
    newest.reduce(lambda _, new: new).add_sink(_ignore)
    return env


# ---- what is counted of them


@contextmanager
def _processing(program: Callable[[], StreamExecutionEnvironment]) -> Iterator[Callable[[], int]]:
    with TemporaryDirectory(prefix="penstock-counts-") as folder:
        job = LocalJob(program(), Path(folder))
        try:
            yield job.process
        finally:
            job.close()


@contextmanager
def _snapshot(program: Callable[[], StreamExecutionEnvironment]) -> Iterator[Callable[[], int]]:
    with TemporaryDirectory(prefix="penstock-counts-") as folder:
        job = LocalJob(program(), Path(folder))
        try:
            job.process()
            yield job.snapshot
        finally:
            job.close()


@contextmanager
def _encoding() -> Iterator[Callable[[], None]]:
    codec, batches = Codec(TypeRegistry()), _batches()

    def encode() -> None:
        for batch in batches:
            codec.encode_batch(batch)

    yield encode


@contextmanager
def _decoding() -> Iterator[Callable[[], None]]:
    codec = Codec(TypeRegistry())
    payloads = [codec.encode_batch(batch) for batch in _batches()]

    def decode() -> None:
        for payload in payloads:
            codec.decode_batch(payload)

    yield decode


def _batches() -> list[list[Any]]:
    """Batches of the shapes that most jobs have: flat tuples, nested ones, dicts, bare numbers."""
    numbers = range(RECORDS // 4)
    return [
        [(f"word{n % WORDS}", n) for n in numbers],
        [(n, (f"key{n}", n / 2)) for n in numbers],
        [{"id": n, "name": f"name {n}"} for n in numbers],
        list(numbers),
    ]


SCENARIOS: dict[str, Scenario] = {
    "wordcount": Scenario("word", LINES * 10, lambda: _processing(_wordcount)),
    "map_chain": Scenario("record", RECORDS, lambda: _processing(_map_chain)),
    "join": Scenario("record", RECORDS, lambda: _processing(_join)),
    "one_by_one": Scenario("record", RECORDS // 16, lambda: _processing(_one_by_one)),
    "snapshot": Scenario("changed key", RECORDS, lambda: _snapshot(_many_keys)),
    "small_snapshot": Scenario("snapshot", 1, lambda: _snapshot(_few_keys)),
    "encode": Scenario("record", RECORDS, _encoding, sends=False),
    "decode": Scenario("record", RECORDS, _decoding, sends=False),
}

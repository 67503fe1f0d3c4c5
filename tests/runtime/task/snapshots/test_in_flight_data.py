"""What a real task does in the unaligned mode, one step at a time.

A record in flight is in a channel, in the hands of the task, in an output, or in a log that is
replayed. A cut at any of these moments must log it once, under the channel that it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.dataflow.functions import ProcessFunction
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.operators import specs
from penstock.dataflow.source import Read, SourceReader, Split
from penstock.dataflow.time.watermark import MAX_WATERMARK, Watermark
from penstock.runtime.network.channel_log import EdgeIdentity
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, EndOfInput
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import LocalOutputChannel, OutputChannel
from penstock.runtime.network.partitioners import ForwardPartitioner
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.operator_chain import ChainNode
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.in_flight_data import (
    REPLAY_BYTES,
    BarrierRelay,
    InFlightRecorder,
)
from penstock.runtime.task.snapshots.task_snapshot import Acknowledgement
from penstock.runtime.task.task import Task
from penstock.runtime.task.task_settings import TaskSettings
from penstock.snapshot.metadata.handles import OWN_INPUT
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.protocols.unaligned import UnalignedProtocol
from penstock.snapshot.storage.in_flight_log import read_log
from penstock.snapshot.storage.job_paths import JobPaths
from tests.runtime.operators.making import make_operator
from tests.simulation.tasks import at_once, finish, no_pause

CODEC = Codec(TypeRegistry())
CHECKPOINT = SnapshotKind.CHECKPOINT


def edge(producer: str, consumer: str, input: int = 0) -> EdgeIdentity:
    return EdgeIdentity(producer, consumer, input, "hash", f"{producer} → {consumer}")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(ProcessFunction):
    """Passes records on, and does three things at the end."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield from ("end1", "end2", "end3")


class Numbers(SourceReader):
    """From the position to 100, four at a time, however many are wanted."""

    def __init__(self) -> None:
        self.next = 0

    def open(self, split: Split, position: Any) -> None:
        self.next = position or 0

    def read(self, max_records: int) -> Read:
        first, self.next = self.next, self.next + 4
        return Read([*range(first, self.next)], self.next, self.next == 100)


@dataclass
class Stage:
    """One task with inputs from two subtasks of "up" and a channel to "down".

    Arguments:
        tmp_path: where files would be.
        timeout: seconds for which it aligns.
        source: it reads numbers instead.
        hooks: it has an end-of-input hook.
        aligned: barriers do not overtake records.
    """

    tmp_path: Path
    timeout: float = 0.0
    source: bool = False
    hooks: bool = False
    aligned: bool = False
    acknowledged: list[Acknowledgement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock()
        gate = InputGate(lambda: None, self.clock)
        encode = CODEC.encode_record_batch
        self.inputs: list[RecordedChannel] = []
        for i in range(0 if self.source else 2):
            channel = RecordedChannel(
                ChannelId(0, i, 0),
                gate,
                4,
                self.clock,
                edge=edge("up", "here"),
                encode=encode,
                eager=True,
            )
            gate.add_recorded(channel)
            self.inputs.append(channel)
        self.down = InputGate(lambda: None, self.clock)
        self.output = self.down.add(ChannelId(1, 0, 1), 1)
        output = LocalOutputChannel(self.output, 100)
        output.set_identity(edge("here", "down"), 1)
        context = OperatorContext("here", "here", 0, 1, 4, 0, CODEC)
        kind, function = specs.MAP, lambda value: value
        if self.hooks:
            kind, function = specs.PROCESS, Slow()  # type: ignore[assignment]
        source_input = None
        if self.source:
            kind, function = specs.SOURCE, None  # type: ignore[assignment]
            source_input = SourceInput(
                Numbers, self.clock, lambda: None, lambda: None, in_turns=False
            )
        operator = make_operator(kind, function, None, context)
        own = EdgeIdentity("here", "here", OWN_INPUT, "rebalance", "here")
        root = ChainNode(operator, [], [ForwardPartitioner([output])])
        end_of_input = EndOfInputTracker(gate.channels, None, [operator])
        recorder = InFlightRecorder(BarrierRelay(), 0, self.timeout, own, encode, True)
        unaligned = UnalignedProtocol(gate.channels, align_first=self.timeout > 0)
        self.task = Task(
            id=(0, 0),
            name="here",
            chain=ChainRunner(root, CODEC, end_of_input),
            gate=gate,
            outputs=[output],
            protocol=AlignedProtocol(gate.channels) if self.aligned else unaligned,
            checkpoint_writer=CheckpointWriter(
                subtask=0,
                lineage="l",
                attempt=0,
                backends={},
                responder=self,
                paths=JobPaths(self.tmp_path),
                clock=self.clock,
                inline_threshold=1 << 20,
            ),
            end_of_input=end_of_input,
            listener=self,
            settings=TaskSettings(clock=self.clock, timer=lambda: 0.0),
            source_input=source_input,
            in_flight=None if self.aligned else recorder,
        )
        self.task.slices.sizer.slice = 2
        self.task.open()

    # ---- what the task tells

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        self.acknowledged.append(acknowledgement)

    def decline(self, number: int, reason: str) -> None:
        raise AssertionError(reason)

    def input_ended(self, task: Task) -> None:
        return None

    def outside_ended(self, task: Task) -> None:
        return None

    # ---- what is done with it

    def fill(self) -> None:
        """Take the only room of the output."""
        self.output.put(RecordBatch(["before"]))

    def step(self) -> bool:
        """One step, then write what is to be written."""
        moved = self.task.step()
        self.write()
        return moved

    def write(self) -> None:
        while self.task.checkpoint_writer.has_work():
            finish(self.task.checkpoint_writer.work(at_once, no_pause))

    def logs(self) -> dict[tuple[str, int], list[tuple[str, int, int, list[Any]]]]:
        """Of the last acknowledgement: (uid, subtask) to (producer, input, source, records)."""
        self.write()
        found: dict[tuple[str, int], list[tuple[str, int, int, list[Any]]]] = {}
        for handle in self.acknowledged[-1].handles:
            for log in handle.logs:
                records = [
                    record
                    for payload in read_log(log, self.tmp_path)
                    for record in CODEC.decode_batch(payload)
                ]
                assert log.records == len(records)
                item = (log.producer, log.input, log.source, records)
                found.setdefault((handle.uid, handle.subtask), []).append(item)
        return found

    def sent(self) -> list[Any]:
        """What is in the output now."""
        return [shown(element) for element in self.output._queue]

    def drain(self) -> list[Any]:
        """Work to the end, and return all that is sent."""
        found = []
        moved = True
        while moved:
            moved = self.step()
            if not moved:
                self.task.flush()
            while (taken := self.down.take()) is not None:
                found.append(shown(taken[1]))
                moved = True
        self.write()
        return found


def shown(element: Element) -> Any:
    if isinstance(element, RecordBatch):
        return element.rows()
    if isinstance(element, Barrier):
        return ("urgent" if element.urgent else "barrier", element.number)
    return "end" if isinstance(element, EndOfInput) else element


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# ---- channels and outputs by themselves


def test_a_log_holds_what_waits_and_what_arrives_before_the_barrier(stage: Stage) -> None:
    channel, _ = stage.inputs
    told: list[Barrier] = []
    channel.report_barriers(lambda _, barrier: told.append(barrier))
    channel.put(RecordBatch([1, 2]))
    channel.put(Barrier(3))
    log = channel.start_log(4)
    channel.put(EncodedBatch(CODEC.encode_batch([3]), 1))
    channel.put(Barrier(4, urgent=True))
    channel.put(RecordBatch([4]))
    parts = [part for part in log.parts() if part is not None]
    assert [CODEC.decode_batch(part) for part in parts] == [[1, 2], [3]]
    assert log.records == 3
    assert told == [Barrier(3), Barrier(4, urgent=True)]


def test_a_log_that_meets_its_barrier_in_the_queue_is_complete_at_once(stage: Stage) -> None:
    channel, _ = stage.inputs
    told: list[Barrier] = []
    for element in (RecordBatch([1]), Barrier(4), RecordBatch([2])):
        channel.put(element)
    channel.report_barriers(lambda _, barrier: told.append(barrier))
    log = channel.start_log(4)
    channel.put(RecordBatch([3]))
    assert (log.records, told) == (1, [Barrier(4)])


def test_a_log_holds_records_as_they_were_when_they_were_taken(stage: Stage) -> None:
    channel, _ = stage.inputs
    record = {"n": 1}
    channel.put(RecordBatch([record]))
    log = channel.start_log(1)
    channel.take()
    record["n"] = 2
    assert [CODEC.decode_batch(part) for part in log.parts() if part] == [[{"n": 1}]]


def output(stage: Stage) -> LocalOutputChannel:
    [found] = stage.task.outputs.channels
    assert isinstance(found, LocalOutputChannel)
    return found


def overtaken(output: OutputChannel, number: int) -> list[list[Any]]:
    """The batches that a barrier overtakes."""
    return [batch.rows() for batch in output.overtake(Barrier(number, urgent=True))]


def test_a_barrier_overtakes_sealed_and_unsealed_records(stage: Stage) -> None:
    out = output(stage)
    stage.fill()
    out.buffer.extend([1, 2])
    out.seal()
    out.mark(EndOfInput())
    out.buffer.append(3)
    assert overtaken(out, 1) == [[1, 2], [3]]
    assert stage.sent() == [["before"], ("urgent", 1)]
    stage.output.take()
    assert not out.push()
    assert stage.sent() == [("urgent", 1), [1, 2], "end"]


def test_a_barrier_that_waits_in_an_output_overtakes_only_records_before_it(
    stage: Stage,
) -> None:
    out = output(stage)
    stage.fill()
    out.buffer.append(1)
    out.mark(Barrier(1))
    out.buffer.append(2)
    assert overtaken(out, 1) == [[1]]
    assert [shown(element) for element in out.sealed] == [[1], [2]]


def test_an_older_barrier_that_is_overtaken_does_not_come_late(stage: Stage) -> None:
    out = output(stage)
    stage.fill()
    out.buffer.append(1)
    out.mark(Barrier(1))
    out.buffer.append(2)
    assert overtaken(out, 2) == [[1], [2]]
    assert stage.sent() == [["before"], ("urgent", 2)]
    stage.output.take()
    out.push()
    stage.output.take()
    stage.output.take()
    out.push()
    assert stage.sent() == [[2]]


def test_a_barrier_that_has_been_sent_overtakes_nothing(stage: Stage) -> None:
    out = output(stage)
    out.mark(Barrier(1))
    assert out.push()
    out.buffer.append(1)
    assert overtaken(out, 1) == []
    assert stage.sent() == [("barrier", 1)]
    assert overtaken(out, 2) == [[1]]


# ---- a task


def test_records_in_processing_and_in_channels_are_logged_and_processed(stage: Stage) -> None:
    first, second = stage.inputs
    stage.fill()
    first.put(RecordBatch([1, 2, 3, 4, 5]))
    stage.step()  # 1 and 2 are processed, and wait in the output
    output(stage).seal()
    assert not stage.step()
    second.put(RecordBatch([6]))
    second.put(Barrier(1))
    # The cut is made: the barrier is sent on, whatever there is no room for.
    assert stage.sent() == [["before"], ("urgent", 1)]
    first.put(RecordBatch([7]))
    stage.write()
    assert stage.acknowledged == []
    first.put(Barrier(1))
    first.put(RecordBatch([8]))
    assert stage.logs() == {
        ("here", 0): [
            ("up", 0, 0, [3, 4, 5]),
            ("up", 0, 0, [7]),
            ("up", 0, 1, [6]),
        ],
        ("down", 1): [("here", 0, 0, [1, 2])],
    }
    assert stage.acknowledged[-1].log_records == 7


def test_a_record_is_not_sent_twice_by_a_task_whose_barrier_overtook_it(stage: Stage) -> None:
    first, second = stage.inputs
    stage.fill()
    first.put(RecordBatch([*range(10)]))
    stage.step()
    output(stage).seal()
    first.put(Barrier(1))
    second.put(Barrier(1))
    sent = [item for item in stage.drain() if isinstance(item, list)]
    assert [record for batch in sent for record in batch] == ["before", *range(10)]


def test_a_source_logs_records_that_it_has_read_and_not_processed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, source=True)
    stage.fill()
    stage.task.assign(Split("s"))
    stage.step()
    stage.step()  # 0 and 1 are processed, 2 and 3 are read
    stage.task.inject(1, CHECKPOINT)
    assert stage.logs() == {
        ("here", 0): [("here", OWN_INPUT, 0, [2, 3])],
        ("down", 1): [("here", 0, 0, [0, 1])],
    }
    assert stage.acknowledged[-1].handles[0].small == [["s", None, 4]]
    assert stage.sent() == [["before"], ("urgent", 1)]


def test_a_split_is_either_in_the_snapshot_of_the_enumerator_or_in_that_of_the_reader(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, source=True)
    task = stage.task
    # So much is replayed that a cut has to wait for it.
    stage.task.gate.replay(
        iter([(None, RecordBatch([1])), (None, RecordBatch([2]))]), REPLAY_BYTES + 1
    )
    task.assign(Split("dealt before"))
    task.inject(1, CHECKPOINT)
    task.assign(Split("dealt afterwards"))
    assert not stage.acknowledged
    while not stage.acknowledged:
        stage.step()
        while stage.down.take() is not None:
            pass
    handle = stage.acknowledged[-1].handles[0]
    assert [split[0] for split in handle.small] == ["dealt before"]
    while task._mailbox._messages:
        stage.step()
    assert task.source_input is not None
    splits = [split[0] for split in task.source_input.snapshot()]
    assert splits == ["dealt before", "dealt afterwards"]


def test_a_snapshot_during_a_replay_logs_the_rest_of_it_again(stage: Stage) -> None:
    first, second = stage.inputs
    batches: list[tuple[InputChannel | None, RecordBatch]] = [
        (second, RecordBatch([0, 1, 2, 3])),
        (second, RecordBatch([4])),
        (first, RecordBatch([5])),
    ]
    stage.task.gate.replay(iter(batches), 100)
    stage.step()  # 0 and 1
    first.put(RecordBatch([6]))
    first.put(Barrier(1))
    second.put(Barrier(1))
    assert stage.logs()["here", 0] == [
        ("up", 0, 1, [2, 3, 4]),
        ("up", 0, 0, [5]),
        ("up", 0, 0, [6]),
    ]
    sent = [item for item in stage.drain() if isinstance(item, list)]
    assert [record for batch in sent for record in batch] == list(range(7))


def test_a_snapshot_waits_for_a_replay_that_is_too_large_to_be_logged_again(stage: Stage) -> None:
    first, second = stage.inputs
    stage.task.gate.replay(
        iter([(first, RecordBatch([1])), (first, RecordBatch([2]))]), REPLAY_BYTES + 1
    )
    second.put(Barrier(1))
    assert ("urgent", 1) not in stage.sent()
    first.put(Barrier(1))
    sent = stage.drain()
    assert ("urgent", 1) in sent
    assert sum(item for batch in sent if isinstance(batch, list) for item in batch) == 3
    # Both records are before the cut: what the output had not sent of them is logged.
    assert stage.logs().keys() == {("down", 1)}
    second.put(RecordBatch([9]))
    assert stage.drain() == [[9]]


def test_a_snapshot_waits_for_end_of_input_hooks(tmp_path: Path) -> None:
    stage = Stage(tmp_path, hooks=True)
    for channel in stage.inputs:
        channel.put(EndOfInput())
    while not stage.task.end_of_input.running:
        stage.step()
    for channel in stage.inputs:
        channel.put(Barrier(1))
    assert stage.sent() == [Watermark(MAX_WATERMARK)]
    sent = stage.drain()
    records = [record for item in sent if isinstance(item, list) for record in item]
    assert records == ["end1", "end2", "end3"]
    [acknowledged] = stage.acknowledged
    assert acknowledged.handles[0].ended == 1


def test_an_abort_drops_the_logs_and_the_next_snapshot_has_its_own(stage: Stage) -> None:
    first, second = stage.inputs
    first.put(RecordBatch([1]))
    first.put(Barrier(1))
    stage.task.snapshots.abort(1)
    second.put(RecordBatch([2]))
    second.put(Barrier(1))
    stage.write()
    assert stage.acknowledged == []
    first.put(Barrier(2))
    second.put(Barrier(2))
    assert stage.logs() == {("here", 0): [("up", 0, 0, [1]), ("up", 0, 1, [2])]}
    assert [item.number for item in stage.acknowledged] == [2]


def test_a_task_that_keeps_up_aligns_and_logs_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, timeout=1.0)
    first, second = stage.inputs
    first.put(RecordBatch([1]))
    first.put(Barrier(1))
    stage.drain()
    first.put(RecordBatch([2]))
    second.put(RecordBatch([3]))
    stage.clock.now = 0.5
    second.put(Barrier(1))
    sent = stage.drain()
    assert sent.index(("barrier", 1)) == 1  # behind 3, before 2
    assert stage.logs() == {}
    assert stage.acknowledged[-1].aligned_seconds == 0.5


def test_a_task_that_has_aligned_for_too_long_captures_its_state_at_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, timeout=1.0)
    first, second = stage.inputs
    first.put(Barrier(1))
    stage.drain()
    first.put(RecordBatch([1]))
    assert stage.task.wake_at() == 1.0
    stage.clock.now = 1.0
    stage.step()
    assert stage.sent()[0] == ("urgent", 1)
    second.put(RecordBatch([2]))
    second.put(Barrier(1))
    assert stage.logs() == {("here", 0): [("up", 0, 1, [2])]}


def test_an_aligned_barrier_without_room_overtakes_after_the_timeout(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, timeout=1.0)
    stage.fill()
    for channel in stage.inputs:
        channel.put(RecordBatch([1]))
        channel.put(Barrier(1))
    for _ in range(8):
        stage.step()
    assert stage.sent() == [["before"]]
    assert stage.acknowledged == []
    stage.clock.now = 1.0
    stage.step()
    assert stage.sent() == [["before"], ("urgent", 1)]
    assert stage.logs() == {("down", 1): [("here", 0, 0, [1, 1])]}


def test_the_time_of_an_alignment_ends_with_the_capture(stage: Stage) -> None:
    first, second = stage.inputs
    first.put(Barrier(1))
    second.put(Barrier(1))
    stage.clock.now = 5.0
    first.put(Barrier(2))
    second.put(Barrier(2))
    stage.write()
    assert [item.aligned_seconds for item in stage.acknowledged] == [0.0, 0.0]


def test_barriers_are_relayed_one_after_the_other_and_not_recursively() -> None:
    relay, heard, depth = BarrierRelay(), [], [0]

    def hear(n: int) -> None:
        depth[0] += 1
        assert depth[0] == 1
        heard.append(n)
        if n < 2000:
            relay(lambda: hear(n + 1))
        depth[0] -= 1

    relay(lambda: hear(1))
    assert heard == [*range(1, 2001)]

"""Event times and watermarks of a source: per split, periodic and punctuated, idle and aligned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.dataflow.errors import JobError
from penstock.dataflow.source import Read, SourceReader, Split, TimedRead
from penstock.dataflow.time import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Watermark,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from penstock.runtime.network.elements import WatermarkStatus
from penstock.runtime.operators.split_reader import TimedSplitReader
from penstock.runtime.operators.time.source_watermarks import (
    SourceWatermarks,
)
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.split_positions import join_position, split_position

BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(10).with_timestamp_assigner(
    lambda record, _: record[1]
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


class EachRecord(WatermarkGenerator):
    """Emits a watermark behind each record that asks for one."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if event[0] == "mark":
            output.emit_watermark(Watermark(event_timestamp))
        elif event[0] == "idle":
            output.mark_idle()

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        del output


PUNCTUATED = WatermarkStrategy.for_generator(EachRecord).with_timestamp_assigner(lambda r, _: r[1])


class Task:
    """The event time of a source task, and what it emits behind batches."""

    def __init__(self, strategy: WatermarkStrategy = BOUNDED) -> None:
        self.clock = Clock()
        self.watermarks = SourceWatermarks(strategy, "numbers", 200, self.clock)
        self.behind: list[Any] = []
        self.watermarks.connect(self.behind.append)

    def read(self, split: str, *records: Any) -> RecordBatch:
        return self.watermarks.process(split, RecordBatch(list(records)))

    def tick(self, milliseconds: int = 200) -> list[Any]:
        self.clock.now += milliseconds
        return self.watermarks.emit_periodically(self.clock.now)


def test_records_get_the_times_of_the_assigner_and_batches_are_not_cut() -> None:
    task = Task()
    task.watermarks.open("s", None)
    batch = task.read("s", ("a", 100), ("b", 50), ("c", -7))
    assert batch.timestamps == [100, 50, -7]
    assert task.behind == []
    assert task.tick() == [Watermark(89)]
    assert task.tick() == []


def test_columns_get_the_same_times_as_rows() -> None:
    task = Task()
    task.watermarks.open("s", None)
    batch = task.watermarks.process("s", RecordBatch.of_columns([["a", "b"], [5, 6]]))
    assert (batch.columns(), batch.timestamps) == ([["a", "b"], [5, 6]], [5, 6])


def test_the_watermark_is_the_lowest_of_the_splits() -> None:
    task = Task()
    for split in "st":
        task.watermarks.open(split, None)
    task.read("s", ("a", 100))
    assert task.tick() == []  # nobody knows yet how old the records of the other split are
    task.read("t", ("a", 60))
    assert task.tick() == [Watermark(49)]
    task.watermarks.close("t")
    assert task.tick() == [Watermark(89)]
    # A new split never takes the watermark back; its older records are late.
    task.watermarks.open("u", None)
    task.read("u", ("a", 20))
    assert task.tick() == []


def test_a_batch_is_cut_only_behind_records_at_which_a_watermark_is_emitted() -> None:
    strategy = WatermarkStrategy.for_generator(EachRecord).with_timestamp_assigner(
        lambda r, _: r[1]
    )
    task = Task(strategy)
    task.watermarks.open("s", None)
    first = task.read("s", ("a", 1), ("mark", 2), ("b", 3), ("mark", 1), ("c", 4), ("mark", 5))
    assert first.rows() == [("a", 1), ("mark", 2)]
    mark, rest, last = task.behind
    assert (mark, last) == (Watermark(2), Watermark(5))
    assert rest.rows() == [("b", 3), ("mark", 1), ("c", 4), ("mark", 5)]
    assert rest.timestamps == [3, 1, 4, 5]


def test_a_generator_may_mark_its_split_as_idle_and_a_watermark_makes_it_active() -> None:
    strategy = WatermarkStrategy.for_generator(EachRecord).with_timestamp_assigner(
        lambda r, _: r[1]
    )
    task = Task(strategy)
    task.watermarks.open("s", None)
    task.read("s", ("idle", 1), ("mark", 2))
    assert [element for element in task.behind if not isinstance(element, RecordBatch)] == [
        WatermarkStatus(True),
        WatermarkStatus(False),
        Watermark(2),
    ]


def test_a_split_without_records_is_idle_after_the_timeout() -> None:
    task = Task(BOUNDED.with_idleness(1000))
    for split in "st":
        task.watermarks.open(split, None)
    task.read("s", ("a", 100))
    task.read("t", ("a", 50))
    assert task.tick() == [Watermark(39)]
    found: list[Any] = []
    for time in range(10):
        task.read("s", ("a", 200 + time))
        found += task.tick()
    assert found[0] == Watermark(194)  # until then it may have been slow only
    found = [element for _ in range(10) for element in task.tick()]
    assert found == [WatermarkStatus(True)]
    task.read("t", ("a", 300))
    assert task.tick() == [WatermarkStatus(False), Watermark(289)]


def test_a_task_without_any_split_is_idle_after_the_timeout() -> None:
    task = Task(BOUNDED.with_idleness(400))
    assert [element for _ in range(5) for element in task.tick()] == [WatermarkStatus(True)]
    task.watermarks.open("s", None)
    task.read("s", ("a", 50))
    assert task.tick() == [WatermarkStatus(False), Watermark(39)]


def test_a_split_that_waits_for_other_sources_is_not_idle() -> None:
    task = Task(BOUNDED.with_idleness(400))
    task.watermarks.open("s", None)
    task.read("s", ("a", 1000))
    task.tick()
    task.watermarks.set_limit(500)
    assert task.watermarks.is_paused("s")
    assert [element for _ in range(10) for element in task.tick()] == []
    task.watermarks.set_limit(MAX_WATERMARK)
    assert not task.watermarks.is_paused("s")


def test_a_restored_split_goes_on_with_its_watermark() -> None:
    task, again = Task(), Task()
    task.watermarks.open("s", None)
    task.read("s", ("a", 100))
    again.watermarks.restore(20)
    again.watermarks.open("s", task.watermarks.snapshot("s"))
    assert again.watermarks.watermark == 20
    # The record had been seen when the snapshot was taken, although no watermark told of it.
    assert again.tick() == [Watermark(89)]


@pytest.mark.parametrize("position", [None, 7, {"position": 3}, [1, {"a": 2}]])
def test_a_position_is_stored_with_its_watermark_and_found_again(position: Any) -> None:
    assert split_position(join_position(position, [1, 2])) == (position, [1, 2])
    assert split_position(position) == (position, None)


@pytest.mark.parametrize(
    ("extract", "message"),
    [
        (lambda record, _: None, r"returned None \(NoneType\): .*lack a `return`"),
        (lambda record, _: 1.5, r"returned 1.5 \(float\): .*int\(seconds \* 1000\)"),
        (lambda record, _: "5", r"returned '5' \(str\): it must return the milliseconds"),
        (lambda record, _: 1 << 70, r"no time in the range of 64 bits"),
        (lambda record, _: record[7], r"IndexError in the timestamp assigner of 'numbers'"),
    ],
)
def test_a_timestamp_that_is_none_names_the_record_and_says_what_to_do(
    extract: Callable[[Any, int], Any], message: str
) -> None:
    task = Task(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(extract))
    task.watermarks.open("s", None)
    with pytest.raises(JobError, match=message) as caught:
        task.read("s", ("a", 1))
    assert caught.value.record == "('a', 1)"


def test_booleans_and_subclasses_of_int_become_plain_integers() -> None:
    class Millis(int):
        pass

    strategy = WatermarkStrategy.for_monotonous_timestamps()
    task = Task(strategy.with_timestamp_assigner(lambda record, _: Millis(record)))
    task.watermarks.open("s", None)
    times = task.read("s", 1, 2).timestamps
    assert times == [1, 2]
    assert set(map(type, times or ())) == {int}


def test_an_error_in_a_generator_names_the_generator_and_the_record() -> None:
    class Fails(EachRecord):
        def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
            raise KeyError(event)

    task = Task(WatermarkStrategy.for_generator(Fails))
    task.watermarks.open("s", None)
    with pytest.raises(
        JobError, match="KeyError in the watermark generator of 'numbers'"
    ) as caught:
        task.read("s", "here")
    assert caught.value.record == "'here'"


def test_a_generator_must_emit_a_watermark() -> None:
    class Number(EachRecord):
        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            output.emit_watermark(5)  # type: ignore[arg-type]

    task = Task(WatermarkStrategy.for_generator(Number))
    task.watermarks.open("s", None)
    with pytest.raises(JobError, match=r"emitted 5: emit a Watermark .* Watermark\("):
        task.tick()


class Pairs(SourceReader):
    """Reads two records at a time, whose times the source knows."""

    def open(self, split: Split, position: Any) -> None:
        self.next = position or 0

    def read(self, max_records: int) -> Read:
        records = [self.next, self.next + 1]
        self.next += 2
        return TimedRead(Read(records, self.next, self.next == 6), [r * 10 for r in records])


def test_a_source_may_know_the_times_of_its_records() -> None:
    task = Task(WatermarkStrategy.for_monotonous_timestamps())
    reader = TimedSplitReader(Pairs(), lambda: 0.0, lambda: None, task.watermarks)
    reader.open(Split("s"), None)
    batch = reader.read(10)
    assert batch is not None
    assert batch.timestamps == [0, 10]
    assert task.tick() == [Watermark(9)]
    task.watermarks.set_limit(5)
    assert reader.read(10) is None  # it is ahead of the other sources
    assert reader.wake_at is None
    task.watermarks.set_limit(9)
    assert reader.read(10) is not None
    assert reader.snapshot_position() == join_position(4, [9, 30])
    assert task.watermarks.watermark > MIN_WATERMARK


class Marked(SourceReader):
    """Returns a record and a watermark with each read, and ends after three."""

    def open(self, split: Split, position: Any) -> None:
        self.next = position or 0

    def read(self, max_records: int) -> Read:
        self.next += 1
        read = Read([self.next], self.next, finished=self.next == 3)
        return TimedRead(read, [self.next * 10], self.next * 10 - 1)


def test_watermarks_of_the_source_count_per_split_and_are_restored() -> None:
    task = Task(WatermarkStrategy.no_watermarks())
    readers = []
    for name in ("a", "b"):
        reader = TimedSplitReader(Marked(), task.clock, lambda: None, task.watermarks)
        reader.open(Split(name), None)
        readers.append(reader)
    first, second = readers
    batch = first.read(5)
    assert batch is not None and batch.timestamps == [10]
    assert task.behind == [], "the other split has no watermark yet"
    second.read(5)
    assert task.behind == [Watermark(9)]
    first.read(5)
    second.read(5)
    assert task.behind == [Watermark(9), Watermark(19)]
    position = first.snapshot_position()

    restored = Task(WatermarkStrategy.no_watermarks())
    again = TimedSplitReader(Marked(), restored.clock, lambda: None, restored.watermarks)
    again.open(Split("a"), position)
    again.read(5)
    assert restored.behind == [Watermark(29)] and again.split is None
    assert split_position(position)[0] == 2

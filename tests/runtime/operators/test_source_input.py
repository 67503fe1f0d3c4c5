"""A source input: the splits that it requests, its position in them, and when it has more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from penstock import WatermarkStrategy
from penstock.dataflow.source import Read, SourceReader, Split
from penstock.runtime.operators.source_input import QUICK_SECONDS, SourceInput
from penstock.runtime.operators.time.source_watermarks import (
    SourceWatermarks,
)
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.split_positions import join_position
from tests.runtime.network.channels import Clock


def rows(batch: RecordBatch | None) -> list[Any]:
    assert batch is not None
    return batch.rows()


class Later(SourceReader):
    """Has nothing, for so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def open(self, split, position):
        pass

    def read(self, max_records):
        return Read([], 0, wait_seconds=self.seconds)


def source_input(
    reader: SourceReader,
    clock: Callable[[], float],
    request: Callable[[], None] = lambda: None,
    wake: Callable[[], None] = lambda: None,
) -> SourceInput:
    return SourceInput(lambda: reader, clock, request, wake, in_turns=False)


def input_at(now, reader):
    source = source_input(reader, lambda: now[0])
    source.assign(Split("only"))
    source.no_more()
    return source


def test_a_due_time_that_passes_before_it_is_asked_for_is_still_returned():
    now = [100.0]
    source = input_at(now, Later(0.001))
    assert rows(source.read(10)) == []
    assert source.wake_at == 100.001
    assert source.read(10) is None
    # The clock goes on between the read and the question.
    now[0] = 100.002
    assert source.wake_at == 100.001


def test_a_reader_that_is_read_in_a_thread_does_not_wake_the_task_by_the_clock():
    now = [100.0]
    reader = Later(0.001)
    reader.blocking = True
    source = input_at(now, reader)
    assert source.read(10) is None
    assert source.wake_at is None


def test_there_is_no_time_to_wake_at_without_a_split_or_a_wait():
    now = [100.0]
    source = source_input(Later(0.0), lambda: now[0])
    assert source.wake_at is None
    source.assign(Split("only"))
    assert rows(source.read(10)) == []
    assert source.wake_at is None


# ---- splits and positions


class Reader(SourceReader):
    """Reads the numbers of a split, two at most."""

    def __init__(self, blocking: bool = False, wait_seconds: float = 0.0) -> None:
        self.blocking = blocking
        self.wait_seconds = wait_seconds
        self.opened: list[tuple[str, Any]] = []
        self.next = 0

    def open(self, split: Split, position: Any) -> None:
        self.opened.append((split.id, position))
        self.split, self.next = split, position or 0

    def read(self, max_records: int) -> Read:
        end = min(self.next + min(2, max_records), self.split.payload)
        records, self.next = list(range(self.next, end)), end
        return Read(records, end, end == self.split.payload, self.wait_seconds)


class Fed:
    def __init__(self, reader: Reader) -> None:
        self.clock, self.asked, self.woken = Clock(), 0, 0
        self.source = source_input(reader, self.clock, self._ask, self._wake)

    def _ask(self) -> None:
        self.asked += 1

    def _wake(self) -> None:
        self.woken += 1


def test_a_source_input_requests_a_split_only_once() -> None:
    fed = Fed(Reader())
    assert fed.source.read(10) is None
    assert fed.source.read(10) is None
    assert fed.asked == 1
    fed.source.assign(Split("a", 3))
    assert rows(fed.source.read(10)) == [0, 1]
    assert fed.asked == 1
    assert rows(fed.source.read(10)) == [2]
    assert fed.asked == 2
    fed.source.assign(Split("b", 1))
    assert rows(fed.source.read(10)) == [0]
    assert fed.asked == 3
    fed.source.no_more()
    assert fed.source.ended


def test_after_a_short_split_the_next_one_is_requested_early() -> None:
    fed = Fed(Reader())
    fed.source.assign(Split("a", 1))
    fed.source.read(10)
    fed.source.assign(Split("b", 3))
    asked = fed.asked
    fed.source.read(10)
    assert fed.asked == asked + 1, "while b is read"
    fed.source.assign(Split("c", 1))
    assert [rows(fed.source.read(10)) for _ in range(2)] == [[2], [0]]


def test_a_reader_whose_splits_take_long_holds_none_that_others_could_read() -> None:
    fed = Fed(Reader())
    fed.source.assign(Split("a", 1))
    fed.clock.now += 2 * QUICK_SECONDS
    fed.source.read(10)
    assert fed.asked == 1, "it has none"
    fed.source.assign(Split("b", 5))
    for _ in range(2):
        fed.source.read(10)
        assert fed.source.open_splits == ["b"]
        assert fed.asked == 1
    fed.source.read(10)
    assert fed.source.open_splits == []
    assert fed.asked == 2


def test_a_snapshot_has_the_position_after_the_last_emitted_batch() -> None:
    fed = Fed(Reader())
    fed.source.assign(Split("a", 5))
    fed.source.assign(Split("b", 2))
    fed.source.read(10)
    assert fed.source.snapshot() == [["a", 5, 2], ["b", 2, None]]
    reader = Reader()
    again = Fed(reader)
    again.source.restore(fed.source.snapshot())
    again.source.no_more()
    rest = []
    while not again.source.ended:
        rest.append(rows(again.source.read(10)))
    assert rest == [[2, 3], [4], [0, 1]]
    assert reader.opened == [("a", 2), ("b", None)]


def test_a_source_input_waits_until_its_reader_has_records_again() -> None:
    fed = Fed(Reader(wait_seconds=1.0))
    fed.source.assign(Split("a", 5))
    assert rows(fed.source.read(10)) == [0, 1]
    assert fed.source.wake_at == 1.0
    assert fed.source.read(10) is None
    fed.clock.now = 1.0
    assert rows(fed.source.read(10)) == [2, 3]
    assert fed.source.wake_at == 2.0


def test_records_that_a_thread_has_read_ahead_do_not_count_as_emitted() -> None:
    async def main() -> None:
        fed = Fed(Reader())
        signal = trio.Event()

        def wake() -> None:
            nonlocal signal
            signal.set()

        fed.source = source_input(Reader(blocking=True), fed.clock, fed._ask, wake)

        async def offload(function: Callable[[], Read]) -> Read:
            await trio.lowlevel.checkpoint()
            return function()

        async def wait(condition: Callable[[], bool], until: float | None) -> None:
            nonlocal signal
            while not condition():
                await signal.wait()
                signal = trio.Event()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fed.source.pump, offload, wait)
            await trio.testing.wait_all_tasks_blocked()
            fed.source.assign(Split("a", 3))
            # The pump looked before there was a split; beginning one must wake it.
            assert fed.source.read(10) is None
            await trio.testing.wait_all_tasks_blocked()
            assert fed.source.snapshot() == [["a", 3, None]]
            assert rows(fed.source.read(10)) == [0, 1]
            await trio.testing.wait_all_tasks_blocked()
            assert fed.source.snapshot() == [["a", 3, 2]]
            assert rows(fed.source.read(10)) == [2]
            assert fed.source.snapshot() == []
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_restored_splits_that_were_begun_are_read_in_turns_and_the_others_afterwards() -> None:
    readers: list[Reader] = []

    def create() -> Reader:
        readers.append(Reader())
        return readers[-1]

    source = SourceInput(create, Clock(), lambda: None, lambda: None, in_turns=False)
    source.restore([["a", 6, 2], ["b", 9, 5], ["c", 2, None]])
    assert source.snapshot() == [["a", 6, 2], ["b", 9, 5], ["c", 2, None]]
    source.no_more()
    read = []
    while not source.ended:
        read.append(rows(source.read(10)))
    assert read == [[2, 3], [5, 6], [4, 5], [7, 8], [0, 1]]
    assert len(readers) == 2, "the reader of a split that has ended is used again"


def test_all_restored_splits_hold_the_watermark() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda number, _: number)
    before = SourceWatermarks(strategy, "source", 200, lambda: 0)
    for split, time in (("a", 500), ("b", 100)):
        before.open(split, None)
        before.connect(lambda element: None)
        before.process(split, RecordBatch([time]))
    state = [[s, 1000, join_position(at, before.snapshot(s))] for s, at in (("a", 501), ("b", 101))]
    watermarks = SourceWatermarks(strategy, "source", 200, lambda: 0)
    source = SourceInput(Reader, Clock(), lambda: None, lambda: None, watermarks, in_turns=False)
    source.restore(state)
    assert rows(source.read(10)) == [501, 502]
    watermarks.emit_periodically(200)
    assert watermarks.watermark == 99


# ---- complete snapshots


class Noticing(Reader):
    """Writes down the positions of complete snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed: list[Any] = []

    def snapshot_completed(self, position: Any) -> None:
        self.noticed.append((self.split.id, position))


def test_a_reader_gets_its_position_in_each_complete_snapshot() -> None:
    fed = Fed(reader := Noticing())
    source = fed.source
    source.assign(Split("a", 6))
    source.capture(1)
    source.snapshot_completed(1)
    assert reader.noticed == [], "the reader has not opened the split"
    source.read(10)
    source.capture(2)
    source.read(10)
    source.capture(3)
    source.capture(4)
    source.snapshot_aborted(2)
    source.snapshot_completed(2)
    source.snapshot_completed(3)
    assert reader.noticed == [("a", 4)]
    source.assign(Split("b", 9))
    source.read(10)
    source.read(10)
    assert reader.split.id == "b"
    source.snapshot_completed(4)
    assert reader.noticed == [("a", 4)], "the split of snapshot 4 has ended"
    source.capture(5)
    source.snapshot_completed(5)
    assert reader.noticed == [("a", 4), ("b", 2)]


def test_a_notice_has_the_position_without_the_watermarks() -> None:
    reader = Noticing()
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    watermarks = SourceWatermarks(strategy, "source", 0, lambda: 0)
    source = SourceInput(
        lambda: reader, Clock(), lambda: None, lambda: None, watermarks, in_turns=False
    )
    source.restore([["a", 6, join_position(2, None)]])
    source.read(0)
    source.capture(1)
    source.snapshot_completed(1)
    assert reader.noticed == [("a", 2)]


# ---- readers with a thread of their own


class Received(SourceReader):
    """Returns the records that a thread has put into a list."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.reads = 0

    def use_wake(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def open(self, split: Split, position: Any) -> None:
        pass

    def read(self, max_records: int) -> Read:
        self.reads += 1
        records = [self.received.pop(0) for _ in range(min(max_records, len(self.received)))]
        return Read(records, 0, wait_seconds=0.0 if records else math.inf)


def test_a_reader_wakes_the_task_from_another_thread() -> None:
    async def main() -> None:
        reader, woken = Received(), trio.Event()
        source = source_input(reader, Clock(), wake=lambda: woken.set())
        source.assign(Split("only"))
        assert rows(source.read(10)) == []
        assert source.wake_at == math.inf
        for _ in range(3):
            assert source.read(10) is None
        assert reader.reads == 1, "an idle reader is left alone"

        def receive() -> None:
            reader.received += [1, 2]
            reader.wake()

        await trio.to_thread.run_sync(receive)
        await woken.wait()
        assert rows(source.read(10)) == [1, 2]

    reader = Received()

    async def make() -> None:
        source_input(reader, Clock())

    trio.run(main)
    trio.run(make)
    reader.wake()  # The event loop has ended: nothing happens.

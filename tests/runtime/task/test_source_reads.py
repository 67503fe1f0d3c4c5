"""A source that reads its splits in turns repeats the order of a log, whatever its batches are.

Goal: the records of the log come in the same order again, and all others afterwards, once each.

Method: readers return batches of drawn sizes, sometimes none, from several splits, in the task or
in threads. The log of a run is cut off at a drawn place, and a second run repeats it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from penstock import OutputTag
from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.source import Read, SourceReader, Split
from penstock.runtime.network.step_logs import BARRIER, READ, Step, StepLog
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.system.signal import Signal
from penstock.runtime.task.activities.logged_reading import LoggedReading
from penstock.runtime.task.source_reads import SourceReads
from tests.sizes import sized

SPLITS, RECORDS, LIMIT = 3, 20, 8
BAD = OutputTag("bad")


class Drawn(SourceReader):
    """Reads numbers in batches of drawn sizes. Each fifth one is for a side output."""

    def __init__(self, rng: random.Random, blocking: bool, records: int = RECORDS) -> None:
        self.rng, self.blocking, self.records = rng, blocking, records
        self.asked: list[int] = []

    def open(self, split: Split, position: Any) -> None:
        self.split, self.next = split, position or 0

    def read(self, max_records: int) -> Read:
        self.asked.append(max_records)
        end = min(self.next + self.rng.randrange(max_records + 1), self.records)
        numbers, self.next = range(self.next, end), end
        return Read(
            [(self.split.id, n) for n in numbers if n % 5],
            end,
            end == self.records,
            side_output=[(BAD, (self.split.id, n)) for n in numbers if n % 5 == 0],
        )


class Reading:
    """The reading of a source task, without the task."""

    def __init__(self, create: Callable[[], SourceReader], to_repeat: list[Step]) -> None:
        self.signal, self.repeated = Signal(), 0
        self.source = SourceInput(create, lambda: 0.0, lambda: None, self.signal.set, in_turns=True)
        self.log = StepLog(0)
        reads = SourceReads(self.log, to_repeat, self._count)
        chain: Any = SimpleNamespace(root=SimpleNamespace(operator=None))
        rest: list[Any] = [None] * 5
        self.reading = LoggedReading(reads, self.source, chain, *rest)
        #: The records of each output, with their splits, in order.
        self.main: list[Any] = []
        self.side: list[Any] = []

    def _count(self) -> None:
        self.repeated += 1

    def assign_all(self, rng: random.Random) -> None:
        for number in rng.sample(range(SPLITS), SPLITS):
            self.source.assign(Split(f"split {number}"))
        self.source.no_more()

    def read(self) -> bool:
        """Read once. Return False if there is nothing now."""
        batch = self.reading._read(LIMIT)
        self.side += [record for _, record in self.source.take_side_output()]
        if batch is not None:
            self.main += batch.rows()
        return batch is not None

    async def read_all(self, rng: random.Random) -> None:
        async def offload(function: Callable[[], Any]) -> Any:
            for _ in range(rng.randrange(3)):
                await trio.lowlevel.checkpoint()
            return function()

        async with trio.open_nursery() as nursery:
            if self.source.pumping:
                nursery.start_soon(self.source.pump, offload, self.signal.wait_for)
            while not self.source.ended:
                if not self.read():
                    await trio.lowlevel.checkpoint()
            self.read()
            nursery.cancel_scope.cancel()


def run(seed: int, blocking: bool, to_repeat: list[Step]) -> Reading:
    rng = random.Random(seed)
    reading = Reading(lambda: Drawn(rng, blocking), to_repeat)

    async def main() -> None:
        reading.assign_all(rng)
        await reading.read_all(rng)

    trio.run(main)
    return reading


def steps_of(log: StepLog) -> list[Step]:
    return log.after(0)[1]


def counts(steps: list[Step]) -> tuple[int, int, list[tuple[str, int]]]:
    """Return the numbers of records of the main and the side output, and the order of all."""
    position = dict.fromkeys([f"split {n}" for n in range(SPLITS)], 0)
    order = []
    for step in steps:
        if step[0] == READ:
            _, split, count = step
            order += [(split, n) for n in range(position[split], position[split] + count)]
            position[split] += count
    side = sum(n % 5 == 0 for _, n in order)
    return len(order) - side, side, order


@pytest.mark.parametrize("blocking", [False, True], ids=["in the task", "in threads"])
@pytest.mark.parametrize("seed", range(sized(40, 1_000)))
def test_the_order_of_a_log_is_repeated(seed: int, blocking: bool) -> None:
    rng = random.Random(seed)
    first = run(seed, blocking, [])
    assert first.repeated == 0
    steps = steps_of(first.log)
    main, side, order = counts(steps)
    assert (main, side) == (len(first.main), len(first.side)) and main + side == SPLITS * RECORDS
    assert [one for one in order if one[1] % 5] == first.main
    known = steps[: rng.randrange(len(steps) + 1)]
    if rng.random() < 0.5:  # of a snapshot that was given up
        known.insert(rng.randrange(len(known) + 1), [BARRIER, 3])
    second = run(seed + 1, blocking, known)
    assert second.repeated == bool(known)
    main, side, _ = counts(known)
    assert second.main[:main] == first.main[:main]
    assert second.side[:side] == first.side[:side]
    assert sorted(second.main) == sorted(first.main) and sorted(second.side) == sorted(first.side)
    # The next successor gets a log that begins in the same way.
    assert steps_of(second.log)[: len(known)] == known
    assert counts(steps_of(second.log))[2][: main + side] == order[: main + side]


def test_a_split_waits_until_it_is_assigned() -> None:
    rng = random.Random(1)
    reading = Reading(lambda: Drawn(rng, False), [[READ, "split 2", 7], [READ, "split 0", 2]])
    reading.source.assign(Split("split 0"))
    assert not reading.read() and reading.source.wake_at is None
    reading.source.assign(Split("split 2"))
    while reading.repeated == 0:
        assert reading.read()
    assert [split for split, _ in reading.main][:6] == ["split 2"] * 5 + ["split 0"]


def test_readers_are_asked_for_no_more_than_is_left_of_their_turn() -> None:
    readers = []

    def create() -> SourceReader:
        readers.append(Drawn(random.Random(1), False))
        return readers[-1]

    reading = Reading(create, [[READ, "a", 3], [READ, "b", 2], [READ, "a", 1]])
    for split in "ab":
        reading.source.assign(Split(split))
    while not reading.repeated:
        reading.read()
    assert max(readers[0].asked) == 3 and max(readers[1].asked) == 2
    for _ in range(2):
        reading.read()
    assert max(readers[0].asked + readers[1].asked) == LIMIT


class TooMany(Drawn):
    """Returns one record more than it is asked for."""

    def read(self, max_records: int) -> Read:
        first, self.next = self.next, self.next + max_records + 1
        return Read([(self.split.id, n) for n in range(first, self.next)], self.next)


@pytest.mark.parametrize("last", [False, True], ids=["before another turn", "in the last turn"])
def test_a_reader_may_return_too_many_records_only_in_the_last_turn(last: bool) -> None:
    steps = [[READ, "a", 2], [READ, "a", 1]] + ([] if last else [[READ, "b", 1]])
    rng = random.Random(3)
    reading = Reading(lambda: TooMany(rng, False), steps)
    for split in "ab":
        reading.source.assign(Split(split))
    if last:
        while not reading.repeated:
            reading.read()
        assert counts_of(reading, "a") > 3
        return
    with pytest.raises(ProtocolError, match=r"of split 'a' were read at once.*deterministic"):
        reading.read()


def counts_of(reading: Reading, split: str) -> int:
    return sum(step[2] for step in steps_of(reading.log) if step[:2] == [READ, split])


def test_a_split_that_ends_too_early_is_an_error() -> None:
    reading = Reading(lambda: Drawn(random.Random(1), False, 4), [[READ, "a", 5], [READ, "b", 1]])
    for split in "ab":
        reading.source.assign(Split(split))
    with pytest.raises(ProtocolError, match="split 'a' has ended before records that were read"):
        for _ in range(100):
            reading.read()

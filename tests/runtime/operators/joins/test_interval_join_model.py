"""Interval joins beside a list of all records, with random input, restores and rescaling."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import OutputTag, ProcessJoinFunction, RuntimeContext, ValueStateDescriptor
from penstock.dataflow.joins.operations import IntervalJoinOperation
from penstock.dataflow.operators import specs
from penstock.dataflow.time import MAX_WATERMARK, NO_TIMESTAMP
from tests.runtime.operators.joins.harness import Joins, disturb
from tests.sizes import sized

BOUNDS = [(-5, 5), (0, 0), (0, 12), (-12, 0), (3, 9), (-9, -3), (-40, 40)]
LATE = OutputTag("late-left"), OutputTag("late-right")
FAR = OutputTag("far")


def pair(left: Any, right: Any) -> Any:
    return left, right


class Pairs(ProcessJoinFunction):
    """Emits each pair with its timestamps, and pairs that are far apart to a side output."""

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Any:
        times = ctx.get_left_timestamp(), ctx.get_right_timestamp()
        assert ctx.get_timestamp() == max(times)
        yield left, right, *times
        if max(times) - min(times) > 4:
            yield FAR, (left, right)


class NaiveJoin:
    """Keeps all records that were not late."""

    def __init__(self, lower: int, upper: int) -> None:
        self.lower, self.upper = lower, upper
        self.records: tuple[list[Any], list[Any]] = ([], [])

    def add(self, side: int, record: Any, time: int) -> list[tuple[Any, Any, int, int]]:
        """Add a record; return the pairs that it makes, with their timestamps."""
        self.records[side].append((record, time))
        lefts = self.records[0] if side else [(record, time)]
        rights = [(record, time)] if side else self.records[1]
        return [
            (left, right, before, after)
            for left, before in lefts
            for right, after in rights
            if left[0] == right[0] and self.lower <= after - before <= self.upper
        ]


@pytest.mark.parametrize("rich", [False, True], ids=["plain", "rich"])
@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
def test_an_interval_join_finds_all_pairs_of_records_that_are_not_late(
    tmp_path: Path, lower: int, upper: int, rich: bool
) -> None:
    operation = IntervalJoinOperation(lower, upper, Pairs() if rich else pair, LATE)
    tags = ("late-left", "late-right", "far")
    for seed in range(sized(1, 40)):
        rng = random.Random(seed)
        kind = specs.interval_join(operation)
        joins = Joins(kind, operation, tmp_path / str(seed), tags)
        naive, side_outputs = NaiveJoin(lower, upper), Counter[Any]()
        for number in range(150):
            disturb(joins, rng)
            side, key = rng.randrange(2), rng.choice(["a", "b", None])
            if rng.random() < 0.8:
                time = max(joins.watermark, -20) + rng.randrange(-6, 20)
                record, expected = (key, number), Counter[Any]()
                if time < joins.watermark:
                    side_outputs[LATE[side].tag_id, record, time] += 1
                else:
                    for left, right, before, after in naive.add(side, record, time):
                        found = (left, right, before, after) if rich else (left, right)
                        expected[found, max(before, after)] += 1
                        if rich and abs(before - after) > 4:
                            side_outputs["far", (left, right), max(before, after)] += 1
                assert joins.add(side, (record, time)) == expected, seed
            else:
                assert not joins.advance(max(joins.watermark, -20) + rng.randrange(9)), seed
        assert joins.side == side_outputs, seed
        assert not joins.advance(MAX_WATERMARK)
        assert joins.size() == 0, "the watermark has removed all state and all timers"
        joins.close()


def test_a_batch_has_records_of_many_keys_and_times(tmp_path: Path) -> None:
    operation = IntervalJoinOperation(-3, 3, pair)
    joins = Joins(specs.interval_join(operation), operation, tmp_path)
    naive, rng = NaiveJoin(-3, 3), random.Random(7)
    for number in range(40):
        side = number % 2
        batch = [((rng.randrange(4), f"{number}.{i}"), rng.randrange(40)) for i in range(20)]
        expected = Counter(
            ((left, right), max(times))
            for record, time in batch
            for left, right, *times in naive.add(side, record, time)
        )
        assert joins.add(side, *batch) == expected
    joins.close()


@pytest.mark.parametrize("after", [(-5, 30), (0, 3), (-30, -2), (-5, 5), (5, 15)])
def test_other_bounds_after_a_restore_find_the_records_of_before(
    tmp_path: Path, after: tuple[int, int]
) -> None:
    rng = random.Random(3)
    operation = IntervalJoinOperation(-5, 5, pair)
    joins = Joins(specs.interval_join(operation), operation, tmp_path)
    naive = NaiveJoin(-5, 5)
    for number in range(60):
        side, record, time = number % 2, (rng.randrange(3), number), 100 + rng.randrange(5)
        naive.add(side, record, time)
        joins.add(side, (record, time))
    joins.advance(100)
    joins.operation = IntervalJoinOperation(*after, pair)
    joins.restart(2)
    naive.lower, naive.upper = after
    for number in range(60, 90):
        side, record, time = number % 2, (rng.randrange(3), number), 100 + rng.randrange(40)
        expected = Counter(
            ((left, right), max(times)) for left, right, *times in naive.add(side, record, time)
        )
        assert joins.add(side, (record, time)) == expected
    joins.advance(MAX_WATERMARK)
    assert joins.size() == 0
    joins.close()


class Numbered(ProcessJoinFunction):
    """Numbers the pairs of each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.number = runtime_context.get_state(ValueStateDescriptor("number"))

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        self.number.update((self.number.value() or 0) + 1)
        yield left[0], self.number.value()


def test_the_function_has_keyed_state(tmp_path: Path) -> None:
    operation = IntervalJoinOperation(0, 9, Numbered())
    joins = Joins(specs.interval_join(operation), operation, tmp_path)
    joins.add(0, (("a", 0), 1), (("b", 0), 1))
    joins.restart(2)
    assert joins.add(1, (("a", 1), 2), (("a", 2), 3)) == {(("a", 1), 2): 1, (("a", 2), 3): 1}
    joins.restart(1)
    assert joins.add(1, (("b", 1), 2), (("a", 2), 9)) == {(("b", 1), 2): 1, (("a", 3), 9): 1}
    joins.close()


def test_a_record_that_is_changed_after_it_was_emitted_is_not_changed_in_the_state(
    tmp_path: Path,
) -> None:
    operation = IntervalJoinOperation(0, 9, lambda left, right: left[1])
    joins = Joins(specs.interval_join(operation), operation, tmp_path)
    kept: Any = ("a", ["first"])
    task = joins.subtasks[0]
    joins.add(0, (kept, 1))
    for number in range(2):
        task.select_input(1)
        out = task.process(_batch(("a", number), 2 + number))
        (found,) = out.rows()
        assert found == ["first"]
        found.append("changed")
    joins.close()


def _batch(record: Any, time: int) -> Any:
    from penstock.runtime.serialization.record_batch import RecordBatch

    return RecordBatch([record], None, [time])


@pytest.mark.parametrize("side", [0, 1])
def test_a_record_without_a_timestamp_is_refused(tmp_path: Path, side: int) -> None:
    operation = IntervalJoinOperation(0, 9, pair)
    joins = Joins(specs.interval_join(operation), operation, tmp_path)
    which = "right" if side else "left"
    with pytest.raises(Exception, match=f"without a timestamp came to the {which} side"):
        joins.add(side, (("a", 1), NO_TIMESTAMP))
    joins.close()

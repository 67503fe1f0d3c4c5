"""Sliding windows that combine panes in blocks: what they cost, and when they keep blocks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.dataflow.time import MAX_WATERMARK
from penstock.dataflow.windows import (
    AggregateFunction,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    WindowOperation,
)
from penstock.runtime.operators.windowing.pane_operator import PaneOperator
from penstock.runtime.operators.windowing.panes import Panes
from penstock.runtime.operators.windowing.sliding_pane_operator import SlidingPaneOperator
from tests.runtime.operators.windowing.harness import Windows

SIZE, PANES = 60, 60


class Adding:
    """Adds the second items of records, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, first: Any, second: Any) -> Any:
        self.calls += 1
        return first[0], first[1] + second[1]


class Numbers(AggregateFunction):
    """Counts and adds the second items of records in a list, which it changes."""

    merges_panes = True

    def create_accumulator(self) -> Any:
        return [0, 0]

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator[0] += 1
        accumulator[1] += value[1]
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        result = tuple(accumulator)
        accumulator.clear()
        return result

    def merge(self, a: Any, b: Any) -> Any:
        a[0] += b[0]
        a[1] += b[1]
        return a


@pytest.fixture
def run(tmp_path: Path):
    made = []

    def make(aggregator: Any, assigner: Any = None, *, make: Any = None, **options: Any) -> Windows:
        assigner = assigner or SlidingEventTimeWindows.of(SIZE, SIZE // PANES)
        trigger = assigner.get_default_trigger()
        operation = WindowOperation(assigner, trigger, aggregator=aggregator, **options)
        chosen = {"make": make} if make else {}
        made.append(Windows(operation, tmp_path / str(len(made)), **chosen))
        return made[-1]

    yield make
    for each in made:
        each.close()


def blocks_of(windows: Windows) -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    for operator in windows.subtasks:
        assert isinstance(operator, SlidingPaneOperator)
        kept |= operator._blocks
    return kept


def test_a_pane_is_combined_three_times_and_not_once_for_each_window(run):
    def calls(make: Any) -> int:
        adding = Adding()
        windows = run(adding, make=make)
        sums = []
        for time in range(300):
            windows.add((("a", 1), time))
            sums += [result[1] for result, _ in windows.advance(time)]
        assert sums == [min(time + 1, SIZE) for time in range(300)]
        return adding.calls

    assert calls(None) < 300 * 3
    assert calls(PaneOperator) > 240 * (PANES - 1)


@pytest.mark.parametrize("size", [6, 12, 13, 60])
@pytest.mark.parametrize("offset", [0, 1, -3])
def test_each_window_contains_one_border(size: int, offset: int):
    panes = Panes(size, 1, offset)
    for window in range(-200, 200):
        border = panes.border_in(window)
        assert window < border <= window + size
        assert (border - offset) % size == 0


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_floats_do_not_depend_on_restarts(run, seed: int):
    def emitted(restarts: bool) -> list[Any]:
        rng, fault = random.Random(seed), random.Random(seed)
        windows = run(lambda a, b: (a[0], a[1] + b[1]))
        found, kept = [], 0
        for time in range(200):
            windows.add((("a", rng.random()), time), (("b", rng.random() * 1e9), time))
            found += windows.advance(time - 1)
            kept = max(kept, len(blocks_of(windows)))
            if restarts and fault.random() < 0.1:
                windows.restart(1)
                assert not blocks_of(windows)
        assert kept == 2
        return found + windows.advance(MAX_WATERMARK)

    assert emitted(restarts=True) == emitted(restarts=False)


def test_a_late_record_is_in_all_windows_that_contain_it(run):
    adding = Adding()
    windows = run(adding, allowed_lateness=30)
    for time in range(100):
        windows.add((("a", 1), time))
    windows.advance(99)
    assert blocks_of(windows)
    # The windows from 31 to 80 contain it; 20 of them have fired, and come again.
    again = windows.add((("a", 1_000), 80))
    assert sorted(time for _, time in again) == [80] * 20
    assert [result[1] for result, _ in again][-1] == SIZE + 1_000
    assert not blocks_of(windows)
    found = [result[1] for result, _ in windows.advance(MAX_WATERMARK)]
    assert found[0] == SIZE - 1 + 1_000
    assert sum(value >= 1_000 for value in found) == 40


def test_accumulators_that_change_are_copied(run):
    windows = run(Numbers())
    found = []
    for time in range(200):
        windows.add((("a", time), time))
        found += [result for result, _ in windows.advance(time)]
    assert blocks_of(windows)
    expected = [range(max(0, time - SIZE + 1), time + 1) for time in range(200)]
    assert found == [(len(each), sum(each)) for each in expected]


def test_values_that_contain_their_records_are_not_kept(run):
    windows = run(lambda a, b: ("a", a[1] + b[1]))
    found = []
    for time in range(200):
        windows.add((("a", (time,) * 10), time))
        found += [len(result[1]) for result, _ in windows.advance(time)]
    assert found == [min(time + 1, SIZE) * 10 for time in range(200)]
    assert not blocks_of(windows)
    assert windows.subtasks[0].backend.tables.named(_panes_of(windows)).derived_values == 0


def test_nothing_is_kept_beyond_memory(run):
    windows = run(lambda a, b: (a[0], a[1] + b[1]))
    found = []
    for time in range(100):
        windows.add((("a", 1), time))
        found += [result[1] for result, _ in windows.advance(time)]
        if time == 70:
            assert blocks_of(windows)
            windows.spill()
    assert found == [min(time + 1, SIZE) for time in range(100)]
    assert not blocks_of(windows)


def test_kept_values_count_as_memory(run):
    windows = run(lambda a, b: (a[0], a[1] + b[1]))
    for key in range(20):
        windows.add(*(((f"key{key}", 1), time) for time in range(60)))
    table = windows.subtasks[0].backend.tables.named(_panes_of(windows))
    before = table.memory_bytes()
    windows.advance(40)
    assert len(blocks_of(windows)) == 20
    assert table.derived_values == 20 * 31
    assert table.memory_bytes() > before


def test_a_key_whose_panes_have_left_keeps_nothing(run):
    windows = run(lambda a, b: (a[0], a[1] + b[1]))
    windows.add((("a", 1), 0), (("b", 1), 50))
    windows.advance(30)
    assert list(blocks_of(windows)) == ["a"]
    windows.advance(59)
    assert list(blocks_of(windows)) == ["b"]
    windows.advance(MAX_WATERMARK)
    assert not blocks_of(windows)
    assert windows.size() == 0


def test_windows_by_a_clock_that_is_set_back(run):
    windows = run(
        lambda a, b: (a[0], a[1] + b[1]), SlidingProcessingTimeWindows.of(SIZE, SIZE // PANES)
    )
    counts = []
    for now in [*range(1_000, 1_100), *range(1_050, 1_200)]:
        windows.now = now
        windows.add((("a", 1), 0))
        counts += [result[1] for result, _ in windows.tick(now)]
    # Records that come while the clock is behind count as of the latest time.
    assert counts[:60] == list(range(1, 61))
    assert max(counts) == 59 + 51
    assert blocks_of(windows)


def _panes_of(windows: Windows) -> str:
    names = windows.subtasks[0].backend.tables.names
    return next(name for name in names if name.startswith(PaneOperator.STATE))

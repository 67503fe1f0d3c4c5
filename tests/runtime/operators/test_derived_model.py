"""`track`, `join_history`, `map_with_state`, `distinct` and `top_k` against naive models.

Records come out of order, watermarks advance, and state is restored at another parallelism.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.history_join import HistoryJoin
from penstock.dataflow.streams.record_functions import FirstOfKey, StatefulMap, TopK
from penstock.dataflow.streams.state_tracking import StateTracking
from penstock.dataflow.time import MAX_WATERMARK, MIN_WATERMARK
from tests.runtime.operators.making import make_operator
from tests.runtime.operators.windowing.harness import Windows
from tests.sizes import sized

LATE = OutputTag("late")
SEEDS = range(sized(2, 40))
Record = tuple[str, int, int]


def _operators(tmp_path: Any, function: Any, kind: OperatorSpec) -> Windows:
    def make(function: Any, context: Any, key_of: Any) -> Any:
        return make_operator(kind, copy.copy(function), key_of, context)

    return Windows(function, tmp_path, make, tags=("late",))


def _run(
    tmp_path: Any, function: Any, rng: random.Random, model: Any, kind: OperatorSpec
) -> tuple[list[Any], list[Any], Windows]:
    """Give both the same records and watermarks; return what they emit."""
    operators = _operators(tmp_path, function, kind)
    emitted: list[Any] = []
    expected: list[Any] = []
    # An end may be exactly at time 0, which must not be taken for no end.
    clock = begin = rng.choice([0, -100])
    watermark = MIN_WATERMARK
    for number in range(160):
        choice = rng.random()
        if choice < 0.75:
            clock += rng.randrange(6)
            time = max(begin, clock - rng.choice([0, 0, 1, 5, 20]))
            record = (rng.choice("abcde"), number, time)
            emitted += operators.add((record, time))
            expected += model.add(record, watermark)
        elif choice < 0.92:
            watermark = max(watermark, clock - rng.choice([0, 10]))
            emitted += operators.advance(watermark)
            expected += model.advance(watermark)
        elif choice < 0.96:
            operators.spill()
        else:
            operators.restart(rng.randrange(1, 5))
    emitted += operators.advance(MAX_WATERMARK)
    expected += model.advance(MAX_WATERMARK)
    return emitted, expected, operators


class _Tracked:
    """A model of `track` whose states end by event time."""

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout
        self.states: dict[str, tuple[list[int], int]] = {}

    def add(self, record: Record, watermark: int) -> list[Any]:
        key, number, time = record
        out: list[Any] = []
        numbers, end = self.states.pop(key, ([], MIN_WATERMARK))
        if numbers and time >= end:
            out.append(((key, None), time))
            numbers, end = [], MIN_WATERMARK
        if numbers and number % 9 == 0:
            return [*out, ((key, None), time)]
        numbers = [*numbers, number]
        self.states[key] = numbers, max(end, time + self.timeout)
        return [*out, ((key, numbers), time)]

    def advance(self, watermark: int) -> list[Any]:
        over = [(end, key) for key, (_, end) in self.states.items() if end <= watermark]
        for _, key in over:
            del self.states[key]
        return [((key, None), end) for end, key in sorted(over)]


def _update(key: str, numbers: list[int], record: Record) -> list[int] | None:
    if record[1] % 9 == 0:
        return None
    numbers.append(record[1])
    return numbers


@pytest.mark.parametrize("seed", SEEDS)
def test_track_equals_its_model(tmp_path, seed):
    rng = random.Random(seed)
    timeout = rng.choice([3, 15, 60])
    function = StateTracking(lambda key, record: [record[1]], _update, timeout, True)
    kind = specs.KEYED_PROCESS
    emitted, expected, operators = _run(tmp_path, function, rng, _Tracked(timeout), kind)
    # States of different keys end in any order.
    assert sorted(emitted, key=repr) == sorted(expected, key=repr), f"seed {seed}"
    assert operators.size() == 0
    operators.close()


class _Joined:
    """A model of `join_history`, which looks at all records that were not late."""

    def __init__(self, past: int) -> None:
        self.past = past
        self.seen: list[Record] = []
        self.waiting: list[Record] = []
        self.late: list[Record] = []

    def add(self, record: Record, watermark: int) -> list[Any]:
        if record[2] <= watermark:
            self.late.append(record)
        else:
            self.waiting.append(record)
        return []

    def advance(self, watermark: int) -> list[Any]:
        ready = sorted((r for r in self.waiting if r[2] <= watermark), key=lambda r: r[2])
        self.waiting = [r for r in self.waiting if r[2] > watermark]
        out = []
        for record in ready:
            begin = record[2] - self.past
            earlier = [r for r in self.seen if r[0] == record[0] and r[2] >= begin]
            out.append(((record, earlier), record[2]))
            self.seen.append(record)
        return out


@pytest.mark.parametrize("seed", SEEDS)
def test_a_join_with_history_equals_its_model(tmp_path, seed):
    rng = random.Random(seed)
    past = rng.choice([0, 7, 40])
    model = _Joined(past)
    function = HistoryJoin(past, lambda record, earlier: (record, earlier), LATE)
    kind = specs.KEYED_PROCESS
    emitted, expected, operators = _run(tmp_path, function, rng, model, kind)
    # Records of different keys come out in any order.
    assert sorted(emitted) == sorted(expected), f"seed {seed}"
    assert [record for _, record in operators.side] == model.late
    assert operators.size() == 0
    operators.close()


class _Each:
    """A model of a function that looks at one record after the other."""

    def __init__(self, function: Callable[[Record, list[Record]], list[Any]]) -> None:
        self.function = function
        self.earlier: dict[str, list[Record]] = {}

    def add(self, record: Record, watermark: int) -> list[Any]:
        earlier = self.earlier.setdefault(record[0], [])
        out = [(made, record[2]) for made in self.function(record, earlier)]
        earlier.append(record)
        return out

    def advance(self, watermark: int) -> list[Any]:
        return []


def _append(numbers: list[int], record: Record) -> tuple[list[int] | None, Any]:
    numbers.append(record[1])
    return None if len(numbers) == 4 else numbers, (record[0], numbers)


def _fours(record: Record, earlier: list[Record]) -> list[Any]:
    begin = len(earlier) // 4 * 4
    return [(record[0], [one[1] for one in [*earlier, record][begin:]])]


@pytest.mark.parametrize("initial", [[], list])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_map_with_state_equals_its_model(tmp_path, seed, initial):
    function = StatefulMap(_append, initial)
    emitted, expected, operators = _run(
        tmp_path, function, random.Random(seed), _Each(_fours), specs.KEYED_MAP
    )
    assert emitted == expected, f"seed {seed}"
    operators.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_distinct_equals_its_model(tmp_path, seed):
    model = _Each(lambda record, earlier: [] if earlier else [record])
    emitted, expected, operators = _run(
        tmp_path, FirstOfKey(None), random.Random(seed), model, specs.KEYED_FILTER
    )
    assert emitted == expected, f"seed {seed}"
    operators.close()


def _best(record: Record, earlier: list[Record]) -> list[Any]:
    before = sorted(earlier, key=lambda r: -(r[1] * 7 % 5))[:3]
    now = sorted([*earlier, record], key=lambda r: -(r[1] * 7 % 5))[:3]
    return [] if now == before else [(record[0], now)]


@pytest.mark.parametrize("seed", SEEDS)
def test_top_k_equals_its_model(tmp_path, seed):
    function = TopK(3, lambda record: record[1] * 7 % 5)
    emitted, expected, operators = _run(
        tmp_path, function, random.Random(seed), _Each(_best), specs.KEYED_PROCESS
    )
    assert emitted == expected, f"seed {seed}"
    assert Counter(len(best) for (_, best), _ in emitted)[3] > 3
    operators.close()

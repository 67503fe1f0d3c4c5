"""Window joins and co-groups beside naive windows, with random input, restores and rescaling."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from penstock.dataflow.joins.window_functions import (
    co_group_window_function,
    join_window_function,
)
from penstock.dataflow.operators import specs
from penstock.dataflow.time import MAX_WATERMARK
from penstock.dataflow.windows import CountEvictor, WindowOperation
from tests.runtime.operators.joins.harness import Joins, disturb
from tests.runtime.operators.windowing.naive_windows import (
    NaiveWindows,
    session,
    sliding,
    tumbling,
)
from tests.sizes import sized

ASSIGNERS: dict[str, tuple[WindowAssigner, Any, bool]] = {
    "tumbling": (TumblingEventTimeWindows(10), tumbling(10), False),
    "sliding": (SlidingEventTimeWindows(12, 4), sliding(12, 4), False),
    "sessions": (EventTimeSessionWindows(6), session(lambda record: 6), True),
}


def pairs(first: Any, second: Any) -> Any:
    return first, second


def groups(first: Any, second: Any) -> Any:
    yield tuple(sorted(first)), tuple(sorted(second))


FUNCTIONS = {
    "join": join_window_function(pairs),
    "co-group": co_group_window_function(groups),
}


def results(kind: str, fired: list[Any]) -> Counter[Any]:
    """Return what a join emits for windows that fire, with event times."""
    found: Counter[Any] = Counter()
    for _, _, members, time in fired:
        first = [record for side, record in members if side == 0]
        second = [record for side, record in members if side == 1]
        if kind == "co-group":
            found[(tuple(sorted(first)), tuple(sorted(second))), time] += 1
        else:
            found.update(((one, other), time) for one in first for other in second)
    return found


@pytest.mark.parametrize("lateness", [0, 9])
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("name", ASSIGNERS)
def test_a_window_join_has_the_results_of_naive_windows(
    tmp_path: Path, name: str, kind: str, lateness: int
) -> None:
    assigner, assign, merging = ASSIGNERS[name]
    trigger = EventTimeTrigger() if lateness else assigner.get_default_trigger()
    operation = WindowOperation(
        assigner, trigger, allowed_lateness=lateness, window_function=FUNCTIONS[kind]
    )
    for seed in range(sized(1, 30)):
        rng = random.Random(seed)
        joins = Joins(specs.window_join(operation), operation, tmp_path / str(seed))
        naive = NaiveWindows(assign, merging, lateness)
        for number in range(120):
            disturb(joins, rng)
            side, key = rng.randrange(2), rng.choice("abc")
            if rng.random() < 0.8:
                time = max(joins.watermark, 0) + rng.randrange(-12, 20)
                record = key, number
                fired = naive.add(key, (side, record), time)
                assert joins.add(side, (record, time)) == results(kind, fired), seed
            else:
                watermark = max(joins.watermark, 0) + rng.randrange(8)
                expected = results(kind, naive.advance(watermark))
                assert joins.advance(watermark) == expected, seed
        assert joins.advance(MAX_WATERMARK) == results(kind, naive.advance(MAX_WATERMARK)), seed
        assert joins.size() == 0
        joins.close()


def test_an_evictor_sees_the_records_of_both_streams_in_the_order_of_arrival(
    tmp_path: Path,
) -> None:
    assigner = TumblingEventTimeWindows(10)
    operation = WindowOperation(
        assigner,
        assigner.get_default_trigger(),
        CountEvictor(3),
        window_function=FUNCTIONS["co-group"],
    )
    joins = Joins(specs.window_join(operation), operation, tmp_path)
    for number, side in enumerate([0, 1, 1, 0, 1]):
        joins.add(side, (("a", number), number))
    assert joins.advance(9) == Counter({(((("a", 3),), (("a", 2), ("a", 4))), 9): 1})
    joins.close()

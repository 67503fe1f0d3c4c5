"""Windows of every kind against a naive second implementation, with random input."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.time import MAX_WATERMARK
from penstock.dataflow.windows import (
    AggregateFunction,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
    WindowOperation,
)
from penstock.runtime.operators.windowing.window_operator import WindowOperator
from tests.runtime.operators.windowing.harness import Windows, make_window
from tests.runtime.operators.windowing.naive_windows import (
    NaiveWindows,
    session,
    sliding,
    tumbling,
)
from tests.sizes import sized

LATE = OutputTag("late")


class Spans(ProcessWindowFunction):
    """Emits the key, the window and the sorted values of its elements."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        values = [value for element in elements for value in values_of(element)]
        yield key, window.start, window.end, tuple(sorted(values))


def values_of(element: Any) -> Any:
    """Returns the values of an element: a record, or what records were reduced to."""
    return element[1] if isinstance(element[1], tuple) else (element[1],)


class Values(AggregateFunction):
    """Collects the values of records in a list, which it changes."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return None, tuple(accumulator)

    def merge(self, a: Any, b: Any) -> Any:
        a.extend(b)
        return a


class Greedy(Values):
    """Empties its accumulator when it returns the result."""

    def get_result(self, accumulator: Any) -> Any:
        taken = tuple(accumulator)
        accumulator.clear()
        return None, taken


class Spoiling(Spans):
    """Changes the records and results that it is given."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield from super().process(key, context, elements)
        for element in elements:
            element[1] = "spoilt"


def appended(first: Any, second: Any) -> Any:
    """Combines mutable records, by changing the first one."""
    first[1] = values_of(first) + values_of(second)
    return first


def appended_without(joined_values: Any, leaving: Any) -> Any:
    joined_values[1] = without(joined_values, leaving)[1]
    return joined_values


class Gap:
    """A gap that depends on the record."""

    def __call__(self, record: Any) -> int:
        return 5 + record[1] % 7


def joined(first: Any, second: Any) -> Any:
    return first[0], values_of(first) + values_of(second)


def without(joined_values: Any, leaving: Any) -> Any:
    left = Counter(values_of(joined_values)) - Counter(values_of(leaving))
    return joined_values[0], tuple(left.elements())


class Merged(Values):
    """The same, whose panes are merged by sliding windows."""

    merges_panes = True


AGGREGATORS = {"none": None, "reduce": joined, "aggregate": Values(), "merged": Merged()}
ASSIGNERS: dict[str, tuple[WindowAssigner, Any, bool]] = {
    "tumbling": (TumblingEventTimeWindows(10), tumbling(10), False),
    "tumbling with an offset": (TumblingEventTimeWindows(10, -3), tumbling(10, -3), False),
    "sliding": (SlidingEventTimeWindows(12, 4), sliding(12, 4), False),
    "sliding with odd sizes": (SlidingEventTimeWindows(10, 4, 1), sliding(10, 4, 1), False),
    "sliding in blocks": (SlidingEventTimeWindows(12, 1), sliding(12, 1), False),
    "sliding in odd blocks": (SlidingEventTimeWindows(13, 2, 1), sliding(13, 2, 1), False),
    "sliding with holes": (SlidingEventTimeWindows(3, 7), sliding(3, 7), False),
    "sessions": (EventTimeSessionWindows(6), session(lambda record: 6), True),
    "dynamic sessions": (DynamicEventTimeSessionWindows(Gap()), session(Gap()), True),
}


@pytest.mark.parametrize("lateness", [0, 9])
@pytest.mark.parametrize("name", ["sliding", "sliding with odd sizes"])
def test_an_inverse_changes_no_result(tmp_path: Path, name: str, lateness: int) -> None:
    assigner, assign, merging = ASSIGNERS[name]
    operation = WindowOperation(
        assigner,
        assigner.get_default_trigger(),
        allowed_lateness=lateness,
        late_tag=LATE,
        aggregator=joined,
        inverse=without,
        window_function=Spans(),
    )
    for seed in range(sized(3, 40)):
        windows = Windows(operation, tmp_path / str(seed), tags=("late",))
        walk(windows, NaiveWindows(assign, merging, lateness), random.Random(seed))
        windows.close()


@pytest.mark.parametrize("lateness", [0, 9])
@pytest.mark.parametrize("general", [False, True], ids=["chosen", "general"])
@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("name", ASSIGNERS)
def test_windows_are_those_of_the_naive_implementation(
    tmp_path: Path, name: str, aggregator: str, general: bool, lateness: int
) -> None:
    assigner, assign, merging = ASSIGNERS[name]
    operation = WindowOperation(
        assigner,
        assigner.get_default_trigger(),
        allowed_lateness=lateness,
        late_tag=LATE,
        aggregator=AGGREGATORS[aggregator],
        window_function=Spans(),
    )
    for seed in range(sized(2, 30)):
        naive = NaiveWindows(assign, merging, lateness)
        make = WindowOperator if general else make_window
        windows = Windows(operation, tmp_path / str(seed), make, tags=("late",))
        walk(windows, naive, random.Random(seed))
        windows.close()


#: Windows whose functions change what they are given: the aggregator and the window function.
CHANGING = {
    "records": (None, Spoiling(), None),
    "reduced records": (appended, Spoiling(), None),
    "records with an inverse": (appended, Spoiling(), appended_without),
    "accumulators": (Greedy(), Spans(), None),
}


@pytest.mark.parametrize("lateness", [0, 9])
@pytest.mark.parametrize("general", [False, True], ids=["chosen", "general"])
@pytest.mark.parametrize("changing", CHANGING)
@pytest.mark.parametrize("name", ASSIGNERS)
def test_functions_may_change_what_a_window_gives_them(
    tmp_path: Path, name: str, changing: str, general: bool, lateness: int
) -> None:
    assigner, assign, merging = ASSIGNERS[name]
    aggregator, window_function, inverse = CHANGING[changing]
    operation = WindowOperation(
        assigner,
        assigner.get_default_trigger(),
        allowed_lateness=lateness,
        late_tag=LATE,
        aggregator=aggregator,
        inverse=inverse if type(assigner) is SlidingEventTimeWindows else None,
        window_function=window_function,
    )
    for seed in range(sized(2, 30)):
        naive = NaiveWindows(assign, merging, lateness)
        make = WindowOperator if general else make_window
        windows = Windows(operation, tmp_path / str(seed), make, tags=("late",))
        walk(windows, naive, random.Random(seed), record_class=list)
        windows.close()


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("name", ["tumbling", "sliding", "sliding in blocks", "sessions"])
def test_windows_that_are_not_in_memory(tmp_path: Path, name: str, aggregator: str) -> None:
    assigner, assign, merging = ASSIGNERS[name]
    operation = WindowOperation(
        assigner,
        assigner.get_default_trigger(),
        late_tag=LATE,
        aggregator=AGGREGATORS[aggregator],
        window_function=Spans(),
    )
    naive = NaiveWindows(assign, merging)
    windows = Windows(operation, tmp_path, tags=("late",))
    walk(windows, naive, random.Random(5), steps=15, spills=True)
    windows.close()


def walk(
    windows: Windows,
    naive: NaiveWindows,
    rng: random.Random,
    *,
    steps: int = 60,
    spills: bool = False,
    record_class: type = tuple,
) -> None:
    """Take random steps with both implementations, and compare what they emit after each step."""
    now = rng.choice((-60, 0, 1_700_000_000_000))
    for number in range(steps):
        if spills:
            windows.spill()
        step = rng.random()
        if step < 0.6:
            records = [
                ((f"key{rng.randrange(4)}", number * 10 + i), now + rng.randrange(-30, 12))
                for i in range(rng.randrange(sized(2, 30)))
            ]
            expected = [
                fired
                for record, timestamp in records
                for fired in naive.add(record[0], record, timestamp)
            ]
            own = [(record_class(record), timestamp) for record, timestamp in records]
            check(windows.add(*own), expected)
        elif step < 0.9:
            now += rng.randrange(14)
            check(windows.advance(now), naive.advance(now))
        else:
            windows.restart(rng.randrange(1, 4))
    check(windows.advance(MAX_WATERMARK), naive.advance(MAX_WATERMARK))
    assert Counter(tuple(record) for _, record in windows.side) == Counter(naive.late)
    assert windows.size() == 0


def check(emitted: list[Any], expected: list[Any]) -> None:
    results = Counter(
        ((key, *span, tuple(sorted(record[1] for record in records))), time)
        for key, span, records, time in expected
    )
    assert Counter(emitted) == results

"""Programs give the results that they give in PyFlink 2.3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    DataStream,
    GlobalWindows,
    PurgingTrigger,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.functions import ProcessFunction

TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)


def collection(values: Iterable[Any]) -> DataStream:
    return StreamExecutionEnvironment.get_execution_environment().from_collection(list(values))


def times(*values: int) -> DataStream:
    return collection(values).assign_timestamps_and_watermarks(TIMED)


def run(stream: DataStream) -> list[Any]:
    with stream.execute_and_collect(in_process=True) as found:
        return list(found)


class WithTime(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value, ctx.timestamp()


def add(first: int, second: int) -> int:
    return first + second


# ---- the time of the results of windows


def test_a_window_by_count_has_the_time_of_its_last_record():
    sums = times(10, 20, 30, 40).key_by(lambda value: 0).count_window(2).reduce(add)
    assert run(sums.process(WithTime())) == [(30, 20), (70, 40)]
    sliding = times(10, 20, 30, 40).count_window_all(3, 1).reduce(add)
    assert run(sliding.process(WithTime())) == [(60, 30), (90, 40)]


def test_a_window_by_count_without_event_time_gives_none():
    sums = collection([1, 2, 3, 4]).key_by(lambda value: 0).count_window(2).reduce(add)
    assert run(sums.process(WithTime())) == [(3, None), (7, None)]


def test_an_event_time_window_behind_a_window_by_count_is_of_use():
    pairs = times(*range(0, 100, 10)).count_window_all(2).reduce(add)
    counts = pairs.window_all(TumblingEventTimeWindows.of(40))
    found = counts.apply(lambda window, sums: [(window.start, list(sums))])
    assert run(found) == [(0, [10, 50]), (40, [90, 130]), (80, [170])]


def test_a_global_window_has_the_time_of_the_record_that_fires_it():
    windows = times(10, 20, 30, 40).window_all(GlobalWindows.create())
    sums = windows.trigger(PurgingTrigger.of(CountTrigger.of(2))).reduce(add)
    assert run(sums.process(WithTime())) == [(30, 20), (70, 40)]


def test_an_early_firing_has_the_time_of_the_timer():
    windows = times(10, 50, 90, 130).window_all(TumblingEventTimeWindows.of(100))
    sums = windows.trigger(ContinuousEventTimeTrigger.of(30)).reduce(add)
    found = run(sums.process(WithTime()))
    assert {time for _, time in found} >= {30, 60, 90, 99, 199}
    assert found[-1] == (130, 199)

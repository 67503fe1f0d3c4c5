"""The harness drives the real operators: inputs, time, outputs, state and errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from penstock import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    GraphError,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    SlidingEventTimeWindows,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from penstock.testing import OperatorHarness, TimedRecord

LATE = OutputTag("late")


class Words(FlatMapFunction):
    def flat_map(self, value: str) -> list[str]:
        return value.split()


class Lookup(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class Long(FilterFunction):
    def filter(self, value: str) -> bool:
        return len(value) > 2


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


class Named(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return "first", value

    def map2(self, value: Any) -> Any:
        return "second", value


class Flat(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Any:
        return [value] * 2

    def flat_map2(self, value: Any) -> Any:
        return []


def first(pair: Any) -> Any:
    return pair[0]


def run(harness: OperatorHarness, *values: Any) -> list[Any]:
    for value in values:
        harness.process_element(value)
    return harness.extract_output_values()


def test_each_kind_of_function_with_one_input_runs():
    assert run(OperatorHarness(Words()), "to be", "or") == ["to", "be", "or"]
    assert run(OperatorHarness(Long()), "to", "not") == ["not"]
    summed = OperatorHarness(Sum(), key_selector=first)
    assert run(summed, ("a", 1), ("b", 1), ("a", 2)) == [("a", 1), ("b", 1), ("a", 3)]
    assert run(OperatorHarness(lambda s: s.map(str.upper).filter(str.isalpha)), "a", "1") == ["A"]


def test_functions_with_two_inputs_see_which_input_a_record_has():
    harness = OperatorHarness(Named())
    harness.process_element1(1)
    harness.process_element2(2)
    assert harness.extract_output_values() == [("first", 1), ("second", 2)]
    flat = OperatorHarness(Flat(), key_selector=lambda value: value)
    flat.process_element1(1)
    flat.process_element2(2)
    assert flat.extract_output_values() == [1, 1]


class Watermarks(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ctx.timer_service().current_watermark(), ctx.timer_service().current_processing_time()

    process_element2 = process_element1


def test_the_watermark_of_two_inputs_is_the_lower_one():
    harness = OperatorHarness(Watermarks())
    harness.process_watermark1(10)
    harness.process_watermark2(7)
    assert harness.output_watermark == 7
    harness.set_processing_time(99)
    harness.process_element2("x")
    assert harness.extract_output_values() == [(7, 99)]
    assert harness.get_processing_time() == 99
    harness.process_watermark(12)
    assert harness.output_watermark == 12


RULES = MapStateDescriptor("rules")


class Limit(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.values = runtime_context.get_list_state(ListStateDescriptor("values"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.values.add(value[1])
        limit = ctx.get_broadcast_state(RULES).get("limit")
        if limit is not None and sum(self.values.get()) > limit:
            yield ctx.get_current_key()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("limit", value)


def test_each_subtask_emits_its_records_at_once():
    harness = OperatorHarness(lambda stream: stream.map(str), parallelism=3)
    for subtask in (2, 0, 1, 2):
        harness.process_element(subtask, subtask=subtask)
        assert harness.extract_output_values() == [str(subtask)]


def test_keyed_broadcast_state_is_restored_at_another_parallelism():
    harness = OperatorHarness(Limit(), first, broadcast_states=[RULES])
    harness.process_broadcast_element(5)
    assert run(harness, ("a", 3), ("b", 6)) == ["b"]
    for parallelism in (1, 2, 5):
        restored = OperatorHarness.restore(harness.snapshot(), parallelism)
        assert sorted(run(restored, ("a", 3), ("b", 1), ("c", 1))) == ["a", "b"]
        restored.close()


def test_a_record_that_is_late_for_its_window_goes_to_the_side_output():
    def piece(stream: Any) -> Any:
        windows = stream.key_by(first).window(TumblingEventTimeWindows.of(10))
        return windows.side_output_late_data(LATE).reduce(Sum())

    harness = OperatorHarness(piece, side_outputs=[LATE])
    harness.process_elements([(("a", 1), 3), (("a", 2), 9), (("a", 4), 10)])
    harness.process_watermark(9)
    harness.process_element(("a", 7), 8)
    assert harness.extract_output_records() == [TimedRecord(("a", 3), 9)]
    assert harness.get_side_output(LATE) == [("a", 7)]
    harness.end_input()
    assert harness.extract_output_values() == [("a", 4)]


def test_a_window_of_processing_time_fires_when_its_time_is_over():
    harness = OperatorHarness(
        lambda keyed: keyed.window(TumblingProcessingTimeWindows.of(10)).reduce(Sum()),
        key_selector=first,
    )
    harness.set_processing_time(3)
    assert run(harness, ("a", 1), ("a", 2)) == []
    assert harness.num_processing_time_timers() > 0
    harness.set_processing_time(9)
    assert harness.extract_output_values() == []
    harness.set_processing_time(10)
    assert harness.extract_output_values() == [("a", 3)]
    with pytest.raises(GraphError, match="never goes back"):
        harness.set_processing_time(9)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


def test_a_piece_may_have_its_own_watermarks():
    def piece(stream: Any) -> Any:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            lambda pair, _: pair[1]
        )
        timed = stream.assign_timestamps_and_watermarks(strategy).key_by(first)
        return timed.window(SlidingEventTimeWindows.of(10, 5)).aggregate(Mean())

    harness = OperatorHarness(piece)
    assert run(harness, ("a", 1), ("a", 3), ("a", 12)) == []
    harness.set_processing_time(1_000)  # the watermark is emitted periodically
    assert harness.extract_output_values() == [2.0, 2.0]


class Counting(KeyedProcessFunction):
    closed: ClassVar[list[str]] = []

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value, self.count.value()

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield "end", ctx.get_current_key(), self.count.value()

    def close(self) -> None:
        self.closed.append("closed")


def test_the_end_of_the_input_runs_the_hook_for_each_key():
    Counting.closed.clear()
    with OperatorHarness(Counting(), key_selector=lambda word: word) as harness:
        run(harness, "a", "b", "a")
        harness.end_input()
        assert sorted(harness.extract_output_values()) == [("end", "a", 2), ("end", "b", 1)]
        assert not Counting.closed
    assert Counting.closed == ["closed"]


class Grow(ProcessFunction):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.append(value)
        yield self.seen


def test_the_output_keeps_what_a_record_was_when_it_was_emitted():
    assert run(OperatorHarness(Grow()), 1, 2) == [[1], [1, 2]]


def test_output_is_given_once():
    harness = OperatorHarness(lambda stream: stream.map(str))
    assert run(harness, 1) == ["1"]
    assert harness.extract_output_values() == []


def fail(value: int) -> float:
    return 1 / value


def test_an_exception_is_that_of_the_function_with_a_note():
    harness = OperatorHarness(lambda stream: stream.map(fail))
    with pytest.raises(ZeroDivisionError) as caught:
        harness.process_element(0)
    (note,) = caught.value.__notes__
    assert "in operator 'Map'" in note and "record:   0" in note
    assert caught.traceback[-1].name == "fail"
    assert run(harness, 2) == [0.5]  # the harness goes on


class Open(MapFunction):
    def open(self, runtime_context: Any) -> None:
        raise OSError("no database")

    def map(self, value: Any) -> Any:
        return value


def test_an_exception_of_open_comes_at_once():
    with pytest.raises(OSError, match="no database"):
        OperatorHarness(Open())


def test_each_subtask_has_its_own_function_and_keys_are_spread():
    harness = OperatorHarness(Counting(), lambda word: word, parallelism=3)
    words = [f"word {number}" for number in range(20)]
    assert sorted(run(harness, *words, *words)) == sorted(
        (word, count) for word in words for count in (1, 2)
    )
    used = [task for task in harness._tasks if any(True for b in task.backends.values())]
    assert len(used) == 3
    assert harness.num_keyed_state_entries("count") == 20
    assert harness.num_keyed_state_entries("other") == 0


def test_without_keys_the_test_says_which_subtask_gets_a_record():
    harness = OperatorHarness(Grow(), parallelism=2)
    for subtask in (0, 1, 0):
        harness.process_element("x", subtask=subtask)
    assert harness.extract_output_values() == [["x"], ["x"], ["x", "x"]]
    with pytest.raises(GraphError, match="no subtask 2"):
        harness.process_element("x", subtask=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OperatorHarness(Counting()), "key_selector"),
        (lambda: OperatorHarness(Counting), "Counting"),
        (lambda: OperatorHarness(Mean()), "piece of a program"),
        (lambda: OperatorHarness(Limit(), first), "broadcast_states"),
        (lambda: OperatorHarness(lambda a, b, c: a), "takes 3 arguments"),
        (lambda: OperatorHarness(lambda s: loop(s)), "cannot run loops"),
        (lambda: OperatorHarness(lambda s: requests(s)), "cannot run asynchronous requests"),
    ],
)
def test_a_mistake_is_explained(make: Any, message: str):
    with pytest.raises(GraphError, match=message):
        make()


def loop(stream: Any) -> Any:
    iteration = stream.iterate()
    return iteration.close_with(iteration.map(lambda n: n - 1).filter(lambda n: n > 0))


def requests(stream: Any) -> Any:
    return AsyncDataStream.unordered_wait(stream, Lookup(), Time.seconds(1), 10)


def test_an_unknown_input_side_output_or_watermark_is_refused():
    harness = OperatorHarness(Words())
    with pytest.raises(GraphError, match="no input 1"):
        harness.process_element2("x")
    with pytest.raises(GraphError, match="side_outputs"):
        harness.get_side_output(LATE)
    harness.process_watermark(5)
    with pytest.raises(GraphError, match="never goes back"):
        harness.process_watermark(4)


def test_a_debugger_sees_each_call_of_a_small_function():
    lines: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == __file__ and event == "line":
            lines.append(frame.f_code.co_name)
        return trace

    harness = OperatorHarness(lambda stream: stream.map(Named().map1).map(first))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        harness.process_element(1)
    finally:
        sys.settrace(before)
    assert lines.count("map1") == lines.count("first") == 1


def test_a_window_join_of_two_inputs_runs_as_a_piece():
    def piece(orders: Any, prices: Any) -> Any:
        joined = orders.join(prices).where(first).equal_to(first)
        windows = joined.window(TumblingEventTimeWindows.of(10))
        return windows.apply(lambda order, price: (order[0], order[1] * price[1]))

    harness = OperatorHarness(piece)
    harness.process_element1(("tea", 2), 3)
    harness.process_element2(("tea", 5), 7)
    harness.process_element2(("tea", 6), 12)
    restored = OperatorHarness.restore(harness.snapshot(), parallelism=2)
    restored.process_watermark1(20)
    assert restored.extract_output_values() == []
    restored.process_watermark2(9)
    assert restored.extract_output_records() == [TimedRecord(("tea", 10), 9)]

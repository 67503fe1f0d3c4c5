"""Where Flink's windows have a corner, ours have the same one."""

from __future__ import annotations

import operator
import random
from collections import Counter
from itertools import chain, groupby
from typing import Any, NamedTuple

import pytest

from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.state import (
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from penstock.dataflow.time import MAX_WATERMARK, NO_TIMESTAMP
from penstock.dataflow.windows import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    DeltaEvictor,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Window,
    WindowAssigner,
    WindowFunction,
    WindowOperation,
)
from penstock.runtime.operators.windowing.window_operator import WindowOperator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from tests.runtime.operators.windowing.harness import Windows

LATE = OutputTag("late")


class Listing(ProcessWindowFunction):
    """Emits the window and the list of its records' values."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        span = (window.start, window.end) if isinstance(window, TimeWindow) else tuple(window)
        yield key, span, [value for _, value in elements]


@pytest.fixture
def run(tmp_path):
    """Makes windows over an assigner, with the default trigger unless one is given."""
    made = []

    def make(assigner: Any, trigger: Any = None, *, general: bool = False, **options: Any) -> Any:
        options.setdefault("window_function", Listing())
        operation = WindowOperation(
            assigner, trigger or assigner.get_default_trigger(), late_tag=LATE, **options
        )
        folder = tmp_path / str(len(made))
        chosen = {"make": WindowOperator} if general else {}
        made.append(Windows(operation, folder, tags=("late", "other"), **chosen))
        return made[-1]

    yield make
    for each in made:
        each.close()


def a(value: Any, timestamp: int) -> Any:
    return ("a", value), timestamp


def results(emitted: Any) -> list[Any]:
    return [result for result, _ in emitted]


# ---- time


@pytest.mark.parametrize("general", [False, True])
def test_a_record_on_the_border_belongs_to_the_next_window(run, general):
    windows = run(TumblingEventTimeWindows.of(10), general=general)
    windows.add(a(1, 9), a(2, 10))
    assert windows.advance(8) == []
    assert windows.advance(9) == [(("a", (0, 10), [1]), 9)]
    assert windows.advance(19) == [(("a", (10, 20), [2]), 19)]


@pytest.mark.parametrize("general", [False, True])
def test_windows_before_the_epoch(run, general):
    windows = run(TumblingEventTimeWindows.of(10), general=general)
    windows.add(a(1, -1), a(2, -10), a(3, -11), a(4, 0))
    assert results(windows.advance(-1)) == [("a", (-20, -10), [3]), ("a", (-10, 0), [1, 2])]


@pytest.mark.parametrize("general", [False, True])
def test_the_last_watermark_fires_all_windows(run, general):
    windows = run(SlidingEventTimeWindows.of(4, 2), general=general)
    windows.add(a(1, 0), a(2, 3))
    spans = [(("a", (start, start + 4)), start + 3) for start in (-2, 0, 2)]
    fired = windows.advance(MAX_WATERMARK)
    assert [(result[:2], timestamp) for result, timestamp in fired] == spans
    assert windows.size() == 0


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(10, 5),
        EventTimeSessionWindows.with_gap(10),
    ],
)
def test_a_record_without_a_timestamp_is_an_error(run, assigner, general):
    windows = run(assigner, general=general, aggregator=lambda one, two: one)
    with pytest.raises(JobError, match="without a timestamp"):
        windows.add(a(1, NO_TIMESTAMP))


# ---- late records


@pytest.mark.parametrize("general", [False, True])
def test_a_late_record_within_the_lateness_fires_again(run, general):
    windows = run(TumblingEventTimeWindows.of(10), allowed_lateness=5, general=general)
    windows.add(a(1, 3))
    assert results(windows.advance(12)) == [("a", (0, 10), [1])]
    assert windows.add(a(2, 4), a(3, 5)) == [
        (("a", (0, 10), [1, 2]), 4),
        (("a", (0, 10), [1, 2, 3]), 5),
    ]
    assert windows.advance(14) == []
    assert windows.size() == 0
    assert windows.add(a(4, 6)) == []
    assert windows.side == [("late", ("a", 4))]


@pytest.mark.parametrize("general", [False, True])
def test_a_record_that_is_late_for_some_windows_only_is_no_late_data(run, general):
    windows = run(SlidingEventTimeWindows.of(10, 5), general=general)
    windows.advance(9)
    windows.add(a(1, 7))
    assert windows.side == []
    assert results(windows.advance(14)) == [("a", (5, 15), [1])]


@pytest.mark.parametrize("general", [False, True])
def test_a_record_that_is_late_for_all_windows_is_late_data_once(run, general):
    windows = run(SlidingEventTimeWindows.of(10, 5), general=general)
    windows.advance(14)
    windows.add(a(1, 4))
    assert windows.side == [("late", ("a", 1))]


@pytest.mark.parametrize("general", [False, True])
def test_a_late_record_that_a_session_takes_is_not_late(run, general):
    windows = run(
        EventTimeSessionWindows.with_gap(10),
        general=general,
        aggregator=lambda one, two: (one[0], one[1] + two[1]),
    )
    windows.add(a(1, 20))
    windows.advance(25)
    windows.add(a(2, 12))  # its own window would end at 22
    assert windows.side == []
    windows.add(a(4, 1))
    assert windows.side == [("late", ("a", 4))]
    assert results(windows.advance(29)) == [("a", (12, 30), [3])]


def test_an_inverse_takes_records_that_a_lower_watermark_lets_in(run):
    emitted = []
    for inverse in (None, lambda total, leaving: (total[0], total[1] - leaving[1])):
        windows = run(
            SlidingEventTimeWindows.of(20, 5),
            aggregator=lambda one, two: (one[0], one[1] + two[1]),
            inverse=inverse,
        )
        windows.add(a(1, 1), a(2, 8), a(4, 13), a(8, 22))
        windows.advance(19)
        windows.watermark = 11  # the least watermark of several subtasks
        windows.restart(2)
        windows.add(a(16, 12), a(32, 24))
        emitted.append(results(windows.advance(MAX_WATERMARK)))
    assert emitted[0] == emitted[1]
    assert [total for *_, [total] in emitted[0]] == [62, 60, 40, 40]


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("aggregated", [False, True])
@pytest.mark.parametrize("slide", [10, 5, 3])
def test_a_record_that_a_lower_watermark_lets_in_fires_its_windows(run, slide, aggregated, general):
    options: Any = {"allowed_lateness": 50}
    if aggregated:
        options["aggregator"] = lambda one, two: (one[0], [*one[1], *two[1]])
    windows = run(SlidingEventTimeWindows.of(10, slide), general=general, **options)
    windows.add(a([1], 85), a([2], 110))
    windows.advance(93)
    windows.watermark = 60  # the least watermark of several subtasks
    windows.restart(2)
    windows.restart(1)
    emitted = windows.add(a([3], 86), a([4], 61))
    emitted += windows.advance(89)
    emitted += windows.add(a([5], 91))
    emitted += windows.advance(MAX_WATERMARK)
    fired: dict[Any, list[Any]] = {}
    for _, span, values in results(emitted):
        fired.setdefault(span, []).extend(chain.from_iterable(values))
    for value, time in ((3, 86), (4, 61), (5, 91), (2, 110)):
        spans = [
            tuple(each) for each in SlidingEventTimeWindows.of(10, slide).windows_at(time, None)
        ]
        assert all(value in fired[span] for span in spans), (value, fired)


@pytest.mark.parametrize("seed", range(20))
def test_tumbling_windows_are_the_same_after_a_lower_watermark(run, seed):
    rng = random.Random(seed)
    options = {"allowed_lateness": rng.choice([0, 30])}
    ours = run(TumblingEventTimeWindows.of(10), **options)
    theirs = run(TumblingEventTimeWindows.of(10), general=True, **options)
    now = 0
    for number in range(60):
        choice = rng.random()
        if choice < 0.6:
            record = ((rng.choice("ab"), number), now + rng.randrange(-40, 20))
            assert results(ours.add(record)) == results(theirs.add(record)), seed
        elif choice < 0.85:
            now += rng.randrange(15)
            assert Counter(map(repr, ours.advance(now))) == Counter(map(repr, theirs.advance(now)))
        else:
            now -= rng.choice([0, 5, 25])
            for each in (ours, theirs):
                each.watermark = now
                each.restart(rng.randrange(1, 3))
    emitted = [each.advance(MAX_WATERMARK) for each in (ours, theirs)]
    assert Counter(map(repr, emitted[0])) == Counter(map(repr, emitted[1])), seed


class _Items(NamedTuple):
    name: str
    end: int


class Shift(_Items, Window):
    """A window of a class of its own."""

    def max_timestamp(self):
        return self.end - 1


class Shifts(WindowAssigner):
    """Assigns two windows of ten milliseconds, one after the other."""

    def assign_windows(self, element, timestamp, context):
        number = timestamp // 10
        return [Shift("early" if number % 2 == 0 else "late", number * 10 + 10)]

    def get_default_trigger(self, env=None):
        return EventTimeTrigger.create()

    def is_event_time(self):
        return True


def test_windows_of_a_class_of_the_program(tmp_path):
    operation = WindowOperation(Shifts(), EventTimeTrigger.create(), window_function=Listing())
    windows = Windows(operation, tmp_path, codec=Codec(TypeRegistry([Shift])))
    windows.add(a(1, 3), a(2, 12), a(3, 4))
    windows.restart(2)
    assert results(windows.advance(MAX_WATERMARK)) == [
        ("a", ("early", 10), [1, 3]),
        ("a", ("late", 20), [2]),
    ]
    assert windows.size() == 0
    windows.close()


# ---- sessions


@pytest.mark.parametrize("general", [False, True])
def test_sessions_that_touch_are_one(run, general):
    windows = run(
        EventTimeSessionWindows.with_gap(10),
        general=general,
        aggregator=lambda one, two: (one[0], one[1] + two[1]),
    )
    windows.add(a(1, 0), a(2, 21), a(4, 10))
    assert results(windows.advance(MAX_WATERMARK)) == [("a", (0, 20), [5]), ("a", (21, 31), [2])]
    windows = run(
        EventTimeSessionWindows.with_gap(10),
        general=general,
        aggregator=lambda one, two: (one[0], one[1] + two[1]),
    )
    windows.add(a(1, 0), a(2, 20), a(4, 10))
    assert results(windows.advance(MAX_WATERMARK)) == [("a", (0, 30), [7])]


def test_a_merged_session_that_fires_and_purges_begins_empty(run):
    windows = run(
        EventTimeSessionWindows.with_gap(10),
        PurgingTrigger.of(EventTimeTrigger.create()),
        allowed_lateness=20,
    )
    windows.add(a(1, 0), a(2, 15), a(3, 8))
    assert results(windows.advance(24)) == [("a", (0, 25), [1, 2, 3])]
    # The session still exists, but its records do not.
    assert results(windows.add(a(4, 14))) == [("a", (0, 25), [4])]
    assert windows.add(a(5, 20)) == []
    assert results(windows.advance(29)) == [("a", (0, 30), [5])]
    assert windows.advance(49) == []
    assert windows.size() == 0


def test_a_trigger_keeps_its_state_when_sessions_merge(run):
    windows = run(EventTimeSessionWindows.with_gap(10), PurgingTrigger.of(CountTrigger.of(3)))
    windows.add(a(1, 0), a(2, 15))
    windows.restart(2)
    assert results(windows.add(a(3, 8))) == [("a", (0, 25), [1, 2, 3])]
    windows.advance(MAX_WATERMARK)
    assert windows.size() == 0


class Largest(Trigger):
    """Fires when a session has a value of at least 10. It keeps all values in its own state."""

    values = ListStateDescriptor("values")
    sum = ReducingStateDescriptor("sum", operator.add)

    def on_element(self, element, timestamp, window, ctx):
        ctx.get_partitioned_state(self.values).add(element[1])
        total = ctx.get_partitioned_state(self.sum)
        total.add(element[1])
        return TriggerResult.FIRE if total.get() >= 10 else TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self.values)
        ctx.merge_partitioned_state(self.sum)

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self.values).clear()
        ctx.get_partitioned_state(self.sum).clear()


def test_the_state_of_a_custom_trigger_merges(run):
    windows = run(EventTimeSessionWindows.with_gap(10), Largest())
    assert windows.add(a(4, 0), a(5, 15)) == []
    windows.restart(3)
    assert results(windows.add(a(1, 8))) == [("a", (0, 25), [4, 5, 1])]
    windows.advance(MAX_WATERMARK)
    assert windows.size() == 0


def test_merging_windows_have_no_state_of_their_own(run):
    class Using(ProcessWindowFunction):
        def process(self, key, context, elements):
            return [context.window_state().get_state(ValueStateDescriptor("x")).value()]

    windows = run(EventTimeSessionWindows.with_gap(10), window_function=Using())
    windows.add(a(1, 0))
    with pytest.raises(GraphError, match="windows that merge"):
        windows.advance(100)


# ---- triggers


def test_a_count_trigger_fires_again_and_keeps_records(run):
    windows = run(GlobalWindows.create(), CountTrigger.of(2))
    emitted = windows.add(a(1, 0), a(2, 1), a(3, 2), a(4, 3))
    assert emitted == [
        (("a", (), [1, 2]), 1),
        (("a", (), [1, 2, 3, 4]), 3),
    ]


def test_a_continuous_trigger_fires_at_intervals_and_at_the_end(run):
    windows = run(TumblingEventTimeWindows.of(100), ContinuousEventTimeTrigger.of(40))
    windows.add(a(1, 10))
    assert results(windows.advance(40)) == [("a", (0, 100), [1])]
    windows.add(a(2, 60))
    windows.restart(2)
    assert results(windows.advance(85)) == [("a", (0, 100), [1, 2])]
    assert results(windows.advance(99)) == [("a", (0, 100), [1, 2])]
    assert windows.size() == 0


def test_a_trigger_by_processing_time_on_windows_by_event_time(run):
    windows = run(TumblingEventTimeWindows.of(100), ContinuousProcessingTimeTrigger.of(40))
    windows.now = 1005
    windows.add(a(1, 10))
    assert windows.tick(1039) == []
    assert results(windows.tick(1040)) == [("a", (0, 100), [1])]
    windows.advance(99)
    assert windows.size() == 0
    assert windows.tick(2000) == []


def test_records_in_a_window_without_end_stay_after_the_last_watermark(run):
    windows = run(GlobalWindows.create())
    windows.add(a(1, 0))
    assert windows.advance(MAX_WATERMARK) == []


# ---- count windows


def test_count_windows_fire_when_they_are_full(run):
    windows = run(CountTumblingWindowAssigner.of(2))
    windows.add(a(1, 0), (("b", 9), 0))
    windows.restart(2)
    assert results(windows.add(a(2, 0), a(3, 0), a(4, 0), a(5, 0))) == [
        ("a", (0,), [1, 2]),
        ("a", (1,), [3, 4]),
    ]


def test_sliding_count_windows(run):
    windows = run(CountSlidingWindowAssigner.of(3, 2))
    emitted = windows.add(*(a(number, 0) for number in range(8)))
    assert results(emitted) == [
        ("a", (0,), [0, 1, 2]),
        ("a", (1,), [2, 3, 4]),
        ("a", (2,), [4, 5, 6]),
    ]


# ---- evictors


def test_an_evictor_removes_records_before_the_function(run):
    windows = run(GlobalWindows.create(), CountTrigger.of(2), evictor=CountEvictor.of(3))
    emitted = windows.add(*(a(number, 0) for number in range(6)))
    assert [result[2] for result in results(emitted)] == [[0, 1], [1, 2, 3], [3, 4, 5]]


def test_an_evictor_removes_records_after_the_function(run):
    evictor = CountEvictor.of(1, do_evict_after=True)
    windows = run(GlobalWindows.create(), CountTrigger.of(2), evictor=evictor)
    emitted = windows.add(*(a(number, 0) for number in range(6)))
    assert [result[2] for result in results(emitted)] == [[0, 1], [1, 2, 3], [3, 4, 5]]


def test_an_evictor_of_time_keeps_the_newest(run):
    windows = run(TumblingEventTimeWindows.of(100), evictor=TimeEvictor.of(10))
    windows.add(a(1, 10), a(2, 60), a(3, 55), a(4, 50))
    windows.restart(2)
    assert results(windows.advance(99)) == [("a", (0, 100), [2, 3])]


def test_an_evictor_of_differences_and_an_aggregate(run):
    evictor = DeltaEvictor.of(5, lambda record, last: abs(record[1] - last[1]))
    windows = run(
        TumblingEventTimeWindows.of(100),
        evictor=evictor,
        aggregator=lambda one, two: (one[0], one[1] + two[1]),
    )
    windows.add(a(1, 10), a(20, 60), a(18, 55), a(17, 50))
    assert results(windows.advance(99)) == [("a", (0, 100), [55])]


# ---- functions


class Average(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += value[1]
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return [a[0] + b[0], a[1] + b[1]]


def test_an_aggregate_without_a_window_function_emits_its_result(run):
    windows = run(TumblingEventTimeWindows.of(10), aggregator=Average(), window_function=None)
    windows.add(a(1, 0), a(2, 1))
    assert windows.advance(9) == [(1.5, 9)]


def test_a_merge_that_is_empty_is_never_called_for_sliding_windows(run):
    class NoMerge(Average):
        def merge(self, a, b):
            pass

    windows = run(SlidingEventTimeWindows.of(10, 5), aggregator=NoMerge(), window_function=None)
    assert isinstance(windows.subtasks[0], WindowOperator)
    windows.add(a(1, 2), a(2, 7))
    assert results(windows.advance(MAX_WATERMARK)) == [1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    "assigner", [SlidingEventTimeWindows.of(10, 5), EventTimeSessionWindows.with_gap(6)]
)
def test_a_merge_that_is_empty_is_an_error_where_it_is_called(run, assigner):
    class NoMerge(Average):
        merges_panes = True

        def merge(self, a, b):
            pass

    windows = run(assigner, aggregator=NoMerge(), window_function=None)
    with pytest.raises(JobError, match=r"NoMerge\.merge returned None"):
        windows.add(a(1, 2), a(2, 12), a(3, 7))
        windows.advance(MAX_WATERMARK)


class States(ProcessWindowFunction):
    """Counts how often a window and a key have fired."""

    fired = ValueStateDescriptor("fired")

    def process(self, key, context, elements):
        ours = context.window_state().get_state(self.fired)
        all_windows = context.global_state().get_state(self.fired)
        ours.update((ours.value() or 0) + 1)
        all_windows.update((all_windows.value() or 0) + 1)
        yield context.window().start, ours.value(), all_windows.value()
        yield OutputTag("other"), (context.current_watermark(), context.current_processing_time())

    def clear(self, context):
        context.window_state().get_state(self.fired).clear()


@pytest.mark.parametrize("lateness", [0, 5])
def test_a_function_has_state_for_each_window_and_for_each_key(run, lateness):
    windows = run(
        TumblingEventTimeWindows.of(10), window_function=States(), allowed_lateness=lateness
    )
    windows.now = 77
    windows.add(a(1, 0), a(2, 11))
    assert results(windows.advance(10)) == [(0, 1, 1)]
    assert windows.side == [("other", (10, 77))]
    windows.restart(2)
    again = results(windows.add(a(3, 5)))
    assert again == ([(0, 2, 2)] if lateness else [])
    assert results(windows.advance(MAX_WATERMARK)) == [(10, 1, 3 if lateness else 2)]
    assert windows.size() == 1  # the state of the key


def test_functions_for_streams_without_keys(run):
    class All(ProcessAllWindowFunction):
        def process(self, context, elements):
            yield context.window().end, len(list(elements))

    windows = run(TumblingEventTimeWindows.of(10), window_function=All(), keyed=False)
    windows.add(a(1, 0), a(2, 1))
    assert windows.advance(9) == [((10, 2), 9)]
    windows = run(
        TumblingEventTimeWindows.of(10),
        window_function=lambda window, records: [(window.start, len(records))],
        keyed=False,
    )
    windows.add(a(1, 0))
    assert windows.advance(9) == [((0, 1), 9)]


def test_apply_gets_the_key_and_the_window(run):
    class Applied(WindowFunction):
        def apply(self, key, window, inputs):
            return [(key, window, list(inputs))]

    windows = run(TumblingEventTimeWindows.of(10), window_function=Applied())
    windows.add(a(1, 0))
    assert results(windows.advance(9)) == [("a", TimeWindow(0, 10), [("a", 1)])]


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("slide", [10, 5])
def test_a_result_that_the_state_keeps_is_copied(run, slide, general):
    windows = run(
        SlidingEventTimeWindows.of(10, slide),
        general=general,
        allowed_lateness=50,
        aggregator=lambda one, two: (one[0], one[1] + two[1]),
        window_function=None,
    )
    windows.add(a([1], 1), a([2], 2))
    for emitted, _ in windows.advance(20):
        emitted[1].append(99)
    assert results(windows.add(a([3], 3))) == [("a", [1, 2, 3])] * (10 // slide)


class Drained(AggregateFunction):
    """Returns the values in order, and empties its accumulator."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator):
        taken = sorted(accumulator)
        accumulator.clear()
        return "a", taken

    def merge(self, a, b):
        return a + b


class Spoiled(ProcessWindowFunction):
    """Changes the records that it is given."""

    def process(self, key, context, elements):
        yield "a", [value[0] for _, value in elements]
        for _, value in elements:
            value[0] = "spoiled"


def test_a_reduce_function_may_change_the_record_that_it_adds(run):
    def add(total, record):
        total[1] += record[1]
        record[1] = 1000
        return total

    windows = run(
        SlidingEventTimeWindows.of(10, 5), general=True, aggregator=add, window_function=None
    )
    windows.add((["a", 1], 6), (["a", 2], 7), (["a", 3], 8))
    assert results(windows.advance(14)) == [["a", 6], ["a", 6]]


#: Triggers that fire windows again, with what fires them.
REPEATED = {
    "count": (GlobalWindows.create(), CountTrigger.of(1), []),
    "continuous": (TumblingEventTimeWindows.of(100), ContinuousEventTimeTrigger.of(20), [40]),
    "sessions": (EventTimeSessionWindows.with_gap(50), ContinuousEventTimeTrigger.of(20), [40]),
}


@pytest.mark.parametrize("evictor", [None, CountEvictor.of(100)])
@pytest.mark.parametrize("name", REPEATED)
def test_a_second_firing_sees_no_changes_of_the_first(run, name, evictor):
    assigner, trigger, advance = REPEATED[name]
    for options, values in (
        ({"aggregator": Drained(), "window_function": None}, [1, 2]),
        ({"window_function": Spoiled()}, [[1], [2]]),
    ):
        windows = run(assigner, trigger, evictor=evictor, **options)
        emitted = []
        for value, time in zip(values, (10, 60), strict=True):
            emitted += windows.add(a(value, time))
            emitted += [each for to in advance for each in windows.advance(to + time - 10)]
            windows.restart(1)
        assert [each for each, _ in groupby(results(emitted))] == [("a", [1]), ("a", [1, 2])]


# ---- processing time


def test_windows_by_processing_time(run):
    windows = run(TumblingProcessingTimeWindows.of(10))
    windows.now = 13
    windows.add(a(1, 0))
    windows.restart(2)
    assert windows.advance(MAX_WATERMARK) == []
    assert windows.tick(18) == []
    assert windows.tick(19) == [(("a", (10, 20), [1]), 19)]
    assert windows.size() == 0
    windows = run(SlidingProcessingTimeWindows.of(10, 5))
    windows.now = 13
    windows.add(a(1, 0))
    assert [span for _, span, _ in results(windows.tick(100))] == [(5, 15), (10, 20)]


@pytest.mark.parametrize("general", [False, True])
def test_sessions_by_processing_time(run, general):
    windows = run(
        ProcessingTimeSessionWindows.with_gap(10),
        general=general,
        aggregator=lambda one, two: (one[0], one[1] + two[1]),
    )
    windows.now = 13
    windows.add(a(1, 0))
    assert windows.tick(20) == []
    windows.add(a(2, 0))
    assert windows.tick(29) == []
    windows.restart(2)
    assert results(windows.tick(30)) == [("a", (13, 31), [3])]
    assert windows.size() == 0


def test_a_clock_that_is_set_back_opens_no_window_again(run):
    windows = run(TumblingProcessingTimeWindows.of(10))
    windows.now = 13
    windows.add(a(1, 0))
    assert results(windows.tick(19)) == [("a", (10, 20), [1])]
    windows.now = 15
    windows.add(a(2, 0))
    assert windows.tick(28) == []
    assert results(windows.tick(29)) == [("a", (20, 30), [2])]

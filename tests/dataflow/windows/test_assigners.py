"""Which windows a record belongs to: at borders, with offsets, before the epoch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from penstock import (
    NO_TIMESTAMP,
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CountWindow,
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    GraphError,
    JobError,
    MergingWindowAssigner,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueState,
    Window,
    WindowAssigner,
)


class Clock(WindowAssigner.WindowAssignerContext):
    """A context with a fixed time, and one key with its state."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self.values: dict[str, Any] = {}

    def get_current_processing_time(self) -> int:
        return self.now

    def get_runtime_context(self) -> Any:
        return self

    def get_state(self, descriptor: Any) -> ValueState:
        values, name = self.values, descriptor.get_name()

        class State(ValueState):
            def value(self) -> Any:
                return values.get(name)

            def update(self, value: Any) -> None:
                values[name] = value

            def clear(self) -> None:
                del values[name]

        return State()


def windows(assigner: WindowAssigner, time: int, element: Any = None) -> list[Any]:
    """Return the windows of a record at a time, of whichever kind the assigner uses."""
    timestamp = time if assigner.is_event_time() else NO_TIMESTAMP
    return list(assigner.assign_windows(element, timestamp, Clock(time)))


TUMBLING = (TumblingEventTimeWindows, TumblingProcessingTimeWindows)
SLIDING = (SlidingEventTimeWindows, SlidingProcessingTimeWindows)


@pytest.mark.parametrize("kind", TUMBLING)
@pytest.mark.parametrize(
    ("time", "offset", "start"),
    [
        (0, 0, 0),
        (9, 0, 0),
        (10, 0, 10),
        (-1, 0, -10),
        (-10, 0, -10),
        (-11, 0, -20),
        (0, 3, -7),
        (2, 3, -7),
        (3, 3, 3),
        (0, -3, -3),
        (6, -3, -3),
        (7, -3, 7),
        (-4, -3, -13),
    ],
)
def test_a_record_on_the_border_belongs_to_the_later_window(kind: Any, time, offset, start):
    assert windows(kind.of(10, offset), time) == [TimeWindow(start, start + 10)]


@pytest.mark.parametrize("kind", SLIDING)
def test_sliding_windows_contain_the_record_the_latest_first(kind: Any):
    assert windows(kind.of(10, 5), 5) == [TimeWindow(5, 15), TimeWindow(0, 10)]
    assert windows(kind.of(10, 5), 4) == [TimeWindow(0, 10), TimeWindow(-5, 5)]
    assert windows(kind.of(10, 5), -1) == [TimeWindow(-5, 5), TimeWindow(-10, 0)]
    assert windows(kind.of(10, 5, 1), 5) == [TimeWindow(1, 11), TimeWindow(-4, 6)]


@pytest.mark.parametrize("kind", SLIDING)
def test_a_record_between_two_windows_belongs_to_none(kind: Any):
    assert windows(kind.of(2, 5), 1) == [TimeWindow(0, 2)]
    assert windows(kind.of(2, 5), 2) == []
    assert windows(kind.of(2, 5), 4) == []


@pytest.mark.parametrize("kind", SLIDING)
def test_sliding_windows_are_the_same_as_by_their_definition(kind: Any):
    seed = 11
    draw = random.Random(seed)
    for _ in range(300):
        size, slide = draw.randint(1, 40), draw.randint(1, 40)
        offset = draw.randrange(-slide + 1, slide)
        time = draw.randrange(-200, 200)
        every = (
            TimeWindow(offset + n * slide, offset + n * slide + size) for n in range(-500, 500)
        )
        expected = [window for window in every if window.start <= time < window.end]
        found = windows(kind.of(size, slide, offset), time)
        assert sorted(found) == expected, (seed, size, slide, offset, time)


def test_windows_with_equal_size_and_slide_tumble():
    assert windows(SlidingEventTimeWindows.of(10, 10), 7) == [TimeWindow(0, 10)]


def test_a_day_can_begin_at_midnight_elsewhere():
    days = TumblingEventTimeWindows.of(Time.days(1), Time.hours(-8))
    midnight_in_beijing = 1_700_000_000_000 // 86_400_000 * 86_400_000 - 8 * 3_600_000
    assert windows(days, midnight_in_beijing)[0].start == midnight_in_beijing


SESSIONS: tuple[Any, ...] = (EventTimeSessionWindows, ProcessingTimeSessionWindows)


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_session_begins_with_its_record(kind: Any):
    assert windows(kind.with_gap(10), -3) == [TimeWindow(-3, 7)]


class SecondField(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return int(element[1])


@pytest.mark.parametrize(
    "assigner",
    [
        EventTimeSessionWindows.with_dynamic_gap(SecondField()),
        DynamicEventTimeSessionWindows.with_dynamic_gap(lambda element: element[1]),
        ProcessingTimeSessionWindows.with_dynamic_gap(SecondField()),
        DynamicProcessingTimeSessionWindows.with_dynamic_gap(lambda element: element[1]),
    ],
)
def test_the_gap_can_depend_on_the_record(assigner: WindowAssigner):
    assert windows(assigner, 5, ("a", 3)) == [TimeWindow(5, 8)]
    with pytest.raises(JobError, match=r"the extractor of Dynamic.* returned 0"):
        windows(assigner, 5, ("a", 0))


class Merged(MergingWindowAssigner.MergeCallback):
    def __init__(self) -> None:
        self.groups: dict[TimeWindow, list[TimeWindow]] = {}

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.groups[merge_result] = list(to_be_merged)


def test_sessions_that_touch_become_one():
    merged = Merged()
    parts = [TimeWindow(20, 30), TimeWindow(0, 10), TimeWindow(10, 19), TimeWindow(40, 50)]
    EventTimeSessionWindows.with_gap(10).merge_windows(parts, merged)
    assert merged.groups == {TimeWindow(0, 19): [TimeWindow(0, 10), TimeWindow(10, 19)]}


def test_a_window_that_covers_others_merges_all_of_them():
    merged = Merged()
    parts = [TimeWindow(0, 100), TimeWindow(10, 20), TimeWindow(50, 60), TimeWindow(100, 101)]
    EventTimeSessionWindows.with_gap(10).merge_windows(parts, merged)
    assert merged.groups == {TimeWindow(0, 101): parts}


def test_merged_sessions_are_the_unions_of_their_times():
    seed = 3
    draw = random.Random(seed)
    for _ in range(200):
        starts = [draw.randrange(-50, 50) for _ in range(draw.randint(1, 12))]
        parts = [TimeWindow(start, start + draw.randint(1, 8)) for start in starts]
        merged = Merged()
        EventTimeSessionWindows.with_gap(1).merge_windows(parts, merged)
        inside = {time for window in parts for time in range(window.start, window.end + 1)}
        alone = [w for w in parts if not any(w in group for group in merged.groups.values())]
        results = [*merged.groups, *alone]
        covered = {time for window in results for time in range(window.start, window.end + 1)}
        assert covered == inside, (seed, parts)
        for one in set(results):
            assert not any(one != two and one.intersects(two) for two in results), (seed, parts)


def test_count_windows_are_numbered():
    clock = Clock()
    tumbling = CountTumblingWindowAssigner.of(3)
    found = [list(tumbling.assign_windows(None, NO_TIMESTAMP, clock)) for _ in range(7)]
    assert found == [[CountWindow(number // 3)] for number in range(7)]
    clock = Clock()
    sliding = CountSlidingWindowAssigner.of(4, 2)
    found = [list(sliding.assign_windows(None, NO_TIMESTAMP, clock)) for _ in range(6)]
    ids = [[window.id for window in each] for each in found]
    assert ids == [[0], [0], [1, 0], [1, 0], [2, 1], [2, 1]]


@pytest.mark.parametrize(("size", "slide"), [(1, 1), (5, 2), (6, 3), (2, 5), (7, 1), (3, 3)])
def test_each_sliding_count_window_gets_its_records(size: int, slide: int):
    clock, contents = Clock(), dict[int, list[int]]()
    assigner = CountSlidingWindowAssigner.of(size, slide)
    for number in range(40):
        for window in assigner.assign_windows(None, NO_TIMESTAMP, clock):
            contents.setdefault(window.id, []).append(number)
    for id, records in contents.items():
        begin = id * slide
        assert records == list(range(begin, min(begin + size, 40)))


def test_the_global_window_has_all_records():
    assert windows(GlobalWindows.create(), 5) == [GlobalWindow.get()]
    assert GlobalWindow() == GlobalWindow() and len({GlobalWindow(), GlobalWindow()}) == 1


@pytest.mark.parametrize("kind", [TumblingEventTimeWindows, SlidingEventTimeWindows])
def test_a_record_without_a_timestamp_is_refused(kind: Any):
    assigner = kind(10, 0) if kind is TumblingEventTimeWindows else kind(10, 5)
    with pytest.raises(
        JobError, match=r"assign_timestamps_and_watermarks\(...\) before the window"
    ):
        windows(assigner, NO_TIMESTAMP)
    with pytest.raises(JobError, match="a record without a timestamp"):
        windows(EventTimeSessionWindows.with_gap(5), NO_TIMESTAMP)


def test_each_assigner_has_its_default_trigger():
    event = (TumblingEventTimeWindows.of(5), SlidingEventTimeWindows.of(5, 1))
    clock = (TumblingProcessingTimeWindows.of(5), SlidingProcessingTimeWindows.of(5, 1))
    for assigner in (*event, EventTimeSessionWindows.with_gap(5)):
        assert isinstance(assigner.get_default_trigger(), EventTimeTrigger)
        assert assigner.is_event_time()
    for assigner in (*clock, ProcessingTimeSessionWindows.with_gap(5)):
        assert isinstance(assigner.get_default_trigger(), ProcessingTimeTrigger)
        assert not assigner.is_event_time()
    assert isinstance(GlobalWindows.create().get_default_trigger(), NeverTrigger)
    assert isinstance(CountTumblingWindowAssigner.of(5).get_default_trigger(), PurgingTrigger)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingEventTimeWindows.of(0), "the size of Tumbling.* at least 1 ms, not 0 ms"),
        (lambda: TumblingProcessingTimeWindows.of(Time.seconds(0)), "at least 1 ms"),
        (lambda: TumblingEventTimeWindows.of("1 h"), "write 3600000"),
        (lambda: TumblingEventTimeWindows.of(10, 10), "shorter than the size of 10 ms, and is 10"),
        (lambda: TumblingEventTimeWindows.of(10, -10), "shorter than the size"),
        (lambda: SlidingEventTimeWindows.of(10, 0), "the slide of Sliding.* at least 1 ms"),
        (lambda: SlidingProcessingTimeWindows.of(0, 5), "the size of Sliding.* at least 1 ms"),
        (lambda: SlidingEventTimeWindows.of(10, 5, 5), "shorter than the slide of 5 ms"),
        (lambda: EventTimeSessionWindows.with_gap(0), "the gap of EventTimeSession.* at least 1"),
        (lambda: ProcessingTimeSessionWindows.with_gap(-5), "the gap of .* at least 1 ms"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(lambda: 5), r"as \(record\)"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(5), "takes a function, not 5"),
        (lambda: CountTumblingWindowAssigner.of(0), "the size of Count.* at least 1"),
        (lambda: CountSlidingWindowAssigner.of(5, 0), "the slide of Count.* at least 1"),
        (lambda: CountTumblingWindowAssigner.of(2.5), "is a whole number"),
    ],
)
def test_lengths_and_counts_that_make_no_window_are_refused(make: Any, message: str):
    with pytest.raises(GraphError, match=message):
        make()


class _Items(NamedTuple):
    shop: str
    end: int


class ShopWindow(_Items, Window):
    def max_timestamp(self) -> int:
        return self.end - 1


def test_a_program_can_define_windows():
    assert ShopWindow("here", 10).max_timestamp() == 9
    assert ShopWindow("here", 10) == ShopWindow("here", 10)
    assert isinstance(ShopWindow("here", 10), Window)


def test_windows_are_ordered_and_have_a_last_timestamp():
    assert TimeWindow(0, 10).max_timestamp() == 9
    assert sorted([TimeWindow(5, 7), TimeWindow(0, 9), TimeWindow(0, 3)])[0] == TimeWindow(0, 3)
    assert CountWindow(3).max_timestamp() == GlobalWindow().max_timestamp() == 2**63 - 1
    assert TimeWindow.get_window_start_with_offset(-1, 0, 10) == -10
    assert TimeWindow(0, 5).cover(TimeWindow(3, 9)) == TimeWindow(0, 9)
    assert repr(TimeWindow(0, 5)) == "TimeWindow(start=0, end=5)"

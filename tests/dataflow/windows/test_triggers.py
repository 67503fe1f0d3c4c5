"""When windows fire: each trigger by itself, with timers and state in dicts."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from penstock import (
    MIN_WATERMARK,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    GlobalWindow,
    GraphError,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    StreamExecutionEnvironment,
    Time,
    TimeWindow,
    Trigger,
    TriggerResult,
    Window,
)

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE
PURGE, FIRE_AND_PURGE = TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE
WINDOW = TimeWindow(0, 10)


class Reduced:
    """A reducing state in a dict."""

    def __init__(self, values: dict[Any, Any], key: Any, reduce: Any) -> None:
        self._values, self._key, self._reduce = values, key, reduce

    def get(self) -> Any:
        return self._values.get(self._key)

    def add(self, value: Any) -> None:
        before = self.get()
        self._values[self._key] = value if before is None else self._reduce(before, value)

    def clear(self) -> None:
        self._values.pop(self._key, None)


class Pane(Trigger.OnMergeContext):
    """The context of one window; `merged` are the windows that were merged into it."""

    def __init__(self, window: Any, merged: tuple[Pane, ...] = ()) -> None:
        self.window, self.merged = window, merged
        self.watermark, self.now = MIN_WATERMARK, 0
        self.event_timers: set[int] = set()
        self.clock_timers: set[int] = set()
        self.values: dict[Any, Any] = {}

    def get_current_processing_time(self) -> int:
        return self.now

    def get_current_watermark(self) -> int:
        return self.watermark

    def register_processing_time_timer(self, time: int) -> None:
        self.clock_timers.add(time)

    def register_event_time_timer(self, time: int) -> None:
        self.event_timers.add(time)

    def delete_processing_time_timer(self, time: int) -> None:
        self.clock_timers.discard(time)

    def delete_event_time_timer(self, time: int) -> None:
        self.event_timers.discard(time)

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        reduce = state_descriptor.get_reduce_function()
        return Reduced(self.values, state_descriptor.get_name(), reduce)

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        state = self.get_partitioned_state(state_descriptor)
        for pane in self.merged:
            value = pane.get_partitioned_state(state_descriptor).get()
            if value is not None:
                state.add(value)

    def element(self, trigger: Trigger, timestamp: int) -> TriggerResult:
        return trigger.on_element(None, timestamp, self.window, self)

    def event(self, trigger: Trigger, time: int) -> TriggerResult:
        self.watermark = max(time, self.watermark)
        self.event_timers.discard(time)
        return trigger.on_event_time(time, self.window, self)

    def clock(self, trigger: Trigger, time: int) -> TriggerResult:
        self.now = time
        self.clock_timers.discard(time)
        return trigger.on_processing_time(time, self.window, self)

    def empty(self, trigger: Trigger) -> bool:
        trigger.clear(self.window, self)
        return not (self.event_timers or self.clock_timers or self.values)


def test_results_fire_and_purge():
    assert [r.is_fire() for r in (CONTINUE, FIRE, PURGE, FIRE_AND_PURGE)] == [0, 1, 0, 1]
    assert [r.is_purge() for r in (CONTINUE, FIRE, PURGE, FIRE_AND_PURGE)] == [0, 0, 1, 1]


def test_an_event_time_window_fires_at_its_last_timestamp():
    pane, trigger = Pane(WINDOW), EventTimeTrigger.create()
    assert pane.element(trigger, 3) is CONTINUE
    assert pane.event_timers == {9}
    assert pane.event(trigger, 5) is CONTINUE
    assert pane.event(trigger, 9) is FIRE
    assert pane.clock(trigger, 9) is CONTINUE


def test_a_late_record_fires_its_window_again():
    pane, trigger = Pane(WINDOW), EventTimeTrigger()
    pane.watermark = 9
    assert pane.element(trigger, 3) is FIRE
    assert pane.event_timers == set()
    assert pane.empty(trigger)


def test_a_window_fires_at_the_new_end_after_a_merge():
    trigger, pane = EventTimeTrigger(), Pane(TimeWindow(0, 15))
    assert trigger.can_merge()
    trigger.on_merge(pane.window, pane)
    assert pane.event_timers == {14}
    assert pane.empty(trigger)
    pane.watermark = 14
    trigger.on_merge(pane.window, pane)
    assert pane.event_timers == set()


def test_a_processing_time_window_fires_by_the_clock():
    pane, trigger = Pane(WINDOW), ProcessingTimeTrigger.create()
    assert pane.element(trigger, 3) is CONTINUE
    assert pane.clock_timers == {9}
    assert pane.event(trigger, 9) is CONTINUE
    assert pane.clock(trigger, 9) is FIRE
    longer = Pane(TimeWindow(0, 15))
    trigger.on_merge(longer.window, longer)
    assert trigger.can_merge() and longer.clock_timers == {14}
    assert longer.empty(trigger)


def test_a_continuous_trigger_fires_at_multiples_of_its_interval_and_at_the_end():
    pane, trigger = Pane(WINDOW), ContinuousEventTimeTrigger.of(Time.milliseconds(4))
    assert pane.element(trigger, 1) is CONTINUE
    assert pane.event_timers == {4, 9}
    assert pane.event(trigger, 3) is CONTINUE
    assert pane.event(trigger, 4) is FIRE
    assert pane.event_timers == {8, 9}
    assert pane.element(trigger, 5) is CONTINUE
    assert pane.event_timers == {8, 9}
    assert pane.event(trigger, 8) is FIRE
    assert pane.event(trigger, 9) is FIRE
    assert pane.element(trigger, 2) is FIRE
    assert pane.clock(trigger, 9) is CONTINUE
    assert pane.empty(trigger)


def test_a_continuous_trigger_works_before_the_epoch():
    pane = Pane(TimeWindow(-10, 0))
    trigger = ContinuousEventTimeTrigger(4)
    pane.element(trigger, -9)
    assert pane.event_timers == {-8, -1}


def test_merged_windows_fire_at_the_earliest_time():
    trigger = ContinuousEventTimeTrigger(4)
    first, second = Pane(TimeWindow(0, 10)), Pane(TimeWindow(8, 18))
    first.element(trigger, 0)
    second.element(trigger, 8)
    both = Pane(TimeWindow(0, 18), (first, second))
    trigger.on_merge(both.window, both)
    assert trigger.can_merge() and 4 in both.event_timers
    both.event_timers.add(17)
    assert both.event(trigger, 4) is FIRE


def test_a_continuous_trigger_can_follow_the_clock():
    pane, trigger = Pane(TimeWindow(0, 10)), ContinuousProcessingTimeTrigger.of(4)
    pane.now = 5
    assert pane.element(trigger, 999) is CONTINUE
    assert pane.clock_timers == {8}
    assert pane.event(trigger, 8) is CONTINUE
    assert pane.clock(trigger, 7) is CONTINUE
    assert pane.clock(trigger, 8) is FIRE
    assert pane.clock_timers == {9}
    merged = Pane(TimeWindow(0, 20), (pane,))
    trigger.on_merge(merged.window, merged)
    assert trigger.can_merge() and merged.clock_timers == {9}
    assert pane.empty(trigger) and merged.empty(trigger)


def test_a_count_trigger_fires_after_each_so_many_records():
    pane, trigger = Pane(GlobalWindow()), CountTrigger.of(3)
    assert [pane.element(trigger, 0) for _ in range(7)] == [
        CONTINUE, CONTINUE, FIRE, CONTINUE, CONTINUE, FIRE, CONTINUE,
    ]  # fmt: skip
    assert pane.event(trigger, 5) is CONTINUE and pane.clock(trigger, 5) is CONTINUE
    assert pane.values == {"count": 1}
    assert pane.empty(trigger)


def test_the_counts_of_merged_windows_add_up():
    trigger = CountTrigger(5)
    first, second = Pane(TimeWindow(0, 10)), Pane(TimeWindow(5, 15))
    for pane in (first, first, second):
        pane.element(trigger, 0)
    both = Pane(TimeWindow(0, 15), (first, second))
    trigger.on_merge(both.window, both)
    assert trigger.can_merge() and both.values == {"count": 3}


def test_a_purging_trigger_fires_and_purges():
    pane, trigger = Pane(WINDOW), PurgingTrigger.of(EventTimeTrigger())
    assert pane.element(trigger, 3) is CONTINUE
    assert pane.event(trigger, 9) is FIRE_AND_PURGE
    assert pane.element(trigger, 3) is FIRE_AND_PURGE
    assert trigger.can_merge() and not PurgingTrigger.of(NeverTrigger()).can_merge()
    longer = Pane(TimeWindow(0, 15))
    trigger.on_merge(longer.window, longer)
    assert longer.event_timers == {14} and longer.empty(trigger)
    clock = Pane(WINDOW)
    assert clock.clock(PurgingTrigger.of(ProcessingTimeTrigger()), 9) is FIRE_AND_PURGE


def test_a_result_without_a_fire_is_left_as_it_is():
    class Purge(NeverTrigger):
        def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
            return PURGE

    assert Pane(WINDOW).element(PurgingTrigger.of(Purge()), 3) is PURGE


def test_the_trigger_of_the_global_window_never_fires():
    pane, trigger = Pane(GlobalWindow()), NeverTrigger()
    assert pane.element(trigger, 3) is CONTINUE
    assert pane.event(trigger, 2**63 - 1) is CONTINUE
    assert pane.clock(trigger, 2**63 - 1) is CONTINUE
    assert pane.empty(trigger)


def test_a_trigger_that_cannot_merge_says_so():
    class Plain(Trigger):
        def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
            return CONTINUE

        def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
            return CONTINUE

        def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
            return CONTINUE

        def clear(self, window: Any, ctx: Any) -> None:
            pass

    class Forgetful(Plain):
        def can_merge(self) -> bool:
            return True

    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([(1, 2)]).key_by(lambda pair: pair[0])
    sessions = numbers.window(ProcessingTimeSessionWindows.with_gap(Time.seconds(1)))
    for trigger in (
        Plain(),
        PurgingTrigger.of(Plain()),
        Forgetful(),
        PurgingTrigger.of(Forgetful()),
    ):
        with pytest.raises(GraphError, match="define its methods can_merge and on_merge"):
            sessions.trigger(trigger)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CountTrigger.of(0), "the count of a CountTrigger must be at least 1"),
        (lambda: CountTrigger.of(1.5), "is a whole number"),
        (lambda: ContinuousEventTimeTrigger.of(0), "the interval of a trigger must be at least 1"),
        (lambda: ContinuousProcessingTimeTrigger.of(Time.seconds(-1)), "must not be negative"),
        (lambda: PurgingTrigger.of(CountTrigger), "PurgingTrigger.of takes a trigger, not"),
    ],
)
def test_bad_arguments_are_refused(make: Any, message: str):
    with pytest.raises(GraphError, match=message):
        make()


def test_a_class_of_windows_without_a_last_timestamp_is_refused():
    class Items(NamedTuple):
        shop: str

    with pytest.raises(GraphError, match="ShopWindow needs a method max_timestamp"):

        class ShopWindow(Items, Window):
            pass

    class Base(Window):
        """It may be defined later."""

    class Shop(Items, Base):
        def max_timestamp(self) -> int:
            return 7

    assert Shop("x").max_timestamp() == 7

"""A restored task that repeats the steps of its predecessor emits the same records in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    RuntimeContext,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    StateTtlConfig,
    Time,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from penstock.testing.harness.harness_snapshot import HarnessFolder
from tests.runtime.task.repeated_tasks import (
    Build,
    Interleaving,
    LoneTask,
    program,
    repeat,
    steps_behind,
    without_codegen,
)
from tests.sizes import sized

SEEDS = sized(4, 60)
LATE = OutputTag("late")
SIDE = OutputTag("side")

plain = pytest.fixture(autouse=True)(without_codegen)


def key_of(record: Any) -> str:
    return str(record[0])


def draw(rng: random.Random) -> tuple[str, int]:
    return rng.choice("abcdefghijklm") * rng.choice((1, 1, 3)), rng.randrange(100)


class Lists(AggregateFunction):
    """Collects the records of a window in a list."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b


class All(ProcessWindowFunction):
    """Emits the window, the times that it knows, and all its records."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        window = context.window()
        bounds = (window.start, window.end) if hasattr(window, "start") else None
        count = context.global_state().get_state(ValueStateDescriptor("count"))
        count.update((count.value() or 0) + 1)
        times = context.current_watermark(), context.current_processing_time()
        yield key, bounds, times, count.value(), list(elements)


class OftenTrigger(Trigger):
    """Fires at each third record, by processing time, and at the end of a window."""

    COUNT = ValueStateDescriptor("seen")

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        ctx.register_processing_time_timer(ctx.get_current_processing_time() + 15)
        seen = ctx.get_partitioned_state(self.COUNT)
        seen.update((seen.value() or 0) + 1)
        return TriggerResult.FIRE if seen.value() % 3 == 0 else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.COUNT).clear()


class Everything(KeyedProcessFunction):
    """Uses all kinds of state and timers, also timers in the past and those that set others."""

    def open(self, context: RuntimeContext) -> None:
        self.map = context.get_map_state(MapStateDescriptor("map"))
        self.list = context.get_list_state(ListStateDescriptor("list"))
        self.value = context.get_state(ValueStateDescriptor("value"))
        self.again = context.get_state(ValueStateDescriptor("again"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers, time = ctx.timer_service(), ctx.timestamp()
        now = timers.current_processing_time()
        self.map.put(f"{value[1]}", now)
        self.list.add(value[1])
        self.value.update((self.value.value() or 0) + value[1])
        timers.register_event_time_timer(time // 20 * 20 + 20)
        timers.register_event_time_timer(time - 50)
        timers.register_processing_time_timer(now // 10 * 10 + 10)
        if value[1] % 5 == 0:
            timers.delete_event_time_timer(time // 20 * 20 + 20)
        if value[1] % 7 == 0:
            self.map.remove(next(iter(self.map.keys())))
        if value[1] % 2:
            yield SIDE, (value, now)
        yield value, now, timers.current_watermark(), list(self.map.items()), self.value.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        if self.again.value():
            self.again.clear()
        elif timestamp % 3 == 0:
            self.again.update(1)
            timers.register_event_time_timer(timestamp)
            timers.register_event_time_timer(timestamp + 1)
            timers.register_processing_time_timer(timestamp + 4)
        yield ctx.get_current_key(), timestamp, str(ctx.time_domain()), list(self.list.get() or ())
        if len(list(self.map.keys())) > 4:
            self.map.clear()
            self.list.clear()


class Expiring(KeyedProcessFunction):
    """Reads states whose values expire."""

    def __init__(self, config: StateTtlConfig) -> None:
        self.config = config

    def open(self, context: RuntimeContext) -> None:
        value, many = ValueStateDescriptor("value"), MapStateDescriptor("map")
        some = ListStateDescriptor("list")
        for one in value, many, some:
            one.enable_time_to_live(self.config)
        self.value, self.map = context.get_state(value), context.get_map_state(many)
        self.list = context.get_list_state(some)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        before = self.value.value(), list(self.map.items()), list(self.list.get() or ())
        if value[1] % 3 == 0:
            self.value.update(value[1])
            self.map.put(value[1] % 4, value[1])
            self.list.add(value[1])
        yield value, before


class BothSides(KeyedCoProcessFunction):
    """Joins the last records of both sides, and forgets them by timers."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_map_state(MapStateDescriptor("seen"))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.put(value[1], 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 10 * 10 + 30)
        yield 1, value, list(self.seen.items())

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.put(value[1], 2)
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now // 10 * 10 + 20)
        yield 2, value, list(self.seen.items())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        found = list(self.seen.items())
        self.seen.clear()
        yield "timer", ctx.get_current_key(), timestamp, found


class Interleaved(CoMapFunction, CoFlatMapFunction):
    """Emits the records of both sides, without state."""

    def map1(self, value: Any) -> Any:
        return 1, value

    def map2(self, value: Any) -> Any:
        return 2, value

    def flat_map1(self, value: Any) -> Iterator[Any]:
        yield from [(1, value)] * (value[1] % 3)

    def flat_map2(self, value: Any) -> Iterator[Any]:
        yield from [(2, value)] * (value[1] % 3)


RULES = MapStateDescriptor("rules")


class Rules(BroadcastProcessFunction):
    """Lists the broadcast rules, which go and come again, at each record."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.timestamp(), list(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules, key = ctx.get_broadcast_state(RULES), value[0]
        if value[1] % 3:
            rules.put(key, (rules.get(key) or 0) + value[1])
        else:
            rules.remove(key)
        yield SIDE, (value, list(rules.keys()))


class AtWatermarks(ProcessFunction):
    """Emits the watermark that it knows."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        yield value, ctx.timestamp(), timers.current_watermark(), timers.current_processing_time()


class Drawing(KeyedProcessFunction):
    """Draws random numbers for records, and when timers fire."""

    def open(self, context: RuntimeContext) -> None:
        self.random = context.get_random()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(ctx.timestamp() // 10 * 10 + 30)
        timers.register_processing_time_timer(timers.current_processing_time() // 10 * 10 + 20)
        yield from [(value, self.random.gauss(0, 1))] * self.random.randrange(3)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.random.random()


class DrawingAgain(MapFunction):
    """Draws a random number for each record, without keys."""

    def open(self, context: RuntimeContext) -> None:
        self.random = context.get_random()

    def map(self, value: Any) -> Any:
        return value, self.random.random()


class KeyedRules(KeyedBroadcastProcessFunction):
    """Does the same with keyed state, all of which a rule lists and changes."""

    TOTAL = ValueStateDescriptor("total")
    SEEN = MapStateDescriptor("seen")

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(self.TOTAL)
        self.seen = context.get_map_state(self.SEEN)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value[1])
        self.seen.put(value[1] % 9, self.total.value())
        timers = ctx.timer_service()
        timers.register_event_time_timer(ctx.timestamp() // 10 * 10 + 30)
        timers.register_processing_time_timer(timers.current_processing_time() // 10 * 10 + 20)
        yield value, self.total.value(), list(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from Rules().process_broadcast_element(value, ctx)
        found: list[Any] = []

        def visit(key: Any, state: Any) -> None:
            found.append((key, state.value()))
            state.update(state.value() + len(found))

        ctx.apply_to_keyed_state(self.TOTAL, visit)
        ctx.apply_to_keyed_state(self.SEEN, lambda key, seen: found.append((key, *seen.keys())))
        yield "all", value, found

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        rules = list(ctx.get_broadcast_state(RULES).items())
        yield "timer", ctx.get_current_key(), timestamp, self.total.value(), rules
        self.total.clear()
        self.seen.clear()


def ms(time: int) -> Time:
    return Time.milliseconds(time)


def ttl(**more: Any) -> StateTtlConfig.Builder:
    return StateTtlConfig.new_builder(ms(40))


def windows(assigner: Any, lateness: int = 0, trigger: Any = None, evict: int = 0) -> Any:
    """Return a function that adds windows with a side output for late records."""

    def made(stream: Any) -> Any:
        windowed = stream.key_by(key_of).window(assigner)
        if trigger is not None:
            windowed = windowed.trigger(trigger)
        return windowed.allowed_lateness(ms(lateness)) if lateness else windowed

    return made


def with_late(made: Any, finish: Any) -> Build:
    def build(stream: Any) -> list[Any]:
        out = finish(made(stream).side_output_late_data(LATE))
        return [out, out.get_side_output(LATE)]

    return build


def with_side(function: Any) -> Build:
    def build(stream: Any) -> list[Any]:
        out = stream.key_by(key_of).process(function)
        return [out, out.get_side_output(SIDE)]

    return build


def collected(windowed: Any) -> Any:
    return windowed.process(All())


def aggregated(windowed: Any) -> Any:
    return windowed.aggregate(Lists(), All())


def reduced(windowed: Any) -> Any:
    return windowed.reduce(lambda a, b: (a[0], a[1] + b[1]), All())


def joined(assigner: Any) -> Build:
    def build(one: Any, two: Any) -> list[Any]:
        joined = one.join(two).where(key_of).equal_to(key_of).window(assigner)
        return [joined.apply(lambda a, b: (a, b))]

    return build


def interval(one: Any, two: Any) -> list[Any]:
    near = one.key_by(key_of).interval_join(two.key_by(key_of)).between(ms(-20), ms(30))
    return [near.process(lambda a, b: (a, b))]


def connected(method: str, function: Any, keyed: bool = True) -> Build:
    def build(one: Any, two: Any) -> list[Any]:
        if keyed:
            one, two = one.key_by(key_of), two.key_by(key_of)
        return [getattr(one.connect(two), method)(function)]

    return build


def marked(strategy: WatermarkStrategy) -> Build:
    def build(stream: Any) -> list[Any]:
        return [stream.assign_timestamps_and_watermarks(strategy).process(AtWatermarks())]

    return build


def with_rules(function: Any, keyed: bool) -> Build:
    def build(one: Any, two: Any) -> list[Any]:
        stream = one.key_by(key_of) if keyed else one
        out = stream.connect(two.broadcast(RULES)).process(function)
        return [out, out.get_side_output(SIDE)]

    return build


_TUMBLING, _SLIDING = (
    TumblingEventTimeWindows.of(ms(20)),
    SlidingEventTimeWindows.of(ms(30), ms(10)),
)
_LONG = SlidingEventTimeWindows.of(ms(80), ms(10))
_SESSIONS = EventTimeSessionWindows.with_gap(ms(12))
ONE_INPUT: dict[str, Build] = {
    "everything": with_side(Everything()),
    "count": lambda s: [s.key_by(key_of).count()],
    "reduce": lambda s: [s.key_by(key_of).reduce(lambda a, b: (a[0], a[1] + b[1]))],
    "top k": lambda s: [s.key_by(key_of).top_k(2, lambda r: r[1])],
    "union": lambda s: [s.map(lambda r: r).set_parallelism(1).filter(lambda r: r[1] % 2)],
    "tumbling": with_late(windows(_TUMBLING), collected),
    "tumbling, reduced": with_late(windows(_TUMBLING), reduced),
    "tumbling, late": with_late(windows(_TUMBLING, 25), aggregated),
    "tumbling, late, listed": with_late(windows(_TUMBLING, 25), collected),
    "sliding": with_late(windows(_SLIDING), aggregated),
    "sliding, late": with_late(windows(_SLIDING, 25), reduced),
    "sliding, listed": with_late(windows(_SLIDING, 9), collected),
    "long sliding": with_late(windows(_LONG, 15), aggregated),
    "sessions": with_late(windows(_SESSIONS), aggregated),
    "sessions, late": with_late(windows(_SESSIONS, 25), aggregated),
    "sessions, listed": with_late(windows(_SESSIONS, 10), collected),
    "often": with_late(windows(_TUMBLING, 15, OftenTrigger()), collected),
    "often, sliding": with_late(windows(_SLIDING, 15, OftenTrigger()), aggregated),
    "tumbling by clock": lambda s: [
        collected(windows(TumblingProcessingTimeWindows.of(ms(20)))(s))
    ],
    "sliding by clock": lambda s: [
        aggregated(windows(SlidingProcessingTimeWindows.of(ms(90), ms(10)))(s))
    ],
    "inverse by clock": lambda s: [
        windows(SlidingProcessingTimeWindows.of(ms(30), ms(10)))(s).reduce(
            lambda a, b: (a[0], a[1] + b[1]), All(), inverse=lambda a, b: (a[0], a[1] - b[1])
        )
    ],
    "inverse": with_late(
        windows(_SLIDING, 15),
        lambda w: w.reduce(
            lambda a, b: (a[0], a[1] + b[1]), All(), inverse=lambda a, b: (a[0], a[1] - b[1])
        ),
    ),
    "sessions by clock": lambda s: [
        aggregated(windows(ProcessingTimeSessionWindows.with_gap(ms(12)))(s))
    ],
    "watermarks": marked(WatermarkStrategy.for_bounded_out_of_orderness(5)),
    "watermarks, idle": marked(
        WatermarkStrategy.for_monotonous_timestamps()
        .with_timestamp_assigner(lambda record, time: time + record[1] % 3)
        .with_idleness(30)
    ),
    "random numbers": lambda s: [
        s.key_by(key_of).process(Drawing()).map(DrawingAgain()).map(DrawingAgain())
    ],
    "no watermarks, idle": marked(WatermarkStrategy.no_watermarks().with_idleness(30)),
    "count windows": lambda s: [s.key_by(key_of).count_window(3, 2).process(All())],
    "time to live": lambda s: [s.key_by(key_of).process(Expiring(ttl().build()))],
    "time to live, incremental": lambda s: [
        s.key_by(key_of).process(Expiring(ttl().cleanup_incrementally(3, True).build()))
    ],
    "time to live, full snapshots": lambda s: [
        s.key_by(key_of).process(Expiring(ttl().cleanup_full_snapshot().build()))
    ],
    "time to live, visible": lambda s: [
        s.key_by(key_of).process(
            Expiring(
                ttl()
                .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
                .cleanup_incrementally(3, True)
                .cleanup_full_snapshot()
                .build()
            )
        )
    ],
}
TWO_INPUTS: dict[str, Build] = {
    "both sides": connected("process", BothSides()),
    "co-map": connected("map", Interleaved(), keyed=False),
    "co-flat-map": connected("flat_map", Interleaved(), keyed=False),
    "keyed co-map": connected("map", Interleaved()),
    "broadcast state": with_rules(Rules(), keyed=False),
    "keyed broadcast state": with_rules(KeyedRules(), keyed=True),
    "join": joined(_SLIDING),
    "session join": joined(_SESSIONS),
    "interval join": interval,
}


def draw_row(rng: random.Random) -> dict[str, Any]:
    key, number = draw(rng)
    return {"key": key, "other": None, "number": number / 7}


def with_sizes(batch: Any) -> Any:
    """Add the number of the rows and their sum to each row of a batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pa.array([batch.num_rows] * batch.num_rows)
    sums = pa.array([pc.sum(batch.column("number")).as_py()] * batch.num_rows)
    return pa.RecordBatch.from_arrays(
        [batch.column("key"), batch.column("number"), sizes, sums],
        ["key", "number", "rows", "sum"],
    )


def aggregated_columns(assigner: Any) -> Build:
    def build(stream: Any) -> list[Any]:
        windows = stream.group_by("key").window(assigner).side_output_late_data(LATE)
        out = windows.agg(n=("*", "count"), sum=("number", "sum"), most=("number", "max"))
        return [out, out.get_side_output(LATE)]

    return build


COLUMNS: dict[str, Build] = {
    "batches": lambda s: [s.map_batches(with_sizes)],
    "batches, filtered": lambda s: [
        s.filter(lambda row: row["number"] > 5).map_batches(with_sizes).map_batches(with_sizes)
    ],
    "tumbling": aggregated_columns(_TUMBLING),
    "sliding": aggregated_columns(_SLIDING),
    "batches of windows": lambda s: [
        aggregated_columns(_TUMBLING)(s)[0].map_batches(
            lambda batch: with_sizes(batch.rename_columns(["key", "a", "b", "c", "number", "d"]))
        )
    ],
}


def run(name: str, build: Build, inputs: int, seeds: range, draw: Any = draw) -> int:
    """Run a task under seeds, and return the number of records that were repeated."""
    code, chain = program(build, inputs)
    repeated = 0
    for seed in seeds:
        rng = random.Random(seed)
        folder = HarnessFolder()
        first = LoneTask(code, chain, 1000, folder)
        given = Interleaving(rng, list(first.inputs), draw)
        for _ in range(rng.randint(0, 60)):
            given.act(first)
        if rng.random() < 0.3:  # a snapshot that is aborted
            given.barrier(first, 4)
            first.run()
            first.snapshots.clear()
            first.task.snapshot_aborted(4)
            for _ in range(rng.randint(0, 20)):
                given.act(first)
        given.barrier(first, 5)
        for _ in range(rng.randint(1, 60)):
            given.act(first)
        first.run()
        handles = first.snapshots.handles
        expected, history = first.output(after=5), first.history(5)
        marks = first.watermarks(history, after=5)
        steps = steps_behind(first, chain, 5)
        before = first.now
        first.task.close()
        for attempt in range(2):
            again = LoneTask(code, chain, before + rng.choice((0, 1000)), folder, handles, 5, steps)
            repeat(rng, again, {one.id: one.records for one in given.inputs.values()})
            found = again.output()
            for id, records in expected.items():
                assert found[id][: len(records)] == records, f"{name}, seed {seed}, {attempt}, {id}"
            found_marks = again.watermarks(history)
            for id, expected_marks in marks.items():
                same = found_marks[id][: len(expected_marks)] == expected_marks
                assert same, (
                    f"{name}, seed {seed}, {attempt}, {id}: {expected_marks}, {found_marks[id]}"
                )
            repeated += sum(map(len, expected.values()))
            steps = steps_behind(again, chain, 5)
            expected, marks, before = found, found_marks, again.now
            again.task.close()
    return repeated


@pytest.mark.parametrize("name", ONE_INPUT)
def test_a_task_repeats_its_output(name: str) -> None:
    assert run(name, ONE_INPUT[name], 1, range(SEEDS)) > 0


@pytest.mark.parametrize("name", TWO_INPUTS)
def test_a_task_with_two_inputs_repeats_its_output(name: str) -> None:
    assert run(name, TWO_INPUTS[name], 2, range(SEEDS)) > 0


@pytest.mark.parametrize("name", COLUMNS)
def test_a_task_with_columns_repeats_its_output(name: str) -> None:
    pytest.importorskip("pyarrow")
    assert run(name, COLUMNS[name], 1, range(SEEDS), draw_row) > 0

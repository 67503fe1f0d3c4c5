"""The methods of windows, run for real, beside naive programs in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from penstock import (
    AggregateFunction,
    AllWindowFunction,
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TimeWindowSerializer,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    Watermark,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
    Window,
    WindowAssigner,
    WindowFunction,
)
from penstock.dataflow.functions import ReduceFunction

Record = tuple[str, int, int]
SEED = 5
LATE = OutputTag("late")


def _records() -> list[Record]:
    """Return records (key, timestamp, number), out of order by up to 20 ms."""
    draw = random.Random(SEED)
    return [
        (draw.choice("abc"), index - draw.randrange(20), draw.randrange(100))
        for index in range(-50, 250)
    ]


RECORDS = _records()


class EachRecord(WatermarkGenerator):
    """Emits a watermark with each record, so that results do not depend on the clock."""

    def __init__(self) -> None:
        self.highest = -(10**9)

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.highest = max(self.highest, event_timestamp)
        output.emit_watermark(Watermark(self.highest - 21))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


def timed(records: list[Record] = RECORDS, parallelism: int = 2) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    strategy = WatermarkStrategy.for_generator(EachRecord).with_timestamp_assigner(
        lambda record, _: record[1]
    )
    stream = env.from_collection(records).set_parallelism(1)
    # One task keeps the order of the records.
    return stream.assign_timestamps_and_watermarks(strategy).set_parallelism(1)


def keyed() -> Any:
    return timed().key_by(lambda record: record[0])


def run(stream: DataStream) -> list[Any]:
    with stream.execute_and_collect(in_process=True) as found:
        return sorted(found)


def grouped(windows_of: Callable[[int], Iterable[int]]) -> dict[tuple[str, int], list[Record]]:
    """Return the records of each key and start of a window."""
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in RECORDS:
        for start in windows_of(record[1]):
            groups[record[0], start].append(record)
    return groups


TUMBLING = TumblingEventTimeWindows.of(30)
TUMBLED = grouped(lambda time: [time // 30 * 30])
SLIDING = SlidingEventTimeWindows.of(40, 10)
SLID = grouped(lambda time: range(time // 10 * 10, time - 40, -10))


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield key, context.window().start, sorted(elements)


class ListedAll(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield context.window().start, sorted(elements)


class Sized(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        return [(key, window.start, len(list(inputs)))]


class SizedAll(AllWindowFunction):
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        return [(window.start, len(list(inputs)))]


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return (value1[0], value1[1], value1[2] + value2[2])


def test_records_are_reduced():
    found = run(keyed().window(TUMBLING).reduce(lambda a, b: (a[0], 0, a[2] + b[2])))
    expected = [(key, sum(r[2] for r in records)) for (key, _), records in TUMBLED.items()]
    assert sorted((key, total) for key, _, total in found) == sorted(expected)


@pytest.mark.parametrize("assigner", [TUMBLING, SLIDING])
def test_a_window_function_gets_the_result_of_a_reduce_or_an_aggregate(assigner: Any):
    groups = TUMBLED if assigner is TUMBLING else SLID
    sums = run(keyed().window(assigner).reduce(Sum(), Listed()))
    assert [(key, start, one[0][2]) for key, start, one in sums] == sorted(
        (key, start, sum(r[2] for r in records)) for (key, start), records in groups.items()
    )
    means = run(keyed().window(assigner).aggregate(Mean(), Listed()))
    assert means == sorted(
        (key, start, [sum(r[2] for r in records) / len(records)])
        for (key, start), records in groups.items()
    )


def test_what_leaves_a_sliding_window_is_subtracted():
    windows = keyed().window(SLIDING)
    found = run(windows.reduce(Sum(), Listed(), inverse=lambda a, b: (a[0], a[1], a[2] - b[2])))
    assert [(key, start, one[0][2]) for key, start, one in found] == sorted(
        (key, start, sum(r[2] for r in records)) for (key, start), records in SLID.items()
    )


def test_an_aggregate_emits_its_results():
    found = run(keyed().window(TUMBLING).aggregate(Mean()))
    expected = [sum(r[2] for r in records) / len(records) for records in TUMBLED.values()]
    assert found == sorted(expected)


def test_all_records_of_a_window_are_processed():
    expected = sorted((key, start, sorted(records)) for (key, start), records in TUMBLED.items())
    assert run(keyed().window(TUMBLING).process(Listed())) == expected
    sizes = [(key, start, len(records)) for key, start, records in expected]
    assert run(keyed().window(TUMBLING).apply(Sized())) == sizes
    plain = keyed().window(TUMBLING).apply(lambda key, w, inputs: [(key, w.start, len(inputs))])
    assert run(plain) == sizes


def test_windows_of_all_records():
    groups: dict[int, list[Record]] = defaultdict(list)
    for record in RECORDS:
        groups[record[1] // 30 * 30].append(record)
    everything = sorted((start, sorted(records)) for start, records in groups.items())
    assert run(timed().window_all(TUMBLING).process(ListedAll())) == everything
    sizes = [(start, len(records)) for start, records in everything]
    assert run(timed().window_all(TUMBLING).apply(SizedAll())) == sizes
    assert run(timed().map(lambda r: r[2]).window_all(TUMBLING).sum(None)) == sorted(
        sum(r[2] for r in records) for records in groups.values()
    )


@pytest.mark.parametrize("method", ["sum", "min", "max", "min_by", "max_by"])
def test_a_field_of_a_window_is_combined(method: str):
    found = run(getattr(keyed().window(TUMBLING), method)(2))
    naive: dict[str, Callable[[list[Record]], Any]] = {
        "sum": lambda records: (*records[0][:2], sum(r[2] for r in records)),
        "min": lambda records: (*records[0][:2], min(r[2] for r in records)),
        "max": lambda records: (*records[0][:2], max(r[2] for r in records)),
        "min_by": lambda records: min(records, key=lambda record: record[2]),
        "max_by": lambda records: max(records, key=lambda record: record[2]),
    }
    assert found == sorted(naive[method](records) for records in TUMBLED.values())


def test_sessions_end_with_their_gap():
    found = run(keyed().window(EventTimeSessionWindows.with_gap(8)).reduce(Sum(), Sized()))
    expected = []
    for key in "abc":
        times = sorted(record[1] for record in RECORDS if record[0] == key)
        starts = [t for before, t in zip([-(10**9), *times], times, strict=False) if t - before > 8]
        expected += [(key, start, 1) for start in starts]
    assert found == sorted(expected)


def test_a_window_by_count_emits_when_it_is_full():
    records = {key: [r for r in RECORDS if r[0] == key] for key in "abc"}
    tumbling = run(keyed().count_window(7).apply(lambda k, w, inputs: [(k, w.id, sorted(inputs))]))
    assert tumbling == [
        (key, number, sorted(mine[number * 7 : number * 7 + 7]))
        for key, mine in records.items()
        for number in range(len(mine) // 7)
    ]
    sliding = run(keyed().count_window(7, 3).apply(lambda k, w, ins: [(k, w.id, sorted(ins))]))
    assert sliding == [
        (key, start // 3, sorted(mine[start : start + 7]))
        for key, mine in records.items()
        for start in range(0, len(mine) - 6, 3)
    ]
    every = run(timed().count_window_all(10).apply(lambda window, inputs: [len(list(inputs))]))
    assert every == [10] * (len(RECORDS) // 10)


def test_the_global_window_fires_by_its_trigger():
    trigger = PurgingTrigger.of(CountTrigger.of(5))
    found = run(keyed().window(GlobalWindows.create()).trigger(trigger).sum(2))
    sizes = [len([r for r in RECORDS if r[0] == key]) // 5 for key in "abc"]
    assert len(found) == sum(sizes)


def test_an_evictor_leaves_the_last_records():
    found = run(keyed().window(TUMBLING).evictor(CountEvictor.of(2)).process(Listed()))
    assert found == sorted(
        (key, start, sorted(records[-2:])) for (key, start), records in TUMBLED.items()
    )


def test_late_records_go_to_a_side_output():
    late = [("a", -1000, 1), ("b", 5, 2)]
    stream = timed([*RECORDS, *late]).key_by(lambda record: record[0])
    windows = stream.window(TUMBLING).side_output_late_data(LATE)
    assert run(windows.reduce(Sum()).get_side_output(LATE)) == late


def test_a_late_record_within_the_allowed_lateness_fires_again():
    stream = timed([("a", 10, 1), ("a", 100, 1), ("a", 11, 5)]).key_by(lambda record: record[0])
    found = run(stream.window(TUMBLING).allowed_lateness(60).sum(2))
    assert found == [("a", 10, 1), ("a", 10, 6), ("a", 100, 1)]


class _Slot(NamedTuple):
    name: str
    begin: int


class Slot(_Slot, Window):
    """A window of the program: even and odd numbers of a period."""

    def max_timestamp(self) -> int:
        return self.begin + 29


class Slots(WindowAssigner):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[Slot]:
        return [Slot("even" if element[2] % 2 == 0 else "odd", timestamp // 30 * 30)]

    def get_default_trigger(self, env: Any = None) -> EventTimeTrigger:
        return EventTimeTrigger.create()

    def get_window_serializer(self) -> Any:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


class FirstAndLast(Trigger):
    """Fires with the second record of a window, and at its end, and keeps a count in state."""

    COUNT = ValueStateDescriptor("count")

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        count = ctx.get_partitioned_state(self.COUNT)
        count.update((count.value() or 0) + 1)
        return TriggerResult.FIRE if count.value() == 2 else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.COUNT).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


def test_a_program_can_define_windows_assigners_and_triggers():
    groups: dict[Any, list[Record]] = defaultdict(list)
    for record in RECORDS:
        slot = "even" if record[2] % 2 == 0 else "odd"
        groups[record[0], slot, record[1] // 30 * 30].append(record)

    def described(key: Any, window: Any, inputs: Any) -> list[Any]:
        return [(key, window.name, window.begin, len(list(inputs)))]

    assert run(keyed().window(Slots()).apply(described)) == sorted(
        (*group, len(records)) for group, records in groups.items()
    )
    found = run(keyed().window(Slots()).trigger(FirstAndLast()).apply(described))
    early = [(*group, 2) for group, records in groups.items() if len(records) >= 2]
    assert found == sorted([*early, *((*g, len(records)) for g, records in groups.items())])

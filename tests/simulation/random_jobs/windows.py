"""Windows of random jobs.

Which records are late depends on the order of the input. So either each record comes out once, in
its window or as late data, or no record is late. No record is late if the sources have the
watermarks, since each of their splits is in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock import (
    AggregateFunction,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Time,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    Watermark,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from penstock.dataflow.streams import DataStream

__all__ = [
    "count_windows",
    "expected_count_windows",
    "expected_contents",
    "expected_in_windows",
    "in_order",
    "punctual",
    "purged_members",
    "session_members",
    "sliding_contents",
    "source_windows",
    "timed",
    "tumbling_members",
]

LATE = OutputTag("late")
#: The time between two numbers, in milliseconds.
STEP = 10


class Members(ProcessWindowFunction):
    """Emits each number of a window."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        for element in elements:
            for number in element if isinstance(element, list) else [element]:
                yield "member", number


class Numbers(AggregateFunction):
    """Collects numbers in a list, which it changes in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(number_in(value))
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        a.extend(b)
        return a


class Contained(ProcessWindowFunction):
    """Emits each different number of a window, with the window."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        (counts,) = elements
        for number in counts:
            yield "in", context.window().start, number


class Placed(ProcessWindowFunction):
    """Emits each number of a window, with the window."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        for number in elements:
            yield "in", context.window().start, number


class PurgeAtFour(Trigger):
    """Fires and purges at each fourth record, and at the end of the window."""

    COUNT = ValueStateDescriptor("count")

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        count = ctx.get_partitioned_state(self.COUNT)
        number = (count.value() or 0) + 1
        if number < 4:
            count.update(number)
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window: Any, ctx: Any) -> None:
        return

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.COUNT).clear()


class Filled(ProcessWindowFunction):
    """Emits that a window is full."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield "full", key, len(list(elements))


def punctual(stream: DataStream, choices: Any) -> DataStream:
    """Return a stream with event times for which nothing is late: its own, or some without limit.

    Those of the sources come with watermarks that pass while the job runs.
    """
    return stream if choices.source_times else timed(stream, 1_000_000)


def timed(stream: DataStream, disorder_ms: int) -> DataStream:
    """Give each number the time that belongs to it."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(disorder_ms))
    return stream.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda record, _: number_in(record) * STEP)
    ).uid("timed")


class InOrder(WatermarkGenerator):
    """Emits watermarks among the records of a split in order, so that many are in flight."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(Watermark(event_timestamp - 1))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        del output


def in_order(number_of: Callable[[Any], int]) -> WatermarkStrategy:
    """Return the strategy of a source whose splits are in order."""
    strategy = WatermarkStrategy.for_generator(InOrder)
    return strategy.with_timestamp_assigner(lambda record, _: number_of(record) * STEP)


def source_windows(stream: DataStream, keys: int) -> DataStream:
    """Emit each number with its window. No number is late, whichever subtasks read the splits."""
    windows = (
        stream.key_by(lambda i: i % keys)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(5 * STEP)))
        .side_output_late_data(LATE)
        .process(Placed())
        .uid("windows")
    )
    late = windows.get_side_output(LATE).map(lambda i: ("late", i)).uid("late")
    return windows.union(late)


def expected_in_windows(inputs: Sequence[int]) -> Counter[Any]:
    """Return what `source_windows` must emit."""
    size = 5 * STEP
    return Counter(("in", number * STEP // size * size, number) for number in inputs)


def purged_members(stream: DataStream, choices: Any) -> DataStream:
    """Emit each number once, when four numbers of its window have come or the window ends."""
    keys, mutable = choices.keys, choices.mutable
    records = stream.map(lambda i: {"number": i, "times": [i]} if mutable else i).uid("records")
    windows = (
        punctual(records, choices)
        # Two numbers of a key come next to each other: one of them may be in a snapshot, while the
        # other changes what the snapshot writes.
        .key_by(lambda record: number_in(record) // 2 % keys)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(30 * keys * STEP)))
        .trigger(PurgeAtFour())
    )
    if mutable:
        return windows.aggregate(Numbers(), Members()).uid("purged")
    return windows.process(Members()).uid("purged")


def number_in(record: Any) -> int:
    """Return the number of a record of `purged_members`."""
    return record["number"] if isinstance(record, dict) else record


def tumbling_members(stream: DataStream, keys: int, lateness_ms: int) -> DataStream:
    """Emit each number in its window, or as late data."""
    windows = (
        timed(stream, lateness_ms)
        .key_by(lambda i: i % keys)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(5 * STEP)))
        .side_output_late_data(LATE)
        .process(Members())
        .uid("tumbling")
    )
    return windows.union(_late(windows))


def session_members(stream: DataStream, keys: int, lateness_ms: int) -> DataStream:
    """Emit each number in its session, or as late data."""
    sessions = (
        timed(stream, lateness_ms)
        .key_by(lambda i: i % keys)
        .window(EventTimeSessionWindows.with_gap(Time.milliseconds(4 * STEP)))
        .side_output_late_data(LATE)
        .aggregate(Numbers(), Members())
        .uid("sessions")
    )
    return sessions.union(_late(sessions))


def _late(windows: DataStream) -> DataStream:
    return windows.get_side_output(LATE).map(lambda i: ("member", i)).uid("late")


def sliding_contents(stream: DataStream, choices: Any) -> DataStream:
    """Emit the numbers of sliding windows. No number is late."""
    keys = choices.keys
    windows = (
        punctual(stream, choices)
        .map(lambda i: {i: 1})
        .uid("counts")
        .key_by(lambda counts: next(iter(counts)) % keys)
        .window(
            SlidingEventTimeWindows.of(Time.milliseconds(12 * STEP), Time.milliseconds(5 * STEP))
        )
    )
    back = without if choices.mutable else None
    return windows.reduce(together, Contained(), inverse=back).uid("sliding")


def together(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    """Add up counts. The first dict is changed."""
    for number, count in b.items():
        a[number] = a.get(number, 0) + count
    return a


def without(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    """Take counts back. The first dict is changed."""
    for number, count in b.items():
        a[number] -= count
        if not a[number]:
            del a[number]
    return a


def expected_contents(inputs: Sequence[int]) -> Counter[Any]:
    """Return what `sliding_contents` must emit."""
    return Counter(
        ("in", start, number)
        for number in inputs
        for start in range(number * STEP // (5 * STEP) * 5 * STEP, (number - 12) * STEP, -5 * STEP)
    )


def count_windows(stream: DataStream, keys: int) -> DataStream:
    """Emit each window of three numbers that is full."""
    return stream.key_by(lambda i: i % keys).count_window(3).process(Filled()).uid("counted")


def expected_count_windows(inputs: Sequence[int], keys: int) -> Counter[Any]:
    """Return what `count_windows` must emit."""
    counts = Counter(number % keys for number in inputs)
    return Counter({("full", key, 3): count // 3 for key, count in counts.items() if count >= 3})

"""Windows of random jobs.

Which records are late depends on the order of the input. So either each record comes out once, in
its window or as late data, or no record is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from penstock import (
    AggregateFunction,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.streams import DataStream

__all__ = [
    "count_windows",
    "expected_count_windows",
    "expected_contents",
    "session_members",
    "sliding_contents",
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
        accumulator.append(value)
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


class Filled(ProcessWindowFunction):
    """Emits that a window is full."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield "full", key, len(list(elements))


def timed(stream: DataStream, disorder_ms: int) -> DataStream:
    """Give each number the time that belongs to it."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(disorder_ms))
    return stream.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda number, _: number * STEP)
    ).uid("timed")


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


def sliding_contents(stream: DataStream, keys: int, inverse: bool) -> DataStream:
    """Emit the numbers of sliding windows. No number is late."""
    windows = (
        timed(stream, 1_000_000)
        .map(lambda i: {i: 1})
        .uid("counts")
        .key_by(lambda counts: next(iter(counts)) % keys)
        .window(
            SlidingEventTimeWindows.of(Time.milliseconds(12 * STEP), Time.milliseconds(5 * STEP))
        )
    )
    back = without if inverse else None
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

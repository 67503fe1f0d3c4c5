"""Windows in real processes that are killed: each result is published once, with each record."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    EventTimeSessionWindows,
    FileSink,
    JsonLines,
    OutputTag,
    ProcessWindowFunction,
    RestartStrategies,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource

KEYS = 37
#: A record is out of order by less than this, in milliseconds.
DISORDER = 400
LATE = OutputTag("late")


def time_of(number: int) -> int:
    """The event time of a record, in milliseconds."""
    return number * 3 + number * 7919 % DISORDER


def key_of(number: int) -> int:
    """The key of a record."""
    return number * 31 % KEYS


class CountRecords(AggregateFunction):
    """Counts records."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class Span(ProcessWindowFunction):
    """Emits the window with its result."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        (value,) = elements
        value = value[1] if isinstance(value, tuple) else value
        yield self.kind, key, context.window().start, context.window().end, value


class Members(ProcessWindowFunction):
    """Emits each record of the window."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        for number in elements:
            yield "member", number


def windowing_job(settings: Settings) -> StreamExecutionEnvironment:
    """Windows of all kinds over the same records."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    # A subtask that reads two splits of other times would make the records of one late.
    numbers = env.from_source(source, None, "Source: Generator").uid("numbers").set_parallelism(2)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(DISORDER))
    timed = numbers.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda number, _: time_of(number))
    )
    timed = timed.uid("timed").set_parallelism(2)
    pairs = timed.map(lambda number: (key_of(number), 1)).uid("pairs").key_by(lambda pair: pair[0])
    tumbling = pairs.window(TumblingEventTimeWindows.of(Time.milliseconds(1000)))
    sliding = pairs.window(
        SlidingEventTimeWindows.of(Time.milliseconds(3000), Time.milliseconds(500))
    )
    sessions = pairs.window(EventTimeSessionWindows.with_gap(Time.milliseconds(120)))
    total = sliding.reduce(
        lambda a, b: (a[0], a[1] + b[1]),
        Span("inverse"),
        inverse=lambda a, b: (a[0], a[1] - b[1]),
    )
    results = [
        tumbling.aggregate(CountRecords(), Span("tumbling")).uid("tumbling"),
        sliding.aggregate(CountRecords(), Span("sliding")).uid("sliding"),
        total.uid("inverse"),
        sessions.aggregate(CountRecords(), Span("session")).uid("sessions"),
    ]
    hasty = numbers.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            lambda number, _: time_of(number)
        )
    )
    hasty = hasty.uid("hasty").set_parallelism(2)
    members = (
        hasty.key_by(key_of)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
        .side_output_late_data(LATE)
        .process(Members())
        .uid("members")
    )
    late = members.get_side_output(LATE).map(lambda number: ("member", number)).uid("late")
    results[0].union(*results[1:], members, late).sink_to(
        FileSink(settings.output, JsonLines())
    ).uid("files")
    return env


def expected(settings: Settings) -> set[Any]:
    """All results, computed from their definitions."""
    windows: Counter[Any] = Counter()
    times: dict[int, list[int]] = {}
    for number in range(settings.count):
        key, time = key_of(number), time_of(number)
        times.setdefault(key, []).append(time)
        windows["tumbling", key, time // 1000 * 1000, time // 1000 * 1000 + 1000] += 1
        for start in range(time // 500 * 500, time - 3000, -500):
            for kind in ("sliding", "inverse"):
                windows[kind, key, start, start + 3000] += 1
    for key, found in times.items():
        found.sort()
        begin, size = found[0], 1
        for before, time in zip(found, [*found[1:], found[-1] + 1000], strict=True):
            if time - before > 120:
                windows["session", key, begin, before + 120] += size
                begin, size = time, 0
            size += 1
    results: set[Any] = {(*window, size) for window, size in windows.items()}
    return results | {("member", number) for number in range(settings.count)}


def check(settings: Settings) -> None:
    seen = Counter(tuple(record) for record in committed(settings.output))
    assert compared(seen, expected(settings)) == (0, 0)


@pytest.mark.parametrize("inline_threshold", [0, pytest.param(64 * 1024, marks=pytest.mark.long)])
def test_killed_workers_lose_and_double_no_result(tmp_path: Path, inline_threshold: int):
    settings = Settings(
        tmp_path, count=8_000, rate=8_000, inline_threshold=inline_threshold, parts=4
    )
    killer = Killer(random.Random(1), kills=3, gate=settings.gate)
    result = run_to_the_end(settings, killer, job=windowing_job)
    assert len(killer.killed) == 3 and len(result.restarts) == 3
    check(settings)


def test_a_job_that_continues_at_another_parallelism_has_the_same_results(tmp_path: Path):
    settings = Settings(tmp_path, count=8_000, rate=8_000, inline_threshold=0, parts=3)
    killer = Killer(random.Random(2), kills=2, targets=("jobmanager",), gate=settings.gate)
    sizes = count(1)

    def job(settings: Settings) -> StreamExecutionEnvironment:
        env = windowing_job(settings)
        return env.set_parallelism(1 + next(sizes) % 3)

    run_to_the_end(settings, killer, job=job)
    assert len(killer.killed) == 2
    check(settings)

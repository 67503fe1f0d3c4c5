"""Joins in real processes that are killed: each pair is published once."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    JsonLines,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource

KEYS = 37
#: The length of the windows, in milliseconds.
WINDOW = 200
#: The largest difference between the times of two records of the interval join.
FAR = 90
#: A multiple of 64, so that all times below `3 * COUNT` occur once.
COUNT = 100 * 64
NAMES = {key: f"name {key}" for key in range(0, KEYS, 2)}


def time_of(number: int) -> int:
    """The event time of a record, in milliseconds: unique, and out of order by less than 192."""
    return (number ^ 63) * 3


def key_of(number: int) -> int:
    """The key of a record."""
    return number // 2 % KEYS


def joining_job(settings: Settings) -> StreamExecutionEnvironment:
    """All joins over the same records: even numbers are joined with odd numbers."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    # A subtask that reads two splits of other times would make the records of one late.
    numbers = env.from_source(source, None, "Source: Generator").uid("numbers").set_parallelism(2)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(192))
    timed = numbers.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda number, _: time_of(number))
    )
    timed = timed.uid("timed").set_parallelism(2)
    even = timed.filter(lambda number: number % 2 == 0).uid("even")
    odd = timed.filter(lambda number: number % 2 == 1).uid("odd")
    keyed, other = even.key_by(key_of), odd.key_by(key_of)
    window = even.join(odd).where(key_of).equal_to(key_of)
    groups = even.co_group(odd).where(key_of).equal_to(key_of)
    assigner = TumblingEventTimeWindows.of(WINDOW)
    results = [
        window.window(assigner).apply(lambda a, b: ("window", a, b)).uid("window"),
        groups.window(assigner)
        .apply(lambda a, b: [("groups", *sorted(a), -1, *sorted(b))])
        .uid("groups"),
        keyed.interval_join(other)
        .between(-FAR, FAR)
        .process(lambda a, b: ("interval", a, b))
        .uid("interval"),
        keyed.as_of_join(other, how="left", function=lambda a, b: ("as of", a, b)).uid("as-of"),
        timed.join_table(
            NAMES, key_of, how="left", function=lambda number, name: ("table", number, name)
        ).uid("table"),
    ]
    results[0].union(*results[1:]).sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def expected(settings: Settings) -> set[Any]:
    """All results, computed from their definitions."""
    by_key: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number in sorted(range(settings.count), key=time_of):
        by_key[key_of(number)][number % 2].append(number)
    results: set[Any] = {
        ("table", number, NAMES.get(key_of(number))) for number in range(settings.count)
    }
    for even, odd in by_key.values():
        times = [time_of(number) for number in odd]
        windows: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for number in (*even, *odd):
            windows[time_of(number) // WINDOW][number % 2].append(number)
        for first, second in windows.values():
            results.add(("groups", *sorted(first), -1, *sorted(second)))
            results.update(("window", a, b) for a in first for b in second)
        for number in even:
            place = bisect_right(times, time_of(number))
            results.add(("as of", number, odd[place - 1] if place else None))
            results.update(
                ("interval", number, b) for b in odd if abs(time_of(b) - time_of(number)) <= FAR
            )
    return results


def check(settings: Settings) -> None:
    seen = Counter(tuple(record) for record in committed(settings.output))
    wanted = expected(settings)
    assert {"window", "groups", "interval", "as of", "table"} == {kind for kind, *_ in wanted}
    assert compared(seen, wanted) == (0, 0)


@pytest.mark.parametrize("inline_threshold", [0, pytest.param(64 * 1024, marks=pytest.mark.long)])
def test_killed_workers_lose_and_double_no_pair(tmp_path: Path, inline_threshold: int):
    settings = Settings(tmp_path, count=COUNT, inline_threshold=inline_threshold, parts=4)
    killer = Killer(random.Random(1), kills=3, gate=settings.gate)
    result = run_to_the_end(settings, killer, job=joining_job)
    assert len(killer.killed) == 3 and len(result.restarts) == 3
    check(settings)


def test_joins_that_continue_at_another_parallelism_have_the_same_results(tmp_path: Path):
    settings = Settings(tmp_path, count=COUNT, inline_threshold=0, parts=3)
    killer = Killer(random.Random(2), kills=2, targets=("jobmanager",), gate=settings.gate)
    sizes = count(1)

    def job(settings: Settings) -> StreamExecutionEnvironment:
        env = joining_job(settings)
        return env.set_parallelism(1 + next(sizes) % 3)

    run_to_the_end(settings, killer, job=job)
    assert len(killer.killed) == 2
    check(settings)

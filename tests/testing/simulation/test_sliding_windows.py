"""Sliding windows in a simulated cluster: values that are not in snapshots change no result."""

from __future__ import annotations

import random

from penstock import (
    FileSink,
    GeneratorSource,
    JsonLines,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    WatermarkStrategy,
)
from penstock.testing.simulation import simulate
from tests.sizes import sized

SEEDS = sized(16, 500)
COUNT, KEYS, SLIDE, PANES = 360, 3, 10, 12


def measured(number: int) -> tuple[str, float]:
    return f"key{number % KEYS}", random.Random(number).random() * 10 ** (number % 7)


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    # A key has one record in each pane, so only the order of panes decides a sum.
    timed = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda number, _: number // KEYS * SLIDE
    )
    numbers = env.from_source(GeneratorSource(int, COUNT), timed, "numbers")
    size = Time.milliseconds(PANES * SLIDE)
    sums = (
        numbers.map(measured)
        .key_by(lambda record: record[0])
        .window(SlidingEventTimeWindows.of(size, Time.milliseconds(SLIDE)))
        .reduce(
            lambda a, b: (a[0], a[1] + b[1]),
            lambda key, window, totals: [[key, window.start, repr(totals[0][1])]],
        )
    )
    sums.sink_to(FileSink("sums", JsonLines()))
    env.execute("sums")


def test_sums_of_floats_are_those_of_an_undisturbed_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = simulate(main, seeds=SEEDS)
    report.require_right()
    assert report.records == (COUNT // KEYS + PANES - 1) * KEYS
    happened = report.happened
    assert happened["kills of a worker"] and happened["restarts"] and happened["resumes"], happened

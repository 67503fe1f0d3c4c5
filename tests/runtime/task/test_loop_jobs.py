"""Event time in jobs with loops: timers in a loop, and windows behind it.

Numbers go round a keyed loop, up to three times. A window behind the loop counts those that leave.
Late records would go to a side output. All results are known, whatever the order of the records.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CheckpointingMode,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)

KEYS, COUNT, SIZE = 5, 240, 100
LATE = OutputTag("late")


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[1]


class Counts(ProcessWindowFunction):
    """Counts the records of a window, and tells that it has fired."""

    def __init__(self, told: Path) -> None:
        self.told = told

    def process(self, key, context, elements):
        self.told.touch()
        yield "window", key, context.window().start, len(list(elements))


class Rounds(KeyedProcessFunction):
    """Sends each number on; a timer emits a number that goes round once more."""

    def __init__(self, fatal: Path | None) -> None:
        self.fatal = fatal

    def process_element(self, value, ctx):
        kind, at, hops, _ = value
        if self.fatal is not None and at == COUNT // 2 * 10 and not self.fatal.exists():
            self.fatal.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if ctx.timestamp() <= ctx.timer_service().current_watermark() and kind == "number":
            raise AssertionError(f"{value} is late in the loop")
        if kind == "number" and not hops:
            ctx.timer_service().register_event_time_timer(at + 7)
        yield value

    def on_timer(self, timestamp, ctx):
        yield "timer", timestamp, 1, ctx.get_current_key()


def job(env: StreamExecutionEnvironment, folder: Path, fatal: Path | None = None) -> Any:
    """The last numbers come only when a window behind the loop has fired."""
    told = folder / "told"

    def numbers():
        for i in range(COUNT):
            if i == COUNT - 20:
                pause = threading.Event()
                while not told.exists():
                    pause.wait(0.01)
            yield "number", i * 10, i % 4, i % KEYS

    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
    source = env.from_iterable(numbers).assign_timestamps_and_watermarks(strategy)
    around = env.create_feedback("around")
    gone = source.union(around).key_by(lambda v: v[3]).process(Rounds(fatal))
    around.close_with(
        gone.filter(lambda v: v[2] > 0).map(lambda v: (v[0], v[1], v[2] - 1, (v[3] + 1) % KEYS))
    )
    done = gone.filter(lambda v: v[2] == 0)
    windows = (
        done.key_by(lambda v: v[0])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(SIZE)))
        .side_output_late_data(LATE)
        .process(Counts(told))
    )
    late = windows.get_side_output(LATE).map(lambda v: ("late", *v))
    return windows.union(late)


def expected() -> Counter[Any]:
    """What comes out: each number once, and a timer for each key and time that fires once."""
    found: Counter[Any] = Counter()
    timers = set()
    for i in range(COUNT):
        key = (i % KEYS + i % 4) % KEYS
        found["window", "number", i * 10 // SIZE * SIZE] += 1
        timers.add((key, i * 10 + 7))
    for _, at in timers:
        found["window", "timer", at // SIZE * SIZE] += 1
    return found


def run(env: StreamExecutionEnvironment, stream: Any) -> Counter[Any]:
    with stream.execute_and_collect() as rows:
        found: Counter[Any] = Counter()
        for row in rows:
            found[row[:3]] += row[3]
    return found


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("mode", ["aligned", "unaligned", "at_least_once", "synchronous"])
def test_windows_behind_a_loop_fire_in_time_with_all_records(
    tmp_path: Path, parallelism: int, mode: str
):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(30)
    config = env.get_checkpoint_config()
    if mode == "unaligned":
        config.enable_unaligned_checkpoints()
    elif mode != "aligned":
        config.set_checkpointing_mode(CheckpointingMode[mode.upper()])
    assert run(env, job(env, tmp_path)) == expected()


def test_a_killed_worker_changes_no_window_and_no_timer(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(20)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    fatal = tmp_path / "killed"
    assert run(env, job(env, tmp_path, fatal)) == expected()
    assert fatal.exists()

"""Timers and side outputs in real processes that are killed: each fires, and has emitted, once.

Each number waits in keyed state until a timer fires. Multiples of seven then go to a side output.
So a timer that is lost, or that fires twice, shows in what is committed.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    JsonLines,
    KeyedProcessFunction,
    OutputTag,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource

SEVENTH = OutputTag("seventh")
KEYS = 499


class _Waiting(KeyedProcessFunction):
    """Keeps the numbers of a key until their timers fire."""

    def open(self, runtime_context: Any) -> None:
        self.waiting = runtime_context.get_state(ValueStateDescriptor("waiting"))

    def wait(self, due: int, number: int) -> None:
        self.waiting.update([*(self.waiting.value() or []), (due, number)])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        waiting = self.waiting.value()
        self.waiting.update([pair for pair in waiting if pair[0] != timestamp] or None)
        yield from self.emit(number for due, number in waiting if due == timestamp)

    def emit(self, numbers: Any) -> Any:
        for number in numbers:
            if number % 7:
                yield (number,)
            else:
                yield SEVENTH, (number,)


class ByClock(_Waiting):
    """Fires by processing time; at the end of the input it emits what has not fired."""

    def process_element(self, value: int, ctx: Any) -> None:
        service = ctx.timer_service()
        due = service.current_processing_time() + 1 + value % 90
        self.wait(due, value)
        service.register_processing_time_timer(due)

    def end_input(self, ctx: Any) -> Any:
        yield from self.emit(number for _, number in self.waiting.value() or ())
        self.waiting.clear()


class ByWatermark(_Waiting):
    """Fires by event time; the last watermark fires what is left."""

    def process_element(self, value: int, ctx: Any) -> None:
        due = ctx.timestamp() + 1 + value % 900
        self.wait(due, value)
        ctx.timer_service().register_event_time_timer(due)


def _job(settings: Settings, function: KeyedProcessFunction) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda number, _: number)
    numbers = env.from_source(source, strategy, "numbers").uid("numbers")
    waited = numbers.key_by(lambda i, keys=KEYS: i % keys).process(function).uid("wait")
    sevenths = waited.get_side_output(SEVENTH).map(lambda record: record).uid("sevenths")
    waited.union(sevenths).sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


@pytest.mark.parametrize("inline_threshold", [0, 64 * 1024])
@pytest.mark.parametrize("function", [ByClock, ByWatermark])
def test_each_timer_fires_once_whoever_is_killed(
    tmp_path: Path, function: type[KeyedProcessFunction], inline_threshold: int
) -> None:
    seed = 5
    settings = Settings(
        tmp_path, count=12_000, rate=6_000, inline_threshold=inline_threshold, parts=4
    )
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), kills=3, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=lambda settings: _job(settings, function()))
    assert len(killer.killed) >= 3, f"seed {seed}"
    seen = Counter(number for (number,) in committed(settings.output))
    assert compared(seen, set(range(settings.count))) == (0, 0)

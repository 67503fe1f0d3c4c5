"""Watermarks in real processes that are killed: event time never goes back, in any mode.

A function stores the highest watermark of each key in its state. After a restart its watermark must
not be lower than the one in the restored state: a record that was late before is late again.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CheckpointingMode,
    FileSink,
    JsonLines,
    KeyedProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource

KEYS = 101
MODES = [
    CheckpointingMode.EXACTLY_ONCE,
    CheckpointingMode.UNALIGNED,
    CheckpointingMode.SYNCHRONOUS,
]


class NeverBack(KeyedProcessFunction):
    """Emits each number with how far its key's watermark has gone back, which is never."""

    def open(self, runtime_context: Any) -> None:
        self.highest = runtime_context.get_state(ValueStateDescriptor("highest"))

    def process_element(self, value: int, ctx: Any) -> Any:
        now, before = ctx.timer_service().current_watermark(), self.highest.value()
        if before is None or now > before:
            self.highest.update(now)
        yield value, 0 if before is None else max(0, before - now), now > 0


def _job(settings: Settings, mode: CheckpointingMode) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms, mode)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_config().set_auto_watermark_interval(5)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(50).with_timestamp_assigner(
        lambda number, _: number
    )
    numbers = env.from_source(source, strategy, "numbers").uid("numbers")
    again = numbers.rebalance().assign_timestamps_and_watermarks(strategy).uid("again")
    checked = again.key_by(lambda i, keys=KEYS: i % keys).process(NeverBack()).uid("check")
    checked.sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: str(mode.name))
def test_no_watermark_goes_back_whoever_is_killed(tmp_path: Path, mode: CheckpointingMode) -> None:
    seed = 7
    settings = Settings(tmp_path, count=8_000, rate=6_000, parts=4)
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), kills=2, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=lambda settings: _job(settings, mode))
    assert len(killer.killed) >= 2, f"seed {seed}"
    rows = list(committed(settings.output))
    seen = Counter(number for number, _, _ in rows)
    assert compared(seen, set(range(settings.count))) == (0, 0)
    assert max(back for _, back, _ in rows) == 0
    assert any(timed for _, _, timed in rows)  # there were watermarks before the end

"""Every kind of keyed state in real processes that are killed: each counts every record once.

A function counts the records of each key in every kind of state at the same time, and emits all
counts. So a record that is lost or doubled in one kind of state shows in what is committed.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FileSink,
    JsonLines,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RestartStrategies,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
)
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource

KEYS = 499


class Counting(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0]

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator[0] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0]


class CountInAllStates(KeyedProcessFunction):
    """Counts the records of a key in each kind of state."""

    def open(self, runtime_context: Any) -> None:
        context = runtime_context
        self.value = context.get_state(ValueStateDescriptor("value"))
        self.elements = context.get_list_state(ListStateDescriptor("list"))
        self.entries = context.get_map_state(MapStateDescriptor("map"))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
        self.counted = context.get_aggregating_state(
            AggregatingStateDescriptor("counted", Counting())
        )
        config = StateTtlConfig.new_builder(Time.hours(1)).update_ttl_on_read_and_write().build()
        descriptor = MapStateDescriptor("recent")
        descriptor.enable_time_to_live(config)
        self.recent = context.get_map_state(descriptor)

    def process_element(self, value: int, ctx: Any) -> Any:
        self.value.update((self.value.value() or 0) + 1)
        self.elements.add([value])
        part = value % 5
        # An entry is removed and put again, and a list in it changes in place.
        kept = self.entries.get(part) or []
        self.entries.remove(part)
        self.entries.put(part, kept)
        kept.append(value)
        self.sum.add(1)
        self.counted.add(value)
        self.recent.put(value, None)
        yield (
            ctx.get_current_key(),
            self.value.value(),
            len(self.elements.get()),
            sum(map(len, self.entries.values())),
            self.sum.get(),
            self.counted.get(),
            len(list(self.recent.keys())),
        )


def _job(settings: Settings, memory: int) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.set_memory(memory)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    counted = numbers.key_by(lambda i, keys=KEYS: i % keys).process(CountInAllStates())
    counted.uid("count").sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


@pytest.mark.parametrize("memory", [64 << 20, 2 << 20], ids=["in memory", "beyond memory"])
def test_every_kind_of_state_counts_each_record_once_whoever_is_killed(
    tmp_path: Path, memory: int
) -> None:
    seed = 3
    settings = Settings(tmp_path, count=8_000, rate=4_000, inline_threshold=4096, parts=4)
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), kills=3, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=lambda settings: _job(settings, memory))
    assert len(killer.killed) >= 3, f"seed {seed}"
    wanted = {(key, n + 1) for key in range(KEYS) for n in range(_records(settings.count, key))}
    records = committed(settings.output)
    for kind in range(1, 7):
        seen = Counter((record[0], record[kind]) for record in records)
        assert compared(seen, wanted) == (0, 0), f"kind {kind} of state"


def _records(count: int, key: int) -> int:
    return len(range(key, count, KEYS))

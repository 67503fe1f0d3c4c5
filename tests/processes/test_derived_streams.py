"""Derived streams with state: `track`, `top_k` and others in processes that are killed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from penstock import FileSink, JsonLines, RestartStrategies, StreamExecutionEnvironment
from penstock.dataflow.time import WatermarkStrategy
from tests.processes.harness import Killer, Settings, committed, run_to_the_end
from tests.processes.parts import PartedSource

KEYS = 97


def _number(seen: int, value: int) -> tuple[int, Any]:
    return seen + 1, ["numbered", value % KEYS, seen + 1]


def _job(settings: Settings) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda number, _: number)
    numbers = env.from_source(source, strategy, "numbers").uid("numbers")
    numbers.set_parallelism(1)  # so that the numbers of a key come in order
    keyed = numbers.key_by(lambda i, keys=KEYS: i % keys)
    numbered = keyed.map_with_state(_number, 0).uid("numbered")
    tracked = keyed.track(
        lambda key, value: value,
        lambda key, last, value: None if value % 5 == 0 else value,
        timeout=10**9,
    ).uid("tracked")
    joined = keyed.join_history(3 * KEYS, lambda value, past: ["past", value, past]).uid("joined")
    best = keyed.top_k(2).map(lambda pair: ["best", *pair]).uid("best")
    halves = numbers.map(lambda number: number // 2).uid("halves")
    different = halves.distinct().map(lambda number: ["different", number]).uid("different")
    records = tracked.map(lambda pair: ["state", *pair]).uid("states")
    records = records.union(numbered, joined, best, different)
    records.sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def _expected(count: int) -> Counter[Any]:
    wanted: Counter[Any] = Counter()
    states: dict[int, int] = {}
    for value in range(count):
        key = value % KEYS
        wanted["numbered", key, value // KEYS + 1] += 1
        past = range(value - 3 * KEYS, value, KEYS)
        wanted["past", value, tuple(number for number in past if number >= 0)] += 1
        wanted["best", key, (value, value - KEYS) if value >= KEYS else (value,)] += 1
        wanted["different", value // 2] += value % 2
        ends = key in states and value % 5 == 0
        wanted["state", key, None if ends else value] += 1
        if ends:
            del states[key]
        else:
            states[key] = value
    for key in states:
        wanted["state", key, None] += 1  # the last watermark ends all states
    return wanted


def _tuple(record: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in record)


def test_each_state_is_exactly_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = 11
    settings = Settings(tmp_path, count=4_000, rate=6_000, parts=4)
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), kills=3, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=_job)
    assert len(killer.killed) >= 3, f"seed {seed}"
    seen, wanted = Counter(map(_tuple, committed(settings.output))), _expected(settings.count)
    lost, doubled = wanted - seen, seen - wanted
    assert (lost.total(), doubled.total()) == (0, 0), f"lost {lost}, doubled {doubled}"

"""Batch jobs in real processes that are killed: they start again, and publish each result once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    JsonLines,
    RestartStrategies,
    RuntimeExecutionMode,
    StoreError,
    StreamExecutionEnvironment,
)
from tests.processes.harness import Killer, Settings, committed, compared, run
from tests.processes.parts import PartedSource

KEYS = 97


def _number(state: int, value: int) -> tuple[int, Any]:
    return state + 1, ["numbered", value % KEYS, state + 1]


def _job(settings: Settings) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH).set_parallelism(settings.parallelism)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    keyed = env.from_source(source).key_by(lambda i, keys=KEYS: i % keys)
    counts = keyed.count().map(lambda pair: ["count", *pair])
    numbered = keyed.map_with_state(_number, 0)
    counts.union(numbered).sink_to(FileSink(settings.output, JsonLines()))
    return env


def _run_to_the_end(settings: Settings, killer: Killer) -> int:
    """Run the job until it ends, and return the number of runs that were killed."""
    for killed in range(20):
        try:
            run(_job(settings), progress=killer)
        except StoreError as error:
            if "killed by signal 9" not in str(error):
                raise
        else:
            return killed
        finally:
            killer.disarm()
    raise AssertionError("not finished after 20 runs")


@pytest.mark.parametrize("target", ["worker", "jobmanager"])
def test_a_killed_batch_job_starts_from_the_beginning_and_publishes_once(
    tmp_path: Path, target: str
) -> None:
    seed = 8
    settings = Settings(tmp_path, count=6_000, rate=6_000, parts=3)
    killer = Killer(
        random.Random(seed), kills=2, targets=(target,), after_snapshots=None, gate=settings.gate
    )
    killed = _run_to_the_end(settings, killer)
    assert len(killer.killed) >= 2, f"seed {seed}"
    restarts = [event for event in killer.events if event["event"] == "restarting"]
    assert killed >= 2 if target == "jobmanager" else len(restarts) >= 2
    totals = Counter(i % KEYS for i in range(settings.count))
    wanted: set[Any] = {("count", key, total) for key, total in totals.items()}
    wanted |= {("numbered", key, i + 1) for key, total in totals.items() for i in range(total)}
    assert compared(Counter(map(tuple, committed(settings.output))), wanted) == (0, 0)

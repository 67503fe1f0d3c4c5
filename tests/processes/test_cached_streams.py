"""Cached streams in real processes that are killed while the records are stored."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    JsonLines,
    RestartStrategies,
    StoreError,
    StreamExecutionEnvironment,
)
from tests.processes.harness import Killer, Settings, committed, run
from tests.processes.parts import PartedSource, let_all_go


class Computed:
    """Emits each record with the number of the execution that computes it.

    Arguments:
        executions: a file with one byte for each execution.
    """

    def __init__(self, executions: Path) -> None:
        self.executions = executions

    def __call__(self, value: int) -> list[int]:
        return [value, self.executions.stat().st_size]


@pytest.mark.parametrize("target", ["worker", "jobmanager"])
def test_records_that_are_stored_while_processes_are_killed_are_exact(tmp_path: Path, target: str):
    settings = Settings(tmp_path, count=4_000, rate=20_000, parts=2)
    executions = tmp_path / "executions"
    executions.write_bytes(b"1")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).enable_checkpointing(50)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    cached = env.from_source(source, None, "numbers").map(Computed(executions)).cache()
    # The second half of the records comes when a process has been killed.
    killer = Killer(random.Random(3), targets=(target,), gate=settings.gate)

    def execute(name: str, progress: Any = None) -> Any:
        env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / f"job {name}")
        cached.sink_to(FileSink(tmp_path / name, JsonLines()))
        return run(env, name=name, progress=progress)

    try:
        result = execute("first", killer)
        assert result.restarts and target == "worker"
    except StoreError as error:
        assert "killed by signal 9" in str(error) and target == "jobmanager"
    finally:
        killer.disarm()
    assert [one for one, _ in killer.killed] == [target]
    let_all_go(settings.gate)
    executions.write_bytes(b"12")
    for name in ("second", "third"):
        execute(name)
        # An execution that came to its end has stored its records. Otherwise the next one did.
        computed = 1 if target == "worker" else 2
        found = sorted(committed(tmp_path / name))
        assert found == [[number, computed] for number in range(settings.count)]
        executions.write_bytes(b"123")

"""Asynchronous requests in real processes that are killed: each record has its result once.

Each request leaves a byte in a file. More bytes than records say that requests in flight were sent
again after a kill.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    CheckpointingMode,
    FileSink,
    JsonLines,
    RestartStrategies,
    StreamExecutionEnvironment,
)
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource


class Ask(AsyncFunction):
    """Answers after a random time.

    Arguments:
        file: where each request leaves a byte.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        self.loop = asyncio.get_running_loop()
        self.descriptor = os.open(self.file, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    async def async_invoke(self, value: int) -> list[Any]:
        os.write(self.descriptor, b".")
        await asyncio.sleep(random.uniform(0, 0.04))
        return [(value,), (-value - 1,)]


def _job(settings: Settings, ordered: bool) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    mode = CheckpointingMode.EXACTLY_ONCE if ordered else CheckpointingMode.UNALIGNED
    env.enable_checkpointing(settings.interval_ms, mode)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    ask = Ask(settings.folder / "requests")
    if ordered:
        keyed = numbers.key_by(lambda i: i % 97)
        asked = AsyncDataStream.ordered_wait(keyed, ask, 0, 30)
    else:
        asked = AsyncDataStream.unordered_wait(numbers.rebalance(), ask, 0, 30)
    asked.uid("ask").sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


@pytest.mark.parametrize("ordered", [True, False])
def test_each_record_has_its_results_once_whoever_is_killed(tmp_path: Path, ordered: bool) -> None:
    seed = 7
    settings = Settings(
        tmp_path, count=4_000, rate=2_000, parts=4, inline_threshold=0 if ordered else 64 * 1024
    )
    killer = Killer(
        random.Random(seed), kills=3, targets=("worker", "jobmanager"), gate=settings.gate
    )
    run_to_the_end(settings, killer, job=partial(_job, ordered=ordered))
    assert len(killer.killed) >= 3, f"seed {seed}"
    assert (tmp_path / "requests").stat().st_size > settings.count, "no request was sent again"
    seen = Counter(number for (number,) in committed(settings.output))
    wanted = {sign for i in range(settings.count) for sign in (i, -i - 1)}
    assert compared(seen, wanted) == (0, 0)

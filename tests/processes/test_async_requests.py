"""Asynchronous requests in real processes that are killed: each record has its result once.

Each request leaves a byte in a file. More bytes than records say that requests in flight were sent
again after a kill. The request for the last record that has come is not answered before a kill. So
there is one in flight then, also if the kill comes late.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    BatchedFunction,
    CheckpointingMode,
    DataStream,
    FileSink,
    JsonLines,
    RequestCache,
    RestartStrategies,
    StreamExecutionEnvironment,
)
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource


def _is_last(source: PartedSource, value: int) -> bool:
    """Return whether no record comes behind this one until a process is killed."""
    return value + 1 == source.end() != source.count


class Ask(AsyncFunction):
    """Answers after a random time.

    Arguments:
        file: where each request leaves a byte.
        source: the source of the records.
    """

    def __init__(self, file: Path, source: PartedSource) -> None:
        self.file, self.source = file, source

    async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        self.loop = asyncio.get_running_loop()
        self.descriptor = os.open(self.file, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    async def async_invoke(self, value: int) -> list[Any]:
        os.write(self.descriptor, b".")
        await asyncio.sleep(random.uniform(0, 0.04))
        while _is_last(self.source, value):
            await asyncio.sleep(0.01)
        return [(value,), (-value - 1,)]


class AskAll(BatchedFunction):
    """Answers for many records after a random time; some answers must be asked for again.

    Arguments:
        file: where each record leaves a byte, but not when its subtask asks again.
        source: the source of the records.
    """

    def __init__(self, file: Path, source: PartedSource) -> None:
        self.file, self.source = file, source
        self.asked: set[int] = set()

    def open(self, runtime_context: Any) -> None:
        self.descriptor = os.open(self.file, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        self.never = threading.Event()

    def invoke_batch(self, values: list[int]) -> list[Any]:
        os.write(self.descriptor, b"." * len(set(values) - self.asked))
        self.asked.update(values)
        self.never.wait(random.uniform(0, 0.04))  # stands for a model or a database
        while any(_is_last(self.source, value) for value in values):
            self.never.wait(0.01)
        results: list[Any] = [[(value,), (-value - 1,)] for value in values]
        if random.random() < 0.2:
            results[random.randrange(len(values))] = ConnectionError("ask again")
        return results


class AskAllAsync(AskAll):
    async def invoke_batch(self, values: list[int]) -> list[Any]:  # type: ignore[override]
        return await asyncio.to_thread(super().invoke_batch, values)


def _batched(stream: DataStream, ordered: bool, file: Path, source: PartedSource) -> DataStream:
    return AsyncDataStream.batched(
        stream,
        AskAll(file, source) if ordered else AskAllAsync(file, source),
        0,
        batch_size=16,
        batch_wait=5,
        ordered=ordered,
        flatten=True,
        retry=AsyncRetryStrategy.fixed_delay(1000, 2, exception_predicate=_is_worth_it),
        cache=None if ordered else RequestCache(ttl=100),
        records_per_second=None if ordered else 20_000,
    )


def _is_worth_it(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


def _job(settings: Settings, ordered: bool, batched: bool) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    mode = CheckpointingMode.EXACTLY_ONCE if ordered else CheckpointingMode.UNALIGNED
    env.enable_checkpointing(settings.interval_ms, mode)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    file = settings.folder / "requests"
    ask = Ask(file, source)
    if batched:
        stream = numbers.key_by(lambda i: i % 97) if ordered else numbers.rebalance()
        asked = _batched(stream, ordered, file, source)
    elif ordered:
        keyed = numbers.key_by(lambda i: i % 97)
        asked = AsyncDataStream.ordered_wait(keyed, ask, 0, 30)
    else:
        asked = AsyncDataStream.unordered_wait(numbers.rebalance(), ask, 0, 30)
    asked.uid("ask").sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
def test_each_record_has_its_results_once_whoever_is_killed(
    tmp_path: Path, ordered: bool, batched: bool
) -> None:
    seed = 7
    settings = Settings(
        tmp_path, count=4_000, rate=2_000, parts=4, inline_threshold=0 if ordered else 64 * 1024
    )
    killer = Killer(
        random.Random(seed), kills=3, targets=("worker", "jobmanager"), gate=settings.gate
    )
    run_to_the_end(settings, killer, job=partial(_job, ordered=ordered, batched=batched))
    assert len(killer.killed) >= 3, f"seed {seed}"
    assert (tmp_path / "requests").stat().st_size > settings.count, "no request was sent again"
    seen = Counter(number for (number,) in committed(settings.output))
    wanted = {sign for i in range(settings.count) for sign in (i, -i - 1)}
    assert compared(seen, wanted) == (0, 0)

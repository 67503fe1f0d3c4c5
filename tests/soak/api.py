"""Kills jobs with an interval join, asynchronous requests and a Parquet sink, a hundred times.

Run as `python -m tests.soak.api [--kills N] [--seed S]`. Numbers are joined with the numbers of the
same key that are near to them in event time; each pair is enriched by a request of random duration;
a Parquet sink publishes the pairs. Jobs differ in parallelism, snapshot interval, mode, order of
the results, capacity and where state is kept. Each is killed several times at random, and resumed
when its JobManager died. The last line is like

    kills 100 · lost 0 · doubled 0 · pairs 241164 · requests sent again 5120

and the exit code is 0 exactly if nothing was lost or doubled, and requests were sent again.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    CheckpointingMode,
    GeneratorSource,
    ParquetSink,
    ProcessJoinFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
    WatermarkStrategy,
)
from tests.processes.harness import Killer, Settings, compared, run_to_the_end
from tests.soak.soak import soaking

KEYS = 97
#: A number is joined with the numbers of its key up to so many milliseconds away.
REACH = 2 * KEYS
MODES = (CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED)


@dataclass(frozen=True)
class ApiSettings(Settings):
    """How a job is run.

    Arguments:
        mode: the checkpointing mode.
        ordered: whether results keep the order of the pairs.
        capacity: requests in flight of a subtask.
    """

    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    ordered: bool = False
    capacity: int = 50


class Pair(ProcessJoinFunction):
    def process_element(self, left: int, right: int, ctx: Any) -> Any:
        yield left, right


class Enrich(AsyncFunction):
    """Adds a name after a random time; each request leaves a byte in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def open(self, runtime_context: Any) -> None:
        self.descriptor = os.open(self.file, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    async def async_invoke(self, value: tuple[int, int]) -> list[Any]:
        os.write(self.descriptor, b".")
        await asyncio.sleep(random.uniform(0, 0.02))
        return [(*value, f"name {value[0] % 7}")]


def api_job(settings: ApiSettings) -> StreamExecutionEnvironment:
    """Return the program."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms, settings.mode)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 10))
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda number, _: number)
    source = GeneratorSource(lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, strategy, "numbers").uid("numbers")
    others = numbers.map(lambda i: i).uid("others")
    pairs = (
        numbers.key_by(lambda i: i % KEYS)
        .interval_join(others.key_by(lambda i: i % KEYS))
        .between(Time.milliseconds(-REACH), Time.milliseconds(REACH))
        .process(Pair())
        .uid("pairs")
    )
    wait = AsyncDataStream.ordered_wait if settings.ordered else AsyncDataStream.unordered_wait
    enrich = Enrich(settings.folder / "requests")
    enriched = wait(pairs.rebalance(), enrich, Time.minutes(10), settings.capacity).uid("enrich")
    schema = {"left": "int64", "right": "int64", "name": "string"}
    enriched.sink_to(ParquetSink(settings.output, schema)).uid("files")
    return env


def expected(settings: ApiSettings) -> set[tuple[int, int, str]]:
    """Return all rows that the job must write."""
    return {
        (left, right, f"name {left % 7}")
        for left in range(settings.count)
        for right in range(left - REACH, left + REACH + 1, KEYS)
        if 0 <= right < settings.count
    }


def written(settings: ApiSettings) -> Counter[tuple[int, int, str]]:
    """Return the published rows, with how often each is there."""
    rows: Counter[tuple[int, int, str]] = Counter()
    for path in sorted(settings.output.glob("part-*")):
        columns = pq.read_table(path).to_pydict()
        rows.update(zip(columns["left"], columns["right"], columns["name"], strict=True))
    return rows


def _settings(rng: random.Random, folder: Path) -> ApiSettings:
    return ApiSettings(
        folder,
        count=rng.choice([2_000, 4_000]),
        rate=rng.choice([1_000, 2_000, None]),
        interval_ms=rng.choice([20, 50, 100, 250]),
        inline_threshold=rng.choice([0, 64 * 1024]),
        parallelism=rng.choice([1, 2, 2]),
        mode=rng.choice(MODES),
        ordered=rng.random() < 0.5,
        capacity=rng.choice([5, 50, 200]),
    )


@click.command()
@click.option("--kills", default=100, show_default=True, help="How many kills in all.")
@click.option("--seed", type=int, help="Decides about everything random; printed at the start.")
def main(kills: int, seed: int | None) -> None:
    """Kill jobs with a join, requests and a columnar sink; count what is lost or doubled."""
    done = lost = doubled = pairs = again = 0
    with soaking(kills, seed) as (rng, console, told):
        while done < kills:
            folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
            settings = _settings(rng, folder)
            killer = Killer(
                random.Random(rng.random()),
                min(kills - done, rng.randint(3, 12)),
                ("worker", "worker", "jobmanager", "both"),
                after_snapshots=rng.choice([None, 1, 1]),
            )
            run_to_the_end(settings, killer, job=api_job)
            wanted = expected(settings)
            missing, extra = compared(written(settings), wanted)
            lost, doubled, done = lost + missing, doubled + extra, done + len(killer.killed)
            pairs += len(wanted)
            again += (folder / "requests").stat().st_size - len(wanted)
            told(done)
            if missing or extra:
                console.print(f"lost {missing}, doubled {extra} in {settings}: {killer.killed}")
            else:
                shutil.rmtree(folder)
    console.print(
        f"kills {done} · lost {lost} · doubled {doubled} · pairs {pairs} · "
        f"requests sent again {again}",
        soft_wrap=True,
    )
    sys.exit(0 if lost == doubled == 0 and again else 1)


if __name__ == "__main__":
    main()

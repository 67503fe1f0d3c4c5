"""Jobs that watch a folder, on the simulated cluster: files come, grow and go, workers die."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock import (
    Duration,
    FileSink,
    FileSource,
    JsonLines,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from tests.processes.harness import committed
from tests.simulation.run_program import Events, Ran, program, run_program

FILES, LINES = 12, 40
QUIET_SECONDS = 0.5


def watch(folder: Path) -> FileSource[Any]:
    return FileSource(
        [folder / "in", folder / "more" / "*.jsonl"],
        JsonLines(),
        split_bytes=150,
        discovery_seconds=0.05,
        quiet_seconds=QUIET_SECONDS,
        clock=trio.current_time,
    )


def counting(folder: Path, parallelism: int) -> bytes:
    """A running count per key of what is in the files, so that each lost or doubled line shows."""

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = env.from_source(watch(folder), None, "files").uid("files")
        pairs = numbers.map(lambda number: (number % 7, 1))
        counts = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
        counts.uid("counts").sink_to(FileSink(folder / "out", JsonLines())).uid("output")

    config = JobConfig(
        name="watching",
        parallelism=parallelism,
        checkpoint_dir=str(folder / "job"),
        checkpoint_interval_seconds=0.1,
    )
    return program(build, config)


def missing(folder: Path) -> int:
    return FILES * LINES - len(committed(folder / "out"))


class Writer:
    """Writes the files, each in its own way, and removes those whose lines were published."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.left = list(range(FILES))
        for name in ("in/deep", "more", "staging"):
            (folder / name).mkdir(parents=True)

    async def write(self, number: int) -> None:
        text = "".join(f"{n}\n" for n in range(number * LINES, (number + 1) * LINES))
        path = self.folder / self.rng.choice(["in", "in/deep", "more"]) / f"{number}.jsonl"
        match number % 3:
            case 0:  # piece by piece, and in the middle of lines
                cuts = sorted(self.rng.sample(range(len(text)), 3))
                for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
                    with path.open("a") as file:
                        file.write(text[start:end])
                    await trio.sleep(self.rng.uniform(0, 0.9 * QUIET_SECONDS))
            case 1:  # moved into place
                staged = self.folder / "staging" / path.name
                staged.write_text(text)
                staged.rename(path)
            case 2:
                zipped = self.folder / "in" / f"{number}.jsonl.gz"
                zipped.write_bytes(gzip.compress(text.encode()))

    async def write_all(self) -> None:
        while self.left:
            await self.write(self.left.pop(0))
            await trio.sleep(self.rng.uniform(0, 0.3))


@pytest.mark.parametrize("seed", range(8))
def test_each_line_is_counted_once_while_files_come_and_workers_die(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    writer = Writer(tmp_path, rng)
    kills = stops = 0

    async def disturb(job: Any, machine: Any, events: Events) -> None:
        nonlocal kills, stops
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.write_all)
            for _ in range(2):
                await trio.sleep(rng.uniform(0.2, 1.5))
                workers = [p for p in machine.processes if p.name.startswith("worker")]
                alive = [p for p in workers if not p.dead]
                if alive:
                    rng.choice(alive).kill()
                    kills += 1
            await trio.sleep(rng.uniform(0.2, 1.0))
            # What is being written is written to its end; the rest comes in the next run.
            rest, writer.left = writer.left, []
        writer.left = rest
        stops += 1
        job.stop()

    async def finish(job: Any, machine: Any, events: Events) -> None:
        await writer.write_all()
        while missing(tmp_path) > 0:
            await trio.sleep(0.05)
        for path in (*tmp_path.glob("in/**/*.jsonl"), *tmp_path.glob("more/*")):
            path.unlink()  # old files that are removed do no harm
        await trio.sleep(1)
        next(p for p in machine.processes if p.name.startswith("worker") and not p.dead).kill()
        await trio.sleep(2)
        job.stop()

    runs = []
    for parallelism, script, resume in (
        (2, disturb, None),
        (rng.choice([1, 3]), disturb, "newest"),
        (2, finish, "newest"),
    ):
        options = JobSettings(resume=resume)
        runs.append(run_program(counting(tmp_path, parallelism), options=options, script=script,
                                seed=seed, deadline=300))  # fmt: skip
    assert all(isinstance(ran.outcome, JobOutcome) for ran in runs), runs
    assert kills >= 3 and stops == 2, f"seed {seed}: {kills} kills"
    assert sum(ran.outcome.totals["restarts"] for ran in runs) >= kills
    seen = Counter(map(tuple, committed(tmp_path / "out")))
    totals = Counter(number % 7 for number in range(FILES * LINES))
    wanted = Counter((key, n + 1) for key, total in totals.items() for n in range(total))
    assert seen == wanted, f"seed {seed}: lost {wanted - seen}, doubled {seen - wanted}"


def test_windows_fire_while_the_folder_has_no_new_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "in" / "a").write_text("".join(f"{t}\n" for t in range(0, 10_000, 100)))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: value
    )

    def build(env: StreamExecutionEnvironment) -> None:
        idle = strategy.with_idleness(Duration.of_seconds(1))
        times = env.from_source(watch(tmp_path), idle, "files")
        windows = times.window_all(TumblingEventTimeWindows.of(Time.seconds(1)))
        counted = windows.apply(lambda window, values: [(window.start, len(values))])
        counted.sink_to(FileSink(tmp_path / "out", JsonLines()))

    async def script(job: Any, machine: Any, events: Events) -> None:
        # The last window is open: its end has not come.
        while len(committed(tmp_path / "out")) < 9:
            await trio.sleep(0.05)
        job.stop()

    config = JobConfig(
        name="watching",
        parallelism=2,
        checkpoint_dir=str(tmp_path / "job"),
        checkpoint_interval_seconds=0.1,
    )
    ran: Ran = run_program(program(build, config), script=script, deadline=60)
    assert isinstance(ran.outcome, JobOutcome), ran
    assert sorted(committed(tmp_path / "out")) == [[start, 10] for start in range(0, 9000, 1000)]

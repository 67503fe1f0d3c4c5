"""A job that watches a folder, in real processes that are killed: each line counts once."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import Duration, FileSink, FileSource, JsonLines, StreamExecutionEnvironment
from tests.connectors.zstandard import compressed
from tests.processes.harness import (
    Killer,
    Settings,
    committed,
    lost_and_doubled,
    run_to_the_end,
)

LINES = 500


def job(settings: Settings) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    source = FileSource(settings.folder / "in", split_bytes=1000, quiet_seconds=0.3)
    watching = source.monitor_continuously(Duration.of_millis(20))
    words = env.from_source(watching, None, "files").uid("files")
    counted = words.key_by(lambda word: word).count().uid("count")
    counted.sink_to(FileSink(settings.output, JsonLines())).uid("output")
    return env


class Writer:
    """Writes one file after the other, each in one of three ways."""

    def __init__(self, folder: Path, files: int, rng: random.Random) -> None:
        self.folder, self.files, self.rng = folder, files, rng
        self.written = 0
        self.expected: Counter[str] = Counter()
        (folder / "in" / "deep").mkdir(parents=True)

    def write_next(self) -> None:
        number, self.written = self.written, self.written + 1
        words = [f"word{self.rng.randrange(97)}" for _ in range(LINES)]
        self.expected.update(words)
        text = "".join(f"{word}\n" for word in words).encode()
        name = self.folder / "in" / ("deep" if number % 2 else "") / f"{number}.txt"
        if number % 3 == 0:
            staged = name.with_name(f"_{name.name}")
            staged.write_bytes(text)
            staged.rename(name)
        elif number % 3 == 1:
            name.with_suffix(".zst").write_bytes(compressed(text))
        else:
            name.write_bytes(text)  # in one piece, so that no pause of the machine cuts it


@pytest.mark.parametrize("seed", [1, 2])
def test_lines_of_a_folder_count_once_whoever_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    settings = Settings(tmp_path, interval_ms=150)
    killer = Killer(rng, kills=4, targets=("worker", "jobmanager", "both"))
    writer = Writer(tmp_path, 30, rng)
    lock = threading.Lock()
    pids: list[int] = []

    def progress(event: dict[str, Any]) -> None:
        killer(event)
        if event["event"] == "started":
            pids.append(event["pid"])
        if event["event"] not in ("snapshot", "committed"):
            return
        with lock:
            for _ in range(2):
                # The last files wait for the last kill, so that a resumed job finds new ones.
                part = min(1.0, (1 + len(killer.killed)) / (1 + killer.kills))
                if writer.written < int(writer.files * part):
                    writer.write_next()
        done = writer.written == writer.files and len(killer.killed) >= killer.kills
        if done and len(committed(settings.output)) >= writer.files * LINES:
            os.kill(pids[-1], signal.SIGTERM)

    parallelisms = iter([2, 3, 1, 2] * 50)

    def next_job(settings: Settings) -> StreamExecutionEnvironment:
        return job(Settings(tmp_path, interval_ms=150, parallelism=next(parallelisms)))

    killer_and_writer: Any = _Both(killer, progress)
    with pytest.raises(SystemExit) as stopped:
        run_to_the_end(settings, killer_and_writer, job=next_job)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert len(killer.killed) >= 4, f"seed {seed}"
    assert lost_and_doubled(committed(settings.output), writer.expected) == (0, 0), f"seed {seed}"


class _Both:
    """A killer whose events also reach the test."""

    def __init__(self, killer: Killer, progress: Any) -> None:
        self._killer, self._progress = killer, progress

    def __call__(self, event: dict[str, Any]) -> None:
        self._progress(event)

    def disarm(self) -> None:
        self._killer.disarm()

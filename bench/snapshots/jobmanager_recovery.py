"""SIGKILL of the JobManager of a supervised job, whose workers go on: a part of `recovery`.

    source (a fixed rate) → a map that counts → keyed sum → files in two phases

Each kill comes a random time after a snapshot, so it falls into any phase. `lost_rate` and
`doubled_rate` are the shares of records that are missing or there more than once in the committed
output, `processed_again` the records that workers have processed more than once. From the last
snapshot before a kill to the first after it, `seconds_without_snapshots` pass; meanwhile, no record
is processed for at most `seconds_without_records`. Both are medians, with the highest as `_max`.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Follower, Say, WrongResultError, run, scratch
from penstock import FileSink, MapFunction, RuntimeContext, StreamExecutionEnvironment

__all__ = ["measure"]

WORKERS = 2
#: The time between two samples of the number of processed records, in seconds.
SAMPLE_SECONDS = 0.004
#: The time for which the job runs for each kill, and at the end, in seconds.
SECONDS_PER_KILL = 3.0


def measure(
    kills: int, rate: int, interval_ms: float, seed: int, folder: str | None, say: Say
) -> Figures:
    """Kill the JobManager again and again, and return the figures.

    Arguments:
        kills: how often.
        rate: records per second, over both sources.
        interval_ms: between two snapshots.
        seed: of the moments.
        folder: where snapshots and output lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a kill was not followed by a snapshot.
    """
    count = int(rate * SECONDS_PER_KILL * (kills + 1))
    with scratch(folder) as place:
        killer = _Killer(kills, random.Random(seed), say)
        follower = Follower(lambda _: None, killer)
        over = threading.Event()
        samples: list[tuple[float, int]] = []

        def sample() -> None:
            while not over.wait(SAMPLE_SECONDS):
                samples.append((time.monotonic(), _processed(place)))

        sampling = threading.Thread(target=sample)
        sampling.start()
        try:
            run(build(place, count, rate, interval_ms), follower, supervise=True)
        finally:
            over.set()
            sampling.join()
            killer.disarm()
        numbers: list[int] = []
        for path in (place / "out").glob("part-*"):
            numbers += map(int, path.read_text().split())
        again = _processed(place) - count
    notes = [event["text"] for _, event in follower.events if event["event"] == "note"]
    snapshots = [at for at, event in follower.events if event["event"] == "snapshot"]
    gaps, stops = [], []
    for killed in killer.killed:
        after = next((at for at in snapshots if at > killed), None)
        if after is None:
            raise WrongResultError("no snapshot followed a kill of the JobManager")
        gaps.append(after - max(at for at in snapshots if at <= killed))
        stops.append(_longest_stop(samples, killed, after))
    return {
        "kills": len(gaps),
        "taken_over": sum("are taken over" in note for note in notes),
        "lost_rate": (count - len(set(numbers))) / count,
        "doubled_rate": (len(numbers) - len(set(numbers))) / count,
        "processed_again": again,
        **_summary("seconds_without_snapshots", gaps),
        **_summary("seconds_without_records", stops),
    }


def build(place: Path, count: int, rate: int, interval_ms: float) -> StreamExecutionEnvironment:
    """Build the program."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).enable_checkpointing(interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    numbers = env.from_generator(lambda i: i, count, rate).map(_Count(place))
    pairs = numbers.map(lambda i: (i % 100, i)).key_by(lambda pair: pair[0])
    newest = pairs.reduce(lambda a, b: (a[0], b[1]))
    newest.map(lambda pair: str(pair[1])).sink_to(FileSink(place / "out"))
    return env


class _Count(MapFunction):
    """Counts the processed records in a file for each worker process."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def open(self, context: RuntimeContext) -> None:
        path = self._place / f"seen.{context.get_index_of_this_subtask()}.{os.getpid()}"
        self._file = path.open("ab", buffering=0)

    def map(self, value: Any) -> Any:
        self._file.write(b".")
        return value

    def close(self) -> None:
        self._file.close()


class _Killer:
    """Kills the JobManager a random time after its third snapshot."""

    def __init__(self, kills: int, rng: random.Random, say: Say) -> None:
        self.killed: list[float] = []
        self._kills, self._rng, self._say = kills, rng, say
        self._pid = self._snapshots = 0
        self._timer: threading.Timer | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self._pid, self._snapshots = event["pid"], 0
        elif event["event"] == "snapshot":
            self._snapshots += 1
            if self._snapshots == 3 and len(self.killed) < self._kills:
                self._timer = threading.Timer(self._rng.uniform(0, 0.3), self._kill)
                self._timer.start()

    def _kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self.killed.append(time.monotonic())
        self._say(f"killed the JobManager, pid {self._pid}")

    def disarm(self) -> None:
        """Kill nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


def _processed(place: Path) -> int:
    return sum(path.stat().st_size for path in place.glob("seen.*"))


def _longest_stop(samples: list[tuple[float, int]], begin: float, end: float) -> float:
    """Return the longest time between two times without a new record, in seconds."""
    longest, since, count = 0.0, begin, -1
    for at, processed in samples:
        if begin <= at <= end:
            longest = max(longest, at - since)
            if processed != count:
                since, count = at, processed
    return longest


def _summary(name: str, values: list[float]) -> Figures:
    if not values:
        return {}
    return {name: round(statistics.median(values), 3), f"{name}_max": round(max(values), 3)}

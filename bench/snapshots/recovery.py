"""`recovery`: SIGKILL of a worker in mid-stream, until the job is itself again.

    source (a log on an absolute schedule) → keyed state → a map, and files in two phases

Two workers, three chains, six tasks. A *new* record is one that was not yet due when the worker
was killed, so it was never processed before. Times run from just before the signal is sent:

* `seconds_until_every_task`: every task has processed a new record, which comes after all the
  records since the last snapshot, that are processed again; it contains the delay of the restart
  strategy (`restart_delay_seconds`, that of the default strategy's first restart);
* `seconds_until_committed`: a published output file has a new record in it; it contains waiting
  for the next snapshot (`interval_seconds`);
* `seconds_until_detected` and `seconds_until_running`: the JobManager has noticed; all workers
  of the new attempt are connected and have their state.

Each is the median over the kills, with the highest as `_max`. Workers are killed at random
moments (`seed`). `seconds_to_fill` is the time until all keys have a value. More records come due
until then, and the job processes them as fast as it can: `updates_per_second_behind`, if that takes
more than a second. `snapshot_ms` and `snapshot_new_bytes` are medians of the snapshots between that
and the first kill. Keys with the prefix `large_` are of about 100 MB of keyed state, and those with
`huge_`, if wanted, of 1 GB or more. Keys with `jobmanager_` are of a supervised job whose
JobManager is killed (`jobmanager_recovery.py`). In the end all committed numbers are read: each
that the sources gave must be there once.

`regions.py` adds how long the parts of a job with two regions give no output.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Follower, Say, WrongResultError, machine, run, scratch
from bench.latency.paced_source import Observer, PacedSource, Slices
from bench.snapshots import jobmanager_recovery, regions
from penstock import (
    FileSink,
    KeyedProcessFunction,
    MapFunction,
    RestartStrategies,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

__all__ = ["SMALL", "kill_workers", "measure"]

WORKERS = 2
TASKS = [(name, i) for name in ("source", "keyed", "sink") for i in range(WORKERS)]
RESTART_DELAY_SECONDS = 0.1
#: How long anything may take before the run is given up, and to fill each gigabyte of state.
DEADLINE_SECONDS, DEADLINE_PER_GIGABYTE = 600.0, 200.0
POLL_SECONDS = 0.002
#: The part of the time in which this process may look for published files, at most. There are many
#: after a long time, and it must not take the processor from the job.
LOOKING = 0.1


@dataclass(frozen=True)
class Size:
    """How big the state is.

    Arguments:
        keys: over both workers.
        value_bytes: of each key.
    """

    keys: int
    value_bytes: int


SMALL, LARGE, GIGABYTE = Size(1_000, 10), Size(100_000, 1_000), Size(100_000, 10_000)
#: The number of kills of the job with gigabytes of state, its records per second, and the
#: milliseconds between two of its snapshots. Most of the state is not in memory, and what comes due
#: while it is filled must be processed afterwards.
HUGE_KILLS, HUGE_RATE, HUGE_INTERVAL_MS = 3, 100, 5_000
#: The number of snapshots that are measured before the first kill.
SNAPSHOTS = 20


def measure(
    kills: int = 5,
    rate: int = 10_000,
    interval_ms: float = 200,
    seed: int = 1,
    sizes: tuple[Size, Size] = (SMALL, LARGE),
    folder: str | None = None,
    say: Say = print,
    *,
    gigabytes: int = 0,
) -> Figures:
    """Kill a worker again and again, with small and with large state.

    Arguments:
        kills: for each size.
        rate: records per second, over both sources.
        interval_ms: between two snapshots.
        seed: of the moments and the victims.
        sizes: small and large.
        folder: where snapshots and output lie; the system's temporary folder if None.
        say: told what happens.
        gigabytes: the size of state that is measured, too; 0 for none.

    Raises:
        WrongResultError: if a record is lost or doubled.
    """
    small, large = (
        kill_workers(size, kills, rate, interval_ms, seed, folder, say) for size in sizes
    )
    huge: Figures = {}
    if gigabytes:
        size = replace(GIGABYTE, keys=GIGABYTE.keys * gigabytes)
        huge = {
            "records_per_second": HUGE_RATE,
            "interval_seconds": HUGE_INTERVAL_MS / 1000,
            **kill_workers(size, HUGE_KILLS, HUGE_RATE, HUGE_INTERVAL_MS, seed, folder, say),
        }
    jobmanager = jobmanager_recovery.measure(kills, rate, interval_ms, seed, folder, say)
    return {
        **small,
        **{f"large_{name}": value for name, value in large.items()},
        **{f"huge_{name}": value for name, value in huge.items()},
        **{f"jobmanager_{name}": value for name, value in jobmanager.items()},
        "restart_delay_seconds": RESTART_DELAY_SECONDS,
        "interval_seconds": interval_ms / 1000,
        "records_per_second": rate,
        "seed": seed,
        **regions.measure(kills, interval_ms, seed, folder, say),
        **machine(),
    }


def kill_workers(
    size: Size, kills: int, rate: int, interval_ms: float, seed: int, folder: str | None, say: Say
) -> Figures:
    """Kill a worker of a job again and again. The arguments are those of `measure`."""
    with scratch(folder) as place:
        (place / "marks").mkdir()
        (place / "out").mkdir()
        env, source = build(place, size, rate, interval_ms)
        follower = Follower(lambda _: None)
        killer = _Killer(place, source, follower, kills, random.Random(seed), say)
        killer.start()
        try:
            result = run(env, follower)
        finally:
            killer.over.set()
            killer.join()
        if killer.error is not None:
            raise killer.error
        _check(place)
    names = killer.measured[0]
    figures: Figures = dict(killer.before)
    for name in names:
        values = [kill[name] for kill in killer.measured]
        figures[f"seconds_until_{name}"] = round(statistics.median(values), 3)
        figures[f"seconds_until_{name}_max"] = round(max(values), 3)
    return {
        **figures,
        "kills": len(killer.measured),
        "restarts": len(result.restarts),
        "state_bytes": max(snapshot["bytes_total"] for snapshot in follower.snapshots()),
    }


def build(
    place: Path, size: Size, rate: int, interval_ms: float
) -> tuple[StreamExecutionEnvironment, PacedSource]:
    """Build the program, and its source."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).enable_checkpointing(interval_ms)
    env.set_restart_strategy(
        RestartStrategies.fixed_delay_restart(1_000, RESTART_DELAY_SECONDS * 1000)
    )
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    source = PacedSource(
        _Numbers(size.keys),
        place / "stop",
        start=time.monotonic(),
        records_per_second=rate,
        at_once=size.keys // WORKERS,
        observer=_Watched(place),
    )
    numbers = env.from_source(source).key_by(lambda r: r[0]).process(_Remember(place, size))
    lines = numbers.map(_Pass(place)).start_new_chain()
    lines.sink_to(FileSink(place / "out"))
    return env, source


class _Numbers:
    """Pairs of key and number; the numbers of both sources together are 0, 1, 2 …"""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, subtask: int, parallelism: int) -> Slices:
        keys = self._keys

        def slices(first: int, count: int) -> list[Any]:
            numbers = range(
                first * parallelism + subtask, (first + count) * parallelism, parallelism
            )
            return [(number % keys, number) for number in numbers]

        return slices


class _Mark:
    """Writes down when a task processes the first new record after a kill."""

    def __init__(self, place: Path, task: str, subtask: int) -> None:
        killed = place / "killed.json"
        self.new = float("inf")
        if killed.exists():
            kill, self.new = json.loads(killed.read_text())
            self._path = place / "marks" / f"{kill}-{task}-{subtask}"

    def seen(self) -> None:
        """Note that a new record was processed."""
        self.new = float("inf")
        if not self._path.exists():
            _publish(self._path, repr(time.monotonic()))


def _publish(path: Path, text: str) -> None:
    """Write a file that others see whole or not at all."""
    written = path.parent.parent / f"{path.name}.{os.getpid()}"
    written.write_text(text)
    written.rename(path)


class _Watched(Observer):
    """Marks the source's first new record, and writes down where it ended."""

    def __init__(self, place: Path, subtask: int | None = None) -> None:
        self._place, self._subtask = place, subtask
        if subtask is not None:
            self._mark = _Mark(place, "source", subtask)

    def __call__(self, subtask: int) -> Observer:
        return _Watched(self._place, subtask)

    def read(self, position: int) -> None:
        if position * WORKERS > self._mark.new:
            self._mark.seen()

    def close(self, position: int) -> None:
        (self._place / f"read-{self._subtask}").write_text(str(position))


class _Remember(KeyedProcessFunction):
    """Keeps a value of some size per key, and passes the number on."""

    def __init__(self, place: Path, size: Size) -> None:
        self._place, self._size = place, size

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("value"))
        self._mark = _Mark(self._place, "keyed", runtime_context.get_index_of_this_subtask())

    def process_element(
        self, value: tuple[int, int], ctx: KeyedProcessFunction.Context
    ) -> Iterable[int]:
        del ctx
        key, number = value
        kept = self._state.value()
        # Random bytes, so that no storage can make them smaller.
        content = random.Random(key).randbytes(self._size.value_bytes) if kept is None else kept[1]
        self._state.update((number, content))
        if number >= self._mark.new:
            self._mark.seen()
        return (number,)


class _Pass(MapFunction):
    """Stands in front of the sink, in its task."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def open(self, runtime_context: RuntimeContext) -> None:
        self._mark = _Mark(self._place, "sink", runtime_context.get_index_of_this_subtask())

    def map(self, value: int) -> str:
        if value >= self._mark.new:
            self._mark.seen()
        return str(value)


class _Killer(threading.Thread):
    """Kills workers and waits for what follows, beside the thread that runs the job.

    Arguments:
        place, source, follower: of the job.
        kills: how many.
        rng: chooses moments and victims.
        say: told what happens.

    `measured` has, per kill, seconds from the kill, and `before` what was measured before the first
    one; `over` is set when the job has ended.
    """

    def __init__(
        self,
        place: Path,
        source: PacedSource,
        follower: Follower,
        kills: int,
        rng: random.Random,
        say: Say,
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self.measured: list[dict[str, float]] = []
        self.before: Figures = {}
        self.error: Exception | None = None
        self.over = threading.Event()
        self._place, self._source, self._follower = place, source, follower
        self._kills, self._rng, self._say = kills, rng, say
        self._read: set[str] = set()
        #: When to look for published files again, in seconds.
        self._look_at = 0.0

    def run(self) -> None:
        """Kill so many times, then let the job end."""
        try:
            self._fill()
            for kill in range(self._kills):
                self.over.wait(self._rng.uniform(0.3, 0.9))
                self.measured.append(self._kill(kill))
        except Exception as error:
            self.error = error
        finally:
            (self._place / "stop").touch()

    def _fill(self) -> None:
        """Wait until the state is filled and the sources have caught up, then for snapshots."""
        gigabytes = self._source_filled() / GIGABYTE.keys
        deadline = DEADLINE_SECONDS + gigabytes * DEADLINE_PER_GIGABYTE
        start, rate = self._source.start, self._source.records_per_second
        assert rate is not None
        self._until(
            "the state to be filled", lambda: self._committed(self._source_filled()), deadline
        )
        filled = time.monotonic() - start
        self._say(f"filled after {filled:.1f} s")
        new = self._first_new()
        self._until("the sources to catch up", lambda: self._committed(new), deadline)
        seconds = time.monotonic() - start
        self._say(f"caught up after {seconds:.1f} s")
        first = len(self._follower.snapshots())
        self._until(
            "snapshots of the state", lambda: len(self._follower.snapshots()) >= first + SNAPSHOTS
        )
        snapshots = self._follower.snapshots()[first:]
        self.before = {
            "seconds_to_fill": round(filled, 1),
            "snapshot_ms": round(statistics.median(one["duration_ms"] for one in snapshots), 1),
            "snapshot_new_bytes": int(statistics.median(one["bytes_new"] for one in snapshots)),
        }
        if (behind := seconds - filled) > 1:
            # What came due while the state was filled, and what has come due since.
            self.before["updates_per_second_behind"] = round(rate * seconds / behind)

    def _source_filled(self) -> int:
        return self._source.at_once * WORKERS

    def _kill(self, kill: int) -> dict[str, float]:
        follower = self._follower
        heard = len(follower.events)
        pid = self._rng.choice(follower.workers)
        # Before the kill: workers of the new attempt must find it, and this process may stand still
        # right after the kill.
        _publish_killed(self._place, kill, self._first_new())
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        # Again, by the time of the kill: as a rule they take much longer to start than this does.
        new = self._first_new()
        _publish_killed(self._place, kill, new)
        marks = [self._place / "marks" / f"{kill}-{name}-{i}" for name, i in TASKS]
        committed = 0.0

        told: dict[str, float] = {}

        def recovered() -> bool:
            nonlocal committed
            if not committed and self._committed(new):
                committed = time.monotonic()
            # What happened may be seen before it is told.
            for at, event in follower.events[heard:]:
                told.setdefault(event["event"], at)
            return (
                bool(committed)
                and all(mark.exists() for mark in marks)
                and told.keys() >= {"restarting", "running"}
            )

        self._until(f"recovery from kill {kill}", recovered)
        times = {
            "detected": told["restarting"],
            "running": told["running"],
            "every_task": max(float(mark.read_text()) for mark in marks),
            "committed": committed,
        }
        seconds = {name: at - began for name, at in times.items()}
        line = ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items())
        self._say(f"kill {kill + 1} of worker process {pid}: {line}")
        return seconds

    def _first_new(self) -> int:
        """Return the first number that is not due yet."""
        source = self._source
        assert source.records_per_second is not None
        due = (time.monotonic() - source.start) * source.records_per_second
        return int(due) + self._source_filled() + WORKERS

    def _committed(self, number: int) -> bool:
        """Whether a published file that was not looked at before has this number or a later one."""
        began = time.monotonic()
        if began < self._look_at:
            return False
        found = False
        for entry in os.scandir(self._place / "out"):
            if entry.name.startswith("part-") and entry.name not in self._read:
                self._read.add(entry.name)
                lines = Path(entry.path).read_text().split()
                found = found or any(int(line) >= number for line in lines)
        now = time.monotonic()
        self._look_at = now + (now - began) / LOOKING
        return found

    def _until(
        self, what: str, condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.over.wait(POLL_SECONDS):
                raise RuntimeError(f"the job ended while waiting for {what}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:g} s for {what}")


def _publish_killed(place: Path, kill: int, new: int) -> None:
    written = place / "killed.tmp"
    written.write_text(json.dumps([kill, new]))
    written.rename(place / "killed.json")


def _check(place: Path) -> None:
    """Each number that was read must be committed once."""
    numbers: list[int] = []
    for path in (place / "out").glob("part-*"):
        numbers += map(int, path.read_text().split())
    expected = [
        number
        for subtask in range(WORKERS)
        for number in range(
            subtask, int((place / f"read-{subtask}").read_text()) * WORKERS, WORKERS
        )
    ]
    if sorted(numbers) != sorted(expected):
        lost = len(set(expected) - set(numbers))
        doubled = len(numbers) - len(set(numbers))
        raise WrongResultError(
            f"lost {lost}, doubled {doubled}, of {len(expected)} numbers; {len(numbers)} committed"
        )

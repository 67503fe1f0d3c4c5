"""One run of `checkmate`: a query, at full speed or paced with a worker that is killed.

The results go to files in two phases. After the run they are compared with the right results of
what the sources have read, so lost and doubled ones are counted.

What is measured must survive a kill. So each process appends the arrivals of results to a file of
its own, and each reader keeps its position in a file that is mapped into memory.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import statistics
import struct
import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.checkmate.inputs import INPUTS, SplitSlices, read_records
from bench.checkmate.queries import QUERIES, RunningQuery
from bench.common.harness import Figures, Follower, Say, WrongResultError, percentile, run, scratch
from bench.common.processors import ProcessorTime, seconds_of_children
from bench.latency.paced_source import Observer, PacedSource
from bench.nexmark.model import Auction, Bid, Person
from penstock import (
    CheckpointingMode,
    FileSink,
    RestartStrategies,
    StreamExecutionEnvironment,
)
from penstock.connectors.file_formats import FileFormat

__all__ = ["RunPlan", "differences", "run_query"]

WORKERS = 2
RESTART_DELAY_MS = 100
#: One result in this many has its latency noted.
LATENCY_SAMPLE = 8
#: The lag is worked off when the median latency of this many seconds is as usual.
BUCKET_SECONDS = 0.1
#: A latency up to this is as usual, if there was no greater one before.
USUAL_SECONDS = 0.05
#: The time for which results without a lag arrive in the end.
USUAL_AGAIN_SECONDS = 0.5
#: The time after which a run is given up.
DEADLINE_SECONDS = 120.0
_POSITION = struct.Struct("<q")


@dataclass(frozen=True)
class RunPlan:
    """Describes one run.

    Arguments:
        query: the name of the query.
        hot: whether a fifth of the input is of one key.
        mode: the protocol; None takes only the final snapshot.
        interval: the time between two snapshots, in seconds.
        rate: records per second over all sources; None for as fast as they are taken.
        warm: the time from when all tasks run that is not measured, in seconds. With a rate, the
            time of the start must also be worked off.
        steady: the time after it that is measured, in seconds.
        kill: whether a worker is killed then. The input ends when the lag is worked off.
        seed: of the victim, and of the time until the kill, which is up to an interval longer.
    """

    query: str
    hot: bool = False
    mode: CheckpointingMode | None = None
    interval: float = 1.0
    rate: int | None = None
    warm: float = 1.0
    steady: float = 3.0
    kill: bool = False
    seed: int = 1


def run_query(plan: RunPlan, folder: str | None, say: Say) -> Figures:
    """Run a query once, and compare its results with the right ones.

    Arguments:
        plan: the run.
        folder: the folder for snapshots and output; the system's temporary folder if None.
        say: a function that is called with lines of progress.

    Returns:
        `records_per_second` and `seconds_per_record` of the measured time, by what the sources
        read. `cpu_seconds_per_record` of all processes from when all tasks run to the end of a job
        without a kill. `lost` and `doubled` results. Of snapshots in the measured time, medians:
        `snapshot_ms`, `aligned_ms`, `write_ms`, `snapshot_bytes`, `log_records`; and
        `snapshot_ms_max`, `snapshots_completed`. With a rate: `p50_ms` and `p99_ms` of the latency,
        if a result arrived in the measured time.
        With a kill: `seconds_until_detected`, `seconds_until_running`,
        `seconds_without_output` (the longest time without a result), `seconds_until_caught_up`
        (None if the lag was not worked off in time), and `records_again`, with
        `seconds_again` of input.

    Raises:
        WrongResultError: if a result is lost, if one is doubled although the mode is exactly-once,
            or if the job was not restarted after a kill.
    """
    query = QUERIES[plan.query]
    with scratch(folder) as place:
        (place / "notes").mkdir()
        # Until then the workers start, as a rule. What is due before they run is a lag at first.
        start = time.monotonic() + 1.0
        env = build(plan, query, place, start)
        clock = ProcessorTime()
        follower = Follower(lambda _: None, clock)
        conductor = _Conductor(plan, place, start, follower)
        before = seconds_of_children()
        conductor.start()
        try:
            run(env, follower)
        finally:
            conductor.over.set()
            conductor.join()
        if conductor.error is not None:
            raise conductor.error
        spent = seconds_of_children() - before - clock.at_start
        say(f"{plan.query}: comparing results")
        positions = [_position(place, split) for split in range(WORKERS)]
        lost, doubled = differences(query, plan.hot, positions, place)
        figures = _measured(plan, place, conductor, follower)
    require_right_results(plan, lost, doubled)
    if not plan.kill:
        figures["cpu_seconds_per_record"] = spent / sum(positions)
    return {**figures, "records": sum(positions), "lost": lost, "doubled": doubled}


def build(
    plan: RunPlan, query: RunningQuery, place: Path, start: float
) -> StreamExecutionEnvironment:
    """Build the program of a run, whose input begins at `start` on `time.monotonic()`."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS)
    if plan.mode is not None:
        env.enable_checkpointing(plan.interval * 1_000, plan.mode)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, RESTART_DELAY_MS))
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    for kind in (Person, Auction, Bid):
        env.register_type(kind)
    source = PacedSource(
        partial(SplitSlices, INPUTS[query.input], plan.hot),
        place / "stop",
        start=start,
        records_per_second=plan.rate,
        observer=partial(_Readings, place / "notes"),
    )
    results = query.build(env.from_source(source, query.watermarks(), "input"))
    arrivals = ArrivalLines(query.name, place / "notes", start, plan.rate)
    results.sink_to(FileSink(place / "out", arrivals))
    return env


def differences(
    query: RunningQuery, hot: bool, positions: list[int], place: Path
) -> tuple[int, int]:
    """Return how many published results are missing, and how many should not be there.

    Arguments:
        query: the query.
        hot: whether a fifth of the input was of one key.
        positions: the number of records that each split has emitted.
        place: the folder of the run.
    """
    expected = query.expected(read_records(INPUTS[query.input], hot, positions))
    found: Counter[str] = Counter()
    for path in (place / "out").glob("part-*"):
        found.update(path.read_text().splitlines())
    return (expected - found).total(), (found - expected).total()


def require_right_results(plan: RunPlan, lost: int, doubled: int) -> None:
    """Check the numbers of lost and doubled results.

    Raises:
        WrongResultError: if there are some that the mode does not allow.
    """
    if lost or (doubled and plan.mode is not CheckpointingMode.AT_LEAST_ONCE):
        raise WrongResultError(f"{plan.query}: lost {lost}, doubled {doubled} results")


# ---- notes of the workers


class _Readings(Observer):
    """Keeps the position of a reader in a file, and notes what is read again after a failure."""

    def __init__(self, notes: Path, split: int) -> None:
        path = notes / f"position-{split}"
        self._again = notes / f"again-{split}"
        if not path.exists():
            path.write_bytes(_POSITION.pack(0))
        with path.open("r+b") as file:
            self._kept = mmap.mmap(file.fileno(), _POSITION.size)

    def opened(self, position: int) -> None:
        (before,) = _POSITION.unpack_from(self._kept)
        if before > position:
            with self._again.open("a") as file:
                file.write(f"{before - position}\n")

    def read(self, position: int) -> None:
        _POSITION.pack_into(self._kept, 0, position)


def _position(place: Path, split: int) -> int:
    """Return how many records of a split were read."""
    path = place / "notes" / f"position-{split}"
    if not path.exists():
        return 0
    (position,) = _POSITION.unpack(path.read_bytes())
    return int(position)


@dataclass(frozen=True)
class ArrivalLines(FileFormat[Any]):
    """Writes the text of each result as a line, and notes when results arrive.

    Arguments:
        query: the name of the query.
        notes: the folder for notes.
        start: the time at which the schedule of the source begins, on `time.monotonic()`.
        rate: records per second over all sources; None if there is no schedule.
    """

    extension = ".txt"

    query: str
    notes: Path
    start: float
    rate: int | None

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return an encoder that appends arrivals to the file of this process."""
        text, note = QUERIES[self.query].text, _arrivals(self, os.getpid())

        def encode(batch: list[Any]) -> bytes:
            note(batch)
            return ("\n".join([text(row) for row in batch]) + "\n").encode()

        return encode


class _NotedArrivals:
    """Appends to a file, for each batch: the time, the number of latencies, and the latencies."""

    def __init__(self, lines: ArrivalLines, process: int) -> None:
        query = QUERIES[lines.query]
        self._number, self._input = query.number, INPUTS[query.input]
        self._start = lines.start
        self._period = None if lines.rate is None else WORKERS / lines.rate
        path = lines.notes / f"arrivals-{process}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._seen = 0

    def __call__(self, batch: list[Any]) -> None:
        now, period = time.monotonic(), self._period
        note = array("d", (now, 0))
        if period is not None:
            # Counted over all batches, so that small ones are sampled like large ones.
            sample = batch[-self._seen % LATENCY_SAMPLE :: LATENCY_SAMPLE]
            index, number, late = self._input.index_in_split, self._number, now - self._start
            note.extend([late - index(number(row), WORKERS) * period for row in sample])
            note[1] = len(sample)
        self._seen += len(batch)
        os.write(self._file, note)


@cache
def _arrivals(lines: ArrivalLines, process: int) -> _NotedArrivals:
    """Return the notes of this process, which all encoders of its sinks share."""
    return _NotedArrivals(lines, process)


class Arrival(NamedTuple):
    """When a batch of results arrived, and the latencies of some of them, in seconds."""

    at: float
    latencies: list[float]


def _noted_arrivals(place: Path) -> list[Arrival]:
    """Return all arrivals, in order."""
    found = []
    for path in (place / "notes").glob("arrivals-*"):
        values = array("d")
        content = path.read_bytes()
        # A process that is killed may leave a note that is not complete.
        values.frombytes(content[: len(content) // 8 * 8])
        start = 0
        while start + 2 <= len(values):
            end = start + 2 + int(values[start + 1])
            found.append(Arrival(values[start], values[start + 2 : end].tolist()))
            start = end
    return sorted(found)


# ---- the course of a run


class _Conductor(threading.Thread):
    """Kills a worker and ends the input, beside the thread that runs the job.

    `began` and `until` are the beginning and the end of the measured time, on `time.monotonic()`.
    The second one is the moment of the kill, if there is one. `read` is the number of records that
    were read in between. `over` is set when the job has ended.
    """

    def __init__(self, plan: RunPlan, place: Path, start: float, follower: Follower) -> None:
        super().__init__(name="conductor", daemon=True)
        self._start = start
        self.error: Exception | None = None
        self.over = threading.Event()
        self.began = self.until = 0.0
        self.read = 0
        self._plan, self._place, self._follower = plan, place, follower

    def run(self) -> None:
        """Let the job run, kill, and end the input."""
        plan = self._plan
        try:
            self._sleep(self._running(1) + plan.warm - time.monotonic())
            self._work_off()
            self.began, before = time.monotonic(), self._read()
            self._sleep(plan.steady)
            # A machine may be so busy that nothing was read.
            self._wait_for(lambda: self._read() > before, "a record to be read")
            if plan.kill:
                rng = random.Random(plan.seed)
                self._sleep(rng.uniform(0, plan.interval))
                victim = rng.choice(self._follower.workers)
            self.until, self.read = time.monotonic(), self._read() - before
            if plan.kill:
                os.kill(victim, signal.SIGKILL)
                self._running(2)
                self._work_off()
                # So that results without a lag arrive.
                self._sleep(USUAL_AGAIN_SECONDS)
        except Exception as error:
            self.error = error
        finally:
            (self._place / "stop").touch()

    def _running(self, times: int) -> float:
        """Wait until all tasks have begun to run for so many times, and return when."""

        def heard() -> list[float]:
            return [at for at, e in list(self._follower.events) if e["event"] == "running"]

        self._wait_for(lambda: len(heard()) >= times, "the tasks to run")
        return heard()[times - 1]

    def _work_off(self) -> None:
        """Wait until the sources have read what is due, all but that of a moment."""
        rate = self._plan.rate
        if rate is not None:
            self._wait_for(lambda: self._behind(rate) <= BUCKET_SECONDS * rate, "the lag to end")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {DEADLINE_SECONDS:g} s for {what}")
            self._sleep(0.005)

    def _read(self) -> int:
        """Return how many records the sources have read."""
        return sum(_position(self._place, split) for split in range(WORKERS))

    def _behind(self, rate: int) -> float:
        """Return how many records are due that the sources have not read."""
        due = (time.monotonic() - self._start) * rate
        return due - self._read()

    def _sleep(self, seconds: float) -> None:
        if self.over.wait(max(0.0, seconds)):
            raise RuntimeError("the job ended before its input did")


def _measured(plan: RunPlan, place: Path, conductor: _Conductor, follower: Follower) -> Figures:
    began, until = conductor.began, conductor.until
    figures = _of_snapshots(follower, began, until)
    if plan.rate is None:
        rate = conductor.read / (until - began)
        return {**figures, "records_per_second": rate, "seconds_per_record": 1 / rate}
    arrivals = _noted_arrivals(place)
    usual = [late for at, some in arrivals if began <= at < until for late in some]
    limit = USUAL_SECONDS
    if usual:
        figures["p50_ms"] = 1_000 * percentile(usual, 50)
        figures["p99_ms"] = 1_000 * percentile(usual, 99)
        limit = max(limit, percentile(usual, 99))
    if not plan.kill:
        return figures
    again = [
        int(line) for path in (place / "notes").glob("again-*") for line in path.read_text().split()
    ]
    return {
        **figures,
        **_of_recovery(arrivals, until, limit),
        "seconds_until_detected": _heard(follower, "restarting", until) - until,
        "seconds_until_running": _heard(follower, "running", until) - until,
        "records_again": sum(again),
        "seconds_again": sum(again) / plan.rate,
    }


def _heard(follower: Follower, kind: str, after: float) -> float:
    for at, event in follower.events:
        if at > after and event["event"] == kind:
            return at
    raise WrongResultError(f"the job did not report {kind!r} after the kill")


def _of_snapshots(follower: Follower, began: float, until: float) -> Figures:
    """Return the figures of the snapshots that completed in a time."""
    snapshots = [
        event
        for at, event in follower.events
        if event["event"] == "snapshot" and event["kind"] == "checkpoint" and began <= at <= until
    ]
    figures: Figures = {"snapshots_completed": len(snapshots)}
    names = {
        "snapshot_ms": "duration_ms",
        "aligned_ms": "aligned_ms",
        "write_ms": "write_ms",
        "snapshot_bytes": "bytes_new",
        "log_records": "log_records",
    }
    if snapshots:
        for name, reported in names.items():
            figures[name] = statistics.median(event[reported] for event in snapshots)
        figures["snapshot_ms_max"] = max(event["duration_ms"] for event in snapshots)
    return figures


def _of_recovery(arrivals: list[Arrival], killed: float, limit: float) -> Figures:
    """Return the longest time without a result since a kill, and how long there was a lag.

    Arguments:
        arrivals: all arrivals, in order.
        killed: the time of the kill.
        limit: the lag is worked off when the median latency is not above this, in seconds.
    """
    times = [arrival.at for arrival in arrivals]
    after_kill = bisect_left(times, killed)
    last_before = times[after_kill - 1] if after_kill else killed
    gaps = [(b - a, b) for a, b in pairwise([last_before, *times[after_kill:]])]
    if not gaps:
        raise WrongResultError("no result arrived after the kill")
    longest, resumed = max(gaps)
    buckets: dict[int, list[float]] = {}
    for at, latencies in arrivals:
        if at >= resumed:
            buckets.setdefault(int((at - killed) / BUCKET_SECONDS), []).extend(latencies)
    usual = [
        bucket
        for bucket, latencies in sorted(buckets.items())
        if latencies and statistics.median(latencies) <= limit
    ]
    caught_up = (usual[0] + 1) * BUCKET_SECONDS if usual else None
    return {"seconds_without_output": longest, "seconds_until_caught_up": caught_up}

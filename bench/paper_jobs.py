"""The programs that `paper` runs, and one run of them: source, sink and what they note down.

*Acyclic*, after figure 5 of the paper: six operators with **three full shuffles**. A source makes
records of three keys, a map adds a field, each of three keyed reduces counts by one of the keys,
a sink counts. *Cyclic*: each record goes round a keyed loop five times, to another key each
time, whose count goes up by one.

A run reads either for a fixed time or a fixed number of records, as fast as they are taken. It is
measured where records arrive: each subtask of the sink notes how many have come, when the first
moments were over (code that runs for the first time, state that has no keys yet), when the last
came, the longest time without any, and when each barrier reached it. This module draws no
conclusions; `paper_statistics.py` does. Workers import it, so nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Figures, Follower, Say, WrongResultError, scratch
from penstock import (
    CheckpointingMode,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.environment import RunOptions, run_options
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

__all__ = ["HOPS", "KEYS", "LOOP_KEYS", "Job", "build", "run_once"]

KEYS = 70_001  # of each of three aggregates; a prime
LOOP_KEYS = 210_011  # of the loop's one aggregate; a prime
HOPS = 5
STEP = 7_919


@dataclass(frozen=True)
class Job:
    """What is run, and for how long.

    Arguments:
        parallelism: workers.
        mode: the protocol; None takes no snapshots but the last.
        interval: seconds between two snapshots.
        seconds: how long the source reads; None if it reads `records`.
        records: how many the source reads; None if it reads for a time.
        warm: seconds after the first arrival that are not measured.
        cyclic: the loop instead of the three shuffles.
        count_keys: count the keys that change in one second, which costs time.
    """

    parallelism: int = 2
    mode: CheckpointingMode | None = None
    interval: float = 1.0
    seconds: float | None = None
    records: int | None = None
    warm: float = 0.5
    cyclic: bool = False
    count_keys: bool = False


def run_once(
    job: Job,
    folder: str | None,
    say: Say,
    cluster: Callable[[], AbstractContextManager[Any]] | None = None,
) -> Figures:
    """Run a job once.

    Arguments:
        job: what.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.
        cluster: makes what the program runs in instead of local processes.

    Returns:
        Of the measured time: `seconds`, `records`, `records_per_second`, `seconds_per_record`,
        `longest_pause_ms` between two arrivals at a subtask of the sink. Of the whole run:
        `run_seconds` from the first read to the last arrival, `cpu_seconds` of all processes from
        the moment all tasks run to the end of the job and `cpu_seconds_per_record` (None on a
        cluster), `snapshots_asked` and `snapshots_completed`. Of its snapshots, medians:
        `snapshot_bytes`, `snapshot_ms`, `write_ms`, `aligned_ms` (the longest wait of a task),
        `channel_aligned_ms` (how long the median channel was blocked),
        `barrier_travel_ms` (from the beginning of the snapshot to the last sink's cut, to the
        millisecond), `log_bytes`, `log_records`; and `log_bytes_max`, `log_records_max`.

    Raises:
        WrongResultError: if not as many records arrive as were read, the job was restarted, or
            the run is too short to be measured.
    """
    with scratch(folder) as place:
        clock = _Processors()
        follower = Follower(say, clock)
        env = build(job, place)
        before = _of_children()
        with run_options(RunOptions(progress=follower)), cluster() if cluster else _nothing():
            env.execute()
        spent = _of_children() - before - clock.at_start
        arrivals = [json.loads(path.read_text()) for path in sorted(place.glob("arrivals-*"))]
        reads = [json.loads(path.read_text()) for path in place.glob("read-*")]
        keys = _distinct(place) if job.count_keys else None
    _check(job, follower, reads, arrivals)
    arrived = sum(one["arrived"] for one in arrivals)
    last = max(one["last"] for one in arrivals)
    seconds = last - statistics.mean(one["warm_at"] for one in arrivals)
    records = arrived - sum(one["warm_arrived"] for one in arrivals)
    run_seconds = last - min(one["began"] for one in reads)
    return {
        "seconds": seconds,
        "records": records,
        "records_per_second": records / seconds,
        "seconds_per_record": seconds / records,
        "run_seconds": run_seconds,
        "cpu_seconds": None if cluster else spent,
        "cpu_seconds_per_record": None if cluster else spent / arrived,
        "longest_pause_ms": 1000 * max(one["longest_pause"] for one in arrivals),
        "keys_changed_per_second": keys,
        **_of_snapshots(job, follower, arrivals, run_seconds, max(one["ended"] for one in reads)),
    }


def _check(job: Job, follower: Follower, reads: list[Figures], arrivals: list[Figures]) -> None:
    if any(event["event"] == "restarting" for _, event in follower.events):
        raise WrongResultError("the job was restarted, so its figures mean nothing")
    arrived = sum(one["arrived"] for one in arrivals)
    read = sum(one["read"] for one in reads)
    if arrived != read or (job.records is not None and read != job.records):
        wanted = "" if job.records is None else f"; {job.records} were to be read"
        raise WrongResultError(f"{arrived} of {read} records arrived{wanted}")
    if any(one["warm_at"] is None or one["last"] <= one["warm_at"] for one in arrivals):
        raise WrongResultError(
            f"a subtask had no records after {job.warm:g} s of warm-up: the run is too short"
        )


def _of_snapshots(
    job: Job, follower: Follower, arrivals: list[Figures], run_seconds: float, ended: float
) -> Figures:
    if job.mode is None:
        return {}
    # That a loop is empty is found out from snapshots, too, which are none of the clock's.
    snapshots = [s for s in follower.snapshots() if s["created_ms"] <= 1000 * ended]
    # Those that are due half an interval before the end, or half a second; it takes time to write.
    slack = min(0.5, job.interval / 2)
    asked = int(((job.seconds or run_seconds) - slack) / job.interval + 1e-9)
    travels = [
        1000 * max(one["cuts"][str(snapshot["number"])] for one in arrivals)
        - snapshot["created_ms"]
        for snapshot in snapshots
        if all(str(snapshot["number"]) in one["cuts"] for one in arrivals)
    ]

    def median(figure: str) -> float | None:
        return statistics.median(s[figure] for s in snapshots) if snapshots else None

    return {
        "snapshots_asked": asked,
        "snapshots_completed": len(snapshots),
        "snapshot_bytes": median("bytes_new"),
        "snapshot_ms": median("duration_ms"),
        "write_ms": median("write_ms"),
        "aligned_ms": median("aligned_ms"),
        "channel_aligned_ms": median("channel_aligned_ms"),
        "barrier_travel_ms": statistics.median(travels) if travels else None,
        "log_bytes": median("log_bytes"),
        "log_records": median("log_records"),
        "log_bytes_max": max((s["log_bytes"] for s in snapshots), default=None),
        "log_records_max": max((s["log_records"] for s in snapshots), default=None),
    }


class _Processors:
    """Hears events; reads off how much processor time had been used when all tasks ran.

    Starting interpreters takes more of it than a short run, and has nothing to do with snapshots.
    """

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self.at_start = 0.0

    def __call__(self, event: Figures) -> None:
        if event["event"] == "started":
            self._pids.add(event["pid"])
        elif event["event"] == "workers":
            self._pids.update(event["pids"])
        elif event["event"] == "running":
            self.at_start = sum(map(_of_process, self._pids))


def _of_process(pid: int) -> float:
    """Processor seconds of a running process; 0 where the operating system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _of_children() -> float:
    """Processor seconds of all processes that have ended under this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _nothing() -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


# ---- the programs


def build(job: Job, place: Path) -> StreamExecutionEnvironment:
    """The program of a job.

    Arguments:
        job: what.
        place: an empty folder for snapshots and notes, which all workers reach.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(job.parallelism)
    if job.mode is not None:
        env.enable_checkpointing(job.interval * 1000, job.mode)
    # With a folder in any case, so that the last snapshot is in all runs alike.
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    sink = _Arrivals(place, job.warm, job.count_keys)
    if not job.cyclic:
        stream = env.from_source(_Records(place, _three_keys, job.seconds, job.records))
        stream = stream.map(lambda keys: (*keys, 1))
        for position in range(3):
            stream = stream.key_by(_Key(position)).reduce(_count)
        stream.sink_to(sink)
        return env
    stream = env.from_source(_Records(place, _hopper, job.seconds, job.records))
    feedback = env.create_feedback("hops")
    hopped = stream.union(feedback).key_by(_Key(0)).process(_Hop())
    feedback.close_with(hopped.filter(lambda record: record[1] > 0))
    hopped.filter(lambda record: record[1] == 0).sink_to(sink)
    return env


def _three_keys(indices: range) -> list[Any]:
    return [(i * 7919 % KEYS, i * 104_729 % KEYS, i * 15_485_863 % KEYS) for i in indices]


def _hopper(indices: range) -> list[Any]:
    return [(i * 104_729 % LOOP_KEYS, HOPS) for i in indices]


class _Key:
    """Takes one of the keys."""

    def __init__(self, position: int) -> None:
        self._position = position

    def __call__(self, record: tuple[int, ...]) -> int:
        return record[self._position]


def _count(state: tuple[int, ...], record: tuple[int, ...]) -> tuple[int, ...]:
    return (record[0], record[1], record[2], state[3] + 1)


class _Hop(KeyedProcessFunction):
    """Counts a hop at its key, and sends the record on to another."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(
        self, value: Any, ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[int, int]]:
        del ctx
        self._count.update((self._count.value() or 0) + 1)
        return (((value[0] + STEP) % LOOP_KEYS, value[1] - 1),)


# ---- source and sink


class _Records(Source):
    """Records by their index, for a time or up to a number, as fast as they are taken.

    Its state is an offset per reader. The time starts with the first read; it is not in the
    state, since a run that was restarted has no figures.

    Arguments:
        place: where each reader leaves how many records it has read, when it began and ended.
        make: makes the records of some indices.
        seconds: how long; None for no limit.
        records: how many over all readers; None for no limit.
    """

    def __init__(
        self,
        place: Path,
        make: Callable[[range], list[Any]],
        seconds: float | None,
        records: int | None,
    ) -> None:
        self.place, self.make, self.seconds, self.records = place, make, seconds, records

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """One split per reader."""
        return SubtaskEnumerator([None] * parallelism, parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """A reader of every so many-th index."""
        return _RecordsReader(self, context)


class _RecordsReader(SourceReader):
    def __init__(self, source: _Records, context: ReaderContext) -> None:
        self._source = source
        self._subtask, self._parallelism = context.subtask, context.parallelism
        self._next = 0
        self._end: float | None = None
        self._began = self._ended = 0.0
        over = source.records
        mine = None if over is None else -((context.subtask - over) // context.parallelism)
        self._count = math.inf if mine is None else mine

    def open(self, split: Split, position: Any) -> None:
        del split
        self._next = position or 0

    def read(self, max_records: int) -> Read:
        now = time.monotonic()
        if self._end is None:
            limit = self._source.seconds
            self._began, self._end = now, math.inf if limit is None else now + limit
        room = int(min(max_records, self._count - self._next))
        if now >= self._end or room <= 0:
            self._ended = time.time()
            return Read([], self._next, finished=True)
        first, self._next = self._next, self._next + room
        step = self._parallelism
        indices = range(first * step + self._subtask, self._next * step + self._subtask, step)
        return Read(self._source.make(indices), self._next)

    def close(self) -> None:
        # The first as the sink has it, the second by the clock that snapshots are dated by.
        notes = {"read": self._next, "began": self._began, "ended": self._ended}
        (self._source.place / f"read-{self._subtask}").write_text(json.dumps(notes))


class _Arrivals(Sink):
    """Notes how many records come, and when.

    Arguments:
        place: where each writer leaves its notes.
        warm: seconds after its first record from which a writer measures.
        count_keys: note which keys come in the first measured second.
    """

    def __init__(self, place: Path, warm: float, count_keys: bool) -> None:
        self.place, self.warm, self.count_keys = place, warm, count_keys

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer with notes of its own."""
        return _ArrivalsWriter(self, context.subtask)


class _ArrivalsWriter(SinkWriter):
    """A few steps per batch, and per record none."""

    def __init__(self, sink: _Arrivals, subtask: int) -> None:
        self._sink, self._subtask = sink, subtask
        self._arrived = self._warm_arrived = 0
        self._first: float | None = None
        self._warm_at: float | None = None
        self._last = self._longest_pause = 0.0
        self._cuts: dict[int, float] = {}
        self._seen: list[set[int]] = [set(), set(), set()]

    def write(self, batch: list[Any]) -> None:
        now = time.monotonic()
        self._arrived += len(batch)
        if self._first is None:
            self._first = now
        if self._warm_at is not None:
            self._longest_pause = max(self._longest_pause, now - self._last)
            if self._sink.count_keys and now < self._warm_at + 1.0:
                for position, seen in enumerate(self._seen):
                    seen.update([record[position] for record in batch])
        elif now >= self._first + self._sink.warm:
            self._warm_at, self._warm_arrived = now, self._arrived
        self._last = now

    def prepare(self, snapshot: int) -> None:
        # By the clock that the JobManager dates snapshots by.
        self._cuts[snapshot] = time.time()

    def close(self) -> None:
        notes = {
            "arrived": self._arrived,
            "warm_arrived": self._warm_arrived,
            "warm_at": self._warm_at,
            "last": self._last,
            "longest_pause": self._longest_pause,
            "cuts": self._cuts,
        }
        place = self._sink.place
        (place / f"arrivals-{self._subtask}").write_text(json.dumps(notes))
        if self._sink.count_keys:
            seen = [sorted(keys) for keys in self._seen]
            (place / f"keys-{self._subtask}").write_text(json.dumps(seen))


def _distinct(place: Path) -> int:
    """How many keys of all three aggregates came in one second, each counted once."""
    found: list[set[int]] = [set(), set(), set()]
    for path in place.glob("keys-*"):
        for keys, more in zip(found, json.loads(path.read_text()), strict=True):
            keys.update(more)
    return sum(map(len, found))

"""`checkpoint`: how long a snapshot takes, and how long records stand still for it.

Two workers, each with 100,000 keys, **all of which have changed since the snapshot before**; state
in RocksDB, every snapshot synced to disk. The records are web log events as JSON lines, which the
job parses, keys by user and adds up. Each source cycles over its own half of the users, so a worker
that got as many records of a source between two barriers as it has users of it got all of them:
this is checked for every snapshot (`keys_changed_min`), from what the sinks count between barriers,
and those that came too soon for it are left out (`snapshots_left_out`).

*Full* load: the sources give whatever the engine takes. *Half* load: half of the rate that full
load reached, snapshots included, on an absolute schedule. The interval between snapshots is what
it takes, at each load, to change every key once and a quarter of them twice.

Per load, over at least 100 snapshots (the first ones, which open RocksDB and fill it, and the
final one are left out): `duration_ms_*` from the injection of the barriers to the durable
manifest; `longest_pause_ms`, the longest time between two consecutive arrivals of records at
a sink subtask, from one hand-over of a batch to the next, which contains the engine's ordinary
slices of work; `pause_ms_p99_per_snapshot`, the 99th percentile of the longest pause in each
interval between two barriers; the medians of the bytes. Keys with the prefix `full_` are of full
load. `steady_duration_ms_*` leave out the snapshots that were under way while the machine was slow
by itself, `steady_longest_pause_ms` the pauses (`bench.common.steadiness`); it is never less than
2.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from bench.common.harness import (
    Figures,
    Follower,
    Say,
    WrongResultError,
    machine,
    percentile,
    run,
    scratch,
)
from bench.common.steadiness import Watch
from bench.latency.paced_source import Observer, PacedSource, Slices
from penstock import StreamExecutionEnvironment
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext

__all__ = ["measure"]

WORKERS = 2
MAX_PARALLELISM = 128
#: Snapshots that fill the state for the first time, and those up to the one that writes it anew:
#: as most of it changes it is kept by position from then on. Where much is written ahead, that is
#: seen after two or three more.
WARM_UP = 5
#: So many cycles over a worker's keys lie between two barriers, to be sure of one.
CYCLES = 1.3
#: So many more snapshots are taken, for those that come too soon after a late one.
SPARE = 1.2
#: If too many do, the machine has become slower: all of it again, with so much longer intervals.
LONGER, TRIES = 1.3, 4
#: Pauses that are looked at one by one.
LEAST_PAUSE_SECONDS = 0.002


class TooSoonError(WrongResultError):
    """Too few snapshots came after all keys had changed."""


@dataclass(frozen=True)
class Load:
    """What a run of the job does.

    Arguments:
        keys: of each worker.
        interval_seconds: between two snapshots.
        snapshots: how many are measured.
        records_per_second: over both sources; None for as fast as possible.
        all_keys: whether every key must have changed before a snapshot for it to count.
    """

    keys: int
    interval_seconds: float
    snapshots: int
    records_per_second: float | None = None
    all_keys: bool = True


def measure(
    keys: int = 100_000,
    snapshots: int = 100,
    interval: float = 0.2,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Take snapshots at half and at full load.

    Arguments:
        keys: of each worker.
        snapshots: measured at each load.
        interval: the least time between two snapshots, in seconds; more if half the load needs
            longer to change every key.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if the sums are not those of the records that were read, or if not every
            key had changed before enough snapshots, with intervals three times lengthened, too.
    """
    say("finding the rate of full load")
    rate = _run(Load(keys, interval, 12, all_keys=False), folder, say)["records_per_second"]
    pause = max(interval, CYCLES * keys * WORKERS / rate)
    say(f"full load, a snapshot every {pause:.2f} s")
    full = _run_long_enough(Load(keys, pause, snapshots), folder, say)
    rate = full["records_per_second"] / 2
    pause = max(interval, CYCLES * keys * WORKERS / rate)
    say(f"half load, a snapshot every {pause:.2f} s")
    half = _run_long_enough(Load(keys, pause, snapshots, rate), folder, say)
    return {
        **half,
        **{f"full_{name}": value for name, value in full.items()},
        "keys_per_worker": keys,
        **machine(),
    }


def _run_long_enough(load: Load, folder: str | None, say: Say) -> Figures:
    """Run, and again with a longer interval as long as too many snapshots come too soon."""
    tries = TRIES
    while True:
        try:
            figures = _run(load, folder, say)
        except TooSoonError:
            tries -= 1
            if not tries:
                raise
            load = replace(load, interval_seconds=LONGER * load.interval_seconds)
            say(f"the machine has become slower: again, with {load.interval_seconds:.2f} s")
        else:
            return {**figures, "interval_seconds": round(load.interval_seconds, 3)}


def _run(load: Load, folder: str | None, say: Say) -> Figures:
    with scratch(folder) as place:
        measured = 0

        def stop_when_done(event: dict[str, Any]) -> None:
            nonlocal measured
            measured += event["event"] == "snapshot"
            if measured == WARM_UP + round(load.snapshots * SPARE):
                (place / "stop").touch()

        follower = Follower(say, stop_when_done)
        with Watch() as watch:
            run(build(place, load), follower)
        emitted = [json.loads(path.read_text()) for path in place.glob("source-*.json")]
        sinks = [json.loads(path.read_text()) for path in place.glob("sink-*.json")]
    taken = follower.snapshots()[WARM_UP:]
    total = sum(source["records"] for source in emitted)
    if [total, total] != [sum(s["records"] for s in sinks), sum(s["counted"] for s in sinks)]:
        raise WrongResultError(f"{total} records were read, and the sinks got {sinks}")
    if load.all_keys and any(sink["keys"] != load.keys for sink in sinks):
        raise WrongResultError(f"a worker has not {load.keys} keys: {[s['keys'] for s in sinks]}")
    changed: dict[int, int] = {}
    for sink in sinks:
        for number, received, _ in sink["windows"]:
            mine = sum(min(load.keys // WORKERS, count) for count in received)
            changed[number] = min(mine, changed.get(number, mine))
    # A barrier that was late leaves the next window short: its snapshot had less to write.
    least = load.keys if load.all_keys else 0
    good = [snapshot for snapshot in taken if changed[snapshot["number"]] >= least]
    left_out, taken = len(taken) - len(good), good[: load.snapshots]
    if len(taken) < load.snapshots:
        raise TooSoonError(
            f"every key had changed before {len(taken)} snapshots only, of {load.snapshots} asked "
            f"for; the machine had other work, or try a longer interval"
        )
    numbers = {snapshot["number"] for snapshot in taken}
    windows = [window for sink in sinks for number, *window in sink["windows"] if number in numbers]
    durations = [snapshot["duration_ms"] for snapshot in taken]
    pauses = [pause * 1e3 for _, pause in windows]
    began, ended = min(s["began"] for s in emitted), max(s["ended"] for s in emitted)
    return {
        "duration_ms_p50": round(percentile(durations, 50), 1),
        "duration_ms_p99": round(percentile(durations, 99), 1),
        "duration_ms_max": round(max(durations), 1),
        "longest_pause_ms": round(max(pauses), 1),
        "pause_ms_p99_per_snapshot": round(percentile(pauses, 99), 1),
        "pause_ms_p50_per_snapshot": round(percentile(pauses, 50), 1),
        **_steady(follower, taken, sinks, watch),
        "slow_percent": watch.slow_percent(began, ended),
        "aligned_ms_p50": round(percentile([s["aligned_ms"] for s in taken], 50), 1),
        "write_ms_p50": round(percentile([s["write_ms"] for s in taken], 50), 1),
        **{
            name: round(statistics.median(snapshot[name] for snapshot in taken))
            for name in ("bytes_new", "bytes_linked", "bytes_total")
        },
        "snapshots_completed": len(taken),
        "snapshots_left_out": left_out,
        "keys_changed_min": min(changed[number] for number in numbers),
        "records_per_second": round(total / (ended - began)),
        "peak_rss_mb": follower.peak_mb(),
    }


def _steady(
    follower: Follower, taken: list[Figures], sinks: list[Figures], watch: Watch
) -> Figures:
    """Return the figures of what was not under way while the machine was slow by itself."""
    heard = {e["number"]: at for at, e in follower.events if e["event"] == "snapshot"}
    durations = []
    for snapshot in taken:
        duration, end = snapshot["duration_ms"], heard[snapshot["number"]]
        if not watch.was_slow(end - duration / 1e3, end):
            durations.append(duration)
    numbers = {snapshot["number"] for snapshot in taken}
    pauses = [
        end - begin
        for sink in sinks
        for number, begin, end in sink["pauses"]
        if number in numbers and not watch.was_slow(begin, end)
    ]
    return {
        **{
            f"steady_duration_ms_p{percent}": round(percentile(durations, percent), 1)
            for percent in (50, 99)
            if durations
        },
        "steady_snapshots": len(durations),
        "steady_longest_pause_ms": round(1e3 * max(pauses, default=LEAST_PAUSE_SECONDS), 1),
    }


def build(place: Path, load: Load) -> StreamExecutionEnvironment:
    """Build the program: visits and time spent per user, from JSON lines."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).set_max_parallelism(MAX_PARALLELISM)
    env.enable_checkpointing(load.interval_seconds * 1000)
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_inline_threshold(0).set_checkpoint_storage_dir(place / "snapshots")
    source = PacedSource(
        _Cycle(load.keys),
        place / "stop",
        start=time.monotonic(),
        records_per_second=load.records_per_second,
        observer=_Emitted(place),
    )
    events = (
        env.from_source(source)
        .map(json.loads)
        .map(lambda e: (e["user"], 1, e["milliseconds"], e["page"], e["source"]))
    )
    totals = events.key_by(lambda e: e[0]).reduce(
        lambda a, b: (a[0], a[1] + b[1], a[2] + b[2], b[3], b[4])
    )
    totals.sink_to(_Pauses(place))
    return env


class _Cycle:
    """Each source goes round its share of the users, equally many of them of each worker."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, subtask: int, parallelism: int) -> Slices:
        wanted = self._keys // parallelism
        shares: list[list[str]] = [[] for _ in range(parallelism)]
        user = subtask
        while any(len(share) < wanted for share in shares):
            group = key_group(canonical(user), MAX_PARALLELISM)
            share = shares[subtask_of_key_group(group, MAX_PARALLELISM, parallelism)]
            if len(share) < wanted:
                share.append(_event(user, subtask))
            user += parallelism
        cycle = [line for together in zip(*shares, strict=True) for line in together]

        def slices(first: int, count: int) -> list[Any]:
            at = first % len(cycle)
            return cycle[at : at + count]

        return slices


def _event(user: int, source: int) -> str:
    return json.dumps(
        {
            "user": user,
            "page": f"/articles/{user % 977}",
            "milliseconds": user % 3600,
            "status": 200,
            "agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0",
            "referrer": None,
            "source": source,
        }
    )


class _Emitted(Observer):
    """Writes down how many records a source gave, from when to when."""

    def __init__(self, place: Path, subtask: int = -1) -> None:
        self._place = place
        self._subtask = subtask
        self._began = self._ended = 0.0

    def __call__(self, subtask: int) -> Observer:
        return _Emitted(self._place, subtask)

    def read(self, position: int) -> None:
        del position
        self._ended = time.monotonic()
        self._began = self._began or self._ended

    def close(self, position: int) -> None:
        told = {"records": position, "began": self._began, "ended": self._ended}
        (self._place / f"source-{self._subtask}.json").write_text(json.dumps(told))


class _Pauses(Sink):
    """Looks at the clock when a batch arrives, and keeps the last record per key."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _PausesWriter(self._place / f"sink-{context.subtask}.json")


class _PausesWriter(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = 0
        #: Records of each source since the barrier before.
        self._received = [0] * WORKERS
        self._visits: dict[int, int] = {}
        #: Per snapshot: number, records since the barrier before, longest pause in seconds.
        self._windows: list[tuple[int, list[int], float]] = []
        self._arrived = 0.0
        self._pause = 0.0
        #: The window's pauses that are not short, and those of all windows with their snapshot.
        self._recent: list[tuple[float, float]] = []
        self._pauses: list[tuple[int, float, float]] = []

    def write(self, batch: list[Any]) -> None:
        now = time.monotonic()
        pause = now - self._arrived if self._arrived else 0.0
        self._pause = max(self._pause, pause)
        if pause > LEAST_PAUSE_SECONDS:
            self._recent.append((self._arrived, now))
        self._arrived = now
        self._records += len(batch)
        second = sum(map(itemgetter(4), batch))
        self._received[0] += len(batch) - second
        self._received[1] += second
        self._visits.update(zip(map(itemgetter(0), batch), map(itemgetter(1), batch), strict=True))

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        # The window of the barrier that follows has what this snapshot's writing costs.
        self._windows.append((snapshot, self._received, self._pause))
        self._pauses += [(snapshot, begin, end) for begin, end in self._recent]
        self._recent = []
        self._received, self._pause = [0] * WORKERS, 0.0
        return None

    def close(self) -> None:
        told = {
            "records": self._records,
            "counted": sum(self._visits.values()),
            "keys": len(self._visits),
            "windows": self._windows,
            "pauses": self._pauses,
        }
        self._path.write_text(json.dumps(told))

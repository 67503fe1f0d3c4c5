"""`latency --load`: from a source to a sink at a share of the highest rate that the job sustains.

The job is that of `latency`, with one keyed shuffle or three, over 100,003 keys: each keyed reduce
keeps the newest record, so with more records in an interval than there are keys all of the state
changes between two snapshots. Sources keep to an absolute schedule (`bench.latency.paced_source`).

*The highest sustainable rate* is found first: a run at full speed tells what the engine takes; that
rate is then tried on a schedule, and lowered by 5 % until the sources keep to it. *Load* is a share
of it. Latency is measured for every record from the time it is made, which is when the source
reads it, until the sink has it. `remote_*` is of those whose sink is not in the process of their
source; `due_*` begins when the schedule had the record, so it has in it what held up the source.
`snapshot_*` is of records that arrived while a snapshot was being taken, `quiet_*` of all others.
`steady_*` is of those that were not under way while the machine was slow by itself
(`bench.common.steadiness`). The first second and a half is left out. `kept_schedule` says whether
the sources kept to the schedule to the end; if not, the job was overloaded. `others_cpu_percent`
is how much of the machine other processes took meanwhile: with more than a few, latency is the
time that records waited for a core.

`filter_*` (with `--load all`): a filter that passes one record in a million, before the shuffle, at
90 % of what *it* sustains; of the records that pass. What the engine does with a record must not
wait until a batch of others is full.

That each record arrived exactly once is checked, or there are no figures.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from operator import sub
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Follower, Say, WrongResultError, machine, run, scratch
from bench.common.processors import seconds_of_children
from bench.common.steadiness import Watch
from bench.latency.arrivals import Arrivals, read_arrivals
from bench.latency.paced_source import PacedSource, Slices
from penstock import StreamExecutionEnvironment
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split

__all__ = ["FILTER_LOAD", "LOADS", "SHUFFLES", "Setting", "measure", "measure_all", "sustainable"]

WORKERS = 2
LOADS = (0.1, 0.5, 0.9)
SHUFFLES = (1, 3)
FACTORS = (1, 31, 977)
#: With the filter, one record in so many passes; a prime, so that each source makes some.
ONE_IN = 1_000_003
FILTER_LOAD = 0.9
LONGEST_SECONDS = 15.0
#: The latency of the first records is that of code that runs for the first time, and so is that of
#: records beside the first snapshot.
WARM_UP_SECONDS = 1.5
#: How long the engine runs at full speed, and for how long a rate is tried.
FULL_SECONDS, TRY_SECONDS = 2.5, 2.5
#: A source keeps to its schedule if in the last half second it is behind by less, at the median.
LATE_SECONDS = 0.05
LOWER, TRIES = 0.95, 5
#: How often a source writes down how far it is.
SAMPLE_SECONDS = 0.01


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Arguments:
        shuffles: keyed shuffles between source and sink.
        interval_ms: between two snapshots; None for none.
        keys: how many there are.
        one_in: a filter before the shuffle passes one record in so many; None for no filter.
    """

    shuffles: int = 1
    interval_ms: float | None = 1_000
    keys: int = 100_003
    one_in: int | None = None


@dataclass
class _Run:
    """What is known of a run.

    Arguments:
        ids, made, arrived: of each sink's records, in the order of arrival; times in nanoseconds.
        progress: of each source, pairs of a time in seconds and how many records it had read; the
            first is when its schedule began.
        others: the share of the machine's processor time that other processes took; None where
            the operating system does not tell.
        snapshots: when each began and ended, in nanoseconds.
        events: what was said of those that the clock asked for.
        watch: knows when the machine was slow by itself.
    """

    ids: list[array[int]]
    made: list[array[int]]
    arrived: list[array[int]]
    progress: list[list[tuple[float, int]]]
    others: float | None = None
    snapshots: list[tuple[float, float]] = field(default_factory=list)
    events: list[Figures] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)


def measure(
    load: float,
    setting: Setting | None = None,
    seconds: float = 8.0,
    highest: float | None = None,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Measure the latency at one load.

    Arguments:
        load: share of the highest sustainable rate, more than 0.
        setting: the job.
        seconds: how long, after the warm-up.
        highest: that rate, in records per second; it is found out if None.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a record is missing or came twice.
    """
    setting = setting or Setting()
    if highest is None:
        highest = sustainable(setting, folder, say)
    return {**_measure(load, setting, seconds, highest, folder, say), **machine()}


def _measure(
    load: float, setting: Setting, seconds: float, highest: float, folder: str | None, say: Say
) -> Figures:
    """As `measure`, at a known highest rate."""
    rate = load * highest
    say(f"load {load:g}: {rate:,.0f} records/s over {setting.shuffles} shuffles")
    done = _run(setting, rate, WARM_UP_SECONDS + seconds, folder, say)
    return {
        **_latencies(done, rate),
        "load": load,
        "shuffles": setting.shuffles,
        "snapshots": setting.interval_ms is not None,
        "records_per_second": round(rate),
        "sustainable_records_per_second": round(highest),
        "kept_schedule": _late_seconds(done, rate) < LATE_SECONDS,
        "others_cpu_percent": None if done.others is None else round(100 * done.others, 1),
        "keys": setting.keys,
        "snapshots_completed": len(done.events),
        **{
            f"snapshot_{name}": round(statistics.median(event[figure] for event in done.events), 2)
            for name, figure in (("ms_median", "duration_ms"), ("bytes_median", "bytes_new"))
            if done.events
        },
    }


def measure_all(
    seconds: float = 6.0,
    setting: Setting | None = None,
    folder: str | None = None,
    results: str | None = None,
    say: Say = print,
    loads: Iterable[float] = LOADS,
) -> Figures:
    """Measure each load, with one shuffle and three, with and without snapshots; and the filter.

    Arguments:
        seconds: how long each run is, after the warm-up.
        setting: the job; its shuffles and, for the runs without, its snapshots are replaced.
        folder: where snapshots lie; the system's temporary folder if None.
        results: a folder for `latency_load.json`, which holds what is returned; None for no file.
        say: told what happens.
        loads: shares of the highest sustainable rate, which is found out for each of the four.

    Raises:
        WrongResultError: if a record is missing or came twice.
    """
    setting, loads = setting or Setting(), tuple(loads)
    interval = setting.interval_ms or 1_000
    runs = []
    for shuffles in SHUFFLES:
        for own_interval in (interval, None):
            own = replace(setting, shuffles=shuffles, interval_ms=own_interval)
            highest = sustainable(own, folder, say)
            runs += [_measure(load, own, seconds, highest, folder, say) for load in loads]
    rare = replace(setting, one_in=ONE_IN, interval_ms=interval)
    highest = sustainable(rare, folder, say)
    # Longer, since few records pass: a dozen or more are wanted, and at least some.
    enough = 5 * ONE_IN / (FILTER_LOAD * highest)
    longer = max(2 * seconds, min(enough, LONGEST_SECONDS))
    filtered = _measure(FILTER_LOAD, rare, longer, highest, folder, say)
    figures = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: version(name) for name in ("penstock", "trio", "msgpack", "rocksdict")},
        "runs": runs,
        **{f"filter_{name}": value for name, value in filtered.items()},
        **machine(),
    }
    if results is not None:
        path = Path(results) / "latency_load.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
        say(f"wrote {path}")
    return figures


def sustainable(setting: Setting, folder: str | None = None, say: Say = print) -> float:
    """Return the highest rate, in records/s, at which the sources keep to their schedule."""
    say(f"full speed, over {setting.shuffles} shuffles")
    rate = _read_per_second(_run(setting, None, FULL_SECONDS + WARM_UP_SECONDS, folder, say))
    for _ in range(TRIES):
        say(f"whether {rate:,.0f} records/s can be sustained")
        late = _late_seconds(_run(setting, rate, TRY_SECONDS, folder, say), rate)
        if late < LATE_SECONDS:
            break
        rate *= LOWER
    return rate


# ---- the job


def build(
    place: Path, setting: Setting, rate: float | None, seconds: float
) -> StreamExecutionEnvironment:
    """Build the program, which runs for `seconds` after its last source has begun."""
    source = _Source(_Maker(setting.keys), place, rate, seconds)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS)
    if setting.interval_ms is not None:
        env.enable_checkpointing(setting.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    stream = env.from_source(source)
    if setting.one_in is not None:
        one_in = setting.one_in
        stream = stream.filter(lambda record: record[1] % one_in == 0)
    for number in range(setting.shuffles):
        # Three times the same key would shuffle nothing but the first time.
        stream = stream.key_by(_key(FACTORS[number % 3])).reduce(lambda _, new: new)
    stream.add_sink(Arrivals(place))
    return env


def _key(factor: int) -> Callable[[Any], int]:
    return lambda record: record[0] * factor


class _Source(PacedSource):
    """Its schedule begins when it is opened, and ends `seconds` after the last source was opened.

    With a schedule from a fixed time on that would have to be so late that all tasks surely run by
    then, or the job would begin with a backlog that takes long to work off at a high load.
    """

    def __init__(self, maker: _Maker, place: Path, rate: float | None, seconds: float) -> None:
        super().__init__(maker, place / "stop", start=0.0, records_per_second=rate)
        self.place, self.seconds = place, seconds

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _Reader(self, super().create_reader(context), context)


class _Reader(SourceReader):
    """Writes down how far a source was when, and ends the run when its time is over."""

    def __init__(self, source: _Source, reader: SourceReader, context: ReaderContext) -> None:
        self._source, self._reader, self._subtask = source, reader, context.subtask
        self._began = [source.place / f"began-{i}" for i in range(context.parallelism)]
        self._samples: list[tuple[float, int]] = []
        self._next = 0.0

    def open(self, split: Split, position: Any) -> None:
        self._source.start = time.monotonic()
        self._samples.append((self._source.start, 0))
        path = self._began[self._subtask]
        # The others see it whole or not at all.
        written = path.with_name(f".{path.name}")
        written.write_text(repr(self._source.start))
        written.rename(path)
        self._reader.open(split, position)

    def read(self, max_records: int) -> Read:
        read = self._reader.read(max_records)
        now = time.monotonic()
        if read.records and now >= self._next:
            self._samples.append((now, read.position))
            self._next = now + SAMPLE_SECONDS
        if not read.finished and self._is_over(now):
            self._source.stop.touch()
        if read.finished:
            self._samples.append((now, read.position))
            path = self._source.place / f"read-{self._subtask}.json"
            path.write_text(json.dumps(self._samples))
        return read

    def _is_over(self, now: float) -> bool:
        """Whether all sources have had their time: a worker may start much later than another."""
        seconds = self._source.seconds
        if now < self._source.start + seconds or not all(path.exists() for path in self._began):
            return False
        return now >= max(float(path.read_text()) for path in self._began) + seconds

    def close(self) -> None:
        self._reader.close()


class _Maker:
    """Makes slices of records: key, id (unlike in all sources) and when it was made."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, subtask: int, parallelism: int) -> Slices:
        keys, now = self._keys, time.monotonic_ns

        def slices(first: int, count: int) -> list[Any]:
            ids = range(first * parallelism + subtask, (first + count) * parallelism, parallelism)
            return [(id * 7919 % keys, id, now()) for id in ids]

        return slices


# ---- a run


def _run(
    setting: Setting, rate: float | None, seconds: float, folder: str | None, say: Say
) -> _Run:
    """Run the job once; what came of it, checked."""
    with scratch(folder) as place:
        follower = Follower(say)
        processors = _Processors()
        with Watch() as watch:
            run(build(place, setting, rate, seconds), follower)
        others = processors.others_share()
        columns: list[array[int]] = []
        for subtask in range(WORKERS):
            columns += read_arrivals(place, subtask)
        progress = [
            json.loads((place / f"read-{subtask}.json").read_text()) for subtask in range(WORKERS)
        ]
    done = _Run(columns[::3], columns[1::3], columns[2::3], progress, others)
    _check(setting, done)
    for at, event in follower.events:
        if event["event"] == "snapshot":
            done.snapshots.append(((at - event["duration_ms"] / 1e3) * 1e9, at * 1e9))
    done.events, done.watch = follower.snapshots(), watch
    return done


class _Processors:
    """What others on this machine did since then: with both cores busy, records wait for a core."""

    def __init__(self) -> None:
        self._before = self._now()

    def others_share(self) -> float | None:
        """Return the share of all processor time that went to processes that are not ours."""
        before, now = self._before, self._now()
        if before is None or now is None or now[0] <= before[0]:
            return None
        total, busy, own = (after - at for at, after in zip(before, now, strict=True))
        return max(0.0, busy - own) / total

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Processor seconds since the start: all there were, those used, and by our processes."""
        try:
            line = Path("/proc/stat").read_text().splitlines()[0]
        except OSError:
            return None
        # user nice system idle iowait irq softirq steal; guests' time is in user and nice.
        ticks = [int(field) for field in line.split()[1:9]]
        used = resource.getrusage(resource.RUSAGE_SELF)
        per_second = os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]
        own = used.ru_utime + used.ru_stime + seconds_of_children()
        return sum(ticks) / per_second, (sum(ticks) - idle) / per_second, own


def _check(setting: Setting, done: _Run) -> None:
    """Raise `WrongResultError` unless each record that must arrive did so once."""
    read = [samples[-1][1] for samples in done.progress]
    seen = bytearray(max(read) * WORKERS + 1)
    arrived = 0
    for ids in done.ids:
        arrived += len(ids)
        for id in ids:
            seen[id] = 1
    one_in = setting.one_in or 1
    expected = sum(len(_passing(source, count, one_in)) for source, count in enumerate(read))
    if (arrived, sum(seen)) != (expected, expected):
        raise WrongResultError(
            f"{arrived} records arrived, {sum(seen)} different ones, and should be {expected}"
        )


def _passing(source: int, count: int, one_in: int) -> range:
    """Those of the ids i, i + WORKERS, … of source i, `count` in all, that the filter passes."""
    first = next(n for n in range(0, one_in * WORKERS, one_in) if n % WORKERS == source)
    return range(first, count * WORKERS, one_in * WORKERS)


def _read_per_second(done: _Run) -> float:
    """How many records all sources read in a second, after the warm-up."""
    rate = 0.0
    for samples in done.progress:
        begin = samples[0][0] + WARM_UP_SECONDS
        warm = [sample for sample in samples if sample[0] >= begin]
        (at, position), (end, last) = warm[0], warm[-1]
        rate += (last - position) / (end - at)
    return rate


def _late_seconds(done: _Run, rate: float) -> float:
    """How far the sources were behind their schedule in the last half second, at the median."""
    late = []
    for samples in done.progress:
        end = samples[-1][0]
        start = samples[0][0]
        late.append(
            statistics.median(
                at - start - position * WORKERS / rate
                for at, position in samples
                if at >= end - 0.5
            )
        )
    return max(late)


# ---- its latencies


def _latencies(done: _Run, rate: float) -> Figures:
    """Return the figures of all records but those of the warm-up."""
    starts = [samples[0][0] * 1e9 for samples in done.progress]
    warm = int(max(starts) + WARM_UP_SECONDS * 1e9)
    every: Counter[int] = Counter()
    remote: Counter[int] = Counter()
    due: Counter[int] = Counter()
    during: Counter[int] = Counter()
    steady: Counter[int] = Counter()
    spacing = 1e9 * WORKERS / rate
    for sink, (ids, made, arrived) in enumerate(
        zip(done.ids, done.made, done.arrived, strict=True)
    ):
        # In order of arrival, so what arrived in the warm-up is at the beginning.
        begin = bisect_left(arrived, warm)
        ids, made, arrived = ids[begin:], made[begin:], arrived[begin:]
        took = [nanoseconds // 1_000 for nanoseconds in map(sub, arrived, made)]
        every.update(took)
        remote.update(t for t, id in zip(took, ids, strict=True) if id % WORKERS != sink)
        due.update(
            int(at - starts[id % WORKERS] - id // WORKERS * spacing) // 1_000
            for at, id in zip(arrived, ids, strict=True)
        )
        steady.update(
            t
            for t, start, end in zip(took, made, arrived, strict=True)
            if not done.watch.was_slow(start / 1e9, end / 1e9)
        )
        for began, ended in done.snapshots:
            during.update(took[bisect_left(arrived, began) : bisect_left(arrived, ended)])
    figures = distribution(every)
    parts = {"remote_": remote, "due_": due, "steady_": steady}
    parts |= {"snapshot_": during, "quiet_": every - during}
    for prefix, part in parts.items():
        # Of a filter's few records none may be among those that arrived during a snapshot.
        if part:
            figures |= distribution(part, prefix)
    end = max(samples[-1][0] for samples in done.progress)
    return {
        **figures,
        "records": every.total(),
        "remote_records": remote.total(),
        "steady_records": steady.total(),
        "slow_percent": done.watch.slow_percent(warm / 1e9, end),
    }


def distribution(microseconds: Counter[int], prefix: str = "") -> Figures:
    """Return the figures p50_ms, p99_ms, p999_ms and max_ms of counted durations.

    Raises:
        WrongResultError: if there is none.
    """
    if not microseconds:
        raise WrongResultError(f"nothing was measured for {prefix or 'the latency'}: run longer")
    ordered = sorted(microseconds.items())
    total = microseconds.total()
    figures: Figures = {}
    for name, percent in (("p50", 50.0), ("p99", 99.0), ("p999", 99.9), ("max", 100.0)):
        left = max(1, math.ceil(total * percent / 100))
        for took, count in ordered:
            left -= count
            if left <= 0:
                figures[f"{prefix}{name}_ms"] = round(took / 1e3, 3)
                break
    return figures

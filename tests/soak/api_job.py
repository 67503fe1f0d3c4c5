"""A job with an interval join, asynchronous requests and columns, and what must come out of it.

Record *i* follows from *i* and a seed. Records are out of order, but by less than the watermarks
allow, so none is late. Nothing that comes out depends on the order.

* Even records are joined with the odd records of their key that are near in event time.
* A request enriches each pair, after a random time. It returns no record, one or two, which follows
  from the pair. Some fail at first, and are repeated.
* The results become Arrow batches. Parquet sinks publish them, and their totals: running totals for
  each name, and totals of windows by event time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    BatchFunction,
    CheckpointingMode,
    DataStream,
    ParquetSink,
    ProcessJoinFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    async_retry_predicates,
)
from tests.processes.aims import Aims
from tests.processes.harness import Settings
from tests.processes.parts import PartedSource
from tests.soak.killing import Verdict

__all__ = ["FUNCTION_PHASES", "ApiSettings", "api_job", "verdict"]

#: Aims at the functions of the job.
FUNCTION_PHASES = ("pair joined", "request in flight", "request repeated", "batch mapped")
KEYS, NAMES = 37, 7
#: All times are milliseconds. Records are joined whose times differ by at most FAR.
DISORDER, FAR, WINDOW = 400, 150, 500
#: One of so many chances to strike is taken, or the first of a phase would always be.
CHANCE = 0.02
SCHEMA = {
    "left": "int64",
    "right": "int64",
    "copy": "int64",
    "time": "int64",
    "name": "string",
    "size": "int64",
}


@dataclass(frozen=True)
class ApiSettings(Settings):
    """How the job is run.

    Arguments:
        seed: decides about times and keys of the records.
        readers: subtasks of the source.
        mode: of the snapshots.
        at_source: watermarks come from the source, else from an operator after it.
        ordered: requests are ordered, on a stream with keys.
        capacity: requests in flight of a subtask.
        text: characters in every eighth record, which the join holds.
    """

    count: int = 6_000
    rate: float | None = 2_000
    seed: int = 0
    readers: int = 1
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    at_source: bool = True
    ordered: bool = False
    capacity: int = 50
    text: int = 0


@dataclass(frozen=True)
class Record:
    """A record before the join, with its event time in milliseconds."""

    number: int
    key: int
    time: int
    text: str


@dataclass(frozen=True)
class Plan:
    """Which records there are."""

    seed: int
    text: int

    def record(self, number: int) -> Record:
        mixed = (number * 2654435761 + self.seed * 40503 + 12345) & 0xFFFFFFFF
        mixed ^= mixed >> 15
        mixed = mixed * 2246822519 & 0xFFFFFFFF
        mixed ^= mixed >> 13
        text = "x" * (self.text if number % 8 == 0 else number % 3)
        return Record(number, mixed // 7 % KEYS, number * 3 + mixed % DISORDER, text)


def enriched(left: int, right: int, key: int, time: int, size: int) -> list[tuple[Any, ...]]:
    """What the request of a pair returns."""
    copies = 0 if left % 11 == 0 else 2 if right % 9 == 0 else 1
    return [(left, right, copy, time, f"name {key % NAMES}", size) for copy in range(copies)]


class Aiming:
    """What the functions have in common: they say which phase they are in."""

    def __init__(self, aims: Aims | None) -> None:
        self.aims = aims

    def reached(self, phase: str) -> None:
        if self.aims is not None and random.random() < CHANCE:
            self.aims.reached(phase)


class Pair(Aiming, ProcessJoinFunction):
    """Emits a pair."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        self.reached("pair joined")
        size = len(left.text) + len(right.text)
        yield left.number, right.number, left.key, max(left.time, right.time), size


class Notes:
    """Counts requests in files, to which all processes append.

    Where it is unpickled in a worker, it watches how many requests operators restore.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        from penstock.runtime.operators.async_wait import operator

        self.__dict__.update(state)
        cls: Any = operator.AsyncWaitOperator
        initialize = cls.initialize_state

        def watched(running: Any) -> None:
            initialize(running)
            self.note("restored", len(running._restored))

        cls.initialize_state = watched

    def note(self, kind: str, times: int = 1) -> None:
        with (self.folder / kind).open("ab") as file:
            file.write(b"." * times)

    def count(self, kind: str) -> int:
        path = self.folder / kind
        return path.stat().st_size if path.exists() else 0


class Enrich(Aiming, AsyncFunction):
    """Adds a name to a pair, after a random time; every thirteenth request fails at first."""

    def __init__(self, aims: Aims | None, notes: Notes) -> None:
        super().__init__(aims)
        self.notes = notes

    async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        self.loop = asyncio.get_running_loop()
        self.failed: set[tuple[int, int]] = set()

    async def async_invoke(self, value: Any) -> list[Any]:
        assert asyncio.get_running_loop() is self.loop
        left, right, *_ = value
        if (left, right) in self.failed:
            self.reached("request repeated")
        else:
            self.notes.note("requests")
        await asyncio.sleep(random.uniform(0, 0.04))
        self.reached("request in flight")
        if (left + right) % 13 == 0 and (left, right) not in self.failed:
            self.failed.add((left, right))
            raise ConnectionError("the first attempt fails")
        return enriched(*value)


class AddSum(Aiming, BatchFunction):
    """Adds a column to a batch."""

    def map_batch(self, batch: Any) -> Any:
        self.reached("batch mapped")
        return batch.append_column("sum", pc.add(batch["left"], batch["right"]))


def _timed(settings: ApiSettings, env: StreamExecutionEnvironment) -> DataStream:
    plan = Plan(settings.seed, settings.text)
    source = PartedSource(settings.gate, settings.parts, plan.record, settings.count, settings.rate)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(DISORDER))
    strategy = strategy.with_timestamp_assigner(lambda record, _: record.time)
    records = env.from_source(source, strategy if settings.at_source else None, "records")
    # A subtask that reads two splits of other times would make the records of one late.
    records.uid("records").set_parallelism(settings.readers)
    if not settings.at_source:
        records = records.assign_timestamps_and_watermarks(strategy).uid("timed")
        records.set_parallelism(settings.readers)
    return records


def api_job(settings: ApiSettings) -> StreamExecutionEnvironment:
    """Return the program: join, requests, columns, Parquet files."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms, settings.mode)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    aims = Aims(settings.folder, list(settings.aims), logs=False) if settings.aims else None
    records = _timed(settings, env)
    even = records.filter(lambda record: record.number % 2 == 0).uid("even")
    odd = records.filter(lambda record: record.number % 2 == 1).uid("odd")
    even.set_parallelism(settings.readers)
    odd.set_parallelism(settings.readers)
    pairs = (
        even.key_by(lambda record: record.key)
        .interval_join(odd.key_by(lambda record: record.key))
        .between(Time.milliseconds(-FAR), Time.milliseconds(FAR))
        .process(Pair(aims))
        .uid("pairs")
    )
    retry = AsyncRetryStrategy.fixed_delay(
        max_attempts=3,
        backoff_time_millis=5,
        exception_predicate=async_retry_predicates.has_exception_predicate,
    )
    enrich = Enrich(aims, Notes(settings.folder))
    wait: Callable[..., DataStream] = AsyncDataStream.unordered_wait_with_retry
    asked = pairs.rebalance()
    if settings.ordered:
        wait, asked = AsyncDataStream.ordered_wait_with_retry, pairs.key_by(lambda pair: pair[2])
    results = wait(asked, enrich, 0, retry, settings.capacity).uid("enrich")
    columns = results.map_batches(AddSum(aims), keep_rows=True, schema=SCHEMA).uid("columns")
    columns.sink_to(ParquetSink(settings.output / "pairs")).uid("pair files")
    totals = {"rows": ("*", "count"), "total": ("sum", "sum")}
    running = columns.group_by("name").agg(**totals).uid("running")
    running.sink_to(ParquetSink(settings.output / "running")).uid("running files")
    windows = columns.group_by("name").window(TumblingEventTimeWindows.of(WINDOW))
    windows.agg(**totals).uid("windows").sink_to(ParquetSink(settings.output / "windows")).uid(
        "window files"
    )
    return env


def _published(settings: ApiSettings, name: str) -> list[dict[str, Any]]:
    paths = sorted((settings.output / name).glob("part-*"))
    rows: list[dict[str, Any]] = pa.concat_tables(map(pq.read_table, paths)).to_pylist()
    return rows


def seen(settings: ApiSettings) -> Counter[Any]:
    """What came out, as facts."""
    facts: Counter[Any] = Counter()
    for row in _published(settings, "pairs"):
        facts["pair", *(row[name] for name in SCHEMA), row["sum"]] += 1
    last: dict[str, tuple[int, int]] = {}
    for row in _published(settings, "running"):
        facts["running", row["name"], row["rows"]] += 1
        last[row["name"]] = max(last.get(row["name"], (0, 0)), (row["rows"], row["total"]))
    facts.update(("total", name, total) for name, (_, total) in last.items())
    for row in _published(settings, "windows"):
        assert row["window_end"] == row["window_start"] + WINDOW
        facts["window", row["name"], row["window_start"], row["rows"], row["total"]] += 1
    return facts


def joined(settings: ApiSettings) -> list[tuple[int, int, int, int, int]]:
    """All pairs that the join must find, as it emits them."""
    plan = Plan(settings.seed, settings.text)
    by_key: dict[int, list[Record]] = defaultdict(list)
    for number in range(settings.count):
        record = plan.record(number)
        by_key[record.key].append(record)
    return [
        (
            left.number,
            right.number,
            left.key,
            max(left.time, right.time),
            len(left.text) + len(right.text),
        )
        for records in by_key.values()
        for left in records
        for right in records
        if left.number % 2 == 0 and right.number % 2 and abs(left.time - right.time) <= FAR
    ]


def expected(settings: ApiSettings) -> set[Any]:
    """The facts that must come out, computed from their definitions."""
    facts: set[Any] = set()
    sums: dict[str, list[int]] = defaultdict(list)
    windows: dict[tuple[str, int], list[int]] = defaultdict(list)
    for pair in joined(settings):
        for row in enriched(*pair):
            left, right, _, time, name, _ = row
            facts.add(("pair", *row, left + right))
            sums[name].append(left + right)
            windows[name, time // WINDOW * WINDOW].append(left + right)
    for name, parts in sums.items():
        facts.update(("running", name, n + 1) for n in range(len(parts)))
        facts.add(("total", name, sum(parts)))
    facts.update(("window", *window, len(parts), sum(parts)) for window, parts in windows.items())
    return facts


def verdict(settings: ApiSettings) -> Verdict:
    """Compare what came out of a job with what must come out of it."""
    facts = seen(settings)
    notes = Notes(settings.folder)
    pairs = len(joined(settings))
    happened = Counter(
        pairs=pairs,
        windows=sum(times for fact, times in facts.items() if fact[0] == "window"),
        again=notes.count("requests") - pairs,
        restored=notes.count("restored"),
    )
    return Verdict.of_facts(facts, expected(settings), happened)

"""`limit`: a map chain, a keyed count and a join, each against a program that has nothing but that.

The jobs are those of `limit_shapes.py`, as a user would write them: two workers, plain functions, a
snapshot each second, keyed state in RocksDB, a Python function as sink.

    map     source.map(triple).filter(not_by_five).map(flip).filter(not_by_seven)
    count   source.map(key of a number).key_by(it).count()
    join    two sources of (side, key, value), united, keyed, and a KeyedProcessFunction that keeps
            the sum of each side in a ValueState and emits both for each record

Runs of the engine and of the limit program alternate, the limit program first and last. `ratio` is,
for each shape, the median rate of the engine by that of the limit program. The map chain has two
limits: in `map` the four steps are written out in one loop; `map_called` calls the four functions
for each record, as an engine does that is handed them. Timed is as in `wordcount`: from the
first record that is read, when both sources can begin, until the final snapshot is durable.
`cpu_ratio` is the processor time of the limit program by that of both workers, which suffers less
from others' work on the machine.

Results are compared with `limit_shapes.expected`, or there is no figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.common.harness import (
    Figures,
    Follower,
    Say,
    WrongResultError,
    machine,
    median_figures,
    run,
    scratch,
)
from bench.throughput import limit_shapes
from bench.throughput.limit_shapes import COUNT_FACTOR, KEYS, LEFT_FACTOR, RIGHT_FACTOR, VALUES
from penstock import (
    DataStream,
    IterableSource,
    KeyedProcessFunction,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

__all__ = ["RECORDS", "SHAPES", "measure"]

WORKERS = 2
LIMIT = Path(limit_shapes.__file__)
SHAPES = ("map", "count", "join")
#: For about three seconds of each shape on two cores.
RECORDS = {"map": 16_000_000, "count": 8_000_000, "join": 3_000_000}
#: The programs that a shape is compared with.
LIMITS = {"map": ("map", "map_called"), "count": ("count",), "join": ("join",)}


def measure(
    shapes: Iterable[str] = SHAPES,
    scale: float = 1.0,
    rounds: int = 2,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Measure each shape, `rounds` times.

    Arguments:
        shapes: which of `SHAPES`.
        scale: how many records, as a multiple of `RECORDS`.
        rounds: runs of the engine; the limit programs have one more.
        interval_ms: between two snapshots.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a result is not what it must be.
    """
    ratios: Figures = {}
    cpu_ratios: Figures = {}
    details: Figures = {}
    for shape in shapes:
        with scratch(folder) as place:
            own = _measure(place, shape, int(RECORDS[shape] * scale), rounds, interval_ms, say)
        for limit in LIMITS[shape]:
            ratios[limit] = own.pop(f"{limit}_ratio")
            cpu_ratios[limit] = own.pop(f"{limit}_cpu_ratio")
        details[shape] = own
    return {"ratio": ratios, "cpu_ratio": cpu_ratios, **details, "rounds": rounds, **machine()}


def _measure(
    place: Path, shape: str, records: int, rounds: int, interval_ms: float, say: Say
) -> Figures:
    """One shape."""
    say(f"{shape}: what must come out")
    # Once, since it takes longer than a run.
    right = limit_shapes.expected(shape, records)
    limits: dict[str, list[Figures]] = {name: [] for name in LIMITS[shape]}
    ours: list[Figures] = []
    for number in range(rounds + 1):
        if number:
            say(f"{shape}: the engine, run {number} of {rounds}")
            folder = place / f"run-{number}"
            folder.mkdir()
            ours.append(_engine(folder, shape, records, right, interval_ms, say))
        for name, done in limits.items():
            say(f"{shape}: the limit program")
            done.append(_limit(name, records, right))
    figures = median_figures(ours)
    result: Figures = {"records_per_second": round(figures.pop("records_per_second"))}
    for name, done in limits.items():
        medians = median_figures(done)
        before = "" if name == shape else "called_"
        rate, cpu = medians["limit_records_per_second"], medians["cpu_ns_per_record"]
        result[f"{before}limit_records_per_second"] = rate
        result[f"{before}limit_cpu_ns_per_record"] = cpu
        result[f"{name}_ratio"] = round(result["records_per_second"] / rate, 3)
        result[f"{name}_cpu_ratio"] = round(cpu / figures["cpu_ns_per_record"], 3)
    return {
        **result,
        **figures,
        "all_records_per_second": [one["records_per_second"] for one in ours],
        "all_limit_records_per_second": [
            one["limit_records_per_second"] for one in limits[LIMITS[shape][0]]
        ],
    }


def _limit(name: str, records: int, right: list[int]) -> Figures:
    """One run of a limit program."""
    command = [sys.executable, str(LIMIT), name, str(records)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    _check(f"the limit program {name}", figures["result"], right)
    return figures


def _engine(
    folder: Path, shape: str, records: int, right: list[int], interval_ms: float, say: Say
) -> Figures:
    """One run of the engine."""
    follower = Follower(say)
    env = build(folder, shape, records, interval_ms)
    run(env, follower)
    ended = [json.loads(path.read_text()) for path in folder.glob("ended-*.json")]
    began = [json.loads(path.read_text()) for path in folder.glob("began-*.json")]
    _check(
        f"the engine's {shape}", [sum(part) for part in zip(*_results(ended), strict=True)], right
    )
    first = min(source["at"] for source in began)
    last = next(
        at for at, e in follower.events if e["event"] == "snapshot" and e["kind"] == "final"
    )
    cpu = sum(e["cpu"] for e in ended) - sum(b["cpu"] for b in began)
    return {
        "records": records,
        "seconds": round(last - first, 3),
        "records_per_second": round(records / (last - first)),
        "cpu_ns_per_record": round(cpu / records * 1e9, 1),
        "snapshots_completed": len(follower.snapshots()),
        "peak_rss_mb": follower.peak_mb(),
    }


def _results(ended: list[Figures]) -> list[list[int]]:
    results: list[list[int]] = [one["result"] for one in ended]
    if len(results) != WORKERS:
        raise WrongResultError(f"{len(results)} of {WORKERS} sinks left a result")
    return results


def _check(what: str, result: list[int], right: list[int]) -> None:
    if result != right:
        raise WrongResultError(f"{what} came to {result} instead of {right}")


def build(folder: Path, shape: str, records: int, interval_ms: float) -> StreamExecutionEnvironment:
    """Build the program of a shape."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).enable_checkpointing(interval_ms)
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_inline_threshold(0).set_checkpoint_storage_dir(folder / "snapshots")
    if shape == "map":
        numbers = _numbers(env, folder, records)
        chain = (
            numbers.map(limit_shapes.triple)
            .filter(limit_shapes.not_by_five)
            .map(limit_shapes.flip)
            .filter(limit_shapes.not_by_seven)
        )
        chain.add_sink(_Sum(folder))
    elif shape == "count":
        keys = _numbers(env, folder, records).map(lambda x: x * COUNT_FACTOR % KEYS)
        keys.key_by(lambda key: key).count().add_sink(_Counts(folder))
    else:
        left = _numbers(env, folder, records // 2).map(
            lambda x: (0, x * LEFT_FACTOR % KEYS, x % VALUES)
        )
        right = _numbers(env, folder, records // 2).map(
            lambda x: (1, x * RIGHT_FACTOR % KEYS, x % VALUES)
        )
        joined = left.union(right).key_by(lambda record: record[1]).process(_Join())
        joined.add_sink(_Joined(folder))
    return env


def _numbers(env: StreamExecutionEnvironment, folder: Path, records: int) -> DataStream:
    return env.from_source(IterableSource(_Numbers(folder, records), blocking=False))


class _Numbers:
    """Each source's numbers; none begins before both workers are there."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder, self._records = folder, records

    def __call__(self, subtask: int, parallelism: int) -> range:
        # Of a worker's sources whichever comes first: to wait for the same one in the other
        # worker, which may open its sources in another order, could be for ever.
        (self._folder / f"ready-{subtask}").touch()
        while not all((self._folder / f"ready-{i}").exists() for i in range(parallelism)):
            os.sched_yield()
        path = self._folder / f"began-{subtask}.json"
        if not path.exists():
            path.write_text(json.dumps({"at": time.monotonic(), "cpu": time.process_time()}))
        return range(subtask, self._records, parallelism)


class _Join(KeyedProcessFunction):
    """What has come of the record's key so far, on either side."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._left = runtime_context.get_state(ValueStateDescriptor("left"))
        self._right = runtime_context.get_state(ValueStateDescriptor("right"))

    def process_element(
        self, value: Any, ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[int, int, int]]:
        del ctx
        side, key, number = value
        left, right = self._left.value() or 0, self._right.value() or 0
        if side:
            right += number
            self._right.update(right)
        else:
            left += number
            self._left.update(left)
        return ((key, left, right),)


class _Result(SinkFunction):
    """Writes down what came of its records, and the processor time of its worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.records = self.total = 0
        self.last: dict[int, Any] = {}

    def close(self) -> None:
        ended = {"result": self.result(), "cpu": time.process_time()}
        (self._folder / f"ended-{self.subtask}.json").write_text(json.dumps(ended))

    def result(self) -> list[int]:
        """As `limit_shapes.expected` has it, of this subtask."""
        raise NotImplementedError


class _Sum(_Result):
    """Adds up."""

    def invoke(self, value: Any) -> None:
        self.records += 1
        self.total += value

    def result(self) -> list[int]:
        return [self.records, self.total]


class _Counts(_Result):
    """Keeps the last count of each key."""

    def invoke(self, value: Any) -> None:
        self.records += 1
        self.last[value[0]] = value

    def result(self) -> list[int]:
        checksum = sum(key * count for key, count in self.last.values())
        return [self.records, len(self.last), checksum]


class _Joined(_Counts):
    """Keeps the last pair of each key."""

    def result(self) -> list[int]:
        checksum = sum(limit_shapes.joined_sum(*last) for last in self.last.values())
        return [self.records, len(self.last), checksum]

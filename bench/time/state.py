"""`state`: keyed state and timers through process functions, on one worker.

* `value_state_updates_per_second`: a `KeyedProcessFunction` reads and updates a `ValueState` of
  1,000 keys, once per record.
* `spilled_value_state_updates_per_second`: the same with about ten times more state than the
  worker has memory for, in values of 1 KB. `beyond_memory_ratio_to_plain` divides this by the rate
  of a hand-written loop over the same library, with the same options and memory: it reads the keys
  of 1,000 records together, in order, and writes them as one batch.
* `spilled_map_updates_per_second`: the same values, as the entries of a `MapState` of 1,000 keys.
  `map_beyond_memory_ratio_to_plain` divides this by the rate of the same loop.
* `timers_per_second`: each record sets an event-time timer, and each timer fires and emits.
* `large_map_cost_ratio`: each record reads and writes 10 entries of a `MapState` under one key. The
  ratio is the cost per record with 100,000 entries to that with 100.

With the backend SQLite, all of these are measured with it. In each round the job with more state
than memory also runs with RocksDB, and `spilled_ratio_to_rocksdb` divides the two rates.

All jobs take a snapshot each second. What they count is checked, or there are no figures.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Say, WrongResultError, machine, median_figures, scratch
from bench.time.measured_job import Totals, environment, measure_job, records_in_memory
from penstock import (
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.snapshot.state.engines import engine_of_kind

__all__ = ["SMALL_MEMORY", "cpu_seconds_per_update", "measure"]

KEYS = 1_000
#: The memory of a worker with more state than memory, and the bytes of one of its values.
SMALL_MEMORY, VALUE_BYTES = 16 * 2**20, 1_000
#: The number of records whose keys the hand-written loop reads together, and its packed counts.
PLAIN_BATCH, COUNT = 1_000, struct.Struct(">Q")
#: The updates of a state of a given size, at least.
LEAST_UPDATES = 300_000
LARGE_MAP, SMALL_MAP, TOUCHED = 100_000, 100, 10


def measure(
    records: int = 3_000_000,
    rounds: int = 2,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
    backend: str = "rocksdb",
) -> Figures:
    """Run each job `rounds` times.

    Arguments:
        records: the number of records of the job with small values. The other jobs, whose records
            cost more, have a part of it.
        rounds: the number of rounds; medians are quoted.
        interval_ms: the time between two snapshots, in milliseconds.
        folder: the folder for snapshots; the system's temporary folder if None.
        say: a function that is called with each step of progress.
        backend: the database of large state, `rocksdb` or `sqlite`.

    Raises:
        WrongResultError: if an update or a timer is lost or doubled.
    """
    store = ColdStoreKind(backend)
    jobs: dict[str, Callable[[Path], Figures]] = {
        "updates": lambda run: _values(records, KEYS, 0, None, run, interval_ms, say),
        "spilled": lambda run: _spilled(records // 6, store, run, interval_ms, say),
        "spilled_map": lambda run: _spilled_map(records // 6, store, run, interval_ms, say),
        "plain": lambda run: _plain(records // 6, store, run),
        "timers": lambda run: _timers(records // 3, run, interval_ms, say),
        "large_map": lambda run: _map(records // 30, LARGE_MAP, run, interval_ms, say),
        "small_map": lambda run: _map(records // 30, SMALL_MAP, run, interval_ms, say),
    }
    if store is not ColdStoreKind.ROCKSDB:
        rocksdb = ColdStoreKind.ROCKSDB
        jobs["rocksdb"] = lambda run: _spilled(records // 6, rocksdb, run, interval_ms, say)
    runs: list[Figures] = []
    with scratch(folder) as place:
        for number in range(rounds):
            figures: Figures = {}
            for name, job in jobs.items():
                say(f"{name}, round {number + 1}")
                run = place / f"{name}-{number}"
                run.mkdir()
                figures[name] = job(run)
            runs.append(_named(figures))
    return {
        **median_figures(runs),
        "backend": backend,
        "records": records,
        "rounds": rounds,
        **machine(),
    }


def _named(runs: Figures) -> Figures:
    """Return the figures of one round by their public names."""
    large, small = runs["large_map"]["ns"], runs["small_map"]["ns"]
    figures: Figures = {
        "value_state_updates_per_second": runs["updates"]["per_second"],
        "spilled_value_state_updates_per_second": runs["spilled"]["per_second"],
        "spilled_state_mb": runs["spilled"]["state_mb"],
        "plain_updates_per_second": runs["plain"]["per_second"],
        "beyond_memory_ratio_to_plain": round(
            runs["spilled"]["per_second"] / runs["plain"]["per_second"], 3
        ),
        "spilled_map_updates_per_second": runs["spilled_map"]["per_second"],
        "map_beyond_memory_ratio_to_plain": round(
            runs["spilled_map"]["per_second"] / runs["plain"]["per_second"], 3
        ),
        # Processor time of the worker: other processes change it less than the rates.
        "beyond_memory_cpu_ratio_to_plain": round(
            runs["plain"]["cpu_seconds"] / runs["spilled"]["cpu_seconds"], 3
        ),
        "map_beyond_memory_cpu_ratio_to_plain": round(
            runs["plain"]["cpu_seconds"] / runs["spilled_map"]["cpu_seconds"], 3
        ),
        "timers_per_second": runs["timers"]["per_second"],
        "large_map_ns_per_record": round(large, 1),
        "small_map_ns_per_record": round(small, 1),
        "large_map_cost_ratio": round(large / small, 3),
    }
    if "rocksdb" in runs:
        ratio = runs["spilled"]["per_second"] / runs["rocksdb"]["per_second"]
        figures["spilled_ratio_to_rocksdb"] = round(ratio, 3)
    return figures


class Count(KeyedProcessFunction):
    """Counts the records of each key; emits the counts when the input has ended.

    Arguments:
        extra_bytes: the number of bytes that a value has besides its count.
    """

    def __init__(self, extra_bytes: int) -> None:
        self._extra = extra_bytes

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state."""
        self._state = runtime_context.get_state(ValueStateDescriptor("count"))
        self._more = b"x" * self._extra

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Process a record."""
        state = self._state
        if self._extra:
            before = state.value()
            state.update((1 if before is None else before[0] + 1, self._more))
        else:
            state.update((state.value() or 0) + 1)
        return None

    def end_input(self, ctx: Any) -> Iterable[Any]:
        """Emit what was counted."""
        value = self._state.value()
        yield ctx.get_current_key(), value[0] if self._extra else value


def random_keys(records: int, keys: int, subtask: int, parallelism: int) -> Sequence[int]:
    """Return random keys for the records of a subtask."""
    draw = random.Random(subtask)
    return [draw.randrange(keys) for _ in range(subtask, records, parallelism)]


def _values(
    records: int,
    keys: int,
    extra_bytes: int,
    memory: int | None,
    folder: Path,
    interval_ms: float,
    say: Say,
    store: ColdStoreKind = ColdStoreKind.ROCKSDB,
) -> Figures:
    env = environment(folder, 1, interval_ms)
    env.config.cold_store = store
    if memory is not None:
        env.set_memory(memory)
    source = records_in_memory(partial(random_keys, records, keys), folder)
    counts = env.from_source(source).key_by(lambda key: key).process(Count(extra_bytes))
    counts.add_sink(Totals(folder))
    figures = measure_job(env, folder, say)
    if figures["total"] != records:
        raise WrongResultError(f"{figures['total']:,} updates are in the state, not {records:,}")
    return {"per_second": round(records / figures["seconds"]), **figures}


def cpu_seconds_per_update(megabytes: int, folder: str | None, say: Say) -> float:
    """Return the processor time of one worker for an update of a value, by the size of its state.

    Arguments:
        megabytes: the size of the state. The worker has memory for `SMALL_MEMORY` bytes of it.
        folder: the folder for snapshots; the system's temporary folder if None.
        say: a function that is called with each step of progress.

    Raises:
        WrongResultError: if an update is lost or doubled.
    """
    keys = megabytes * 1_000_000 // VALUE_BYTES
    records = max(LEAST_UPDATES, 3 * keys)
    with scratch(folder) as place:
        figures = _values(records, keys, VALUE_BYTES, SMALL_MEMORY, place, 1_000, say)
    return float(figures["cpu_seconds"]) / records


def spilled_keys(records: int) -> int:
    """Return the number of keys of the job with more state than memory."""
    return max(10, min(records // 3, 10 * SMALL_MEMORY // VALUE_BYTES))


def _spilled(
    records: int, store: ColdStoreKind, folder: Path, interval_ms: float, say: Say
) -> Figures:
    keys = spilled_keys(records)
    figures = _values(records, keys, VALUE_BYTES, SMALL_MEMORY, folder, interval_ms, say, store)
    return {**figures, "state_mb": round(figures["results"] * VALUE_BYTES / 1e6, 1)}


class CountEntries(KeyedProcessFunction):
    """Counts the records of each entry of a map; emits their sums when the input has ended.

    Arguments:
        extra_bytes: the number of bytes that a value has besides its count.
    """

    def __init__(self, extra_bytes: int) -> None:
        self._more = b"x" * extra_bytes

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state."""
        self._counts = runtime_context.get_map_state(MapStateDescriptor("counts"))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Process a record."""
        entry = value // KEYS
        before = self._counts.get(entry)
        self._counts.put(entry, (1 if before is None else before[0] + 1, self._more))
        return None

    def end_input(self, ctx: Any) -> Iterable[Any]:
        """Emit what was counted."""
        yield ctx.get_current_key(), sum(count for count, _ in self._counts.values())


def _spilled_map(
    records: int, store: ColdStoreKind, folder: Path, interval_ms: float, say: Say
) -> Figures:
    env = environment(folder, 1, interval_ms)
    env.config.cold_store = store
    env.set_memory(SMALL_MEMORY)
    keys = spilled_keys(records)
    source = records_in_memory(partial(random_keys, records, keys), folder)
    counts = env.from_source(source).key_by(lambda number: number % KEYS)
    counts.process(CountEntries(VALUE_BYTES)).add_sink(Totals(folder))
    figures = measure_job(env, folder, say)
    if figures["total"] != records:
        raise WrongResultError(f"{figures['total']:,} updates are in the map, not {records:,}")
    return {"per_second": round(records / figures["seconds"]), **figures}


def _plain(records: int, store: ColdStoreKind, folder: Path) -> Figures:
    """Update values of random keys in the database itself, and read all of them in the end."""
    keys = spilled_keys(records)
    numbers = random_keys(records, keys, 0, 1)
    engine = engine_of_kind(store)
    database = engine.create(folder / "plain", engine.memory(SMALL_MEMORY))
    more = b"x" * VALUE_BYTES
    began, cpu = time.perf_counter(), time.process_time()
    for begin in range(0, records, PLAIN_BATCH):
        chunk = [COUNT.pack(key) for key in numbers[begin : begin + PLAIN_BATCH]]
        ordered = sorted(set(chunk))
        counts = {
            key: COUNT.unpack_from(value)[0] if value is not None else 0
            for key, value in zip(ordered, database.get_all(ordered), strict=True)
        }
        for key in chunk:
            counts[key] += 1
        batch = database.new_batch()
        for key, count in counts.items():
            batch[key] = COUNT.pack(count) + more
        database.write(batch)
    total = sum(COUNT.unpack_from(value)[0] for _, value in database.rows_of(b""))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    database.close()
    if total != records:
        raise WrongResultError(f"{total:,} updates are in the database, not {records:,}")
    return {"per_second": round(records / seconds), "cpu_seconds": cpu}


class SetTimer(KeyedProcessFunction):
    """Sets a timer for each record, and emits a record when it fires."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Process a record."""
        ctx.timer_service().register_event_time_timer(value[1] + 500)
        return None

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        """Emit a record."""
        yield timestamp, 1


def timed_keys(records: int, subtask: int, parallelism: int) -> Sequence[Any]:
    """Return records `(key, timestamp)` whose timestamps ascend and differ within each key."""
    return [(index % KEYS, index // KEYS) for index in range(subtask, records, parallelism)]


def _timers(records: int, folder: Path, interval_ms: float, say: Say) -> Figures:
    env = environment(folder, 1, interval_ms)
    source = records_in_memory(partial(timed_keys, records), folder)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    timed = strategy.with_timestamp_assigner(lambda record, _: record[1])
    fired = env.from_source(source, timed).key_by(lambda record: record[0]).process(SetTimer())
    fired.add_sink(Totals(folder))
    figures = measure_job(env, folder, say)
    if figures["total"] != records:
        raise WrongResultError(f"{figures['total']:,} timers fired, not {records:,}")
    return {"per_second": round(records / figures["seconds"]), **figures}


class TouchMap(KeyedProcessFunction):
    """Adds 1 to a few entries of one map, and measures that without the time to fill the map.

    Arguments:
        size: the number of entries of the map.
        folder: the folder of the run.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self._size, self._folder = size, folder

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state."""
        self._map = runtime_context.get_map_state(MapStateDescriptor("map"))
        self._records = 0

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Process a record."""
        entries, size = self._map, self._size
        if not self._records:
            entries.put_all(dict.fromkeys(range(size), 0))
            self._began = time.monotonic()
        self._records += 1
        for number in range(TOUCHED):
            key = (value * TOUCHED + number) * 7_919 % size
            entries.put(key, entries.get(key) + 1)
        return None

    def end_input(self, ctx: Any) -> Iterable[Any]:
        """Emit what was counted."""
        spent = (time.monotonic() - self._began) / self._records * 1e9
        (self._folder / "map.json").write_text(json.dumps({"ns": spent}))
        yield "touched", sum(self._map.values())


def _map(records: int, size: int, folder: Path, interval_ms: float, say: Say) -> Figures:
    env = environment(folder, 1, interval_ms)
    source = records_in_memory(partial(numbers, records), folder)
    touched = env.from_source(source).key_by(one_key).process(TouchMap(size, folder))
    touched.add_sink(Totals(folder))
    figures = measure_job(env, folder, say)
    if figures["total"] != records * TOUCHED:
        raise WrongResultError(f"{figures['total']:,} entries were touched")
    return {**json.loads((folder / "map.json").read_text()), **figures}


def one_key(number: int) -> int:
    """Return the same key for each record."""
    return number * 0


def numbers(records: int, subtask: int, parallelism: int) -> Sequence[int]:
    """Return the numbers of the records of a subtask."""
    return range(subtask, records, parallelism)

"""The programs that `paper` runs: their graphs, the source and the sink that takes notes.

* `shuffles`, after figure 5 of the paper: six operators with three full shuffles. A source makes
  records of three keys, a map adds a field, three keyed reduces count by one key each, and a sink
  counts what arrives.
* `loop`: each record goes through a keyed loop `HOPS` times, with another key each time.
* `words`: the keyed word count. A record of the source is a line of `WORDS_PER_LINE` words.

Workers import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import (
    CheckpointingMode,
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

__all__ = ["AGGREGATES", "HOPS", "WORDS_PER_LINE", "Job", "build"]

HOPS = 5
WORDS_PER_LINE = 10
#: Keyed aggregates of each graph. Each has `Job.keys` keys.
AGGREGATES = {"shuffles": 3, "loop": 1, "words": 1}
#: The records that reach the sink for each record of the source.
OUTPUTS = {"shuffles": 1, "loop": 1, "words": WORDS_PER_LINE}
#: The sink keeps the latency of one record in this number.
LATENCY_SAMPLE = 16
#: The shortest time that a paced source waits. A read for each record would cost more than it.
SHORTEST_WAIT_SECONDS = 0.001
STEP = 7_919
#: Multiplied by the first, modulo the second, numbers that follow each other come far apart.
SCATTER, PRIME = 11_400_714_819_323_198_485, (1 << 61) - 1


@dataclass(frozen=True)
class Job:
    """Describe one run.

    Arguments:
        parallelism: number of workers.
        mode: the protocol; None takes only the final snapshot.
        interval: seconds between two snapshots.
        seconds: time for which the source reads; None if it reads `records`.
        records: number of records that the source reads; None if it reads for a time.
        warm: seconds after the first arrival that are not measured.
        graph: "shuffles", "loop" or "words".
        keys: keys of each aggregate.
        rate: records per second over all sources; None for as fast as possible. With a rate the
            sink keeps latencies.
        scattered: whether the keys of "shuffles" come in another order each time, not in one cycle.
    """

    parallelism: int = 2
    mode: CheckpointingMode | None = None
    interval: float = 1.0
    seconds: float | None = None
    records: int | None = None
    warm: float = 0.5
    graph: str = "shuffles"
    keys: int = 70_001
    rate: float | None = None
    scattered: bool = False

    @property
    def outputs_per_record(self) -> int:
        """The records that reach the sink for each record of the source."""
        return OUTPUTS[self.graph]

    def keys_changed(self, records: float) -> float:
        """Return the number of keys that change while `records` are read.

        Consecutive records have different keys, so it follows from the program.
        """
        updates = records * (HOPS if self.graph == "loop" else OUTPUTS[self.graph])
        return AGGREGATES[self.graph] * min(self.keys, updates)


def build(job: Job, place: Path) -> StreamExecutionEnvironment:
    """Build the program of a job.

    Arguments:
        job: the run.
        place: an empty folder for snapshots and notes, reachable by all workers.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(job.parallelism)
    if job.mode is not None:
        env.enable_checkpointing(job.interval * 1000, job.mode)
    # Runs without snapshots have a folder too, so that all runs take the final snapshot alike.
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    graphs = {"shuffles": _shuffles, "loop": _loop, "words": _words}
    graphs[job.graph](env, job, place).sink_to(_Arrivals(place, job))
    return env


# ---- graphs


def _shuffles(env: StreamExecutionEnvironment, job: Job, place: Path) -> DataStream:
    paced = job.rate is not None
    maker = _ScatteredKeys(job.keys) if job.scattered else _ThreeKeys(job.keys, paced)
    stream = env.from_source(_Records(place, job, maker))
    stream = stream.map(_add_made if paced else _add_count)
    for position in range(3):
        stream = stream.key_by(_Key(position)).reduce(_count_made if paced else _count)
    return stream


def _loop(env: StreamExecutionEnvironment, job: Job, place: Path) -> DataStream:
    stream = env.from_source(_Records(place, job, _Hopper(job.keys)))
    feedback = env.create_feedback("hops")
    hopped = stream.union(feedback).key_by(_Key(0)).process(_Hop(job.keys))
    feedback.close_with(hopped.filter(lambda record: record[1] > 0))
    return hopped.filter(lambda record: record[1] == 0)


def _words(env: StreamExecutionEnvironment, job: Job, place: Path) -> DataStream:
    lines = env.from_source(_Records(place, job, _Lines(job.keys)))
    pairs = lines.flat_map(lambda line: [(word, 1) for word in line.split()])
    return pairs.key_by(_Key(0)).reduce(lambda a, b: (a[0], a[1] + b[1]))


class _ThreeKeys:
    """Makes records of three keys; with `made`, also of the time at which they were due."""

    def __init__(self, keys: int, made: bool) -> None:
        self._keys, self._made = keys, made

    def __call__(self, indices: range, made: float) -> list[Any]:
        n = self._keys
        if self._made:
            return [(i * 7919 % n, i * 104_729 % n, i * 15_485_863 % n, made) for i in indices]
        return [(i * 7919 % n, i * 104_729 % n, i * 15_485_863 % n) for i in indices]


class _ScatteredKeys:
    """Makes records of three keys that look random.

    `_ThreeKeys` goes through all keys in the same order again and again. So the values of one key
    and the next lie side by side in the memory of a worker that gets all of them in this order.
    """

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, indices: range, _made: float) -> list[Any]:
        n = self._keys
        mixed = [i * SCATTER % PRIME for i in indices]
        return [(m % n, (m >> 17) % n, (m >> 34) % n) for m in mixed]


class _Hopper:
    """Makes records of a key and the number of hops left."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, indices: range, _made: float) -> list[Any]:
        return [(i * 104_729 % self._keys, HOPS) for i in indices]


class _Lines:
    """Makes lines of words, each a different one until all have come."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._lines: list[str] = []

    def __call__(self, indices: range, _made: float) -> list[Any]:
        if not self._lines:
            words = [f"word{i}" for i in range(self._keys)]
            circle = words * WORDS_PER_LINE
            self._lines = [
                " ".join(circle[start : start + WORDS_PER_LINE])
                for start in range(0, len(circle), WORDS_PER_LINE)
            ]
        lines = self._lines
        return [lines[i % len(lines)] for i in indices]


def _add_count(keys: tuple[int, ...]) -> tuple[int, ...]:
    return (*keys, 1)


def _add_made(record: tuple[Any, ...]) -> tuple[Any, ...]:
    return (record[0], record[1], record[2], 1, record[3])


class _Key:
    """Takes one of the keys."""

    def __init__(self, position: int) -> None:
        self._position = position

    def __call__(self, record: tuple[int, ...]) -> int:
        return record[self._position]


def _count(state: tuple[int, ...], record: tuple[int, ...]) -> tuple[int, ...]:
    return (record[0], record[1], record[2], state[3] + 1)


def _count_made(state: tuple[Any, ...], record: tuple[Any, ...]) -> tuple[Any, ...]:
    return (record[0], record[1], record[2], state[3] + 1, record[4])


class _Hop(KeyedProcessFunction):
    """Counts a hop at its key, and sends the record on to another."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(
        self, value: Any, ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[int, int]]:
        del ctx
        self._count.update((self._count.value() or 0) + 1)
        return (((value[0] + STEP) % self._keys, value[1] - 1),)


# ---- source and sink


class _Records(Source):
    """Records by their index, for a time or up to a number.

    Its state is an offset per reader. The time starts with the first read; it is not in the
    state, since a run that was restarted has no figures.

    Arguments:
        place: folder where each reader notes how much it read, when it began and when it ended.
        job: the run.
        make: makes the records of some indices; also gets the time at which they were due.
    """

    def __init__(self, place: Path, job: Job, make: Callable[[range, float], list[Any]]) -> None:
        self.place, self.job, self.make = place, job, make

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return one split per reader."""
        return SubtaskEnumerator([None] * parallelism, parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of every p-th index, where p is the parallelism."""
        return _RecordsReader(self, context)


class _RecordsReader(SourceReader):
    def __init__(self, source: _Records, context: ReaderContext) -> None:
        job = source.job
        self._source = source
        self._subtask, self._parallelism = context.subtask, context.parallelism
        self._next = 0
        self._seconds = math.inf if job.seconds is None else job.seconds
        self._rate = None if job.rate is None else job.rate / context.parallelism
        self._began: float | None = None
        self._ended = 0.0
        mine = (
            None
            if job.records is None
            else -((context.subtask - job.records) // context.parallelism)
        )
        self._count = math.inf if mine is None else mine

    def open(self, split: Split, position: Any) -> None:
        del split
        self._next = position or 0

    def read(self, max_records: int) -> Read:
        now = time.monotonic()
        if self._began is None:
            self._began = now
        room = int(min(max_records, self._count - self._next))
        if now >= self._began + self._seconds or room <= 0:
            self._ended = time.time()
            return Read([], self._next, finished=True)
        wait, due_at = 0.0, now
        if self._rate is not None:
            due = int((now - self._began) * self._rate) + 1 - self._next
            due_at = self._began + self._next / self._rate
            if due <= room:
                room = max(0, due)
                next_at = self._began + (self._next + room) / self._rate
                wait = max(next_at - now, SHORTEST_WAIT_SECONDS)
        first, self._next = self._next, self._next + room
        step = self._parallelism
        indices = range(first * step + self._subtask, self._next * step + self._subtask, step)
        records = self._source.make(indices, due_at) if room else []
        return Read(records, self._next, wait_seconds=wait)

    def close(self) -> None:
        # The first by the sink's clock, the second by the clock that dates snapshots.
        notes = {"read": self._next, "began": self._began or 0.0, "ended": self._ended}
        (self._source.place / f"read-{self._subtask}").write_text(json.dumps(notes))


class _Arrivals(Sink):
    """Notes how many records arrive, and when.

    Arguments:
        place: folder where each writer leaves its notes.
        job: the run.
    """

    def __init__(self, place: Path, job: Job) -> None:
        self.place, self.job = place, job

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer with notes of its own."""
        return _ArrivalsWriter(self, context.subtask)


class _ArrivalsWriter(SinkWriter):
    """Does a few steps per batch, and only for latencies a step per sampled record."""

    def __init__(self, sink: _Arrivals, subtask: int) -> None:
        self._place, self._subtask = sink.place, subtask
        self._warm, self._latency = sink.job.warm, sink.job.rate is not None
        self._arrived = self._warm_arrived = 0
        self._first: float | None = None
        self._warm_at: float | None = None
        self._last = self._longest_pause = 0.0
        self._cuts: dict[int, float] = {}
        self._latencies = array("d")

    def write(self, batch: list[Any]) -> None:
        now, before = time.monotonic(), self._arrived
        self._arrived += len(batch)
        if self._first is None:
            self._first = now
        if self._warm_at is not None:
            self._longest_pause = max(self._longest_pause, now - self._last)
            if self._latency:
                # Counted over all batches, so that small ones are sampled like large ones.
                offset = -before % LATENCY_SAMPLE
                self._latencies.extend(
                    [now - record[4] for record in batch[offset::LATENCY_SAMPLE]]
                )
        elif now >= self._first + self._warm:
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
            "latencies": self._latencies.tolist(),
        }
        (self._place / f"arrivals-{self._subtask}").write_text(json.dumps(notes))

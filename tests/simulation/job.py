"""The job that is simulated, and a ledger that knows what of its output was committed.

Word count, whose output tells on every record whether it is there once: a word that occurs n
times must come out as (word, 1) to (word, n), each exactly once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.config import JobConfig, RestartStrategy
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.runtime.control.job_code import JobCode, pack

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis"]


@dataclass(frozen=True)
class Staged:
    """Output that waits to be committed."""

    lineage: str
    uid: str
    attempt: int
    records: list[Any]


@dataclass
class Ledger:
    """The world outside the cluster, which survives all of it: staged and committed output.

    Arguments:
        on_commit: called before and after a commit, with "commit" and "committed".
    """

    staged: dict[str, Staged] = field(default_factory=dict)
    committed: dict[str, list[Any]] = field(default_factory=dict)
    on_commit: Callable[[str], None] = lambda _: None
    #: Names given out.
    names: int = 0
    #: Splits that were read to their ends at least once.
    read: set[str] = field(default_factory=set)
    #: Seeded; decides about faults of the sink.
    rng: random.Random = field(default_factory=random.Random)
    stage_failures: float = 0.0
    commit_failures: float = 0.0
    #: The number of the execution of a program that has several.
    execution: int = 0

    def output(self) -> Counter[Any]:
        """All committed records, with how often each is there."""
        return Counter(record for records in self.committed.values() for record in records)


#: The ledgers of the simulations under way; functions that were sent to a worker find them here.
LEDGERS: dict[int, Ledger] = {}


@dataclass
class PacedSource(Source):
    """Lines in splits, a few per read, with pauses.

    Arguments:
        ledger: its number.
        splits: the lines of each.
        pause_seconds: after every third read.
        blocking: read in a thread.
        reads_in_turns: all splits of a task are read in turns.
    """

    ledger: int
    splits: list[list[str]]
    pause_seconds: float
    blocking: bool
    reads_in_turns: bool = False  # type: ignore[misc, assignment]

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return ListEnumerator([Split(str(i), i) for i in range(len(self.splits))])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _PacedReader(self)


class _PacedReader(SourceReader):
    def __init__(self, source: PacedSource) -> None:
        self._source = source
        self.blocking = source.blocking
        self._reads = 0

    def open(self, split: Split, position: Any) -> None:
        self._split = split.id
        self._lines = self._source.splits[split.payload]
        self._next = position or 0

    def read(self, max_records: int) -> Read:
        self._reads += 1
        end = min(self._next + min(max_records, 1 + self._reads % 3), len(self._lines))
        lines, self._next = self._lines[self._next : end], end
        finished = end == len(self._lines)
        if finished:
            LEDGERS[self._source.ledger].read.add(self._split)
        pause = self._source.pause_seconds if self._reads % 3 == 0 else 0.0
        return Read(lines, end, finished, pause)


@dataclass
class LedgerSink(Sink):
    """Stages and commits in the ledger."""

    ledger: int
    exactly_once = True

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _LedgerWriter(LEDGERS[self.ledger], context)

    def create_committer(self) -> Committer:
        return _LedgerCommitter(LEDGERS[self.ledger])


class _LedgerWriter(SinkWriter):
    def __init__(self, ledger: Ledger, context: WriterContext) -> None:
        self._ledger = ledger
        self._context = context
        self._records: list[Any] = []

    def write(self, batch: list[Any]) -> None:
        self._records += batch

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        if not self._records:
            return None
        records, self._records = self._records, []
        context = self._context

        def finish() -> list[Any]:
            if self._ledger.rng.random() < self._ledger.stage_failures:
                raise OSError("a simulated fault in staging")
            # Unique by a count of its own: an engine that gives a number out twice shows.
            self._ledger.names += 1
            name = f"{snapshot}-{context.subtask}-{context.attempt}-{self._ledger.names}"
            staged = Staged(context.lineage, context.uid, context.attempt, records)
            self._ledger.staged[name] = staged
            return [name]

        return finish


class _LedgerCommitter(Committer):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def commit(self, committables: list[Committable]) -> None:
        ledger = self._ledger
        ledger.on_commit("commit")
        for item in committables:
            if ledger.rng.random() < ledger.commit_failures:
                raise OSError("a simulated fault in a commit")
            if item.payload not in ledger.committed:
                ledger.committed[item.payload] = ledger.staged.pop(item.payload).records
        ledger.on_commit("committed")

    def clean(self, lineage: str, uid: str, before_attempt: int) -> None:
        staged = self._ledger.staged
        for name, item in list(staged.items()):
            if (item.lineage, item.uid) == (lineage, uid) and item.attempt < before_attempt:
                del staged[name]


@dataclass(frozen=True)
class SimulatedJob:
    """A job and what it must put out.

    Arguments:
        blob: the packed job.
        splits: of its sources, all together.
        expected: the output of an undisturbed run.
    """

    blob: bytes
    splits: int
    expected: Counter[Any]


def make_job(number: int, rng: random.Random, config: JobConfig) -> SimulatedJob:
    """A random word count: one source or two, one shuffle or two.

    Arguments:
        number: of its ledger.
        rng: of its input and shape.
        config: its settings; the parallelism is 2.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    streams, counts, splits = [], Counter[str](), 0
    for index in range(rng.choice([1, 1, 2])):
        lines = [
            [" ".join(rng.choices(WORDS, k=rng.randint(1, 4))) for _ in range(rng.randint(4, 24))]
            for _ in range(rng.randint(2, 4))
        ]
        splits += len(lines)
        counts.update(word for part in lines for line in part for word in line.split())
        source = PacedSource(number, lines, rng.choice([0.0, 0.004]), rng.random() < 0.4)
        streams.append(env.from_source(source, None, f"lines {index}"))
    lines_stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    pairs = lines_stream.flat_map(lambda line: [(word, 1) for word in line.split()])
    running = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    if rng.random() < 0.4:
        running = running.rebalance().map(lambda pair: pair)
    running.sink_to(LedgerSink(number)).name("ledger")
    expected = Counter((word, i + 1) for word, n in counts.items() for i in range(n))
    return SimulatedJob(pack(JobCode(env._graph, config)), splits, expected)


def job_config(rng: random.Random, folder: str, inline: bool) -> JobConfig:
    """Random settings that make much happen in little time."""
    return JobConfig(
        name="simulated",
        parallelism=2,
        max_parallelism=16,
        checkpoint_dir=folder,
        checkpoint_interval_seconds=rng.choice([0.004, 0.010, 0.030]),
        checkpoint_timeout_seconds=rng.choice([0.015, 60.0]),
        tolerable_failures=1_000_000,
        retained=rng.randint(1, 3),
        inline_threshold=1 << 20 if inline else 0,
        restart=RestartStrategy("fixed_delay", None, rng.choice([0.0, 0.05])),
        batch_records=rng.choice([1, 3, 64]),
        channel_batches=rng.randint(1, 3),
        buffer_timeout_seconds=rng.choice([0.0, 0.005]),
    )

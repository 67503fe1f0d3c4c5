"""Draws a job: its sources, its shape, its sinks, and how far its operators are fused."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import trio

from penstock.connectors import GeneratorSource
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.sink import Sink
from penstock.dataflow.streams import DataStream
from penstock.testing.connectors import FakeTargetSink
from tests.simulation.job import LedgerSink, PacedSource
from tests.simulation.random_jobs.shapes import SHAPES, Choices
from tests.simulation.random_jobs.sources import ASIDE, EndlessSource
from tests.simulation.random_jobs.windows import in_order

__all__ = ["EndlessJob", "FiniteJob", "RandomJob", "draw_job", "system_name"]

#: The numbers of the second source begin here.
SECOND = 1000


@dataclass(frozen=True)
class FiniteJob:
    """A job whose input ends.

    Arguments:
        ledger: the number of its ledger.
        shape: the name of its shape.
        choices: of the shape.
        sources: one or two.
        count: numbers of each source.
        splits: of a source that reads splits with pauses; each has every so many numbers.
        rate: numbers each second, of a generator; None reads splits with pauses instead.
        blocking: of splits with pauses: read in threads.
        spread: how the sources are connected with the rest.
        apart: how the records come to another task before the sink: "rebalance", "keyed", or "" if
            there is none.
        second_sink: the input goes to a second sink as well.
        beside: the second source goes past the shape and comes to the same last task, slowly. So
            the shape's input ends, and its hooks run, while other tasks go on.
        batch: the job runs in batch mode.
        region: a source of its own is counted without a path to the rest.
    """

    ledger: int
    shape: str
    choices: Choices
    sources: int
    count: int
    splits: int
    rate: float | None
    blocking: bool
    spread: str
    apart: str
    second_sink: bool
    beside: bool
    batch: bool
    region: bool
    endless = False

    @property
    def fixed(self) -> bool:
        """Return whether the job can be resumed at its first parallelism only."""
        return SHAPES[self.shape].fixed

    @property
    def inputs(self) -> list[int]:
        """Return the numbers of all sources."""
        sources = 1 if self.beside else self.sources
        return [i + SECOND * n for n in range(sources) for i in range(self.count)]

    def build(self, env: StreamExecutionEnvironment, fuse: bool) -> None:
        """Put the program together, with operators fused or not."""
        streams = [self._source(env, number) for number in range(self.sources)]
        stream = streams[0]
        if len(streams) > 1 and not self.beside:
            stream = stream.union(streams[1])
        stream = getattr(stream, self.spread)() if self.spread else stream
        stream = stream.map(lambda i: i).uid("all")
        if not fuse:
            stream = stream.disable_chaining()
        out = SHAPES[self.shape].build(env, stream, self.choices)
        if self.beside:
            other = streams[1].rebalance().map(lambda i: i).uid("other")
            other = other.rebalance().map(lambda i: ("beside", i)).uid("beside")
            out = out.union(other.rebalance()).global_().map(lambda r: r).uid("together")
        if self.apart == "rebalance":
            out = out.rebalance().map(lambda record: record).uid("apart")
        elif self.apart == "keyed":
            # Tasks behind others that depend on the order of their inputs.
            keyed = out.key_by(lambda record: zlib.crc32(repr(record).encode()) % 5)
            out = keyed.map(lambda record: record).uid("apart")
        out.sink_to(LedgerSink(self.ledger)).uid("sink")
        if self.second_sink:
            second = stream.map(lambda i: ("input", i)).uid("input")
            second.sink_to(second_sink(self.ledger)).uid("second sink")

        if self.region:
            self._add_region(env)

    def _add_region(self, env: StreamExecutionEnvironment) -> None:
        """Count the numbers of another source by their remainder."""
        source = GeneratorSource(lambda i: i, self.count, 300.0, clock=trio.current_time)
        ones = env.from_source(source, None, "region").uid("region").map(lambda i: (i % 3, 1))
        keyed = ones.uid("region ones").key_by(lambda pair: pair[0])
        counts = keyed.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("region counts")
        named = counts.map(lambda pair: ("region", *pair)).uid("region names")
        named.sink_to(LedgerSink(self.ledger)).uid("region sink")

    def _source(self, env: StreamExecutionEnvironment, number: int) -> DataStream:
        first, count, name = SECOND * number, self.count, f"source {number}"
        strategy = in_order(int) if self.choices.source_times else None
        if self.beside and number == 1:
            slow = GeneratorSource(lambda i: i, self.count, 80.0, clock=trio.current_time)
            return env.from_source(slow, None, name).uid(name)
        if self.rate is None:
            parts = range(self.splits)
            lines = [[str(i + first) for i in range(part, count, len(parts))] for part in parts]
            paced = PacedSource(self.ledger, lines, 0.004, self.blocking, strategy is not None)
            read = env.from_source(paced, strategy, name).uid(name)
            return read.map(lambda text: int(text)).uid(f"{name} numbers")
        clock = trio.current_time
        source = GeneratorSource(lambda i: i + first, count, self.rate, clock=clock)
        return env.from_source(source, strategy, name).uid(name)

    def expected(self, output: Counter[Any], parallelism: int) -> Counter[Any]:
        """Return the output that the job must have."""
        shape = SHAPES[self.shape]
        expect = (shape.final if self.batch else None) or shape.expect
        expected = expect(self.inputs, self.choices, parallelism)
        if self.second_sink:
            expected += Counter(("input", i) for i in self.inputs)
        if self.beside:
            expected += Counter(("beside", i) for i in range(self.count))
        if self.region:
            totals = Counter(i % 3 for i in range(self.count))
            for rest, total in totals.items():
                counts = [total] if self.batch else range(1, total + 1)
                expected += Counter(("region", rest, count) for count in counts)
        return expected


@dataclass(frozen=True)
class EndlessJob:
    """A job whose input never ends; it is stopped when all splits have gone on.

    Arguments:
        ledger: the number of its ledger.
        splits: of its source, possibly more than it has tasks.
        blocking: the source is read in threads.
        keyed: the records pass an operator with state.
    """

    ledger: int
    splits: int
    blocking: bool
    keyed: bool
    endless = True
    fixed = False
    shape = "endless"

    def build(self, env: StreamExecutionEnvironment, fuse: bool) -> None:
        """Put the program together, with operators fused or not."""
        aside = self.ledger % 2 == 0
        source = EndlessSource(self.splits, 0.01, self.blocking, aside)
        stream = env.from_source(source, None, "endless").uid("endless")
        if aside:
            beside = stream.get_side_output(ASIDE)
            # Half of these jobs send the side output to other tasks before it comes back.
            beside = beside.rebalance() if self.ledger % 4 else beside
            stream = stream.union(beside.map(lambda r: r).uid("aside"))
        if self.keyed:
            # The count must keep sizer with the index, or a record was lost or came twice.
            keyed = stream.key_by(lambda r: r[0]).map(lambda r: (r[0], r[1])).uid("map")
            stream = keyed.key_by(lambda r: r[0]).count().map(lambda r: (r[0], r[1] - 1))
            stream = stream.uid("counted")
        else:
            stream = stream.rebalance().map(lambda r: r).uid("map")
        if not fuse:
            stream = stream.disable_chaining()
        stream.sink_to(LedgerSink(self.ledger)).uid("sink")

    def progress(self, output: Counter[Any]) -> Counter[int]:
        """Return how many records of each split came out."""
        return Counter(split for split, _ in output.elements())

    def expected(self, output: Counter[Any], parallelism: int) -> Counter[Any]:
        """Return the output that the job must have, as far as it has come."""
        last = Counter[int]()
        for split, index in output:
            last[split] = max(last[split], index + 1)
        return Counter((split, index) for split, end in last.items() for index in range(end))


def _apart(chance: float) -> str:
    return "rebalance" if chance < 0.3 else "keyed" if chance < 0.55 else ""


def second_sink(ledger: int) -> Sink[Any]:
    """Return the second sink of a job: in half of all jobs, it publishes by transactions."""
    return FakeTargetSink(system_name(ledger)) if ledger % 2 else LedgerSink(ledger)


def system_name(ledger: int) -> str:
    """Return the name of the transactional system of a job."""
    return f"random job {ledger}"


RandomJob = FiniteJob | EndlessJob


def draw_job(
    rng: random.Random, ledger: int, batch: bool = False, shapes: Collection[str] = ()
) -> RandomJob:
    """Draw a job that writes to a ledger.

    Arguments:
        rng: of all choices.
        ledger: the number of the ledger.
        batch: the job runs in batch mode.
        shapes: one of these; any, if there are none.
    """
    if not batch and not shapes and rng.random() < 0.12:
        return EndlessJob(ledger, rng.choice([2, 3, 5]), rng.random() < 0.3, rng.random() < 0.5)
    names = [name for name in shapes or SHAPES if not (batch and SHAPES[name].looped)]
    (shape,) = rng.choices(names, [SHAPES[name].weight for name in names])
    source_times = SHAPES[shape].source_times
    if source_times is None:
        source_times = rng.random() < 0.6
    sources = 1 if rng.random() < 0.5 else 2
    return FiniteJob(
        ledger,
        shape,
        Choices(rng.choice([3, 12]), rng.random() < 0.6, rng.random() < 0.5, source_times),
        sources=sources,
        count=rng.choice([30, 60]),
        splits=rng.choice([3, 3, 7]),
        rate=None if rng.random() < 0.4 else rng.choice([150.0, 400.0]),
        blocking=rng.random() < 0.5,
        spread=rng.choice(["rebalance", "", "shuffle", "rescale", "global_"]),
        apart=_apart(rng.random()),
        second_sink=rng.random() < 0.3,
        beside=sources == 2 and rng.random() < 0.5,
        batch=batch,
        region=rng.random() < 0.4,
    )

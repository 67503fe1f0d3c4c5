"""Programs whose records tell where they come from, and what they must come to.

A record is (lineage, hops left): each operator makes of it no, one or two records whose lineage
has its name added, with one hop less, so every loop ends. What an operator makes depends on the
record alone, so how often each operator takes each record is the same in every order, and can be
told by going through the program once. State counts records by key. Hooks emit once for each key
or subtask.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from zlib import crc32

import networkx as nx

from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.functions import KeyedProcessFunction, ProcessFunction
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.dataflow.state import ValueStateDescriptor
from penstock.dataflow.streams import DataStream

Record = tuple[str, int]
KEYS = 3
#: How a stream may be spread, and the methods for it.
SPREADS = ("auto", "forward", "rebalance", "shuffle", "broadcast", "global", "custom", "hash")


def key_of(record: Record) -> int:
    """The key of a record, by its lineage."""
    return crc32(record[0].encode()) % KEYS


def children(name: str, record: Record) -> list[Record]:
    """What an operator makes of a record."""
    lineage, hops = record
    if hops <= 0:
        return []
    drawn = crc32(f"{name}{lineage}".encode()) % 8
    count = 0 if drawn == 0 else 2 if drawn == 1 else 1
    return [(f"{lineage}{name}{i or ''}", hops - 1) for i in range(count)]


def hook_record(name: str, key: Any = "") -> Record:
    """What a hook emits."""
    return f"{name}!{key}", 2


class Totals(dict[str, Counter[Record]]):
    """For each operator, how often it has taken, or given, each record."""

    def __init__(self, program: Program) -> None:
        super().__init__((name, Counter()) for name in (*program.sources, *program.operators))


@dataclass(frozen=True)
class Op:
    """An operator.

    Arguments:
        name: a letter.
        inputs: (producer, how its records are spread); a producer that comes later in the
            program, or itself, is fed back.
        keyed: it has state by key, so all its inputs are spread by key.
        parallelism: subtasks.
        hook: it emits when its input has ended.
        chained: it may be fused behind its producer.
    """

    name: str
    inputs: tuple[tuple[str, str], ...]
    keyed: bool = False
    parallelism: int = 1
    hook: bool = False
    chained: bool = False


@dataclass(frozen=True)
class Program:
    """A small program.

    Arguments:
        rows: for each source, for each of its subtasks, its records.
        ops: the other operators.
        batch_records: a batch is sealed at so many.
        read_records: a source reads at most so many at once.
    """

    rows: dict[str, tuple[tuple[Record, ...], ...]]
    ops: tuple[Op, ...]
    batch_records: int = 1
    read_records: int = 1

    @cached_property
    def operators(self) -> dict[str, Op]:
        """The operators that are no sources, by name."""
        return {op.name: op for op in self.ops}

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources."""
        return tuple(self.rows)

    @property
    def config(self) -> JobConfig:
        """The job's settings."""
        return JobConfig(max_parallelism=4, batch_records=self.batch_records, channel_batches=2)

    # ---- as the API has it

    def job_graph(self) -> JobGraph:
        """The program, written with the API."""
        env = StreamExecutionEnvironment(self.config)
        streams: dict[str, DataStream] = {}
        for name, rows in self.rows.items():
            stream = env.from_source(Rows(rows, self.read_records))
            streams[name] = stream.name(name).uid(name).set_parallelism(len(rows))
        open_loops = []
        for op in self.ops:
            ends = []
            for number, (producer, how) in enumerate(op.inputs):
                if producer in streams:
                    ends.append(_spread(streams[producer], how))
                    continue
                feedback = env.create_feedback(f"{producer} to {op.name} {number}")
                # Half of them choose where the loop is closed, and the others where it is read.
                at_end = number % 2 == 1
                open_loops.append((feedback, producer, how if at_end else "auto"))
                ends.append(feedback if at_end else _spread(feedback, how))
            stream = ends[0].union(*ends[1:]) if len(ends) > 1 else ends[0]
            streams[op.name] = self._apply(op, stream)
        for feedback, producer, how in open_loops:
            feedback.close_with(_spread(streams[producer], how))
        return env._graph

    def _apply(self, op: Op, stream: DataStream) -> DataStream:
        made: DataStream
        if op.keyed:
            function = Counting(op.name)
            if op.hook:
                function = (Once if op.name in self.looped else Each)(op.name)
            made = stream.key_by(key_of).process(function)
        elif op.hook:
            made = stream.union().process(Hooked(op.name))
        else:
            made = stream.flat_map(partial(children, op.name))
        made = made.name(op.name).uid(op.name).set_parallelism(op.parallelism)
        return made if op.chained else made.disable_chaining()

    # ---- what must come of it

    @cached_property
    def components(self) -> list[set[str]]:
        """Strongly connected components, in topological order."""
        graph = nx.MultiDiGraph()
        graph.add_nodes_from([*self.rows, *self.operators])
        graph.add_edges_from((p, op.name) for op in self.ops for p, _ in op.inputs)
        condensed = nx.condensation(nx.DiGraph(graph))
        return [condensed.nodes[n]["members"] for n in nx.topological_sort(condensed)]

    @cached_property
    def looped(self) -> set[str]:
        """The operators that are in a loop."""
        again = {op.name for op in self.ops if op.name in {p for p, _ in op.inputs}}
        return again.union(*(one for one in self.components if len(one) > 1))

    @cached_property
    def _fan(self) -> dict[str, list[tuple[str, int]]]:
        """For each producer, its consumers, with how many of their subtasks get each record."""
        found: dict[str, list[tuple[str, int]]] = {name: [] for name in Totals(self)}
        for op in self.ops:
            for producer, how in op.inputs:
                copies = op.parallelism if how == "broadcast" and not op.keyed else 1
                found[producer].append((op.name, copies))
        return found

    def sent_to(self, name: str, given: Totals) -> Counter[Record]:
        """What all producers of an operator have sent it, if they have given this."""
        sent: Counter[Record] = Counter()
        for producer, fan in self._fan.items():
            for consumer, copies in fan:
                if consumer == name:
                    for record, count in given[producer].items():
                        sent[record] += count * copies
        return sent

    @cached_property
    def _waiting(self) -> set[str]:
        """The operators whose input ends only when a loop has been closed."""
        graph = nx.DiGraph((p, op.name) for op in self.ops for p, _ in op.inputs)
        return self.looped.union(*(nx.descendants(graph, name) for name in self.looped))

    def result(self, closes: bool = True, limit: int = 10_000) -> Totals:
        """What each operator takes in all, if loops are closed when they are quiet, or never."""
        taken = Totals(self)
        work: list[tuple[str, Record, int]] = []

        def emit(name: str, record: Record, count: int) -> None:
            work.extend((consumer, record, count * n) for consumer, n in self._fan[name])

        def run() -> None:
            while work:
                name, record, count = work.pop()
                taken[name][record] += count
                if sum(map(len, taken.values())) > limit:
                    raise OverflowError
                for child in children(name, record):
                    emit(name, child, count)

        for name, rows in self.rows.items():
            for record in (record for part in rows for record in part):
                emit(name, record, 1)
        run()
        for component in self.components:
            if not closes and component & self._waiting:
                continue
            hooked = [self.operators[n] for n in sorted(component) if n in self.operators]
            hooked = [op for op in hooked if op.hook]
            asked: set[tuple[str, Any]] = set()
            while True:
                # Each key once, whenever it comes up; each subtask of what has no keys once.
                found = {(op.name, k) for op in hooked for k in map(key_of, taken[op.name])}
                new = {(n, k) for n, k in found - asked if self.operators[n].keyed}
                for name, key in sorted(new):
                    emit(name, hook_record(name, key), 1)
                for op in hooked:
                    if not op.keyed and (op.name, None) not in asked:
                        asked.add((op.name, None))
                        emit(op.name, hook_record(op.name), op.parallelism)
                asked |= new
                if not work:
                    break
                run()
        return taken


def _spread(stream: DataStream, how: str) -> DataStream:
    match how:
        case "auto":
            return stream
        case "global":
            return stream.global_()
        case "custom":
            return stream.partition_custom(_modulo, key_of)
        case "hash":
            return stream.key_by(key_of)
    spread: DataStream = getattr(stream, how)()
    return spread


def _modulo(key: int, count: int) -> int:
    return key % count


# ---- functions


class Counting(KeyedProcessFunction):
    """Counts the records of each key."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.hooked = runtime_context.get_state(ValueStateDescriptor("hooked"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return children(self.name, value)


class Once(Counting):
    """In a loop: emits for a key when it is asked for the first time."""

    def end_input(self, ctx: KeyedProcessFunction.Context) -> Any:
        if self.hooked.value():
            return []
        self.hooked.update(True)
        return [hook_record(self.name, ctx.get_current_key())]


class Each(Counting):
    """Outside of loops: emits whenever it is asked."""

    def end_input(self, ctx: KeyedProcessFunction.Context) -> Any:
        return [hook_record(self.name, ctx.get_current_key())]


class Hooked(ProcessFunction):
    """Outside of loops, without keys."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        return children(self.name, value)

    def end_input(self, ctx: ProcessFunction.Context) -> Any:
        return [hook_record(self.name)]


@dataclass
class Rows(Source):
    """A split for each subtask."""

    rows: tuple[tuple[Record, ...], ...]
    read_records: int

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return ListEnumerator()  # the simulation gives the splits out

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return RowsReader(self.rows[context.subtask], self.read_records)


@dataclass
class RowsReader(SourceReader):
    """Reads one split."""

    rows: tuple[Record, ...]
    most: int
    at: int = field(default=0, init=False)

    def open(self, split: Split, position: Any) -> None:
        self.at = position or 0

    def read(self, max_records: int) -> Read:
        end = min(self.at + min(self.most, max_records), len(self.rows))
        records, self.at = list(self.rows[self.at : end]), end
        return Read(records, end, end == len(self.rows))

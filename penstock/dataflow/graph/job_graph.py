"""The job graph: operators and edges as the program says them.

Plain records. Compiling them into chains, tasks and channels is `compile.py`; what the operators
do is `penstock.runtime.operators.base`.

A feedback (`feedback.py`) is an operator that never runs: it stands for streams that are known
only later. Edges that leave it are read, edges that enter it close it. `JobGraph.connections` has
each reader joined with what the feedback was closed with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.dataflow.errors import GraphError

__all__ = [
    "Chaining",
    "Connection",
    "Edge",
    "JobGraph",
    "Operator",
    "OperatorKind",
    "OperatorOutput",
    "Partitioning",
]


class OperatorKind(Enum):
    """What an operator does with its records."""

    SOURCE = "source"
    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"
    PROCESS = "process"
    KEYED_REDUCE = "keyed_reduce"
    KEYED_COUNT = "keyed_count"
    KEYED_PROCESS = "keyed_process"
    SINK = "sink"
    FEEDBACK = "feedback"

    @property
    def keyed(self) -> bool:
        """Whether it has keyed state."""
        return self.value.startswith("keyed_")


class Partitioning(Enum):
    """How records are spread over the subtasks of the next operator."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    RESCALE = "rescale"
    SHUFFLE = "shuffle"
    BROADCAST = "broadcast"
    GLOBAL = "global"
    CUSTOM = "custom"


class Chaining(Enum):
    """Whether an operator may be fused with its neighbours. (Flink: `ChainingStrategy`.)"""

    ALWAYS = "always"
    HEAD = "head"
    NEVER = "never"


@dataclass
class Operator:
    """A vertex of the job graph.

    Arguments:
        id: its place in the order of creation.
        kind: what it does.
        name: as shown; not unique.
        function: the user's function, source or sink.
        parallelism: number of subtasks; None takes the job's.
        uid: what its state is found by; None is derived by `JobGraph.assign_uids`.
        chaining: whether it may be fused.
        key_selector: for keyed operators, what takes the key from a record.
        non_parallel_reason: it cannot run in parallel (a socket, say), and why.
    """

    id: int
    kind: OperatorKind
    name: str
    function: Any
    parallelism: int | None = None
    uid: str | None = None
    chaining: Chaining = Chaining.ALWAYS
    key_selector: Any = None
    non_parallel_reason: str | None = None


@dataclass
class Edge:
    """A stream from one operator to another.

    Arguments:
        source, target: operator ids.
        input: index of the target's input (0, or 1 for the second of two).
        partitioning: None stands for forward if the parallelisms are equal, else rebalance.
        selector: takes the key from a record (hash, custom).
        partitioner: the user's own (custom).
    """

    source: int
    target: int
    input: int
    partitioning: Partitioning | None
    selector: Any = None
    partitioner: Any = None


@dataclass(frozen=True)
class OperatorOutput:
    """The output of an operator, and how the next operator's subtasks share its records.

    Arguments:
        operator: produces the records.
        partitioning, selector, partitioner: as in `Edge`, for the edges that will leave it.
    """

    operator: Operator
    partitioning: Partitioning | None = None
    selector: Any = None
    partitioner: Any = None


@dataclass(frozen=True)
class Connection:
    """An edge between two operators that run, with the feedbacks on its way resolved.

    Arguments:
        edge: index in `JobGraph.edges` of the edge that decides the partitioning, and so has
            the selector and the partitioner: the one nearest to the target that chose any.
        source, target: operator ids.
        input: index of the target's input.
        partitioning: as in `Edge`.
        feedback: it came through a feedback.
    """

    edge: int
    source: int
    target: int
    input: int
    partitioning: Partitioning | None
    feedback: bool


@dataclass
class JobGraph:
    """The operators and edges of a program, in the order of their creation."""

    operators: list[Operator] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    @property
    def running(self) -> list[Operator]:
        """The operators that run: all but feedbacks."""
        return [one for one in self.operators if one.kind is not OperatorKind.FEEDBACK]

    def inputs_of(self, operator: int) -> list[Edge]:
        """The edges that end at this operator, in order of creation."""
        return [edge for edge in self.edges if edge.target == operator]

    def add(
        self, kind: OperatorKind, name: str, function: Any, key_selector: Any = None
    ) -> Operator:
        """Add an operator, and return it."""
        id = self.operators[-1].id + 1 if self.operators else 0
        operator = Operator(id, kind, name, function, key_selector=key_selector)
        self.operators.append(operator)
        return operator

    def connect(self, outputs: Iterable[OperatorOutput], operator: Operator) -> None:
        """Let an operator read these outputs."""
        self.edges += [
            Edge(
                output.operator.id,
                operator.id,
                0,
                output.partitioning,
                output.selector,
                output.partitioner,
            )
            for output in outputs
        ]

    def upstream(self, operators: Iterable[int]) -> set[int]:
        """Return the ids of these operators and of all operators that they depend on."""
        found = set(operators)
        new = list(found)
        while new:
            sources = {edge.source for edge in self.inputs_of(new.pop())} - found
            found |= sources
            new += sources
        return found

    def part(self, operators: set[int]) -> JobGraph:
        """Return the graph of these operators only; operators and edges are shared."""
        return JobGraph(
            [operator for operator in self.operators if operator.id in operators],
            [e for e in self.edges if e.source in operators and e.target in operators],
        )

    def unread(self) -> list[Operator]:
        """Return the operators whose records no operator reads, though they are no sinks."""
        read = {edge.source for edge in self.edges}
        return [
            operator
            for operator in self.running
            if operator.kind is not OperatorKind.SINK and operator.id not in read
        ]

    def assign_uids(self) -> dict[int, str]:
        """The uid of every operator: the one given, else one derived from its place and name.

        A derived uid is made of the operator's kind, name, function name and the uids of what
        it reads, so it does not move when an unrelated operator is added. Operators that are
        alike in all of this are told apart by their order. What is fed back does not count, so
        that state stays when a loop is added or closed otherwise; only an operator that reads
        nothing else has the feedbacks' names instead. Raises `GraphError` for a uid that two
        operators were given.
        """
        uids: dict[int, str] = {}
        given: dict[str, Operator] = {}
        for operator in self.operators:
            if operator.uid is None:
                continue
            if operator.uid in given:
                raise GraphError(
                    f"two operators have the uid {operator.uid!r}: {given[operator.uid].name!r} "
                    f"and {operator.name!r}; give each its own with .uid(...)"
                )
            given[operator.uid] = operator
            uids[operator.id] = operator.uid
        seen: dict[str, int] = {}
        names = {one.id: one.name for one in self.operators if one.kind is OperatorKind.FEEDBACK}
        # In order of creation, in which every producer comes before its consumers.
        for operator in self.running:
            if operator.uid is not None:
                continue
            signature = [operator.kind.value, operator.name, _function_name(operator.function)]
            edges = self.inputs_of(operator.id)
            regular = [edge for edge in edges if edge.source not in names]
            for edge in regular or edges:
                signature += [str(edge.input), uids.get(edge.source) or names[edge.source]]
            digest = hashlib.blake2b(repr(signature).encode(), digest_size=6).hexdigest()
            count = seen[digest] = seen.get(digest, 0) + 1
            uids[operator.id] = digest if count == 1 else f"{digest}-{count}"
        return uids

    def connections(self) -> list[Connection]:
        """The edges between operators that run, in order of the edges that their targets read.

        A feedback that several streams were closed with makes a connection for each. Of the
        partitionings along the way the last counts: the reader's, else the closing stream's.
        Raises `GraphError` for a feedback that is not closed, not read, or closed with itself.
        """
        feedbacks = {one.id: one for one in self.operators if one.kind is OperatorKind.FEEDBACK}
        closing: dict[int, list[int]] = {id: [] for id in feedbacks}
        for index, edge in enumerate(self.edges):
            if edge.target in feedbacks:
                closing[edge.target].append(index)
        for feedback in feedbacks.values():
            self._check_feedback(feedback, closing[feedback.id])

        def producers(edge: int, passed: tuple[int, ...] = ()) -> Iterator[tuple[int, int]]:
            """What comes along an edge, as (operator, edge that decides the partitioning)."""
            source = self.edges[edge].source
            if source not in feedbacks:
                yield source, edge
                return
            if source in passed:
                loop = passed[passed.index(source) :]
                names = " and ".join(repr(feedbacks[id].name) for id in sorted(loop))
                raise GraphError(
                    f"no operator lies in the loop of feedback {names}: close it with a stream "
                    f"that an operator makes of it, not with itself"
                )
            for before in closing[source]:
                for operator, decides in producers(before, (*passed, source)):
                    yield operator, decides if self.edges[edge].partitioning is None else edge

        found = []
        for index, edge in enumerate(self.edges):
            # What only closes a feedback is followed, too, to find loops that nothing reads.
            for source, decides in producers(index):
                if edge.target not in feedbacks:
                    partitioning = self.edges[decides].partitioning
                    through = edge.source in feedbacks
                    found.append(
                        Connection(decides, source, edge.target, edge.input, partitioning, through)
                    )
        return found

    def _check_feedback(self, feedback: Operator, closing: list[int]) -> None:
        names = {operator.id: operator.name for operator in self.operators}
        readers = [names[edge.target] for edge in self.edges if edge.source == feedback.id]
        if not closing:
            reading = f", though {readers[0]!r} reads it" if readers else ""
            raise GraphError(
                f"feedback {feedback.name!r} is never closed{reading}: call its "
                f"close_with(stream) with what is to be fed back"
            )
        if not readers:
            producer = names[self.edges[closing[0]].source]
            raise GraphError(
                f"feedback {feedback.name!r} is closed with {producer!r}, but nothing reads it: "
                f"use the stream that create_feedback() returned, or leave the feedback out"
            )


def _function_name(function: Any) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(getattr(named, "__qualname__", type(named).__name__))

"""The job graph: the operators and edges of a program, as it adds them. (Flink: `StreamGraph`.)

Plain records. `compile.py` turns them into chains and links; `penstock.runtime.operators` runs the
operators.

A feedback (`feedback.py`) is an operator that never runs: it stands for streams that are known
later. Its readers are at its outgoing edges, the streams that it was closed with at its incoming
ones. `JobGraph.connections` connects these with each other.
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
    """The kind of an operator."""

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
        """Whether operators of this kind have keyed state."""
        return self.value.startswith("keyed_")


class Partitioning(Enum):
    """How the subtasks of the next operator share the records."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    RESCALE = "rescale"
    SHUFFLE = "shuffle"
    BROADCAST = "broadcast"
    GLOBAL = "global"
    CUSTOM = "custom"


class Chaining(Enum):
    """Whether an operator may be chained to its neighbours. (Flink: `ChainingStrategy`.)"""

    ALWAYS = "always"
    HEAD = "head"
    NEVER = "never"


@dataclass
class Operator:
    """A vertex of the job graph.

    Arguments:
        id: position in the order of creation.
        kind: kind of operator.
        name: name that is shown; not unique.
        function: the user's function, source or sink.
        parallelism: number of subtasks; None takes the job's.
        uid: id of its state in snapshots; None lets `JobGraph.assign_uids` derive one.
        chaining: whether it may be chained.
        key_selector: returns the key of a record; for keyed operators.
        non_parallel_reason: why it cannot run in parallel, such as a socket; None if it can.
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
        partitioning: None is forward between equal parallelisms, else rebalance.
        selector: returns the key of a record (hash, custom).
        partitioner: the user's partitioner (custom).
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
    """A path between two operators that run, which may pass through feedbacks.

    Arguments:
        edge: index in `JobGraph.edges` of the edge that decides the partitioning, and has its
            selector and partitioner. It is the last edge of the path that has a partitioning.
        source, target: operator ids.
        input: index of the target's input.
        partitioning: as in `Edge`.
        feedback: whether the path passes through a feedback.
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
        """Return the edges that end at this operator, in order of creation."""
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
        """Return the operators other than sinks whose records no operator reads."""
        read = {edge.source for edge in self.edges}
        return [
            operator
            for operator in self.running
            if operator.kind is not OperatorKind.SINK and operator.id not in read
        ]

    def assign_uids(self) -> dict[int, str]:
        """Return the uid of every operator: the given one, or one derived from its inputs.

        A derived uid is a digest of the operator's kind, name and function name, and of the uids
        that it reads. So it stays the same when an unrelated operator is added. Operators that
        are equal in all of this are numbered in their order.

        Feedbacks are left out, so that state is kept when a loop is added or closed differently.
        An operator that reads nothing but feedbacks has their names in place of uids.

        Raises:
            GraphError: for a uid that was given to two operators.
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
        """Return the connections between operators that run, in order of the targets' edges.

        A feedback that was closed with several streams makes a connection for each. The last
        partitioning on the path counts: the reader's, else that of the closing stream.

        Raises:
            GraphError: for a feedback that is not closed, not read, or closed with itself.
        """
        feedbacks = {one.id: one for one in self.operators if one.kind is OperatorKind.FEEDBACK}
        closing: dict[int, list[int]] = {id: [] for id in feedbacks}
        for index, edge in enumerate(self.edges):
            if edge.target in feedbacks:
                closing[edge.target].append(index)
        for feedback in feedbacks.values():
            self._check_feedback(feedback, closing[feedback.id])

        def producers(edge: int, passed: tuple[int, ...] = ()) -> Iterator[tuple[int, int]]:
            """Yield pairs (producer of an edge's records, edge that decides the partitioning)."""
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
            # Edges that close a feedback are followed, too, to find loops without an operator.
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

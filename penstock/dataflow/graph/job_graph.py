"""Define the job graph: the operators and edges that a program adds.

In Flink, it is called `StreamGraph`.
`compile.py` compiles the graph to chains and links, and `penstock.runtime.operators` runs the
operators.

A feedback (`streams/feedback.py`) is an operator that never runs. It represents a stream whose
producers are added later. Its outgoing edges lead to its readers, and its incoming edges come from
the streams that close it. `JobGraph.connections` connects the producers directly with the readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeySelectorLike, VersionedKeySelector, key_versions
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types.type_information import TypeInformation


class Partitioning(Enum):
    """The rule that chooses the subtask of the next operator for each record."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    RESCALE = "rescale"
    SHUFFLE = "shuffle"
    BROADCAST = "broadcast"
    GLOBAL = "global"
    CUSTOM = "custom"


class Chaining(Enum):
    """The operators to which an operator may be chained. (Flink: `ChainingStrategy`.)

    ALWAYS: it may be chained to the operators before it and after it.
    HEAD: it may be chained only to the operators after it.
    NEVER: it is not chained.
    """

    ALWAYS = "always"
    HEAD = "head"
    NEVER = "never"


@dataclass
class Operator:
    """An operator of a program: a vertex of the job graph.

    Arguments:
        id: the position in the order of creation.
        spec: describes the operator to the engine.
        name: the name that is shown to users; it need not be unique.
        function: the user's function, source or sink.
        parallelism: the number of subtasks. None takes the parallelism of the job.
        uid: the id of the operator's state in snapshots. If it is None, `assign_uids`
            derives a uid.
        former_uid: the uid of the operator in older snapshots; None if it has had no other.
        chaining: the operators to which it may be chained.
        key_selector: the function that returns the key of a record; None if the operator needs no
            key.
        second_key_selector: the same function for the second input of a keyed operator.
        broadcast_states: the descriptors of the broadcast states that the function may use.
        non_parallel_reason: the reason why the operator cannot run in parallel; None if it can.
        side_outputs: the ids of the tags whose records the program reads.
        watermark_strategy: the watermark strategy of a source; None if it has none.
        result_type: the declared type of the records that it emits; None if it has none.
    """

    id: int
    spec: OperatorSpec
    name: str
    function: UserValue
    parallelism: int | None = None
    uid: str | None = None
    former_uid: str | None = None
    chaining: Chaining = Chaining.ALWAYS
    key_selector: KeySelectorLike | None = None
    second_key_selector: KeySelectorLike | None = None
    broadcast_states: tuple[MapStateDescriptor, ...] = ()
    non_parallel_reason: str | None = None
    side_outputs: tuple[str, ...] = ()
    watermark_strategy: WatermarkStrategy | None = None
    result_type: TypeInformation | None = None

    def declare_side_output(self, tag: str) -> None:
        """Note that the program reads the side output with this tag."""
        if tag not in self.side_outputs:
            self.side_outputs += (tag,)


@dataclass
class Edge:
    """An edge of the job graph: a stream from one operator to another.

    Arguments:
        source, target: the ids of the two operators.
        input: the index of the target's input.
        partitioning: the partitioning. None means FORWARD if both operators have the same
            parallelism, else REBALANCE.
        selector: the function that returns the key of a record. It is used for HASH and CUSTOM.
        partitioner: the user's function that chooses a subtask. It is used for CUSTOM.
        tag: the id of the source's side output; None for its main output.
    """

    source: int
    target: int
    input: int
    partitioning: Partitioning | None
    selector: KeySelectorLike | None = None
    partitioner: UserValue = None
    tag: str | None = None


@dataclass(frozen=True)
class OperatorOutput:
    """The output of an operator, with the partitioning of the edges that will leave it.

    Arguments:
        operator: the operator that produces the records.
        partitioning, selector, partitioner, tag: the values for these edges, as in `Edge`.
    """

    operator: Operator
    partitioning: Partitioning | None = None
    selector: KeySelectorLike | None = None
    partitioner: UserValue = None
    tag: str | None = None


@dataclass(frozen=True)
class Connection:
    """A path between two operators that run, which may pass through feedbacks.

    Arguments:
        edge: the index in `JobGraph.edges` of the edge that contains the partitioning, the selector
            and the partitioner of the connection. This is the last edge of the path for which a
            partitioning is set.
        source, target: the ids of the two operators.
        input: the index of the target's input.
        partitioning: the partitioning, as in `Edge`.
        feedback: whether the path passes through a feedback.
        tag: the id of the source's side output; None for its main output.
    """

    edge: int
    source: int
    target: int
    input: int
    partitioning: Partitioning | None
    feedback: bool
    tag: str | None = None


@dataclass
class JobGraph:
    """The operators and edges of a program, in the order of their creation."""

    operators: list[Operator] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    @property
    def running(self) -> list[Operator]:
        """The operators that run, which are all operators except feedbacks."""
        return [one for one in self.operators if not one.spec.is_feedback]

    def inputs_of(self, operator: int) -> list[Edge]:
        """Return the edges that lead to an operator, in order of creation."""
        return [edge for edge in self.edges if edge.target == operator]

    def add(
        self,
        spec: OperatorSpec,
        name: str,
        function: object,
        key_selector: KeySelectorLike | None = None,
    ) -> Operator:
        """Add an operator to the graph, and return it."""
        id = self.operators[-1].id + 1 if self.operators else 0
        operator = Operator(id, spec, name, function, key_selector=key_selector)
        self.operators.append(operator)
        return operator

    def connect(
        self, outputs: Iterable[OperatorOutput], operator: Operator, input: int = 0
    ) -> None:
        """Add edges from these outputs to an input of an operator."""
        self.edges += [
            Edge(
                output.operator.id,
                operator.id,
                input,
                output.partitioning,
                output.selector,
                output.partitioner,
                output.tag,
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
        """Return a graph with only these operators and the edges between them.

        The new graph contains the same operator and edge objects, not copies.
        """
        return JobGraph(
            [operator for operator in self.operators if operator.id in operators],
            [e for e in self.edges if e.source in operators and e.target in operators],
        )

    def unread(self) -> list[Operator]:
        """Return the operators, except sinks, whose records no operator reads."""
        read = {edge.source for edge in self.edges}
        return [
            operator
            for operator in self.running
            if not operator.spec.is_sink and operator.id not in read
        ]

    def connections(self) -> list[Connection]:
        """Return the connections between operators that run.

        The connections are in the order of the edges that lead to their targets. If a feedback was
        closed with a union, each stream of the union has its own connection. The last partitioning
        that is set on a path is used. So the partitioning of a feedback's reader overrides the
        partitioning of the closing stream.

        Raises:
            GraphError: if a feedback is not closed, is not read, or is closed with itself.
        """
        feedbacks = {one.id: one for one in self.operators if one.spec.is_feedback}
        closing: dict[int, list[int]] = {id: [] for id in feedbacks}
        for index, edge in enumerate(self.edges):
            if edge.target in feedbacks:
                closing[edge.target].append(index)
        for feedback in feedbacks.values():
            self._check_feedback(feedback, closing[feedback.id])

        def producers(edge: int, passed: tuple[int, ...] = ()) -> Iterator[tuple[Edge, int]]:
            """Yield a pair for each operator that produces records of an edge.

            A pair is (edge that leaves the operator, index of the edge whose partitioning is used).
            """
            source = self.edges[edge].source
            if source not in feedbacks:
                yield self.edges[edge], edge
                return
            if source in passed:
                loop = passed[passed.index(source) :]
                names = " and ".join(repr(feedbacks[id].name) for id in sorted(loop))
                raise GraphError(
                    f"no operator lies in the loop of feedback {names}: close it with a stream "
                    f"that an operator makes of it, not with itself"
                )
            for before in closing[source]:
                for leaving, decides in producers(before, (*passed, source)):
                    yield leaving, decides if self.edges[edge].partitioning is None else edge

        found = []
        for index, edge in enumerate(self.edges):
            # `producers` is also called for edges that close a feedback, because it raises an error
            # for loops without an operator.
            for leaving, decides in producers(index):
                if edge.target not in feedbacks:
                    found.append(
                        Connection(
                            decides,
                            leaving.source,
                            edge.target,
                            edge.input,
                            self.edges[decides].partitioning,
                            edge.source in feedbacks,
                            leaving.tag,
                        )
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


def function_name(function: object) -> str:
    """Return the name of a function, or of the class of a function object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(getattr(named, "__qualname__", type(named).__name__))


def key_migration(graph: JobGraph, operator: int) -> VersionedKeySelector | None:
    """Return the selector that says the version of an operator's keys; None for version 1.

    Arguments:
        graph: the graph.
        operator: the id of the operator.

    Raises:
        GraphError: if its inputs have keys of different versions.
    """
    hashed = (e for e in graph.inputs_of(operator) if e.partitioning is Partitioning.HASH)
    return key_versions(edge.selector for edge in hashed)

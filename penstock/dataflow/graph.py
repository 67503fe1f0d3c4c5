"""The job graph: operators and edges as the program says them.

Plain records. Compiling them into chains, tasks and channels is `compile.py`; what the operators
do is `penstock.runtime.operators`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.dataflow.errors import GraphError

__all__ = ["Chaining", "Edge", "JobGraph", "Operator", "OperatorKind", "Partitioning"]


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
        max_one: it cannot run in parallel (a socket, say), and why.
    """

    id: int
    kind: OperatorKind
    name: str
    function: Any
    parallelism: int | None = None
    uid: str | None = None
    chaining: Chaining = Chaining.ALWAYS
    key_selector: Any = None
    max_one: str | None = None


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


@dataclass
class JobGraph:
    """The operators and edges of a program, in the order of their creation."""

    operators: list[Operator] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def inputs_of(self, operator: int) -> list[Edge]:
        """The edges that end at this operator, in order of creation."""
        return [edge for edge in self.edges if edge.target == operator]

    def assign_uids(self) -> dict[int, str]:
        """The uid of every operator: the one given, else one derived from its place and name.

        A derived uid is made of the operator's kind, name, function name and the uids of what
        it reads, so it does not move when an unrelated operator is added. Operators that are
        alike in all of this are told apart by their order. Raises `GraphError` for a uid that
        two operators were given.
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
        # In order of creation, in which every producer comes before its consumers except on
        # a feedback edge; what is fed back has no uid yet then, and does not count.
        for operator in self.operators:
            if operator.uid is not None:
                continue
            signature = [operator.kind.value, operator.name, _function_name(operator.function)]
            for edge in self.inputs_of(operator.id):
                signature += [str(edge.input), uids.get(edge.source, "")]
            digest = hashlib.blake2b(repr(signature).encode(), digest_size=6).hexdigest()
            count = seen[digest] = seen.get(digest, 0) + 1
            uids[operator.id] = digest if count == 1 else f"{digest}-{count}"
        return uids


def _function_name(function: Any) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(getattr(named, "__qualname__", type(named).__name__))

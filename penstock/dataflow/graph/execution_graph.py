"""The execution graph: chains of operators, the links between them, and the loops they form.

Plain records, which `compile.py` makes and the runtime reads. Tasks and channels follow from the
parallelisms: a chain has one task per subtask, a link one channel per pair of subtasks that it
connects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from penstock.dataflow.graph.job_graph import OperatorKind, Partitioning

__all__ = [
    "Chain",
    "ChainedOperator",
    "ChannelId",
    "ExecutionGraph",
    "Link",
    "OperatorInfo",
]


@dataclass(frozen=True)
class OperatorInfo:
    """An operator as the runtime sees it; `id` leads to its function in the job's code.

    Arguments:
        id, uid, name, kind, parallelism: as in `Operator`, with all defaults resolved.
        has_end_input: whether its function has an `end_input` of its own.
    """

    id: int
    uid: str
    name: str
    kind: OperatorKind
    parallelism: int
    has_end_input: bool = False


@dataclass(frozen=True)
class ChainedOperator:
    """An operator of a chain, the operators chained to it, and the ids of its outgoing links."""

    operator: OperatorInfo
    children: tuple[ChainedOperator, ...] = ()
    links: tuple[int, ...] = ()

    def walk(self) -> Iterator[ChainedOperator]:
        """Yield this operator and all chained to it, producers first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Link:
    """An edge between two chains. (Flink: `JobEdge`.)

    Arguments:
        id: index in `ExecutionGraph.links`.
        edge: index of the job graph's edge that has its selector and partitioner. Links that
            come through one feedback may share it.
        source, target: indices of the chains.
        producer, consumer: uids of the operators that it connects.
        input: index of the consumer's input.
        partitioning: chooses the target subtask of each record.
        is_back_edge: whether it is a back-edge, whose records in flight are part of a snapshot.
    """

    id: int
    edge: int
    source: int
    target: int
    producer: str
    consumer: str
    input: int
    partitioning: Partitioning
    is_back_edge: bool = False


@dataclass(frozen=True, order=True)
class ChannelId:
    """A channel: a link, and the two subtasks that it connects."""

    link: int
    source: int
    target: int


@dataclass(frozen=True)
class Chain:
    """Operators that run in one task per subtask. (Flink: `JobVertex`.)

    Arguments:
        id: index in `ExecutionGraph.chains`.
        name: the operators' names.
        root: the first operator, with all that are chained to it.
        parallelism: number of tasks.
        inputs, outputs: ids of the incoming and outgoing links.
    """

    id: int
    name: str
    root: ChainedOperator
    parallelism: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def is_source(self) -> bool:
        """Whether the chain begins with a source."""
        return self.root.operator.kind is OperatorKind.SOURCE

    def walk(self) -> Iterator[ChainedOperator]:
        """Yield all of its operators, producers first."""
        return self.root.walk()


@dataclass(frozen=True)
class ExecutionGraph:
    """A compiled program: chains, the links between them, and loops.

    Arguments:
        chains, links: see `Chain` and `Link`.
        max_parallelism: number of key groups.
        fingerprint: digest of all that decides whether a snapshot fits.
        operators: all operators that run, in order of creation.
        loops: the chains of each strongly connected component with a cycle, in topological order.
    """

    chains: tuple[Chain, ...]
    links: tuple[Link, ...]
    max_parallelism: int
    fingerprint: str = ""
    operators: tuple[OperatorInfo, ...] = ()
    loops: tuple[tuple[int, ...], ...] = ()

    @property
    def slots(self) -> int:
        """Number of workers that it needs: slot i runs subtask i of every chain."""
        return max(chain.parallelism for chain in self.chains)

    def operator(self, uid: str) -> OperatorInfo:
        """Return the operator with this uid."""
        return self._infos[uid]

    @cached_property
    def _infos(self) -> dict[str, OperatorInfo]:
        return {info.uid: info for info in self.operators}

    def loop_of(self, chain: int) -> int | None:
        """Return the loop of a chain as an index of `loops`; None if it is in none."""
        return next((i for i, loop in enumerate(self.loops) if chain in loop), None)

    def has_end_input(self, loop: int) -> bool:
        """Return whether a function of this loop has an `end_input` of its own."""
        return any(
            node.operator.has_end_input
            for chain in self.loops[loop]
            for node in self.chains[chain].walk()
        )

    def channels(self, link: Link) -> list[ChannelId]:
        """Return the channels of a link, in order of source and target subtask."""
        return self._channels[link.id]

    @cached_property
    def _channels(self) -> dict[int, list[ChannelId]]:
        return {link.id: self._pairs(link) for link in self.links}

    def _pairs(self, link: Link) -> list[ChannelId]:
        sources = self.chains[link.source].parallelism
        targets = self.chains[link.target].parallelism
        if link.partitioning is Partitioning.FORWARD:
            pairs = [(i, i) for i in range(sources)]
        elif link.partitioning is Partitioning.RESCALE:
            # Flink's pointwise pattern: each subtask of the larger side has one partner.
            if sources <= targets:
                pairs = [(t * sources // targets, t) for t in range(targets)]
            else:
                pairs = [(s, s * targets // sources) for s in range(sources)]
        else:
            pairs = [(s, t) for s in range(sources) for t in range(targets)]
        return [ChannelId(link.id, source, target) for source, target in pairs]

    def tasks(self) -> list[tuple[int, int]]:
        """Return all tasks as pairs (chain, subtask)."""
        return [(chain.id, i) for chain in self.chains for i in range(chain.parallelism)]

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
    """An operator as the runtime sees it; its function is found in the job's code by `id`.

    Arguments:
        id, uid, name, kind, parallelism: as in `Operator`, with what was left open filled in.
        has_end_input: its function wants to know when its input has ended (`end_input`).
    """

    id: int
    uid: str
    name: str
    kind: OperatorKind
    parallelism: int
    has_end_input: bool = False


@dataclass(frozen=True)
class ChainedOperator:
    """An operator of a chain, the operators fused behind it, and the links that leave it."""

    operator: OperatorInfo
    children: tuple[ChainedOperator, ...] = ()
    links: tuple[int, ...] = ()

    def walk(self) -> Iterator[ChainedOperator]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Link:
    """An edge between two chains.

    Arguments:
        id: index in `ExecutionGraph.links`.
        edge: index of the job graph's edge that has its selector and partitioner; links that
            come through one feedback may share it.
        source, target: indices of the chains.
        producer, consumer: uids of the operators at its ends.
        input: index of the consumer's input.
        partitioning: how records are spread.
        is_back_edge: it is a back-edge; what is in flight on it is part of a snapshot.
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
    """A channel: a link, and the subtasks at its ends."""

    link: int
    source: int
    target: int


@dataclass(frozen=True)
class Chain:
    """Operators fused into one task per subtask.

    Arguments:
        id: index in `ExecutionGraph.chains`.
        name: the operators' names.
        root: the first operator with what is fused behind it.
        parallelism: number of tasks.
        inputs, outputs: ids of the links that enter and leave.
    """

    id: int
    name: str
    root: ChainedOperator
    parallelism: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def is_source(self) -> bool:
        """Whether it begins with a source."""
        return self.root.operator.kind is OperatorKind.SOURCE

    def walk(self) -> Iterator[ChainedOperator]:
        """All of its operators, producers first."""
        return self.root.walk()


@dataclass(frozen=True)
class ExecutionGraph:
    """Chains and links; tasks and channels follow from them.

    Arguments:
        chains, links: see `Chain` and `Link`.
        max_parallelism: number of key groups.
        fingerprint: of everything that decides whether a snapshot fits.
        operators: all that run, in order of creation.
        loops: the chains of each strongly connected component that has a cycle; a component
            comes before those that it reaches.
    """

    chains: tuple[Chain, ...]
    links: tuple[Link, ...]
    max_parallelism: int
    fingerprint: str = ""
    operators: tuple[OperatorInfo, ...] = ()
    loops: tuple[tuple[int, ...], ...] = ()

    @property
    def slots(self) -> int:
        """How many workers it needs: slot i holds subtask i of every chain."""
        return max(chain.parallelism for chain in self.chains)

    def operator(self, uid: str) -> OperatorInfo:
        """The operator with this uid."""
        return self._infos[uid]

    @cached_property
    def _infos(self) -> dict[str, OperatorInfo]:
        return {info.uid: info for info in self.operators}

    def loop_of(self, chain: int) -> int | None:
        """The loop that a chain is part of, as an index of `loops`."""
        return next((i for i, loop in enumerate(self.loops) if chain in loop), None)

    def has_end_input(self, loop: int) -> bool:
        """Whether a function of this loop wants to know when its input has ended."""
        return any(
            node.operator.has_end_input
            for chain in self.loops[loop]
            for node in self.chains[chain].walk()
        )

    def channels(self, link: Link) -> list[ChannelId]:
        """The channels of a link, in order of source and target subtask."""
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
            # As Flink's pointwise pattern: each of the larger side has one partner.
            if sources <= targets:
                pairs = [(t * sources // targets, t) for t in range(targets)]
            else:
                pairs = [(s, s * targets // sources) for s in range(sources)]
        else:
            pairs = [(s, t) for s in range(sources) for t in range(targets)]
        return [ChannelId(link.id, source, target) for source, target in pairs]

    def tasks(self) -> list[tuple[int, int]]:
        """All tasks, as (chain, subtask)."""
        return [(chain.id, i) for chain in self.chains for i in range(chain.parallelism)]

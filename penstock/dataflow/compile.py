"""From the job graph to the execution graph: chains, back-edges, tasks and channels.

1. every operator gets its uid and parallelism;
2. operators joined by forward edges are fused into chains, by Flink's rules: same parallelism,
   one input, chaining not disabled;
3. back-edges are found by one depth-first search from a virtual root over the sources;
4. every chain becomes as many tasks as its parallelism, every edge between chains a set of
   channels.

Pure: nothing here runs user code or opens anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.dataflow.config import JobConfig, check_parallelism
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph import Chaining, Edge, JobGraph, Operator, OperatorKind, Partitioning

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "Chain",
    "ChannelId",
    "ExecutionGraph",
    "Link",
    "Node",
    "OperatorInfo",
    "back_edges",
    "compile_graph",
]


@dataclass(frozen=True)
class OperatorInfo:
    """An operator as the runtime sees it; its function is found in the job's code by `id`."""

    id: int
    uid: str
    name: str
    kind: OperatorKind
    parallelism: int


@dataclass(frozen=True)
class Node:
    """An operator of a chain, the operators fused behind it, and the links that leave it."""

    operator: OperatorInfo
    children: tuple[Node, ...] = ()
    links: tuple[int, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Link:
    """An edge between two chains.

    Arguments:
        id: index in `ExecutionGraph.links`.
        edge: index of the job graph's edge, by which its selector is found in the job's code.
        source, target: indices of the chains.
        producer, consumer: uids of the operators at its ends.
        input: index of the consumer's input.
        partitioning: how records are spread.
        back: it is a back-edge.
    """

    id: int
    edge: int
    source: int
    target: int
    producer: str
    consumer: str
    input: int
    partitioning: Partitioning
    back: bool = False


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
    root: Node
    parallelism: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def is_source(self) -> bool:
        """Whether it begins with a source."""
        return self.root.operator.kind is OperatorKind.SOURCE


@dataclass(frozen=True)
class ExecutionGraph:
    """Chains and links; tasks and channels follow from them.

    Arguments:
        chains, links: see `Chain` and `Link`.
        max_parallelism: number of key groups.
        fingerprint: of everything that decides whether a snapshot fits.
    """

    chains: tuple[Chain, ...]
    links: tuple[Link, ...]
    max_parallelism: int
    fingerprint: str = ""
    operators: tuple[OperatorInfo, ...] = field(default=())

    @property
    def slots(self) -> int:
        """How many workers it needs: slot i holds subtask i of every chain."""
        return max(chain.parallelism for chain in self.chains)

    def channels(self, link: Link) -> list[ChannelId]:
        """The channels of a link, in order of source and target subtask."""
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


def compile_graph(graph: JobGraph, config: JobConfig) -> ExecutionGraph:
    """Compile a program; raises `GraphError` that says what to change."""
    config.validate()
    if not any(operator.kind is OperatorKind.SOURCE for operator in graph.operators):
        raise GraphError(
            "the program has no source: begin with env.from_collection(...) or another"
        )
    infos = _operators(graph, config)
    partitionings = [_partitioning(edge, infos) for edge in graph.edges]
    head = _chain_heads(graph, infos, partitionings)
    heads = [operator.id for operator in graph.operators if head[operator.id] == operator.id]
    index = {operator: i for i, operator in enumerate(heads)}
    links: list[Link] = []
    for number, edge in enumerate(graph.edges):
        source, target = head[edge.source], head[edge.target]
        if source == target and edge.target != target:
            continue
        links.append(
            Link(
                len(links),
                number,
                index[source],
                index[target],
                infos[edge.source].uid,
                infos[edge.target].uid,
                edge.input,
                partitionings[number],
            )
        )
    _refuse_cycles(heads, infos, links)
    chains = tuple(_chain(index[h], h, graph, infos, head, links) for h in heads)
    compiled = ExecutionGraph(
        chains, tuple(links), config.max_parallelism, operators=tuple(infos.values())
    )
    return ExecutionGraph(
        chains, tuple(links), config.max_parallelism, _fingerprint(compiled), compiled.operators
    )


def back_edges(chains: nx.MultiDiGraph, sources: list[str]) -> set[tuple[str, str]]:
    """The edges that lead to a vertex on the stack of a depth-first search from the sources.

    Arguments:
        chains: vertices are uids, edges go with the stream.
        sources: uids of the sources; searched in this order from one virtual root.

    networkx labels cross and forward edges "nontree" as well, so the stack is followed here.
    """
    # Workers load this module for its records, and networkx takes longer to load than all of it.
    import networkx as nx

    rooted = nx.DiGraph(chains)
    root = object()
    rooted.add_edges_from((root, source) for source in sources)
    stack: list[object] = []
    found: set[tuple[str, str]] = set()
    for source, target, label in nx.dfs_labeled_edges(rooted, root):
        if label == "forward":
            stack.append(target)
        elif label == "reverse":
            stack.pop()
        elif target in stack:
            found.add((source, target))
    return found


def _operators(graph: JobGraph, config: JobConfig) -> dict[int, OperatorInfo]:
    uids = graph.assign_uids()
    infos: dict[int, OperatorInfo] = {}
    for operator in graph.operators:
        parallelism = operator.parallelism or config.parallelism
        if operator.max_one:
            parallelism = 1
        check_parallelism(parallelism, config.max_parallelism, f"operator {operator.name!r}")
        infos[operator.id] = OperatorInfo(
            operator.id, uids[operator.id], operator.name, operator.kind, parallelism
        )
    return infos


def _partitioning(edge: Edge, infos: dict[int, OperatorInfo]) -> Partitioning:
    source, target = infos[edge.source], infos[edge.target]
    same = source.parallelism == target.parallelism
    if edge.partitioning is None:
        return Partitioning.FORWARD if same else Partitioning.REBALANCE
    if edge.partitioning is Partitioning.FORWARD and not same:
        raise GraphError(
            f"forward() from {source.name!r} (parallelism {source.parallelism}) to {target.name!r} "
            f"(parallelism {target.parallelism}) needs equal parallelism; use rebalance()"
        )
    return edge.partitioning


def _chain_heads(
    graph: JobGraph, infos: dict[int, OperatorInfo], partitionings: list[Partitioning]
) -> dict[int, int]:
    """The first operator of the chain of each operator."""
    head: dict[int, int] = {}
    by_id = {operator.id: operator for operator in graph.operators}
    for operator in graph.operators:
        head[operator.id] = operator.id
        inputs = [i for i, edge in enumerate(graph.edges) if edge.target == operator.id]
        if len(inputs) != 1:
            continue
        edge = graph.edges[inputs[0]]
        if (
            partitionings[inputs[0]] is Partitioning.FORWARD
            and edge.source in head
            and _may_fuse(by_id[edge.source], operator)
            and infos[edge.source].parallelism == infos[operator.id].parallelism
        ):
            head[operator.id] = head[edge.source]
    return head


def _may_fuse(first: Operator, second: Operator) -> bool:
    return first.chaining is not Chaining.NEVER and second.chaining is Chaining.ALWAYS


def _refuse_cycles(heads: list[int], infos: dict[int, OperatorInfo], links: list[Link]) -> None:
    import networkx as nx

    graph = nx.MultiDiGraph()
    uid = [infos[operator].uid for operator in heads]
    graph.add_nodes_from(uid)
    graph.add_edges_from((uid[link.source], uid[link.target]) for link in links)
    name = {infos[operator].uid: infos[operator].name for operator in heads}
    sources = sorted(
        infos[operator].uid for operator in heads if infos[operator].kind is OperatorKind.SOURCE
    )
    found = back_edges(graph, sources)
    if found:
        edges = ", ".join(f"{name[a]!r} → {name[b]!r}" for a, b in sorted(found))
        raise GraphError(
            f"the program has a cycle, which is not supported yet; back-edges: {edges}"
        )


def _chain(
    id: int,
    first: int,
    graph: JobGraph,
    infos: dict[int, OperatorInfo],
    head: dict[int, int],
    links: list[Link],
) -> Chain:
    by_edge = {link.edge: link.id for link in links}
    members: list[str] = []

    def node(operator: int) -> Node:
        members.append(infos[operator].name)
        children, leaving = [], []
        for number, edge in enumerate(graph.edges):
            if edge.source == operator:
                if number in by_edge:
                    leaving.append(by_edge[number])
                else:
                    children.append(node(edge.target))
        return Node(infos[operator], tuple(children), tuple(leaving))

    root = node(first)
    del head
    return Chain(
        id,
        " → ".join(members),
        root,
        infos[first].parallelism,
        tuple(link.id for link in links if link.target == id),
        tuple(link.id for link in links if link.source == id),
    )


def _fingerprint(graph: ExecutionGraph) -> str:
    """Stable over runs and processes; changes with uids, kinds, edges and key groups."""
    parts = [
        sorted((info.uid, info.kind.value) for info in graph.operators),
        sorted(
            (link.producer, link.consumer, link.input, link.partitioning.value)
            for link in graph.links
        ),
        graph.max_parallelism,
    ]
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

"""Define the execution graph: chains of operators, links between them, and loops.

`compile.py` creates these records, and the runtime reads them. The parallelisms determine tasks and
channels: a chain has one task per subtask, and a link has one channel for each pair of subtasks
that it connects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.operators.operator_spec import OperatorSpec


@dataclass(frozen=True)
class OperatorInfo:
    """Describes an operator to the runtime.

    The runtime finds the function of the operator by its `id` in the job's code.

    Arguments:
        id, uid, name, parallelism: the same as in `Operator`, with all defaults filled in.
        spec: the specification of the operator, without its functions.
        has_end_input: whether the class of the operator's function defines `end_input`.
        has_operator_state: whether the operator has operator state.
        former_uid: the uid of the operator in older snapshots; None if it is the same.
        detail: the class or folder that distinguishes the operator from others of its name; may be
            empty.
        key_version: the version of its keys; see `VersionedKeySelector`.
        migrates_keys: whether the program converts keys of an earlier version.
        reads_in_turns: whether it is a source of which a task reads all its splits in turns.
    """

    id: int
    uid: str
    name: str
    spec: OperatorSpec
    parallelism: int
    has_end_input: bool = False
    has_operator_state: bool = False
    former_uid: str | None = None
    detail: str = ""
    key_version: int = 1
    migrates_keys: bool = False
    reads_in_turns: bool = False

    @property
    def stateful(self) -> bool:
        """Whether snapshots contain state of the operator. In-flight logs do not count."""
        return self.spec.keyed or self.spec.is_source or self.has_operator_state


@dataclass(frozen=True)
class ChainedOperator:
    """An operator in a chain.

    Arguments:
        operator: the description of the operator.
        children: the operators that are chained to it.
        links: the ids of its outgoing links to other chains.
        tag: the id of the side output that it reads from the operator before it; None if it reads
            the main output, or if it is the first of the chain.
    """

    operator: OperatorInfo
    children: tuple[ChainedOperator, ...] = ()
    links: tuple[int, ...] = ()
    tag: str | None = None

    def walk(self) -> Iterator[ChainedOperator]:
        """Yield this operator and all operators chained to it, each after its producer."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Link:
    """An edge between two chains. (Flink: `JobEdge`.)

    Arguments:
        id: the index in `ExecutionGraph.links`.
        edge: the index of the job graph's edge that contains the link's key selector and
            partitioner. Links that pass through the same feedback may have the same edge.
        source, target: the indices of the two chains.
        producer, consumer: the uids of the two operators that the link connects.
        input: the index of the consumer's input.
        partitioning: the partitioning, which chooses the target subtask of each record.
        is_back_edge: whether the link is a back-edge. Snapshots contain the records in flight on
            back-edges.
        tag: the id of the producer's side output; None for its main output.
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
    tag: str | None = None


@dataclass(frozen=True, order=True)
class ChannelId:
    """Identifies a channel by its link, its source subtask and its target subtask."""

    link: int
    source: int
    target: int


@dataclass(frozen=True)
class Chain:
    """A chain of operators, which has one task per subtask. (Flink: `JobVertex`.)

    Arguments:
        id: the index in `ExecutionGraph.chains`.
        name: the name of the chain, made of the names of its operators.
        root: the first operator of the chain, with all operators that are chained to it.
        parallelism: the number of tasks.
        inputs, outputs: the ids of the incoming and outgoing links.
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
        return self.root.operator.spec.is_source

    def walk(self) -> Iterator[ChainedOperator]:
        """Yield all operators of the chain, each after its producer."""
        return self.root.walk()


@dataclass(frozen=True)
class ExecutionGraph:
    """A compiled program: its chains, the links between them, and its loops.

    Arguments:
        chains, links: the chains, and the links between them.
        max_parallelism: the number of key groups.
        fingerprint: a digest of the uids, kinds, links and number of key groups.
        operators: all operators that run, in order of creation.
        loops: the strongly connected components with a cycle, in topological order. Each component
            is a tuple of the indices of its chains.
        running: the indices of the chains that run; None if all do. In a region, only its own run.
        isolated: whether each task has a slot of its own. Otherwise, slot i runs subtask i of each
            chain.
        logged: the indices of the chains whose tasks log their steps, so that they can repeat them.
    """

    chains: tuple[Chain, ...]
    links: tuple[Link, ...]
    max_parallelism: int
    fingerprint: str = ""
    operators: tuple[OperatorInfo, ...] = ()
    loops: tuple[tuple[int, ...], ...] = ()
    running: tuple[int, ...] | None = None
    isolated: bool = False
    logged: frozenset[int] = frozenset()

    @cached_property
    def running_chains(self) -> tuple[Chain, ...]:
        """The chains that run: those of the region, or all."""
        if self.running is None:
            return self.chains
        return tuple(self.chains[index] for index in self.running)

    @property
    def slots(self) -> int:
        """The number of workers that the chains need: one for each slot."""
        parallelisms = [chain.parallelism for chain in self.running_chains]
        return sum(parallelisms) if self.isolated else max(parallelisms)

    def slot_of(self, chain: int, subtask: int) -> int:
        """Return the slot that runs a task. Its chain must run."""
        return self._first_slots[chain] + subtask if self.isolated else subtask

    @cached_property
    def _first_slots(self) -> dict[int, int]:
        counts = [chain.parallelism for chain in self.running_chains]
        firsts = accumulate(counts[:-1], initial=0)
        return {chain.id: first for chain, first in zip(self.running_chains, firsts, strict=True)}

    def ends(self, channel: ChannelId) -> tuple[int, int]:
        """Return the slot of the task that sends into a channel, and that of the receiver."""
        link = self.links[channel.link]
        sender = self.slot_of(link.source, channel.source)
        return sender, self.slot_of(link.target, channel.target)

    def tasks_of(self, slot: int) -> list[tuple[int, int]]:
        """Return the tasks that a slot runs. All of them have the same index of the subtask."""
        if not self.isolated:
            return [(chain.id, slot) for chain in self.running_chains if slot < chain.parallelism]
        return [self._isolated_tasks[slot]]

    @cached_property
    def _isolated_tasks(self) -> list[tuple[int, int]]:
        return self.tasks()

    @property
    def former_uids(self) -> dict[str, str]:
        """The present uid of each operator that had another one, keyed by the former uid."""
        infos = self.operators
        return {info.former_uid: info.uid for info in infos if info.former_uid is not None}

    @cached_property
    def shown_names(self) -> dict[str, str]:
        """The names of the operators in tables and reports, by uid.

        If several operators have one name, their details follow it: `Keyed Process (Alerts)`.
        """
        count = Counter(info.name for info in self.operators)
        return {
            info.uid: f"{info.name} ({info.detail})"
            if count[info.name] > 1 and info.detail
            else info.name
            for info in self.operators
        }

    def limited_to(self, limits: Mapping[int, int]) -> ExecutionGraph:
        """Return the graph with a lower parallelism of some chains.

        Chains, links, loops and the fingerprint remain the same. So the graph fits each snapshot
        that was taken with this one. (Flink: `VertexParallelism` of the adaptive scheduler.)

        Arguments:
            limits: the highest parallelism of a chain, by the index of the chain.
        """
        limited = {
            node.operator.uid: limits[chain.id]
            for chain in self.chains
            if limits.get(chain.id, chain.parallelism) < chain.parallelism
            for node in chain.walk()
        }
        infos = {
            info.uid: replace(info, parallelism=limited.get(info.uid, info.parallelism))
            for info in self.operators
        }

        def node_of(node: ChainedOperator) -> ChainedOperator:
            children = tuple(map(node_of, node.children))
            return replace(node, operator=infos[node.operator.uid], children=children)

        chains = tuple(
            replace(
                chain,
                root=node_of(chain.root),
                parallelism=infos[chain.root.operator.uid].parallelism,
            )
            for chain in self.chains
        )
        return replace(self, chains=chains, operators=tuple(infos.values()))

    def operator(self, uid: str) -> OperatorInfo:
        """Return the operator with this uid."""
        return self._infos[uid]

    @cached_property
    def _infos(self) -> dict[str, OperatorInfo]:
        return {info.uid: info for info in self.operators}

    def loop_of(self, chain: int) -> int | None:
        """Return the index in `loops` of the loop that contains a chain, or None."""
        return next((i for i, loop in enumerate(self.loops) if chain in loop), None)

    def has_end_input(self, loop: int) -> bool:
        """Return whether the class of any function in a loop defines `end_input`."""
        return any(
            node.operator.has_end_input
            for chain in self.loops[loop]
            for node in self.chains[chain].walk()
        )

    def channels(self, link: Link) -> list[ChannelId]:
        """Return the channels of a link, in order of source and target subtask."""
        return self._channels[link.id]

    def feedback_channels(self, chain: int, subtask: int) -> list[ChannelId]:
        """Return the feedback channels of a task."""
        return [
            channel
            for link in self.links
            if link.is_back_edge and link.target == chain
            for channel in self.channels(link)
            if channel.target == subtask
        ]

    @cached_property
    def _channels(self) -> dict[int, list[ChannelId]]:
        return {link.id: self._pairs(link) for link in self.links}

    def _pairs(self, link: Link) -> list[ChannelId]:
        sources = self.chains[link.source].parallelism
        targets = self.chains[link.target].parallelism
        if link.partitioning is Partitioning.FORWARD:
            pairs = [(i, i) for i in range(sources)]
        elif link.partitioning is Partitioning.RESCALE:
            # As in Flink's pointwise pattern, each subtask on the side with more subtasks is
            # connected to exactly one subtask on the other side.
            if sources <= targets:
                pairs = [(t * sources // targets, t) for t in range(targets)]
            else:
                pairs = [(s, s * targets // sources) for s in range(sources)]
        else:
            pairs = [(s, t) for s in range(sources) for t in range(targets)]
        return [ChannelId(link.id, source, target) for source, target in pairs]

    def tasks(self) -> list[tuple[int, int]]:
        """Return all tasks that run, as pairs (index of the chain, index of the subtask)."""
        return [(chain.id, i) for chain in self.running_chains for i in range(chain.parallelism)]

    def uids(self) -> frozenset[str]:
        """Return the uids of all operators that run."""
        return frozenset(
            node.operator.uid for chain in self.running_chains for node in chain.walk()
        )

"""Derive from the graph of a loop how its tasks handle event time.

Waves of probes decide which watermarks may be released in a loop
(`penstock.runtime.task.loop_watermarks`). Without its back-edges, a loop is acyclic. Its
*first* chains have no regular input from inside of the loop, and begin the waves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.dataflow.graph.execution_graph import ExecutionGraph, Link
from penstock.dataflow.graph.job_graph import Partitioning

_POINTWISE = (Partitioning.FORWARD, Partitioning.RESCALE)


@dataclass(frozen=True)
class LoopWaves:
    """Describes the waves of a loop for its tasks.

    Arguments:
        first: the indices of the chains whose tasks begin waves.
        waves: the number of waves in a round: the most back-edges that a probe must pass on the
            shortest way from any task to any first task that it can reach.
        own_time: the indices of the chains that get the watermarks of an assigner inside of the
            loop.
        one_task: whether a single task begins all waves.
    """

    first: frozenset[int]
    waves: int
    own_time: frozenset[int]
    one_task: bool

    @staticmethod
    def of(plan: ExecutionGraph, loop: int) -> LoopWaves:
        """Return the description of the waves of a loop.

        Arguments:
            plan: the execution graph.
            loop: the index of the loop in `ExecutionGraph.loops`.
        """
        chains = plan.loops[loop]
        links = [link for link in plan.links if link.source in chains and link.target in chains]
        regular = {link.target for link in links if not link.is_back_edge}
        first = frozenset(chain for chain in chains if chain not in regular)
        waves = 1
        for chain in chains:
            distances = _distances(chain, links)
            for target in first - {chain}:
                waves = max(waves, _distance(plan, distances, target))
            if plan.chains[chain].parallelism > 1 and chain in first:
                waves = max(waves, distances.get((chain, True), 0))
        one_task = sum(plan.chains[chain].parallelism for chain in first) == 1
        return LoopWaves(first, waves, _own_time(plan, links), one_task)


def _distance(plan: ExecutionGraph, distances: dict[tuple[int, bool], int], target: int) -> int:
    found = {
        mixed: distances[target, mixed] for mixed in (False, True) if (target, mixed) in distances
    }
    if plan.chains[target].parallelism == 1:
        return min(found.values())
    # A way on which each subtask sends to a single one reaches one subtask of the target. The
    # others are reached on a way on which subtasks send to all subtasks, if there is such a way.
    return found.get(True, found.get(False, 0))


def _distances(start: int, links: list[Link]) -> dict[tuple[int, bool], int]:
    """Return the number of back-edges on the shortest ways from a chain.

    The result has an entry for each chain, and for whether a link on the way connects each subtask
    with all subtasks.
    """
    distances = {(start, False): 0}
    todo = deque(distances)
    while todo:
        chain, mixed = todo.popleft()
        for link in links:
            if link.source != chain:
                continue
            reached = (link.target, mixed or link.partitioning not in _POINTWISE)
            distance = distances[chain, mixed] + link.is_back_edge
            if distance < distances.get(reached, distance + 1):
                distances[reached] = distance
                # Ways with fewer back-edges are followed first.
                (todo.append if link.is_back_edge else todo.appendleft)(reached)
    return distances


def _own_time(plan: ExecutionGraph, links: list[Link]) -> frozenset[int]:
    """Return the chains that get the watermarks of an assigner on a regular way in the loop."""
    regular = [link for link in links if not link.is_back_edge]
    assigned = {uid for link in regular for uid in _behind_assigners(plan, link.source)}
    found = {link.target for link in regular if link.producer in assigned}
    while more := {link.target for link in regular if link.source in found} - found:
        found |= more
    return frozenset(found)


def _behind_assigners(plan: ExecutionGraph, chain: int) -> Iterator[str]:
    """Yield the uids of the operators of a chain at an assigner or behind one."""
    for node in plan.chains[chain].walk():
        if node.operator.spec.replaces_watermarks:
            for behind in node.walk():
                yield behind.operator.uid

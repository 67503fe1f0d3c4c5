"""Divide an execution graph into regions, which can restart alone.

No record passes from one region to another. So the snapshot of a region stays consistent with each
later snapshot of the others. (Flink: pipelined regions.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import JobGraph


def divide(plan: ExecutionGraph, groups: Mapping[int, str]) -> tuple[ExecutionGraph, ...]:
    """Return the regions of an execution graph, each as the graph with only its chains running.

    All subtasks of a source belong to one region, since one enumerator assigns their splits.

    Arguments:
        plan: the execution graph.
        groups: the watermark group of each source that has one, by its chain. The sources of a
            group wait for each other, so they are in one region.

    Example:
        >>> from penstock import StreamExecutionEnvironment
        >>> from penstock.dataflow.graph.compile import compile_graph
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> for numbers in ([1, 2], [3]):
        ...     _ = env.from_collection(numbers).key_by(lambda n: n % 2).print()
        >>> plan = compile_graph(env._graph, env.config)
        >>> [region.running for region in divide(plan, {})]
        [(0, 1), (2, 3)]
    """
    # Only jobs whose regions restart alone need this import, which takes time.
    import networkx as nx

    connected = nx.Graph()
    connected.add_nodes_from(chain.id for chain in plan.chains)
    connected.add_edges_from((link.source, link.target) for link in plan.links)
    for name in set(groups.values()):
        nx.add_path(connected, [chain for chain, group in groups.items() if group == name])
    components = sorted(tuple(sorted(part)) for part in nx.connected_components(connected))
    return tuple(replace(plan, running=part) for part in components)


def watermark_groups(graph: JobGraph, plan: ExecutionGraph) -> dict[int, tuple[str, int]]:
    """Return the group and the allowed drift in milliseconds of each aligned source, by its chain.

    Arguments:
        graph: the job graph, which has the watermark strategies of the sources.
        plan: the execution graph.
    """
    operators = {operator.id: operator for operator in graph.operators}
    groups: dict[int, tuple[str, int]] = {}
    for chain in plan.running_chains:
        strategy = operators[chain.root.operator.id].watermark_strategy
        if strategy is not None and strategy.alignment is not None:
            aligned = strategy.alignment
            groups[chain.id] = (aligned.group, aligned.max_drift_ms)
    return groups

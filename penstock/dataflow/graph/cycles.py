"""Loops of a graph: its back-edges, its strongly connected components, and what reaches them.

Back-edges are those of Carbone et al. (2015), section 4.2: they lead to a vertex on the stack of
a depth-first search. Which edges these are depends on the order of the search only where a loop
can be entered at several places; otherwise every search from the sources finds the same. So all
orders here are by uid, and an unrelated edit of the program moves nothing.

Functions of networkx graphs. It is imported inside them, since it takes longer to load than all of
the engine: workers load the compiler's records, and most programs have no loop (`has_cycle`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import ProtocolError

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["back_edges", "cyclic_components", "has_cycle", "unreached"]


def has_cycle(edges: Iterable[tuple[Hashable, Hashable]]) -> bool:
    """Whether the graph of these edges has a cycle; does without networkx."""
    sorter: TopologicalSorter[Hashable] = TopologicalSorter()
    for source, target in edges:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError:
        return True
    return False


def back_edges(
    graph: nx.DiGraph, sources: Collection[str], last: Collection[tuple[str, str]] = ()
) -> set[tuple[str, str]]:
    """The edges that lead to a vertex on the stack of a depth-first search from the sources.

    Arguments:
        graph: vertices are uids, edges go with the stream.
        sources: uids of the sources, below one virtual root.
        last: edges that are searched after the other edges of their vertex.

    The sources and the edges of a vertex are searched in order of uid. Raises `ProtocolError` if
    the graph without these edges has a cycle, since the snapshot algorithm rests on that.
    """
    import networkx as nx

    root = object()
    rooted = nx.DiGraph()
    rooted.add_edges_from((root, source) for source in sorted(sources))
    # A vertex's edges are searched in the order in which they were added.
    rooted.add_edges_from(sorted(graph.edges(), key=lambda edge: (edge in last, edge)))
    # networkx labels cross and forward edges "nontree" as well, so the stack is followed here.
    stack: dict[object, None] = {}
    found: set[tuple[str, str]] = set()
    for source, target, label in nx.dfs_labeled_edges(rooted, root):
        if label == "forward":
            stack[target] = None
        elif label == "reverse":
            stack.popitem()
        elif target in stack:
            found.add((source, target))
    rest = nx.DiGraph(edge for edge in graph.edges() if edge not in found)
    if not nx.is_directed_acyclic_graph(rest):
        raise ProtocolError(
            f"without the back-edges {sorted(found)} a cycle is left: {nx.find_cycle(rest)}"
        )
    return found


def cyclic_components(graph: nx.DiGraph) -> list[set[Any]]:
    """The strongly connected components that have a cycle, in topological order.

    Components that neither reaches the other are in order of their smallest vertex.
    """
    import networkx as nx

    condensed = nx.condensation(graph)
    members = condensed.nodes(data="members")
    order = nx.lexicographical_topological_sort(condensed, lambda number: min(members[number]))
    return [
        members[number]
        for number in order
        if len(members[number]) > 1 or any(graph.has_edge(one, one) for one in members[number])
    ]


def unreached(graph: nx.DiGraph, sources: Collection[Any]) -> set[Any]:
    """The vertices to which no path leads from a source."""
    import networkx as nx

    reached = set(sources).union(*(nx.descendants(graph, source) for source in sources))
    return set(graph) - reached

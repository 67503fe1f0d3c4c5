"""Find back-edges, strongly connected components and unreachable vertices of a graph.

Back-edges are defined as in Carbone et al. (2015), section 4.2: a back-edge leads to a vertex on
the stack of a depth-first search. If a loop has several entries, the back-edges depend on the order
of the search. This module searches in the order of the uids. So an unrelated change of the program
does not change the back-edges.

The graphs are networkx graphs. Importing networkx takes longer than importing the whole engine, so
each function imports it when it is called. Most programs have no loop, and need only `has_cycle`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.type_variables import T

if TYPE_CHECKING:
    import networkx as nx


def has_cycle(edges: Iterable[tuple[Hashable, Hashable]]) -> bool:
    """Return whether the graph with these edges has a cycle. The call does not import networkx."""
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
    """Return the back-edges that a depth-first search from the sources finds.

    The sources, and the edges of each vertex, are searched in order of uid.

    Arguments:
        graph: the graph. Its vertices are uids, and its edges have the direction of the stream.
        sources: the uids of the sources.
        last: the edges that are searched after all other edges of their vertex.

    Raises:
        ProtocolError: if the graph still has a cycle without the back-edges. The snapshot protocol
            requires that it has none.
    """
    import networkx as nx

    root = object()
    rooted = nx.DiGraph()
    rooted.add_edges_from((root, source) for source in sorted(sources))
    # networkx searches the edges of a vertex in the order in which they were added.
    rooted.add_edges_from(sorted(graph.edges(), key=lambda edge: (edge in last, edge)))
    # networkx labels back-edges, cross edges and forward edges "nontree". So this loop keeps the
    # stack of the search itself, to recognise back-edges.
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


def cyclic_components(graph: nx.DiGraph) -> list[set[T]]:
    """Return the strongly connected components with a cycle, in topological order.

    Two components without a path between them are ordered by their smallest vertices.
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


def unreached(graph: nx.DiGraph, sources: Collection[T]) -> set[T]:
    """Return the vertices that cannot be reached from any source."""
    import networkx as nx

    reached = set(sources).union(*(nx.descendants(graph, source) for source in sources))
    return set(graph) - reached

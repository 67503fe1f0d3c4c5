"""Draw the graph of a job as SVG, in columns from the sources to the sinks."""

from __future__ import annotations

from html import escape
from typing import Any

#: Sizes of the drawing, in pixels.
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 210, 46, 60, 16, 12
#: The number of characters of a name that fit into a box.
_CHARACTERS = 29


def graph_svg(graph: dict[str, Any]) -> str:
    """Return the graph of a job as an SVG element. Back-edges are dashed.

    Arguments:
        graph: the vertices and edges, as `describe_graph` returns them.
    """
    places = _places(graph)
    if not places:
        return ""
    columns = max(column for column, _ in places.values()) + 1
    rows = max(row for _, row in places.values()) + 1
    width = columns * (_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    height = rows * (_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN + 20
    parts = [_edge(edge, places) for edge in graph["edges"]]
    parts += [_vertex(vertex, *_corner(*places[vertex["id"]])) for vertex in graph["vertices"]]
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>'
        f"{''.join(parts)}</svg>"
    )


def _places(graph: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """Return the column and the row of each vertex. An edge leads to a later column."""
    import networkx

    forward = networkx.DiGraph()
    forward.add_nodes_from(vertex["id"] for vertex in graph["vertices"])
    forward.add_edges_from(
        (edge["source"], edge["target"]) for edge in graph["edges"] if not edge["back_edge"]
    )
    return {
        vertex: (column, row)
        for column, found in enumerate(networkx.topological_generations(forward))
        for row, vertex in enumerate(found)
    }


def _corner(column: int, row: int) -> tuple[int, int]:
    return _MARGIN + column * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y)


def _vertex(vertex: dict[str, Any], x: int, y: int) -> str:
    name = vertex["name"]
    shown = name if len(name) <= _CHARACTERS else f"{name[: _CHARACTERS - 1]}…"
    count = f"parallelism {vertex['parallelism']}"
    if vertex["loop"] is not None:
        count += f" · loop {vertex['loop']}"
    return (
        f'<g><title>{escape(name)}</title><rect x="{x}" y="{y}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" rx="5" fill="#8882" stroke="#777"/>'
        f'<text x="{x + 8}" y="{y + 19}" fill="currentColor">{escape(shown)}</text>'
        f'<text x="{x + 8}" y="{y + 37}" fill="#777">{escape(count)}</text></g>'
    )


def _edge(edge: dict[str, Any], places: dict[int, tuple[int, int]]) -> str:
    x1, y1 = _corner(*places[edge["source"]])
    x2, y2 = _corner(*places[edge["target"]])
    middle = _HEIGHT // 2
    style = 'stroke="#777" fill="none" marker-end="url(#arrow)"'
    title = f"<title>{escape(str(edge['partitioning']))}</title>"
    if edge["back_edge"]:
        below = max(y1, y2) + _HEIGHT + _GAP_Y
        path = f"M{x1 + _WIDTH // 2} {y1 + _HEIGHT}V{below}H{x2 + _WIDTH // 2}V{y2 + _HEIGHT}"
        return f'<path d="{path}" stroke-dasharray="5 4" {style}>{title}</path>'
    x1, y1, y2 = x1 + _WIDTH, y1 + middle, y2 + middle
    bend = (x1 + x2) // 2
    return f'<path d="M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}" {style}>{title}</path>'

"""Draw an execution graph as text or as a Mermaid diagram."""

from __future__ import annotations

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.execution_graph import ExecutionGraph

__all__ = ["render"]


def render(graph: ExecutionGraph, format: str = "text") -> str:
    """Return a drawing of an execution graph.

    Arguments:
        graph: the execution graph of a program.
        format: the format of the drawing: "text" or "mermaid".

    Raises:
        GraphError: if the format is unknown.
    """
    if format == "text":
        return _text(graph)
    if format == "mermaid":
        return _mermaid(graph)
    raise GraphError(f"a plan is drawn as 'text' or 'mermaid', not {format!r}")


def _text(graph: ExecutionGraph) -> str:
    lines = [f"workers: {graph.slots}   key groups: {graph.max_parallelism}"]
    for chain in graph.chains:
        lines.append(f"[{chain.id}] {chain.name}   ×{chain.parallelism}")
        lines += [
            f"      uid {node.operator.uid}: {node.operator.name}" for node in chain.root.walk()
        ]
        for link in graph.links:
            if link.source == chain.id:
                arrow = "⇠ back-edge" if link.is_back_edge else "→"
                tag = "" if link.tag is None else f"side output {link.tag!r}: "
                lines.append(f"      {tag}{link.partitioning.value} {arrow} [{link.target}]")
    for number, loop in enumerate(graph.loops):
        lines.append(f"loop {number}: " + " ".join(f"[{chain}]" for chain in loop))
    return "\n".join(lines)


def _mermaid(graph: ExecutionGraph) -> str:
    lines = ["flowchart LR"]
    for chain in graph.chains:
        name = chain.name.replace('"', "#quot;")
        lines.append(f'  c{chain.id}["{name} ×{chain.parallelism}"]')
    for number, loop in enumerate(graph.loops):
        lines.append(f'  subgraph loop{number}["loop {number}"]')
        lines += [f"    c{chain}" for chain in loop]
        lines.append("  end")
    for link in graph.links:
        arrow = "-.->" if link.is_back_edge else "-->"
        label = link.partitioning.value
        if link.tag is not None:
            tag = link.tag.replace('"', "#quot;")
            label = f'"{tag}: {label}"'
        lines.append(f"  c{link.source} {arrow}|{label}| c{link.target}")
    return "\n".join(lines)

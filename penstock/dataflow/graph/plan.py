"""Draw an execution graph as JSON, as text or as a Mermaid diagram."""

from __future__ import annotations

import json

from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.restart_parts import RestartParts
from penstock.dataflow.operators.operator_spec import Role


def render(graph: ExecutionGraph, parts: RestartParts, format: str = "text") -> str:
    """Return a drawing of an execution graph.

    Arguments:
        graph: the execution graph of a program.
        parts: the parts of it that restart alone, which have workers of their own.
        format: the format: "json", as Flink has it, "text" or "mermaid".

    Raises:
        GraphError: if the format is unknown.
    """
    if format == "text":
        return _text(graph, parts)
    if format == "mermaid":
        return _mermaid(graph)
    if format == "json":
        return _json(graph)
    raise GraphError(f"a plan is drawn as 'json', 'text' or 'mermaid', not {format!r}")


def _text(graph: ExecutionGraph, parts: RestartParts) -> str:
    lines = [f"workers: {_workers(parts)}   key groups: {graph.max_parallelism}"]
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


def _workers(parts: RestartParts) -> str:
    match parts.scope:
        case RestartScope.TASK:
            return f"{parts.slots}, one for each task"
        case RestartScope.REGION:
            return f"{parts.slots} in {len(parts.regions)} regions"
    return str(parts.slots)


_PACTS = {Role.SOURCE: "Data Source", Role.SINK: "Data Sink"}


def _json(graph: ExecutionGraph) -> str:
    """Return the plan as JSON with the keys that Flink's plan visualizer reads."""
    ids = {info.uid: info.id + 1 for info in graph.operators}
    edges: list[tuple[str, str, str, int]] = []
    for chain in graph.chains:
        for one in chain.root.walk():
            edges += [
                (one.operator.uid, child.operator.uid, "forward", 0) for child in one.children
            ]
    edges += [(e.producer, e.consumer, e.partitioning.value, e.input) for e in graph.links]
    nodes = []
    for info in graph.operators:
        node: dict[str, object] = {
            "id": ids[info.uid],
            "type": info.name,
            "pact": _PACTS.get(info.spec.role, "Operator"),
            "contents": info.name,
            "parallelism": info.parallelism,
        }
        # In Flink's plans, the side of an operator with one input is "second".
        predecessors = [
            {
                "id": ids[producer],
                "ship_strategy": partitioning.upper(),
                "side": "first" if info.spec.two_inputs and input == 0 else "second",
            }
            for producer, consumer, partitioning, input in edges
            if consumer == info.uid
        ]
        if predecessors:
            node["predecessors"] = predecessors
        nodes.append(node)
    return json.dumps({"nodes": nodes}, indent=2, ensure_ascii=False)


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

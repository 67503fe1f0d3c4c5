"""Make texts that tell operators of the same name apart."""

from __future__ import annotations

from penstock.dataflow.graph.job_graph import JobGraph, function_name

__all__ = ["input_names"]


def input_names(graph: JobGraph, operator: int) -> list[str]:
    """Return texts that name the operators whose records an operator reads.

    A text has the names of an operator and of its function, such as `'Map' (clean)`.
    """
    sources = {edge.source for edge in graph.inputs_of(operator)}
    return [
        f"{one.name!r} ({function_name(one.function)})"
        for one in graph.operators
        if one.id in sources
    ]

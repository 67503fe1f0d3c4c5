"""Make texts that tell operators of the same name apart."""

from __future__ import annotations

from penstock.dataflow.functions import Function
from penstock.dataflow.graph.job_graph import JobGraph, Operator, function_name
from penstock.dataflow.sink import Sink
from penstock.dataflow.source import Source
from penstock.dataflow.windows import WindowOperation

#: The largest length of the path in a detail, in characters.
_PATH_LENGTH = 40


def detail_of(operator: Operator) -> str:
    """Return the class of a function object, or the folder or file of a source or sink.

    The text is empty for plain functions, and for other sources and sinks.
    """
    function = operator.function
    if isinstance(function, WindowOperation):
        # A window has several functions, of which the last one makes its results.
        return function_name(function.functions[-1]) if function.functions else ""
    if isinstance(function, Function):
        return function_name(function)
    location = function.location if isinstance(function, Source | Sink) else None
    path = "" if location is None else str(location)
    return path if len(path) <= _PATH_LENGTH else f"…{path[-_PATH_LENGTH + 1 :]}"


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

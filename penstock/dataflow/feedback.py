"""A feedback: a stream that is read before its producers are known.

`StreamExecutionEnvironment.create_feedback` makes one, and `DataStream.iterate` one that is united
with another stream, as in Flink. Both are closed with the streams that are fed back. A feedback is
an operator that never runs: the compiler connects its readers with the operators that it was closed
with.

A loop ends when all streams that enter it from outside have ended and no record is left in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorOutput

__all__ = ["Feedback", "names_of"]


class Feedback:
    """A feedback in a job graph, which is closed once.

    Arguments:
        graph: the job graph.
        operator: stands for the feedback in it.
    """

    def __init__(self, graph: JobGraph, operator: Operator) -> None:
        self._graph = graph
        self._operator = operator

    @property
    def name(self) -> str:
        """The name that errors show."""
        return self._operator.name

    def require_open(self) -> None:
        """Raise `GraphError` if the feedback is closed already."""
        before = [edge.source for edge in self._graph.inputs_of(self._operator.id)]
        if before:
            names = ", ".join(repr(one.name) for one in self._graph.operators if one.id in before)
            raise GraphError(
                f"feedback {self.name!r} is closed already, with {names}; to feed back several "
                f"streams close it once, with their union"
            )

    def require_downstream(self, outputs: Iterable[OperatorOutput]) -> None:
        """Raise `GraphError` if none of these outputs depends on the feedback."""
        outputs = tuple(outputs)
        before = self._graph.upstream(output.operator.id for output in outputs)
        if self._operator.id not in before:
            raise GraphError(
                f"feedback {self.name!r} cannot be closed with {names_of(outputs)}, which does not "
                f"come from the stream that is iterated over; for records from elsewhere there is "
                f"env.create_feedback(name)"
            )

    def close(self, outputs: Iterable[OperatorOutput]) -> None:
        """Feed back these outputs."""
        self._graph.connect(outputs, self._operator)


def names_of(outputs: Iterable[OperatorOutput]) -> str:
    """Return the quoted names of the operators of some outputs, for errors."""
    return ", ".join(repr(output.operator.name) for output in outputs)

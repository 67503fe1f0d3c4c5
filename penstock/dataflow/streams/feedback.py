"""Define feedbacks: streams that operators can read before their producers exist.

`StreamExecutionEnvironment.create_feedback` creates a feedback. `DataStream.iterate` creates one
and unites it with another stream, as in Flink. The program closes a feedback with the stream whose
records are fed back. In the job graph, a feedback is an operator that never runs: the compiler
connects the producers of the closing stream directly with the readers of the feedback.

A loop ends when all streams that enter it from outside have ended and no record is left in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorOutput
from penstock.dataflow.streams.stream_results import StreamResults

__all__ = ["Feedback", "outputs_to_close_with"]


class Feedback:
    """A feedback in a job graph. It can be closed only once.

    Arguments:
        graph: the job graph.
        operator: the operator that represents the feedback in the graph.
    """

    def __init__(self, graph: JobGraph, operator: Operator) -> None:
        self._graph = graph
        self._operator = operator

    @property
    def name(self) -> str:
        """The name of the feedback, which errors show."""
        return self._operator.name

    def require_open(self) -> None:
        """Raise a `GraphError` if the feedback is closed already."""
        before = [edge.source for edge in self._graph.inputs_of(self._operator.id)]
        if before:
            names = ", ".join(repr(one.name) for one in self._graph.operators if one.id in before)
            raise GraphError(
                f"feedback {self.name!r} is closed already, with {names}; to feed back several "
                f"streams close it once, with their union"
            )

    def require_downstream(self, outputs: Iterable[OperatorOutput]) -> None:
        """Raise a `GraphError` if none of these outputs depends on the feedback."""
        outputs = tuple(outputs)
        before = self._graph.upstream(output.operator.id for output in outputs)
        if self._operator.id not in before:
            raise GraphError(
                f"feedback {self.name!r} cannot be closed with {names_of(outputs)}, which does not "
                f"come from the stream that is iterated over; for records from elsewhere there is "
                f"env.create_feedback(name)"
            )

    def close(self, outputs: Iterable[OperatorOutput]) -> None:
        """Close the feedback, so that the records of these outputs are sent to its readers."""
        self._graph.connect(outputs, self._operator)


def names_of(outputs: Iterable[OperatorOutput]) -> str:
    """Return the quoted names of the operators of these outputs, for error messages."""
    return ", ".join(repr(output.operator.name) for output in outputs)


def outputs_to_close_with(
    feedback: Feedback, stream: StreamResults, closing: Any
) -> tuple[OperatorOutput, ...]:
    """Return the outputs of the stream that closes a feedback.

    Arguments:
        feedback: the feedback.
        stream: the stream that reads it.
        closing: the stream with which the program closes it.

    Raises:
        GraphError: if the feedback cannot be closed with this stream.
    """
    if not isinstance(closing, StreamResults):
        raise GraphError(
            f"feedback {feedback.name!r} is closed with a stream, not with {closing!r}"
        )
    if closing._environment is not stream._environment:
        raise GraphError(
            f"feedback {feedback.name!r} is closed with a stream of its own environment, and "
            f"{names_of(closing._outputs)} belongs to another"
        )
    feedback.require_open()
    return closing._outputs

"""Define feedbacks: streams that operators can read before their producers exist.

`StreamExecutionEnvironment.create_feedback` creates a feedback. `DataStream.iterate` creates one
and unites it with another stream, as in Flink. The program closes a feedback with the stream whose
records are fed back. In the job graph, a feedback is an operator that never runs: the compiler
connects the producers of the closing stream directly with the readers of the feedback.

A loop ends when all streams that enter it from outside have ended and no record is left in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorOutput
from penstock.dataflow.streams.data_stream import DataStream
from penstock.dataflow.type_variables import T_co


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
                f"feedback {self.name!r} cannot be closed with {_names_of(outputs)}, which does "
                f"not come from the stream that is iterated over; for records from elsewhere there "
                f"is env.create_feedback(name)"
            )

    def close(self, outputs: Iterable[OperatorOutput]) -> None:
        """Close the feedback, so that the records of these outputs are sent to its readers."""
        self._graph.connect(outputs, self._operator)


class IterativeStream(DataStream[T_co]):
    """The union of a stream and the records that are fed back. (Flink: `IterativeStream`.)

    Arguments:
        stream: the stream of the records that enter the loop from outside.
        feedback: the output of the feedback.

    Examples:
        >>> loop = env.from_collection([3]).iterate()
        >>> smaller = loop.map(lambda n: n - 1)
        >>> _ = loop.close_with(smaller.filter(lambda n: n > 0))
        >>> list(smaller.execute_and_collect())
        [2, 1, 0]
    """

    def __init__(self, stream: DataStream[T_co], feedback: OperatorOutput) -> None:
        super().__init__(stream._environment, [*stream._outputs, feedback])
        self._feedback = Feedback(stream._environment._graph, feedback.operator)
        self._initial = stream._outputs[0]

    def close_with(self, feedback_stream: DataStream[T_co]) -> DataStream[T_co]:
        """Feed the records of `feedback_stream` back into the loop, and return that stream.

        These records are partitioned like the stream that enters the loop. If the program sets a
        partitioning on `feedback_stream` or on this stream, that partitioning is used instead. To
        feed back several streams, pass their union.

        Raises:
            GraphError: if the loop is closed already, or if `feedback_stream` does not depend on
                this stream.
        """
        outputs = _outputs_to_close_with(self._feedback, self, feedback_stream)
        self._feedback.require_downstream(outputs)
        self._feedback.close(
            replace(self._initial, operator=output.operator, tag=output.tag)
            if output.partitioning is None
            else output
            for output in outputs
        )
        return feedback_stream


class FeedbackStream(DataStream[T_co]):
    """A stream whose records are defined later, with `close_with`.

    It can be used like any other stream. If the program sets a partitioning on it, for example with
    `key_by`, this overrides the partitioning of the stream that closes it.

    Examples:
        >>> back = env.create_feedback("back")
        >>> smaller = env.from_collection([3]).union(back).map(lambda n: n - 1)
        >>> _ = back.close_with(smaller.filter(lambda n: n > 0))
        >>> list(smaller.execute_and_collect())
        [2, 1, 0]
    """

    def close_with(self, stream: DataStream[T_co]) -> DataStream[T_co]:
        """Feed the records of `stream` back into the loop, and return `stream`.

        To feed back several streams, pass their union.

        Raises:
            GraphError: if the feedback is closed already, or if `stream` is not a stream of the
                same environment.
        """
        feedback = Feedback(self._environment._graph, self._outputs[0].operator)
        feedback.close(_outputs_to_close_with(feedback, self, stream))
        return stream


def _names_of(outputs: Iterable[OperatorOutput]) -> str:
    """Return the quoted names of the operators of these outputs, for error messages."""
    return ", ".join(repr(output.operator.name) for output in outputs)


def _outputs_to_close_with(
    feedback: Feedback, stream: DataStream, closing: object
) -> tuple[OperatorOutput, ...]:
    """Return the outputs of the stream that closes a feedback.

    Arguments:
        feedback: the feedback.
        stream: the stream that reads it.
        closing: the stream with which the program closes it.

    Raises:
        GraphError: if the feedback cannot be closed with this stream.
    """
    if not isinstance(closing, DataStream):
        raise GraphError(
            f"feedback {feedback.name!r} is closed with a stream, not with {closing!r}"
        )
    if closing._environment is not stream._environment:
        raise GraphError(
            f"feedback {feedback.name!r} is closed with a stream of its own environment, and "
            f"{_names_of(closing._outputs)} belongs to another"
        )
    feedback.require_open()
    return closing._outputs

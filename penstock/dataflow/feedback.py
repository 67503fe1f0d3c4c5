"""Loops in a program: streams that are read before they are known.

`StreamExecutionEnvironment.create_feedback` makes such a stream, `DataStream.iterate` one that is
united with another, as in Flink. Both are closed with what is fed back. A feedback is not an
operator that runs: the compiler joins what reads it with what it was closed with.

A loop ends by itself: when all that enters it from outside has ended and no record is left in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import Operator
from penstock.dataflow.stream import DataStream, End

__all__ = ["FeedbackStream", "IterativeStream"]


class FeedbackStream(DataStream):
    """A stream that can be used at once and is given its records later, by `close_with`.

    It goes wherever a stream goes. A partitioning that is chosen on it (by `key_by`, say) counts
    over that of the stream it is closed with.
    """

    def close_with(self, stream: DataStream) -> DataStream:
        """Feed back the records of `stream`, and return it.

        To feed back several streams, close it with their union. Raises `GraphError` if it is
        closed already, or if `stream` is no stream or belongs to another environment.
        """
        feedback = self._ends[0].operator
        _check(self, feedback, stream)
        stream._connect(feedback)
        return stream


class IterativeStream(DataStream):
    """A stream united with what is fed back into it. (Flink: `IterativeStream`.)

    Arguments:
        stream: what enters the loop from outside.
        feedback: what is fed back.
    """

    def __init__(self, stream: DataStream, feedback: FeedbackStream) -> None:
        super().__init__(stream._environment, [*stream._ends, *feedback._ends])
        self._feedback = feedback
        self._first = stream._ends[0]

    def close_with(self, feedback_stream: DataStream) -> DataStream:
        """Feed back the records of `feedback_stream`, and return it.

        They are spread like the stream that was iterated over, unless `feedback_stream` or what
        reads this stream chooses otherwise. To feed back several streams, close it with their
        union. Raises `GraphError` if it is closed already, or if `feedback_stream` does not come
        from this stream.
        """
        feedback = self._feedback._ends[0].operator
        _check(self, feedback, feedback_stream)
        ends = feedback_stream._ends
        before = self._environment._graph.upstream(end.operator.id for end in ends)
        if feedback.id not in before:
            raise GraphError(
                f"feedback {feedback.name!r} cannot be closed with {_names(ends)}, which does not "
                f"come from the stream that is iterated over; for records from elsewhere there is "
                f"env.create_feedback(name)"
            )
        spread = [
            replace(self._first, operator=end.operator) if end.partitioning is None else end
            for end in ends
        ]
        self._feedback.close_with(DataStream(self._environment, spread))
        return feedback_stream


def _check(own: DataStream, feedback: Operator, stream: Any) -> None:
    if not isinstance(stream, DataStream):
        raise GraphError(f"feedback {feedback.name!r} is closed with a stream, not with {stream!r}")
    if stream._environment is not own._environment:
        raise GraphError(
            f"feedback {feedback.name!r} is closed with a stream of its own environment, and "
            f"{_names(stream._ends)} belongs to another"
        )
    graph = own._environment._graph
    before = [edge.source for edge in graph.inputs_of(feedback.id)]
    if before:
        names = ", ".join(repr(one.name) for one in graph.operators if one.id in before)
        raise GraphError(
            f"feedback {feedback.name!r} is closed already, with {names}; to feed back several "
            f"streams close it once, with their union"
        )


def _names(ends: tuple[End, ...]) -> str:
    return ", ".join(repr(end.operator.name) for end in ends)

"""Define `FeedbackStream`, which `StreamExecutionEnvironment.create_feedback` returns."""

from __future__ import annotations

from penstock.dataflow.streams.data_stream import DataStream
from penstock.dataflow.streams.feedback import Feedback, outputs_to_close_with
from penstock.dataflow.type_variables import T_co

__all__ = ["FeedbackStream"]


class FeedbackStream(DataStream[T_co]):
    """A stream whose records are defined later, with `close_with`.

    It can be used like any other stream. If the program sets a partitioning on it, for example with
    `key_by`, this overrides the partitioning of the stream that closes it.
    """

    def close_with(self, stream: DataStream[T_co]) -> DataStream[T_co]:
        """Feed the records of `stream` back into the loop, and return `stream`.

        To feed back several streams, pass their union.

        Raises:
            GraphError: if the feedback is closed already, or if `stream` is not a stream of the
                same environment.
        """
        feedback = Feedback(self._environment._graph, self._outputs[0].operator)
        feedback.close(outputs_to_close_with(feedback, self, stream))
        return stream

"""The methods of streams that join them with other streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.streams.connected_streams import ConnectedInput
from penstock.dataflow.streams.joins.window_joins import (
    CoGroupedStreams,
    JoinedStreams,
    co_grouped_streams,
    joined_streams,
)

__all__ = ["StreamJoins"]

Stream = TypeVar("Stream")


class StreamJoins(Generic[Stream]):
    """Methods of all streams that join a stream with another one."""

    _environment: BaseEnvironment
    _outputs: tuple[OperatorOutput, ...]

    def join(self, other_stream: StreamJoins[Stream]) -> JoinedStreams[Stream]:
        """Join the records of this stream and another one that have the same key and window.

            orders.join(payments).where(lambda o: o.id).equal_to(lambda p: p.order) \\
                .window(TumblingEventTimeWindows.of(Time.minutes(5))) \\
                .apply(lambda order, payment: (order.id, payment.amount))

        Arguments:
            other_stream: the second stream.

        Returns:
            An object with the method `where`, and so on, as in Flink's Java API.

        Raises:
            GraphError: if `other_stream` is not a stream, or belongs to another environment.
        """
        return joined_streams(*self._paired("join", other_stream), self._stream_of)

    def co_group(self, other_stream: StreamJoins[Stream]) -> CoGroupedStreams[Stream]:
        """Group the records of this stream and another one by key and window.

        The function gets all records of both streams, also if one of them has none. So it can do
        outer joins.

        Arguments:
            other_stream: the second stream.

        Raises:
            GraphError: if `other_stream` is not a stream, or belongs to another environment.
        """
        return co_grouped_streams(*self._paired("co_group", other_stream), self._stream_of)

    def _paired(
        self, method: str, other: Any
    ) -> tuple[BaseEnvironment, ConnectedInput, ConnectedInput]:
        if not isinstance(other, StreamJoins):
            raise GraphError(f"{method} takes a stream, not {other!r}")
        if other._environment is not self._environment:
            raise GraphError(f"{method} takes a stream of the same environment, and got another")
        return self._environment, ConnectedInput(self._outputs), ConnectedInput(other._outputs)

    @abstractmethod
    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> Stream:
        """Return a stream of the same environment, which is not keyed, with these outputs."""

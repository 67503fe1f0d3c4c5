"""The methods of a stream that connect it with another stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from penstock.dataflow.arguments.aliases import UsedNames
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.streams.building import OperatorInput
from penstock.dataflow.streams.connected_streams import BroadcastStream

__all__ = ["StreamConnecting"]


class StreamConnecting:
    """Methods that connect a stream with another stream of the same environment."""

    _environment: BaseEnvironment

    def connect(self, ds: Any) -> Any:
        """Connect this stream with another one, to process both with one operator.

        Arguments:
            ds: a stream, or a stream that `broadcast` with a state descriptor has returned.

        Returns:
            A `ConnectedStreams`, or a `BroadcastConnectedStream`.

        Raises:
            GraphError: if `ds` is not a stream, or belongs to another environment.
        """
        if isinstance(ds, BroadcastStream):
            return ds.connected_to(self._input, self._broadcast_connected_stream_of)
        if not isinstance(ds, StreamConnecting):
            raise GraphError(f"connect takes a stream, not {ds!r}")
        if ds._environment is not self._environment:
            raise GraphError("connect takes a stream of the same environment, and got another")
        return self._connected_streams_of(self._input, ds._input)

    def broadcast(self, *state_descriptors: Any) -> Any:
        """Send every record to all subtasks of the next operator.

        Arguments:
            state_descriptors: the descriptors of the broadcast states in which the next operator
                keeps the records. With them, the result is a `BroadcastStream`, which is passed to
                `connect`. Without them it is a stream like this one.

        Raises:
            GraphError: if an argument is not a `MapStateDescriptor`, or if two have the same name.
        """
        records = self._input.broadcast()
        if not state_descriptors:
            return self._stream_of(records.outputs)
        names, aliases = set[str](), UsedNames("states of one operator")
        for descriptor in state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise GraphError(f"broadcast takes MapStateDescriptors, not {descriptor!r}")
            if descriptor.name in names:
                raise GraphError(f"broadcast got two descriptors with the name {descriptor.name!r}")
            names.add(descriptor.name)
            aliases.add(descriptor.name, descriptor.aliases)
        return BroadcastStream(records, tuple(state_descriptors))

    @property
    @abstractmethod
    def _input(self) -> OperatorInput:
        """The records of this stream, for the next operator."""

    @abstractmethod
    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> Any:
        """Return a stream of the same environment, which is not keyed, with these outputs."""

    @abstractmethod
    def _connected_streams_of(self, first: OperatorInput, second: OperatorInput) -> Any:
        """Return two connected streams."""

    @abstractmethod
    def _broadcast_connected_stream_of(
        self, first: OperatorInput, second: OperatorInput, states: tuple[MapStateDescriptor, ...]
    ) -> Any:
        """Return a stream that is connected with a broadcast stream, which has these states."""

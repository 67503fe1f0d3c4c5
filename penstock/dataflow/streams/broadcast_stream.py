"""Define `BroadcastStream`, and the stream that is connected with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from penstock.dataflow.functions import (
    BroadcastProcessFunction,
    Function,
    KeyedBroadcastProcessFunction,
)
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.streams.building import add_broadcast_process
from penstock.dataflow.streams.connected_streams import check_two_input_function
from penstock.dataflow.type_variables import R, T1_co, T2_co, T_co, UserValue
from penstock.dataflow.types import check_type_info

if TYPE_CHECKING:
    from penstock.dataflow.streams.data_stream import DataStream


class BroadcastStream(Generic[T_co]):
    """A stream that sends all records to every subtask. (Flink: `BroadcastStream`.)

    It is connected with another stream: `other.connect(stream.broadcast(descriptor))`.

    Arguments:
        stream: the stream, which is partitioned by broadcast.
        states: the descriptors of the broadcast states that the function may use.

    Examples:
        >>> rules = env.from_collection(["rule"]).broadcast(MapStateDescriptor("rules"))
        >>> connected = clicks.connect(rules)
    """

    def __init__(self, stream: DataStream[T_co], states: tuple[MapStateDescriptor, ...]) -> None:
        self._stream = stream
        self._states = states


class BroadcastConnectedStream(Generic[T1_co, T2_co]):
    """A stream that is connected with a broadcast stream. (Flink: `BroadcastConnectedStream`.)

    `BroadcastConnectedStream[T1, T2]` has records of type `T1`, and broadcast ones of type `T2`.

    Arguments:
        stream: the stream that is not broadcast.
        broadcast: the broadcast stream.

    Examples:
        >>> rules = env.from_collection(["rule"]).broadcast(MapStateDescriptor("rules"))
        >>> isinstance(clicks.connect(rules), BroadcastConnectedStream)
        True
    """

    def __init__(self, stream: DataStream[T1_co], broadcast: BroadcastStream[T2_co]) -> None:
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self,
        func: BroadcastProcessFunction[T1_co, T2_co, R]
        | KeyedBroadcastProcessFunction[UserValue, T1_co, T2_co, R],
        output_type: object = None,
    ) -> DataStream[R]:
        """Add an operator that processes the stream together with the broadcast stream.

        Arguments:
            func: a `KeyedBroadcastProcessFunction` if the stream that is not broadcast is keyed,
                else a `BroadcastProcessFunction`.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if `func` is not such a function.
        """
        check_type_info("output_type", output_type)
        wanted: type[Function] = BroadcastProcessFunction
        where = "process on a stream without keys that is connected with a broadcast stream"
        if self._stream._selector is not None:
            wanted = KeyedBroadcastProcessFunction
            where = "process on a keyed stream that is connected with a broadcast stream"
        check_two_input_function(func, (wanted,), where)
        output = add_broadcast_process(
            self._stream._input, self._broadcast._stream._input, func, self._broadcast._states
        )
        return self._stream._emitting(output, output_type)

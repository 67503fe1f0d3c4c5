"""The methods of connected streams, whose records one operator with two inputs processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
)
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.streams.building import (
    OperatorInput,
    add_broadcast_process,
    add_co_flat_map,
    add_co_map,
    add_co_process,
)
from penstock.dataflow.streams.key_selectors import KeyFields, check_key_selector
from penstock.dataflow.streams.operator_settings import declare_type
from penstock.dataflow.type_variables import R, T_co
from penstock.dataflow.types import check_type_info

__all__ = [
    "BaseBroadcastConnectedStream",
    "BaseConnectedStreams",
    "BroadcastStream",
    "StreamOf",
]

#: A function that returns a stream with these outputs.
StreamOf: TypeAlias = Callable[[Sequence[OperatorOutput]], Any]


class BaseConnectedStreams:
    """The methods of two streams whose records are processed by one operator.

    Arguments:
        first, second: the two streams.
        stream_of: a function that returns a stream with these outputs.
    """

    def __init__(
        self,
        first: OperatorInput,
        second: OperatorInput,
        stream_of: StreamOf,
    ) -> None:
        self._first, self._second = first, second
        self._stream_of = stream_of

    def key_by(
        self,
        key_selector1: Callable[[Any], Any] | KeySelector | KeyFields,
        key_selector2: Callable[[Any], Any] | KeySelector | KeyFields | None = None,
        key_type: Any = None,
    ) -> Any:
        """Partition both streams by key: records with equal keys go to the same subtask.

        Arguments:
            key_selector1: a function that returns the key of a record of the first stream; or a
                field by its position or name, or a tuple of these.
            key_selector2: the same for the second stream. The keys of both must have one type.
            key_type: ignored; accepted for compatibility with PyFlink.

        Raises:
            GraphError: if one of the two arguments is something else.
        """
        check_type_info("key_type", key_type)
        if key_selector2 is None:
            raise GraphError(
                "key_by on connected streams takes two functions: the first returns the key of a "
                "record of the first stream, the second that of the second stream"
            )
        first = self._first.key_by(check_key_selector(key_selector1))
        second = self._second.key_by(check_key_selector(key_selector2))
        return type(self)(first, second, self._stream_of)

    def map(self, func: CoMapFunction, output_type: Any = None) -> Any:
        """Add an operator that emits one record for each record of both streams.

        Raises:
            GraphError: if `func` is not a `CoMapFunction`.
        """
        check_type_info("output_type", output_type)
        _check(func, (CoMapFunction,), "map on connected streams")
        return self._transform(add_co_map, func, output_type)

    def flat_map(self, func: CoFlatMapFunction, output_type: Any = None) -> Any:
        """Add an operator that emits any number of records for each record of both streams.

        Raises:
            GraphError: if `func` is not a `CoFlatMapFunction`.
        """
        check_type_info("output_type", output_type)
        _check(func, (CoFlatMapFunction,), "flat_map on connected streams")
        return self._transform(add_co_flat_map, func, output_type)

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: Any = None
    ) -> Any:
        """Add an operator that runs a process function with two inputs.

        Raises:
            GraphError: if `func` is no such function, or if it is a `KeyedCoProcessFunction` and
                one of the streams is not keyed.
        """
        check_type_info("output_type", output_type)
        _check(func, (CoProcessFunction, KeyedCoProcessFunction), "process on connected streams")
        lacking = [
            name
            for name, stream in (("first", self._first), ("second", self._second))
            if stream.key_selector is None
        ]
        if lacking and isinstance(func, KeyedCoProcessFunction):
            which = f"the {lacking[0]} stream is" if len(lacking) == 1 else "the streams are"
            raise GraphError(
                f"{type(func).__name__} is a KeyedCoProcessFunction, which needs two keyed "
                f"streams, and {which} not keyed: call connect(...).key_by(selector1, selector2), "
                f"or use a CoProcessFunction"
            )
        return self._transform(add_co_process, func, output_type)

    def _transform(
        self, add: Callable[..., OperatorOutput], function: Function, output_type: Any
    ) -> Any:
        output = add(self._first, self._second, function)
        return declare_type(self._stream_of([output]), output_type)


class BroadcastStream(Generic[T_co]):
    """A stream that sends all records to every subtask. (Flink: `BroadcastStream`.)

    It is connected with another stream: `other.connect(stream.broadcast(descriptor))`.

    Arguments:
        records: the records, which are partitioned by broadcast.
        states: the descriptors of the broadcast states that the function may use.
    """

    def __init__(
        self,
        records: OperatorInput,
        states: tuple[MapStateDescriptor, ...],
    ) -> None:
        self._records = records
        self._states = states

    def connected_to(
        self,
        other: OperatorInput,
        make: Callable[[OperatorInput, OperatorInput, tuple[MapStateDescriptor, ...]], R],
    ) -> R:
        """Return this stream, connected with another stream.

        Arguments:
            other: the other stream.
            make: a function that returns the connected streams. Its arguments are the other stream,
                this stream, and the descriptors of the broadcast states.

        Raises:
            GraphError: if the streams belong to two environments.
        """
        if self._records.environment is not other.environment:
            raise GraphError("connect takes a stream of the same environment, and got another")
        return make(other, self._records, self._states)


class BaseBroadcastConnectedStream:
    """The methods of a stream that is connected with a broadcast stream.

    Arguments:
        first: the stream that is not broadcast.
        second: the broadcast stream.
        states: the descriptors of the broadcast states that the function may use.
        stream_of: a function that returns a stream with these outputs.
    """

    def __init__(
        self,
        first: OperatorInput,
        second: OperatorInput,
        states: tuple[MapStateDescriptor, ...],
        stream_of: StreamOf,
    ) -> None:
        self._first, self._second = first, second
        self._states = states
        self._stream_of = stream_of

    def process(
        self,
        func: BroadcastProcessFunction | KeyedBroadcastProcessFunction,
        output_type: Any = None,
    ) -> Any:
        """Add an operator that processes the stream together with the broadcast stream.

        Arguments:
            func: a `KeyedBroadcastProcessFunction` if the stream that is not broadcast is keyed,
                else a `BroadcastProcessFunction`.
            output_type: the type of the results, which are checked; see `docs/guides/types.md`.

        Raises:
            GraphError: if `func` is not such a function.
        """
        check_type_info("output_type", output_type)
        keyed = self._first.key_selector is not None
        wanted: type[Function] = BroadcastProcessFunction
        where = "process on a stream without keys that is connected with a broadcast stream"
        if keyed:
            wanted = KeyedBroadcastProcessFunction
            where = "process on a keyed stream that is connected with a broadcast stream"
        _check(func, (wanted,), where)
        output = add_broadcast_process(self._first, self._second, func, self._states)
        return declare_type(self._stream_of([output]), output_type)


def _check(function: Any, wanted: tuple[type[Function], ...], where: str) -> None:
    if isinstance(function, wanted):
        return
    names = " or a ".join(kind.__name__ for kind in wanted)
    if isinstance(function, type) and issubclass(function, Function):
        hint = ": pass an instance, not the class"
    elif isinstance(function, BroadcastProcessFunction | KeyedBroadcastProcessFunction):
        hint = ": call broadcast(MapStateDescriptor(...)) on the stream that is to be connected"
        if any(issubclass(kind, BroadcastProcessFunction) for kind in wanted):
            hint = ": call key_by on the stream that is not broadcast"
        elif any(issubclass(kind, KeyedBroadcastProcessFunction) for kind in wanted):
            hint = ": the stream that is not broadcast must not be keyed for it"
    else:
        hint = ""
    raise GraphError(f"{where} takes a {names}, and got {function!r}{hint}")

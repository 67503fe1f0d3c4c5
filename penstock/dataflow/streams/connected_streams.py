"""Define `ConnectedStreams`, two streams whose records one operator processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeAlias

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
from penstock.dataflow.streams.building import add_co_flat_map, add_co_map, add_co_process
from penstock.dataflow.streams.key_selectors import KeyFields
from penstock.dataflow.type_variables import K, R, T1_co, T2_co, T_co, UserValue
from penstock.dataflow.types import check_type_info

if TYPE_CHECKING:
    from penstock.dataflow.streams.data_stream import DataStream

_Selector: TypeAlias = Callable[[T_co], K] | KeySelector[T_co, K]


class ConnectedStreams(Generic[T1_co, T2_co]):
    """Two streams whose records are processed by one operator. (Flink: `ConnectedStreams`.)

    The records of the streams may have different types: `T1` and `T2` for
    `ConnectedStreams[T1, T2]`. The operator has keyed state if both streams are keyed, before or
    after they are connected.

    Arguments:
        first: the first stream.
        second: the second stream.

    Examples:
        >>> class Both(CoMapFunction):
        ...     def map1(self, value):
        ...         return f"number {value}"
        ...     def map2(self, value):
        ...         return f"word {value}"
        >>> numbers, words = env.from_collection([1]), env.from_collection(["a"])
        >>> sorted(numbers.connect(words).map(Both()).execute_and_collect())
        ['number 1', 'word a']
    """

    def __init__(self, first: DataStream[T1_co], second: DataStream[T2_co]) -> None:
        self._first, self._second = first, second

    def key_by(
        self,
        key_selector1: _Selector[T1_co, K] | KeyFields,
        key_selector2: _Selector[T2_co, K] | KeyFields | None = None,
        key_type: object = None,
    ) -> ConnectedStreams[T1_co, T2_co]:
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
        return ConnectedStreams(
            self._first.key_by(key_selector1), self._second.key_by(key_selector2)
        )

    def map(
        self, func: CoMapFunction[T1_co, T2_co, R], output_type: object = None
    ) -> DataStream[R]:
        """Add an operator that emits one record for each record of both streams.

        Raises:
            GraphError: if `func` is not a `CoMapFunction`.
        """
        check_type_info("output_type", output_type)
        check_two_input_function(func, (CoMapFunction,), "map on connected streams")
        output = add_co_map(self._first._input, self._second._input, func)
        return self._first._emitting(output, output_type)

    def flat_map(
        self, func: CoFlatMapFunction[T1_co, T2_co, R], output_type: object = None
    ) -> DataStream[R]:
        """Add an operator that emits any number of records for each record of both streams.

        Raises:
            GraphError: if `func` is not a `CoFlatMapFunction`.
        """
        check_type_info("output_type", output_type)
        check_two_input_function(func, (CoFlatMapFunction,), "flat_map on connected streams")
        output = add_co_flat_map(self._first._input, self._second._input, func)
        return self._first._emitting(output, output_type)

    def process(
        self,
        func: CoProcessFunction[T1_co, T2_co, R]
        | KeyedCoProcessFunction[UserValue, T1_co, T2_co, R],
        output_type: object = None,
    ) -> DataStream[R]:
        """Add an operator that runs a process function with two inputs.

        Raises:
            GraphError: if `func` is no such function, or if it is a `KeyedCoProcessFunction` and
                one of the streams is not keyed.
        """
        check_type_info("output_type", output_type)
        classes = CoProcessFunction, KeyedCoProcessFunction
        check_two_input_function(func, classes, "process on connected streams")
        lacking = [
            name
            for name, stream in (("first", self._first), ("second", self._second))
            if stream._selector is None
        ]
        if lacking and isinstance(func, KeyedCoProcessFunction):
            which = f"the {lacking[0]} stream is" if len(lacking) == 1 else "the streams are"
            raise GraphError(
                f"{type(func).__name__} is a KeyedCoProcessFunction, which needs two keyed "
                f"streams, and {which} not keyed: call connect(...).key_by(selector1, selector2), "
                f"or use a CoProcessFunction"
            )
        output = add_co_process(self._first._input, self._second._input, func)
        return self._first._emitting(output, output_type)


def check_two_input_function(
    function: object, wanted: tuple[type[Function], ...], where: str
) -> None:
    """Raise a `GraphError` unless a function is an object of one of these classes.

    Arguments:
        function: the function.
        wanted: the classes.
        where: the method that takes the function, for the error.
    """
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

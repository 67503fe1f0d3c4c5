# The types of joins in windows; see `data_stream.pyi`.

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, overload

from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.functions import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    KeySelector,
)
from penstock.dataflow.streams.building import OperatorInput
from penstock.dataflow.streams.connected_streams import StreamOf
from penstock.dataflow.streams.data_stream import DataStream
from penstock.dataflow.streams.key_selectors import KeyFields
from penstock.dataflow.type_variables import K, K_co, R, T1_co, T2_co
from penstock.dataflow.windows import WindowAssigner
from penstock.dataflow.windows.window import W
from penstock.dataflow.windows.window_settings import WindowSettings

__all__ = ["CoGroupedStreams", "JoinedStreams", "JoinedStreamsInWindows"]

class JoinedStreams(PyFlinkNames, Generic[T1_co, T2_co]):
    def __init__(self, pair: Any) -> None: ...
    @overload
    def where(
        self, key_selector: Callable[[T1_co], K] | KeySelector[T1_co, K], key_type: Any = None
    ) -> JoinedStreamsWhere[T1_co, T2_co, K]: ...
    @overload
    def where(
        self, key_selector: KeyFields, key_type: Any = None
    ) -> JoinedStreamsWhere[T1_co, T2_co, Any]: ...

class CoGroupedStreams(PyFlinkNames, Generic[T1_co, T2_co]):
    def __init__(self, pair: Any) -> None: ...
    @overload
    def where(
        self, key_selector: Callable[[T1_co], K] | KeySelector[T1_co, K], key_type: Any = None
    ) -> _CoGroupedWhere[T1_co, T2_co, K]: ...
    @overload
    def where(
        self, key_selector: KeyFields, key_type: Any = None
    ) -> _CoGroupedWhere[T1_co, T2_co, Any]: ...

class JoinedStreamsWhere(PyFlinkNames, Generic[T1_co, T2_co, K_co]):
    def __init__(self, pair: Any) -> None: ...
    def equal_to(
        self,
        key_selector: Callable[[T2_co], K_co] | KeySelector[T2_co, K_co] | KeyFields,
        key_type: Any = None,
    ) -> JoinedStreamsEqualTo[T1_co, T2_co]: ...

class JoinedStreamsEqualTo(PyFlinkNames, Generic[T1_co, T2_co]):
    def __init__(self, pair: Any) -> None: ...
    def window(
        self, window_assigner: WindowAssigner[Any, W]
    ) -> JoinedStreamsInWindows[T1_co, T2_co, W]: ...

class JoinedStreamsInWindows(WindowSettings[Any, W], Generic[T1_co, T2_co, W]):
    def __init__(self, pair: Any, assigner: WindowAssigner[Any, W]) -> None: ...
    @overload
    def apply(
        self,
        function: FlatJoinFunction[T1_co, T2_co, R] | Callable[[T1_co, T2_co], Iterator[R]],
        result_type: Any = None,
    ) -> DataStream[R]: ...
    @overload
    def apply(
        self,
        function: JoinFunction[T1_co, T2_co, R] | Callable[[T1_co, T2_co], R],
        result_type: Any = None,
    ) -> DataStream[R]: ...

# What `co_group` returns behind `where` and so on: the same classes with other functions.

class _CoGroupedWhere(PyFlinkNames, Generic[T1_co, T2_co, K_co]):
    def equal_to(
        self,
        key_selector: Callable[[T2_co], K_co] | KeySelector[T2_co, K_co] | KeyFields,
        key_type: Any = None,
    ) -> _CoGroupedEqualTo[T1_co, T2_co]: ...

class _CoGroupedEqualTo(PyFlinkNames, Generic[T1_co, T2_co]):
    def window(
        self, window_assigner: WindowAssigner[Any, W]
    ) -> _CoGroupedInWindows[T1_co, T2_co, W]: ...

class _CoGroupedInWindows(WindowSettings[Any, W], Generic[T1_co, T2_co, W]):
    def apply(
        self,
        function: CoGroupFunction[T1_co, T2_co, R]
        | Callable[[Iterable[T1_co], Iterable[T2_co]], Iterable[R]],
        result_type: Any = None,
    ) -> DataStream[R]: ...

def joined_streams(
    first: OperatorInput, second: OperatorInput, stream_of: StreamOf
) -> JoinedStreams[Any, Any]: ...
def co_grouped_streams(
    first: OperatorInput, second: OperatorInput, stream_of: StreamOf
) -> CoGroupedStreams[Any, Any]: ...

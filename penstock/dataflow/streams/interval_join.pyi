# The types of interval joins; see `data_stream.pyi`.

from collections.abc import Callable
from typing import Any, Generic, Self, TypeAlias

from penstock.dataflow.arguments.durations import DurationLike
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.functions import ProcessJoinFunction
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.data_stream import DataStream
from penstock.dataflow.type_variables import R, T1_co, T2_co

__all__ = ["IntervalJoin", "IntervalJoined"]

AddOperator: TypeAlias = Callable[[Callable[..., OperatorOutput], Any], Any]

class IntervalJoin(PyFlinkNames, Generic[T1_co, T2_co]):
    def __init__(self, add: AddOperator) -> None: ...
    def in_event_time(self) -> Self: ...
    def between(
        self, lower_bound: DurationLike, upper_bound: DurationLike
    ) -> IntervalJoined[T1_co, T2_co]: ...

class IntervalJoined(Generic[T1_co, T2_co]):
    def __init__(self, add: AddOperator, lower: int, upper: int) -> None: ...
    def lower_bound_exclusive(self) -> Self: ...
    def upper_bound_exclusive(self) -> Self: ...
    def side_output_left_late_data(self, output_tag: OutputTag[T1_co]) -> Self: ...
    def side_output_right_late_data(self, output_tag: OutputTag[T2_co]) -> Self: ...
    def process(
        self,
        process_join_function: ProcessJoinFunction[T1_co, T2_co, R] | Callable[[T1_co, T2_co], R],
        output_type: Any = None,
    ) -> DataStream[R]: ...

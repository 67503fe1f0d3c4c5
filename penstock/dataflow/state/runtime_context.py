"""Define the runtime context, which gives a function access to its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import overload

from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from penstock.dataflow.state.states import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from penstock.dataflow.type_variables import K, R, T, V

__all__ = ["KeyedStateStore", "RuntimeContext"]


class KeyedStateStore(ABC):
    """Gives access to keyed state. (Flink: `KeyedStateStore`.)

    Only functions on keyed streams have keyed state. Every method raises `GraphError` if the
    stream is not keyed, or if the function has a state of the same name and another kind.
    """

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return the value state with the descriptor's name."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return the list state with the descriptor's name."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Return the map state with the descriptor's name."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return the reducing state with the descriptor's name."""

    @abstractmethod
    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor[T, R]
    ) -> AggregatingState[T, R]:
        """Return the aggregating state with the descriptor's name."""


class RuntimeContext(KeyedStateStore):
    """Describes the subtask in which a rich function runs, and gives access to state.

    The engine passes it to `Function.open`. (Flink: `RuntimeContext`.)
    """

    @abstractmethod
    def get_task_name(self) -> str:
        """Return the name of the operator."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Return the number of subtasks of the operator."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the number of key groups."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Return the index of this subtask, from 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """Return the number of earlier execution attempts of the job, which is 0 at first."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Return the metrics of the operator in this subtask. (Flink: `getMetricGroup`.)

        A function makes its metrics in `open`, for example
        `self.invalid = runtime_context.get_metrics_group().counter("invalid")`.
        """

    def get_job_parameters(self) -> Mapping[str, str]:
        """Return the parameters of the job: see `ExecutionConfig.set_global_job_parameters`."""
        return {}

    @overload
    def get_job_parameter(self, key: str) -> str | None: ...

    @overload
    def get_job_parameter(self, key: str, default_value: str) -> str: ...

    def get_job_parameter(self, key: str, default_value: str | None = None) -> str | None:
        """Return a parameter of the job, or a default if the job does not have it.

        Arguments:
            key: the name of the parameter.
            default_value: the default.
        """
        return self.get_job_parameters().get(key, default_value)

    def get_task_name_with_subtasks(self) -> str:
        """Return the name of the operator with its subtask, for example `Map (3/4)`."""
        index, subtasks = self.get_index_of_this_subtask(), self.get_number_of_parallel_subtasks()
        return f"{self.get_task_name()} ({index + 1}/{subtasks})"

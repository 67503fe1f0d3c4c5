"""Define the runtime context, which gives a function access to its state."""

from __future__ import annotations

import random
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


class KeyedStateStore(ABC):
    """Gives access to keyed state. (Flink: `KeyedStateStore`.)

    Only functions on keyed streams have keyed state. Every method raises `GraphError` if the
    stream is not keyed, or if the function has a state of the same name and another kind.

    Examples:
        >>> class Total(KeyedProcessFunction):
        ...     def open(self, runtime_context):  # a RuntimeContext is a KeyedStateStore
        ...         self.total = runtime_context.get_state(ValueStateDescriptor("total"))
        ...     def process_element(self, value, ctx):
        ...         self.total.update((self.total.value() or 0) + value)
        ...         yield self.total.value()
        >>> results = env.from_collection([1, 2, 4]).key_by(lambda n: "all").process(Total())
        >>> list(results.execute_and_collect())
        [1, 3, 7]
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

    Examples:
        >>> class Where(MapFunction):
        ...     def open(self, runtime_context):
        ...         self.subtask = runtime_context.get_index_of_this_subtask()
        ...     def map(self, value):
        ...         return value, self.subtask
        >>> list(env.from_collection(["a"]).map(Where()).execute_and_collect())
        [('a', 0)]
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

    @abstractmethod
    def get_random(self) -> random.Random:
        """Return the random numbers of the operator in this subtask. (Flink has none.)

        Call it in `open`, and keep the generator. Its state is part of each snapshot. So after a
        failure, the function draws the same numbers for the same records again, if the records of
        the subtask have the same order. Each operator and each subtask has a generator of its own,
        and each run of a job has other numbers. If the parallelism of the operator changes, its
        subtasks begin with new generators.

        Only these functions have no generator: those that send requests, key selectors and
        partitioners.

        Raises:
            GraphError: if the function has no generator, or if it asks for it while it processes
                records.

        Examples:
            >>> class Sample(FilterFunction):
            ...     def open(self, runtime_context):
            ...         self.random = runtime_context.get_random()
            ...     def filter(self, value):
            ...         return self.random.random() < 0.5
            >>> kept = list(env.from_sequence(1, 1000).filter(Sample()).execute_and_collect())
            >>> 300 < len(kept) < 700
            True
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

"""Define functions with operator state, and the contexts that the engine passes to them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.dataflow.sink import Sink
from penstock.dataflow.state.broadcast_state import BroadcastState
from penstock.dataflow.state.descriptors import ListStateDescriptor, MapStateDescriptor
from penstock.dataflow.state.runtime_context import KeyedStateStore
from penstock.dataflow.state.states import ListState
from penstock.dataflow.type_variables import K, T, V


class OperatorStateStore(ABC):
    """Gives access to the operator state of one subtask. (Flink: `OperatorStateStore`.)

    One name means one state: it cannot be a list and a union list.

    Examples:
        >>> class Latest(MapFunction, CheckpointedFunction):
        ...     def initialize_state(self, context):
        ...         store = context.get_operator_state_store()
        ...         self.latest = store.get_list_state(ListStateDescriptor("latest"))
        ...     def snapshot_state(self, context):
        ...         pass
        ...     def map(self, value):
        ...         self.latest.update([value])
        ...         return value
        >>> list(env.from_collection([1, 2]).map(Latest()).execute_and_collect())
        [1, 2]
    """

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return the list state with the descriptor's name.

        If the job is restored at another parallelism, the elements of all subtasks are divided
        evenly among the new subtasks.
        """

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return the union list state with the descriptor's name.

        Whenever the job is restored, each subtask gets the elements of all subtasks. The function
        selects the elements that it needs.
        """

    @abstractmethod
    def get_broadcast_state(
        self, state_descriptor: MapStateDescriptor[K, V]
    ) -> BroadcastState[K, V]:
        """Return the broadcast state with the descriptor's name.

        All subtasks must keep the same entries in it.
        """

    @abstractmethod
    def get_registered_state_names(self) -> set[str]:
        """Return the names of all registered list states and of those in the restored snapshot."""

    @abstractmethod
    def get_registered_broadcast_state_names(self) -> set[str]:
        """Return the names of all broadcast states, with those of the restored snapshot."""


class FunctionInitializationContext(ABC):
    """Gives a function access to its state when it is initialised.

    (Flink: `FunctionInitializationContext`.)

    Examples:
        >>> class Restored(MapFunction, CheckpointedFunction):
        ...     def initialize_state(self, context):
        ...         self.restored = context.is_restored()
        ...     def snapshot_state(self, context):
        ...         pass
        ...     def map(self, value):
        ...         return value, self.restored
        >>> list(env.from_collection([1]).map(Restored()).execute_and_collect())
        [(1, False)]
    """

    @abstractmethod
    def is_restored(self) -> bool:
        """Return whether the job continues from a snapshot."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """Return the number of the snapshot that the job continues from, or None."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Return the store of the operator state."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Return the store of keyed state: an object with `get_state` and the like.

        Only operators on keyed streams have keyed state.
        """


class FunctionSnapshotContext(ABC):
    """Describes the snapshot that is being taken. (Flink: `FunctionSnapshotContext`.)

    Examples:
        >>> class Numbered(MapFunction, CheckpointedFunction):
        ...     def initialize_state(self, context):
        ...         self.snapshot = None
        ...     def snapshot_state(self, context):
        ...         self.snapshot = context.get_checkpoint_id()
        ...     def map(self, value):
        ...         return value, self.snapshot
        >>> list(env.from_collection([1]).map(Numbered()).execute_and_collect())
        [(1, None)]
    """

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Return the number of the snapshot. It is higher than those of all earlier snapshots."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """Return the time at which the subtask takes the snapshot, in milliseconds since 1970."""


class CheckpointedFunction(ABC):
    """The interface of functions with operator state. (Flink: `CheckpointedFunction`.)

    A function of any operator, and a sink function, implements it in addition to its own class.

    State is saved at the barrier of each snapshot, exactly between two records.

    Examples:
        >>> class Pairs(FlatMapFunction, CheckpointedFunction):
        ...     def initialize_state(self, context):
        ...         store = context.get_operator_state_store()
        ...         self.saved = store.get_list_state(ListStateDescriptor("waiting"))
        ...         self.waiting = list(self.saved.get())
        ...     def snapshot_state(self, context):
        ...         self.saved.update(self.waiting)
        ...     def flat_map(self, value):
        ...         self.waiting.append(value)
        ...         if len(self.waiting) == 2:
        ...             yield self.waiting
        ...             self.waiting = []
        >>> list(env.from_sequence(1, 4).flat_map(Pairs()).execute_and_collect())
        [[1, 2], [3, 4]]
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the state, which is restored. Called once in each subtask, before `open`."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Put the data for the snapshot into the state. Called at each barrier."""


def checkpointed_function(function: object) -> CheckpointedFunction | None:
    """Return the function with operator state of an operator, or None if it has none.

    Arguments:
        function: the function of the operator. A sink may have a function in its attribute
            `function`, and a window operation in `window_function`.
    """
    if isinstance(function, Sink):
        function = function.function
    elif not callable(function):
        function = getattr(function, "window_function", function)
    return function if isinstance(function, CheckpointedFunction) else None

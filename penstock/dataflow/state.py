"""Define the interface of keyed state.

The interface consists of descriptors, state objects and the runtime context.
`penstock.snapshot.state` implements the storage of state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

__all__ = [
    "ReducingStateDescriptor",
    "ListState",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "RuntimeContext",
    "StateDescriptor",
    "ValueState",
    "ValueStateDescriptor",
]


class StateDescriptor:
    """Gives a name to a state of a function. (Flink: `StateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function. A resumed job finds the state by
            this name, even if the program has changed.
        type_info: an argument of PyFlink, which Penstock ignores.

    Raises:
        TypeError: if the name is not a non-empty string.
    """

    def __init__(self, name: str, type_info: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a state needs a name that is a non-empty string, not {name!r}")
        self.name = name
        self.type_info = type_info

    def get_name(self) -> str:
        """Return the name of the state."""
        return self.name


class ValueStateDescriptor(StateDescriptor):
    """Describes a `ValueState`, which stores one value per key.

    (Flink: `ValueStateDescriptor`.)
    """


class ReducingStateDescriptor(StateDescriptor):
    """Describes a state that combines all values that are added to it into one.

    (Flink: `ReducingStateDescriptor`.)

    Arguments:
        name: the name of the state, unique within the function.
        reduce_function: a function, or a `ReduceFunction`, that combines two values.
        type_info: ignored; accepted for compatibility with PyFlink programs.
    """

    def __init__(self, name: str, reduce_function: Any, type_info: Any = None) -> None:
        super().__init__(name, type_info)
        self.reduce_function = reduce_function

    def get_reduce_function(self) -> Any:
        """Return the function that combines two values."""
        return self.reduce_function


class ValueState(ABC):
    """A state that stores one value per key. (Flink: `ValueState`.)

    All methods refer to the current key, which is the key of the record that is being processed.
    """

    @abstractmethod
    def value(self) -> Any:
        """Return the value of the current key, or None if the key has no value."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Set the value of the current key. If `value` is None, remove the key's value."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the value of the current key."""


class ListStateDescriptor(StateDescriptor):
    """Describes a `ListState`. (Flink: `ListStateDescriptor`.)"""


class ListState(ABC):
    """A state that stores a list of elements. (Flink: `ListState`.)"""

    @abstractmethod
    def get(self) -> Iterable[Any]:
        """Return the elements in order."""

    @abstractmethod
    def add(self, value: Any) -> None:
        """Append an element."""

    @abstractmethod
    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""

    @abstractmethod
    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all elements."""


class MapStateDescriptor(StateDescriptor):
    """Describes a map state or a broadcast state. (Flink: `MapStateDescriptor`.)

    Arguments:
        name: as in `StateDescriptor`.
        key_type_info, value_type_info: ignored; accepted for compatibility with PyFlink programs.
    """

    def __init__(self, name: str, key_type_info: Any = None, value_type_info: Any = None) -> None:
        super().__init__(name, value_type_info)
        self.key_type_info = key_type_info


class RuntimeContext(ABC):
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
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Return the state with the descriptor's name.

        Only functions on keyed streams have state.
        """

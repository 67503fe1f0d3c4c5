"""State as a program sees it: descriptors, state objects and the runtime context.

Interfaces only; `penstock.snapshot.state` stores the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["RuntimeContext", "StateDescriptor", "ValueState", "ValueStateDescriptor"]


class StateDescriptor:
    """Names a state of a function. (Flink: `StateDescriptor`.)

    Arguments:
        name: unique within the function. A resumed job finds the state by it, also after the
            program has changed.
        type_info: ignored; accepted for PyFlink programs.

    Raises:
        TypeError: unless the name is a non-empty string.
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
    """Describes a `ValueState`: one value per key. (Flink: `ValueStateDescriptor`.)"""


class ValueState(ABC):
    """One value per key. (Flink: `ValueState`.)

    The current key is that of the record that is being processed.
    """

    @abstractmethod
    def value(self) -> Any:
        """Return the value of the current key; None if it has none."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Set the value of the current key; None clears it."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the value of the current key."""


class RuntimeContext(ABC):
    """Describes the subtask that a rich function runs in. (Flink: `RuntimeContext`.)

    It is passed to `open`.
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
        """Return the number of times that the job was started before."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Return the state with the descriptor's name; for functions on keyed streams only."""

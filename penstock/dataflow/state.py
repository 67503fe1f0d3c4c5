"""State as a program sees it: descriptors, state objects and the runtime context.

Interfaces only; the state itself is kept by `penstock.snapshot.state`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["RuntimeContext", "StateDescriptor", "ValueState", "ValueStateDescriptor"]


class StateDescriptor:
    """Names a state of a function.

    Arguments:
        name: unique within the function; what the state is found by after an upgrade.
        type_info: accepted for PyFlink programs and not needed.
    """

    def __init__(self, name: str, type_info: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a state needs a name that is a non-empty string, not {name!r}")
        self.name = name
        self.type_info = type_info

    def get_name(self) -> str:
        """The state's name."""
        return self.name


class ValueStateDescriptor(StateDescriptor):
    """Describes a `ValueState`: one value per key."""


class ValueState(ABC):
    """One value per key. (Flink: `ValueState`.)"""

    @abstractmethod
    def value(self) -> Any:
        """The value of the current key; None if there is none."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Set the value of the current key; None clears it."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the value of the current key."""


class RuntimeContext(ABC):
    """What a rich function learns in `open` about where it runs. (Flink: `RuntimeContext`.)"""

    @abstractmethod
    def get_task_name(self) -> str:
        """Name of the operator."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """How many subtasks the operator has."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Which of them this is, from 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """How often the job has been started before, from 0."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """The state with that name; only in a function on a keyed stream."""

"""Define broadcast state: a map, with a copy in every subtask of an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic

from penstock.dataflow.type_variables import K, V


class ReadOnlyBroadcastState(ABC, Generic[K, V]):
    """A broadcast state as the other input of the operator sees it.

    A function must not change the values that it gets, either.
    (Flink: `ReadOnlyBroadcastState`.)

    Examples:
        >>> LIMITS = MapStateDescriptor("limits")
        >>> class Known(BroadcastProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         if ctx.get_broadcast_state(LIMITS).contains(value):
        ...             yield value
        ...     def process_broadcast_element(self, value, ctx):
        ...         ctx.get_broadcast_state(LIMITS).put(*value)
        >>> limits = env.from_collection([("high", 100)]).broadcast(LIMITS)
        >>> known = env.from_collection(["high"]).connect(limits).process(Known())
    """

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None if there is no such entry."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether there is an entry with this key."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Return all entries as pairs (key, value)."""

    @abstractmethod
    def keys(self) -> Iterable[K]:
        """Return the keys of all entries."""

    @abstractmethod
    def values(self) -> Iterable[V]:
        """Return the values of all entries."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether there is no entry."""

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """A broadcast state as the broadcast input of the operator sees it. (Flink: `BroadcastState`.)

    Every subtask receives all broadcast records and keeps its own copy of the state. So the changes
    that a function makes must depend on the broadcast records only.

    Call `put` again after changing a value in place. Otherwise a snapshot may lack the change.

    Examples:
        >>> LIMITS = MapStateDescriptor("limits")
        >>> class Known(BroadcastProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield value, ctx.get_broadcast_state(LIMITS).get(value)  # read-only
        ...     def process_broadcast_element(self, value, ctx):
        ...         ctx.get_broadcast_state(LIMITS).put(*value)
        >>> limits = env.from_collection([("high", 100)]).broadcast(LIMITS)
        >>> known = env.from_collection(["high"]).connect(limits).process(Known())
    """

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of `key`."""

    @abstractmethod
    def put_all(self, dict_value: Mapping[K, V]) -> None:
        """Set all entries of a mapping."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry with this key, if there is one."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

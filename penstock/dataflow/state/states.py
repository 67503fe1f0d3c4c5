"""Define the interfaces of the state objects, with the names of PyFlink.

All methods refer to the current key, which is the key of the record or timer that is being
processed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic

from penstock.dataflow.type_variables import IN_contra, K, OUT_co, T, V


class State(ABC):
    """The base class of all states. (Flink: `State`.)"""

    @abstractmethod
    def clear(self) -> None:
        """Remove the contents of the state for the current key."""


class ValueState(State, Generic[T]):
    """A state that stores one value per key. (Flink: `ValueState`.)

    Examples:
        >>> class Changes(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        ...     def process_element(self, value, ctx):
        ...         if self.last.value() != value:
        ...             yield value
        ...         self.last.update(value)
        >>> results = env.from_collection([1, 1, 2]).key_by(lambda n: "all").process(Changes())
        >>> list(results.execute_and_collect())
        [1, 2]
    """

    @abstractmethod
    def value(self) -> T | None:
        """Return the value of the current key, or None if the key has no value."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value of the current key. If `value` is None, remove the key's value."""


class AppendingState(State, Generic[IN_contra, OUT_co]):
    """A state to which values are added one by one. (Flink: `AppendingState`.)"""

    @abstractmethod
    def get(self) -> OUT_co | None:
        """Return the content of the state for the current key."""

    @abstractmethod
    def add(self, value: IN_contra) -> None:
        """Add a value to the state of the current key."""


class MergingState(AppendingState[IN_contra, OUT_co]):
    """An appending state. Several of them can be merged to one. (Flink: `MergingState`.)"""


class ReducingState(MergingState[T, T]):
    """A state that combines all values that are added into one. (Flink: `ReducingState`.)

    The combined value has the same type as the values.

    Examples:
        >>> class Largest(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         descriptor = ReducingStateDescriptor("largest", max)
        ...         self.largest = runtime_context.get_reducing_state(descriptor)
        ...     def process_element(self, value, ctx):
        ...         self.largest.add(value)
        ...         yield self.largest.get()
        >>> results = env.from_collection([3, 1, 5]).key_by(lambda n: "all").process(Largest())
        >>> list(results.execute_and_collect())
        [3, 3, 5]
    """

    @abstractmethod
    def get(self) -> T | None:
        """Return the combined value of the current key, or None if no value was added."""


class AggregatingState(MergingState[IN_contra, OUT_co]):
    """A state that aggregates all values that are added. (Flink: `AggregatingState`.)

    Only the accumulator of an `AggregateFunction` is stored.

    Examples:
        >>> class Sum(AggregateFunction):
        ...     def create_accumulator(self):
        ...         return 0
        ...     def add(self, value, accumulator):
        ...         return accumulator + value
        ...     def get_result(self, accumulator):
        ...         return accumulator
        ...     def merge(self, a, b):
        ...         return a + b
        >>> class Sums(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         descriptor = AggregatingStateDescriptor("sum", Sum())
        ...         self.sum = runtime_context.get_aggregating_state(descriptor)
        ...     def process_element(self, value, ctx):
        ...         self.sum.add(value)
        ...         yield self.sum.get()
        >>> results = env.from_collection([1, 2, 4]).key_by(lambda n: "all").process(Sums())
        >>> list(results.execute_and_collect())
        [1, 3, 7]
    """

    @abstractmethod
    def get(self) -> OUT_co | None:
        """Return the result of the accumulator of the current key, or None if there is none."""


class ListState(MergingState[T, list[T]]):
    """A state that stores a list of values per key. (Flink: `ListState`.)

    Each element is stored separately. So adding an element costs the same for a long list as for a
    short one, and a snapshot writes only the elements that are new or changed.

    Examples:
        >>> class Pairs(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting"))
        ...     def process_element(self, value, ctx):
        ...         self.waiting.add(value)
        ...         if len(list(self.waiting.get())) == 2:
        ...             yield list(self.waiting.get())
        ...             self.waiting.clear()
        >>> results = env.from_sequence(1, 4).key_by(lambda n: "all").process(Pairs())
        >>> list(results.execute_and_collect())
        [[1, 2], [3, 4]]
    """

    @abstractmethod
    def get(self) -> list[T]:
        """Return the elements of the current key, in their order; an empty list if it has none.

        Changes of the returned list do not change the state.
        """

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the elements of the current key by `values`."""

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Add all `values` to the end of the list of the current key."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapState(State, Generic[K, V]):
    """A state that stores a map per key. (Flink: `MapState`.)

    Each entry is stored separately. So an access costs the same for a large map as for a small one,
    and a snapshot writes only the entries that are new or changed. The keys of the map have the
    types of keys, which `docs/guides/types.md` lists.

    Examples:
        >>> class Repeated(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.seen = runtime_context.get_map_state(MapStateDescriptor("seen"))
        ...     def process_element(self, value, ctx):
        ...         if self.seen.contains(value):
        ...             yield value
        ...         self.seen.put(value, True)
        >>> words = env.from_collection(["a", "b", "a"])
        >>> list(words.key_by(lambda word: "all").process(Repeated()).execute_and_collect())
        ['a']
    """

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of `key` in the map, or None if the map has no such key."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of `key` in the map."""

    @abstractmethod
    def put_all(self, dict_value: dict[K, V]) -> None:
        """Set the value of each key of a dict in the map."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove `key` from the map, if it is there."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether the map has the key."""

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V]]:
        """Return an iterator over the keys and values of the map, in no particular order.

        The map may be changed meanwhile.
        """

    @abstractmethod
    def keys(self) -> Iterator[K]:
        """Return an iterator over the keys of the map, in no particular order."""

    @abstractmethod
    def values(self) -> Iterator[V]:
        """Return an iterator over the values of the map, in no particular order."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the map has no entry."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return self.keys()

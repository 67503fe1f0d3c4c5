"""Define the functions that process one record at a time, with the names of PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeAlias

from penstock.dataflow.arguments.fields import Selector
from penstock.dataflow.functions.function import Function
from penstock.dataflow.type_variables import IN_contra, K_co, KEY_contra, OUT_co, T


class MapFunction(Function, ABC, Generic[IN_contra, OUT_co]):
    """Emits exactly one record for each input record. (Flink: `MapFunction`.)

    Examples:
        >>> class Double(MapFunction):
        ...     def map(self, value):
        ...         return 2 * value
        >>> list(env.from_collection([1, 2]).map(Double()).execute_and_collect())
        [2, 4]
    """

    @abstractmethod
    def map(self, value: IN_contra) -> OUT_co:
        """Return the record to emit for `value`."""


class FlatMapFunction(Function, ABC, Generic[IN_contra, OUT_co]):
    """Emits any number of records for each input record. (Flink: `FlatMapFunction`.)

    Examples:
        >>> class Words(FlatMapFunction):
        ...     def flat_map(self, value):
        ...         yield from value.split()
        >>> list(env.from_collection(["to be", "or not"]).flat_map(Words()).execute_and_collect())
        ['to', 'be', 'or', 'not']
    """

    @abstractmethod
    def flat_map(self, value: IN_contra) -> Iterable[OUT_co]:
        """Return an iterable of the records to emit for `value`. It may be a generator."""


class FilterFunction(Function, ABC, Generic[IN_contra]):
    """Decides for each record whether to keep or drop it. (Flink: `FilterFunction`.)

    Examples:
        >>> class Even(FilterFunction):
        ...     def filter(self, value):
        ...         return value % 2 == 0
        >>> list(env.from_sequence(1, 4).filter(Even()).execute_and_collect())
        [2, 4]
    """

    @abstractmethod
    def filter(self, value: IN_contra) -> bool:
        """Return whether to keep the record `value`."""


class ReduceFunction(Function, ABC, Generic[T]):
    """Combines two records with the same key into one record of the same type.

    (Flink: `ReduceFunction`.)

    Examples:
        >>> class Larger(ReduceFunction):
        ...     def reduce(self, value1, value2):
        ...         return max(value1, value2)
        >>> results = env.from_collection([3, 1, 5]).key_by(lambda number: 0).reduce(Larger())
        >>> list(results.execute_and_collect())
        [3, 3, 5]
    """

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """Combine the previous result `value1` with the new record `value2`.

        Returns:
            The new result, of the same type.
        """


class KeySelector(Function, ABC, Generic[IN_contra, K_co]):
    """Extracts the key of a record. (Flink: `KeySelector`.)

    It must always return the same key for the same record. `open` and `close` are called once in
    each worker process. The runtime context has no state there.

    Examples:
        >>> class FirstLetter(KeySelector):
        ...     def get_key(self, value):
        ...         return value[0]
        >>> results = env.from_collection(["ann", "amy", "bob"]).key_by(FirstLetter()).count()
        >>> list(results.execute_and_collect())
        [('a', 1), ('a', 2), ('b', 1)]
    """

    @abstractmethod
    def get_key(self, value: IN_contra) -> K_co:
        """Return the key of the record `value`.

        `docs/guides/types.md` lists the allowed types of keys.
        """


#: A key selector, or a plain function that returns the key of a record.
KeySelectorLike: TypeAlias = KeySelector | Selector


class Partitioner(Function, ABC, Generic[KEY_contra]):
    """Chooses the subtask to which a record is sent. (Flink: `Partitioner`.)

    `open` and `close` are called as those of a `KeySelector`.

    Examples:
        >>> class ByRemainder(Partitioner):
        ...     def partition(self, key, num_partitions):
        ...         return key % num_partitions
        >>> numbers = env.from_sequence(1, 3).partition_custom(ByRemainder(), lambda number: number)
        >>> list(numbers.execute_and_collect())
        [1, 2, 3]
    """

    @abstractmethod
    def partition(self, key: KEY_contra, num_partitions: int) -> int:
        """Return the index of the subtask for a key, with `0 <= index < num_partitions`."""


class SinkFunction(Function, ABC, Generic[IN_contra]):
    """Receives each record of a stream, at least once. (Flink: `SinkFunction`.)

    Examples:
        >>> class Shout(SinkFunction):
        ...     def invoke(self, value):
        ...         print(value.upper())
        >>> _ = env.from_collection(["to", "be"]).add_sink(Shout())
        >>> _ = env.execute("shout")
        TO
        BE
    """

    @abstractmethod
    def invoke(self, value: IN_contra) -> None:
        """Write or process one record.

        After a failure, the engine may call this method again with the same record.
        """

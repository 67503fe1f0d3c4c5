"""Define the functions that process one record at a time, with the names of PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic

from penstock.dataflow.functions.function import Function
from penstock.dataflow.type_variables import IN_contra, K_co, KEY_contra, OUT_co, T

__all__ = [
    "FilterFunction",
    "FlatMapFunction",
    "KeySelector",
    "MapFunction",
    "Partitioner",
    "ReduceFunction",
    "SinkFunction",
]


class MapFunction(Function, ABC, Generic[IN_contra, OUT_co]):
    """Emits exactly one record for each input record. (Flink: `MapFunction`.)"""

    @abstractmethod
    def map(self, value: IN_contra) -> OUT_co:
        """Return the record to emit for `value`."""


class FlatMapFunction(Function, ABC, Generic[IN_contra, OUT_co]):
    """Emits any number of records for each input record. (Flink: `FlatMapFunction`.)"""

    @abstractmethod
    def flat_map(self, value: IN_contra) -> Iterable[OUT_co]:
        """Return an iterable of the records to emit for `value`. It may be a generator."""


class FilterFunction(Function, ABC, Generic[IN_contra]):
    """Decides for each record whether to keep or drop it. (Flink: `FilterFunction`.)"""

    @abstractmethod
    def filter(self, value: IN_contra) -> bool:
        """Return whether to keep the record `value`."""


class ReduceFunction(Function, ABC, Generic[T]):
    """Combines two records with the same key into one record of the same type.

    (Flink: `ReduceFunction`.)
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
    """

    @abstractmethod
    def get_key(self, value: IN_contra) -> K_co:
        """Return the key of the record `value`.

        `docs/guides/types.md` lists the allowed types of keys.
        """


class Partitioner(Function, ABC, Generic[KEY_contra]):
    """Chooses the subtask to which a record is sent. (Flink: `Partitioner`.)

    `open` and `close` are called as those of a `KeySelector`.
    """

    @abstractmethod
    def partition(self, key: KEY_contra, num_partitions: int) -> int:
        """Return the index of the subtask for a key, with `0 <= index < num_partitions`."""


class SinkFunction(Function, ABC, Generic[IN_contra]):
    """Receives each record of a stream, at least once. (Flink: `SinkFunction`.)"""

    @abstractmethod
    def invoke(self, value: IN_contra) -> None:
        """Write or process one record.

        After a failure, the engine may call this method again with the same record.
        """

"""Define the functions that process one record at a time, with the names of PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from penstock.dataflow.functions.function import Function

__all__ = [
    "FilterFunction",
    "FlatMapFunction",
    "KeySelector",
    "MapFunction",
    "Partitioner",
    "ReduceFunction",
    "SinkFunction",
]


class MapFunction(Function, ABC):
    """Emits exactly one record for each input record. (Flink: `MapFunction`.)"""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the record to emit for `value`."""


class FlatMapFunction(Function, ABC):
    """Emits any number of records for each input record. (Flink: `FlatMapFunction`.)"""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """Return an iterable of the records to emit for `value`. It may be a generator."""


class FilterFunction(Function, ABC):
    """Decides for each record whether to keep or drop it. (Flink: `FilterFunction`.)"""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Return whether to keep the record `value`."""


class ReduceFunction(Function, ABC):
    """Combines two records with the same key into one record of the same type.

    (Flink: `ReduceFunction`.)
    """

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine the previous result `value1` with the new record `value2`.

        Returns:
            The new result, of the same type.
        """


class KeySelector(Function, ABC):
    """Extracts the key of a record. (Flink: `KeySelector`.)

    It must always return the same key for the same record.
    """

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key of the record `value`. `docs/types.md` lists the allowed types of keys."""


class Partitioner(Function, ABC):
    """Chooses the subtask to which a record is sent. (Flink: `Partitioner`.)"""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Return the index of the subtask for a key, with `0 <= index < num_partitions`."""


class SinkFunction(Function, ABC):
    """Receives each record of a stream, at least once. (Flink: `SinkFunction`.)"""

    @abstractmethod
    def invoke(self, value: Any) -> None:
        """Write or process one record.

        After a failure, the engine may call this method again with the same record.
        """

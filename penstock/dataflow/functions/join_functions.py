"""Define the functions that join the records of two streams, with the names of Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from penstock.dataflow.functions.function import Function

__all__ = ["CoGroupFunction", "FlatJoinFunction", "JoinFunction"]


class JoinFunction(Function, ABC):
    """Emits exactly one record for each pair of records that match. (Flink: `JoinFunction`.)"""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """Return the record to emit for a pair.

        Arguments:
            first: the record of the first stream.
            second: the record of the second stream.
        """


class FlatJoinFunction(Function, ABC):
    """Emits any number of records for each pair of records that match.

    (Flink: `FlatJoinFunction`.)
    """

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        """Return the records to emit for a pair: a generator, another iterable, or None."""


class CoGroupFunction(Function, ABC):
    """Emits any number of records for two groups of records with one key.

    (Flink: `CoGroupFunction`.)
    """

    @abstractmethod
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any] | None:
        """Return the records to emit: a generator, another iterable, or None.

        Arguments:
            first: the records of the first stream; it may be empty.
            second: the records of the second stream; it may be empty.
        """

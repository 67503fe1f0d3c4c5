"""Find the best records of a key or of a window (`top_k`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dataflow.windows import AggregateFunction

__all__ = ["Ranking", "TopKAggregate"]


class Ranking:
    """Inserts records into lists of the best ones.

    Arguments:
        k: the largest number of records in a list.
        by: a function that returns the value by which records are compared.
    """

    def __init__(self, k: int, by: Callable[[Any], Any]) -> None:
        self._k, self._by = k, by

    def inserted(self, best: list[Any], record: Any) -> list[Any]:
        """Return a new list that contains the record, or the same list if its value is too low."""
        value, by = self._by(record), self._by
        # If two records have equal values, the earlier one is better.
        worse = (index for index, other in enumerate(best) if by(other) < value)
        place = next(worse, len(best))
        return best if place >= self._k else [*best[:place], record, *best[place : self._k - 1]]


class TopKAggregate(AggregateFunction):
    """Finds the best records of a window. Arguments are those of `TopK`."""

    def __init__(self, k: int, by: Callable[[Any], Any]) -> None:
        self._inserted = Ranking(k, by).inserted

    def create_accumulator(self) -> list[Any]:
        """Return an empty list."""
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        """Return the best records with one more."""
        return self._inserted(accumulator, value)

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        """Return the best records, the best one first."""
        return accumulator

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        """Return the best records of two lists."""
        for record in acc_b:
            acc_a = self._inserted(acc_a, record)
        return acc_a

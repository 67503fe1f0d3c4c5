"""The methods of a stream that choose the partitioning of its records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.dataflow.functions import KeySelector, Partitioner, check_function
from penstock.dataflow.graph.job_graph import Partitioning

__all__ = ["StreamPartitioning"]

Stream = TypeVar("Stream")


class StreamPartitioning(Generic[Stream]):
    """Methods that return a stream of the same records with another partitioning."""

    def forward(self) -> Stream:
        """Send all records of subtask i to subtask i of the next operator.

        Both operators must have the same parallelism.
        """
        return self._repartition(Partitioning.FORWARD)

    def rebalance(self) -> Stream:
        """Send the records to all subtasks of the next operator in turn."""
        return self._repartition(Partitioning.REBALANCE)

    def rescale(self) -> Stream:
        """Send the records of each subtask to a few subtasks of the next operator in turn.

        This needs fewer channels than `rebalance`.
        """
        return self._repartition(Partitioning.RESCALE)

    def shuffle(self) -> Stream:
        """Send each record to a random subtask of the next operator, with equal probability."""
        return self._repartition(Partitioning.SHUFFLE)

    def global_(self) -> Stream:
        """Send every record to the first subtask of the next operator."""
        return self._repartition(Partitioning.GLOBAL)

    def partition_custom(
        self,
        partitioner: Callable[[Any, int], int] | Partitioner,
        key_selector: Callable[[Any], Any] | KeySelector,
    ) -> Stream:
        """Send each record to the subtask that `partitioner` chooses for its key.

        Arguments:
            partitioner: a function that is called as `partitioner(key, number_of_subtasks)`, and
                returns the index of a subtask of the next operator.
            key_selector: a function that returns the key of a record.
        """
        partitioner = check_function(partitioner, Partitioner, "partition_custom")
        selector = check_function(key_selector, KeySelector, "partition_custom")
        return self._repartition(Partitioning.CUSTOM, selector, partitioner)

    @abstractmethod
    def _repartition(
        self, partitioning: Partitioning, selector: Any = None, partitioner: Any = None
    ) -> Stream:
        """Return a stream of the same records with another partitioning."""

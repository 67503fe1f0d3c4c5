"""The methods that choose the partitioning of a stream, and those that a keyed stream refuses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NoReturn

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeySelector, Partitioner, check_function
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.type_variables import K, S_co, T_co

__all__ = ["FixedPartitioning", "StreamPartitioning"]


class StreamPartitioning(Generic[T_co, S_co]):
    """Methods that return a stream of the same records with another partitioning."""

    def forward(self) -> S_co:
        """Send all records of subtask i to subtask i of the next operator.

        Both operators must have the same parallelism.
        """
        return self._repartition(Partitioning.FORWARD)

    def rebalance(self) -> S_co:
        """Send the records to all subtasks of the next operator in turn."""
        return self._repartition(Partitioning.REBALANCE)

    def rescale(self) -> S_co:
        """Send the records of each subtask to a few subtasks of the next operator in turn.

        This needs fewer channels than `rebalance`.
        """
        return self._repartition(Partitioning.RESCALE)

    def shuffle(self) -> S_co:
        """Send each record to a random subtask of the next operator, with equal probability."""
        return self._repartition(Partitioning.SHUFFLE)

    def global_(self) -> S_co:
        """Send every record to the first subtask of the next operator."""
        return self._repartition(Partitioning.GLOBAL)

    def partition_custom(
        self,
        partitioner: Callable[[K, int], int] | Partitioner[K],
        key_selector: Callable[[T_co], K] | KeySelector[T_co, K],
    ) -> S_co:
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
    ) -> S_co:
        """Return a stream of the same records with another partitioning."""


class FixedPartitioning:
    """Methods of a keyed stream that raise an error, as in PyFlink.

    The records of a key belong to one subtask, which holds the state of the key. With another
    partitioning, operators would silently have no keys.
    """

    def forward(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("forward")

    def rebalance(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("rebalance")

    def rescale(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("rescale")

    def shuffle(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("shuffle")

    def global_(self) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        _refuse("global_")

    def broadcast(self, *state_descriptors: Any) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        del state_descriptors
        _refuse("broadcast")

    def partition_custom(self, partitioner: Any, key_selector: Any) -> NoReturn:
        """Raise a `GraphError`: the partitioning of a keyed stream is fixed."""
        del partitioner, key_selector
        _refuse("partition_custom")


def _refuse(method: str) -> NoReturn:
    raise GraphError(
        f"{method} cannot change the partitioning of a keyed stream: call it on the stream before "
        f"key_by, or on the result of an operator"
    )

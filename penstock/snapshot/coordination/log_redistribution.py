"""Deals the log of an edge out to another number of subtasks than wrote it.

Pure: records in, records out. Reading logs is `log.py`, and whether a program may deal a log at
all is decided in `graph_compatibility.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dataflow.errors import JobError, ProtocolError
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical

__all__ = ["redistribute_log"]


def redistribute_log(
    partitioning: Partitioning,
    *,
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    selector: Callable[[Any], Any] | None = None,
    partition: Callable[[Any, int], int] | None = None,
) -> Callable[[list[Any]], list[Any]]:
    """What a subtask takes of a log that another number of subtasks wrote.

    Every record goes where the edge would send it now, or, where the edge leaves that open, in
    turn to each subtask. The shares of all subtasks together are the log, each record once.

    Arguments:
        partitioning: of the edge, in the program as it is now.
        subtask: of the consumer.
        parallelism: of the consumer, as it is now.
        max_parallelism: number of key groups.
        selector: takes the key from a record (hash, custom).
        partition: (key, parallelism) to a subtask (custom).

    Returns:
        A function from a batch of records to those that the subtask takes. It counts records,
        so each log needs its own, which must see all batches of the log in order.

    Raises:
        ProtocolError: for a broadcast edge, of whose records each subtask has its own copies;
            `compare_graph` refuses that before.
        JobError: from the function, if a key is refused or the partitioner returns no subtask.
    """
    if partitioning is Partitioning.BROADCAST:
        raise ProtocolError("the log of a broadcast edge cannot be dealt to other subtasks")
    if partitioning is Partitioning.GLOBAL:
        return lambda records: records if subtask == 0 else []
    if partitioning is Partitioning.HASH and selector is not None:

        def owner(record: Any) -> int:
            group = key_group(canonical(selector(record)), max_parallelism)
            return subtask_of_key_group(group, max_parallelism, parallelism)

        return lambda records: [record for record in records if owner(record) == subtask]
    if partitioning is Partitioning.CUSTOM and selector is not None and partition is not None:

        def chosen(record: Any) -> int:
            index = partition(selector(record), parallelism)
            # Such a record would be nobody's, and lost without a word.
            if not 0 <= index < parallelism:
                raise JobError(
                    f"the partitioner returned {index!r}; it must return a whole number from 0 "
                    f"to {parallelism - 1}, the index of one of the {parallelism} subtasks",
                    record=repr(record)[:200],
                )
            return index

        return lambda records: [record for record in records if chosen(record) == subtask]
    if partitioning in (Partitioning.HASH, Partitioning.CUSTOM):
        raise ProtocolError(f"a {partitioning.value} edge without its functions")
    return _Turns(subtask, parallelism)


class _Turns:
    """Takes every n-th record of a log, counted over its batches."""

    def __init__(self, subtask: int, parallelism: int) -> None:
        self._subtask, self._parallelism = subtask, parallelism
        self._seen = 0

    def __call__(self, records: list[Any]) -> list[Any]:
        first = (self._subtask - self._seen) % self._parallelism
        self._seen += len(records)
        return records[first :: self._parallelism]

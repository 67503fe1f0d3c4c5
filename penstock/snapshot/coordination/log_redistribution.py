"""Redistribute the log of an edge when the consumer's parallelism has changed.

Pure: records in, records out. `storage/in_flight_log.py` reads logs, and `graph_compatibility.py`
decides whether a log may be redistributed.
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
    """Return a function that selects the records of a log that a subtask processes.

    Each record goes to the subtask that the edge would send it to now. If the edge does not
    determine one, the subtasks take turns. All subtasks together process each record once.

    Arguments:
        partitioning: of the edge, in the program as it is now.
        subtask: of the consumer.
        parallelism: of the consumer, as it is now.
        max_parallelism: number of key groups.
        selector: takes the key from a record (hash, custom).
        partition: (key, parallelism) to a subtask (custom).

    Returns:
        A function from a batch of records to the subtask's share. It counts records, so each log
        needs its own function, which must be called with all batches of the log in order.

    Raises:
        ProtocolError: for a broadcast edge, where each subtask has its own copy of a record;
            `compare_graph` refuses that before.
        JobError: from the function, if a key is refused or the partitioner returns no subtask.
    """
    if partitioning is Partitioning.BROADCAST:
        raise ProtocolError("the log of a broadcast edge cannot be redistributed")
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
            # No subtask would process such a record: it would be lost silently.
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
    """Selects every n-th record of a log, counted over its batches."""

    def __init__(self, subtask: int, parallelism: int) -> None:
        self._subtask, self._parallelism = subtask, parallelism
        self._seen = 0

    def __call__(self, records: list[Any]) -> list[Any]:
        first = (self._subtask - self._seen) % self._parallelism
        self._seen += len(records)
        return records[first :: self._parallelism]

"""Redistribute the in-flight log of an edge if its consumer was rescaled.

This module only selects records. `storage/in_flight_log.py` reads logs, and
`graph_compatibility.py` decides whether a log may be redistributed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.dataflow.errors import JobError, ProtocolError
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical


def redistribute_log(
    partitioning: Partitioning,
    *,
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    selector: Callable[[object], object] | None = None,
    partition: Callable[[object, int], int] | None = None,
) -> Callable[[list[object]], Sequence[int]]:
    """Return a function that selects the records of a log that one subtask processes.

    Exactly one subtask gets each record: the subtask to which the edge sends the record in the new
    program. If the partitioning allows any subtask, the records are distributed in turn.

    Arguments:
        partitioning: the partitioning of the edge in the new program.
        subtask: the index of the consumer's subtask.
        parallelism: the parallelism of the consumer in the new program.
        max_parallelism: the number of key groups.
        selector: the function that returns the key of a record; for HASH and CUSTOM.
        partition: the function that returns a subtask for a key and a parallelism; for CUSTOM.

    Returns:
        A function that takes a list of records, and returns the indices of this subtask's records.
        It counts records, so each log needs its own function, called with all batches in order.

    Raises:
        ProtocolError: if the edge is a broadcast edge, where each subtask has its own copy of a
            record. `compare_graph` already refuses to rescale the consumer of such an edge.
        JobError: raised by the returned function, if a key is refused, or if the partitioner
            returns an index that does not belong to a subtask.
    """
    if partitioning is Partitioning.BROADCAST:
        raise ProtocolError("the log of a broadcast edge cannot be redistributed")
    if partitioning is Partitioning.GLOBAL:
        return lambda records: range(len(records) if subtask == 0 else 0)
    if partitioning is Partitioning.HASH and selector is not None:

        def owner(record: object) -> int:
            group = key_group(canonical(selector(record)), max_parallelism)
            return subtask_of_key_group(group, max_parallelism, parallelism)

        return lambda records: [i for i, record in enumerate(records) if owner(record) == subtask]
    if partitioning is Partitioning.CUSTOM and selector is not None and partition is not None:

        def chosen(record: object) -> int:
            index = partition(selector(record), parallelism)
            # With a wrong index, no subtask would process the record, and it would be lost.
            if not 0 <= index < parallelism:
                raise JobError(
                    f"the partitioner returned {index!r}; it must return a whole number from 0 "
                    f"to {parallelism - 1}, the index of one of the {parallelism} subtasks",
                    record=repr(record)[:200],
                )
            return index

        return lambda records: [i for i, record in enumerate(records) if chosen(record) == subtask]
    if partitioning in (Partitioning.HASH, Partitioning.CUSTOM):
        raise ProtocolError(f"a {partitioning.value} edge without its functions")
    return _Turns(subtask, parallelism)


class _Turns:
    """Selects every n-th record of a log, where n is the parallelism.

    It counts the records of all batches, so it must be called with each batch in order.
    """

    def __init__(self, subtask: int, parallelism: int) -> None:
        self._subtask, self._parallelism = subtask, parallelism
        self._seen = 0

    def __call__(self, records: list[object]) -> Sequence[int]:
        first = (self._subtask - self._seen) % self._parallelism
        self._seen += len(records)
        return range(first, len(records), self._parallelism)

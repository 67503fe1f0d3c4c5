"""Divide Arrow batches by the subtasks of their keys.

The subtask follows from each distinct key of a batch, and a cache holds the subtasks of the keys.
So the hash is computed once per key, and no row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.dataflow.columns.column_key import DistinctKeys, distinct_keys
from penstock.runtime.serialization.arrow_batch import ArrowBatch

if TYPE_CHECKING:
    from penstock.dataflow.columns.key_index import KeyIndex

#: The number of keys in the cache. When it has more, it is cleared.
MAX_KEYS = 1 << 18


class ColumnRouter:
    """Divides Arrow batches by key columns.

    Arguments:
        names: the names of the columns of the key.
        subtask_of: a function that returns the subtask of a key, as for rows.
        parallelism: the number of subtasks.
    """

    def __init__(
        self, names: Sequence[str], subtask_of: Callable[[Any], int], parallelism: int
    ) -> None:
        self._names = names
        self._subtask_of = subtask_of
        self._index: KeyIndex | None = None
        self._parallelism = parallelism

    def split(self, batch: ArrowBatch) -> Iterator[tuple[int, ArrowBatch]]:
        """Yield the index of each subtask that gets rows, and its rows in their order.

        Raises:
            JobError: if a column of the key is missing, or a key is not allowed.
        """
        import numpy as np

        keys = distinct_keys(batch.arrow, self._names)
        subtasks = self._lookup(keys).astype(np.uint16)
        if (subtasks == subtasks[0]).all():
            yield int(subtasks[0]), batch
            return
        of_rows = subtasks[keys.codes]
        order = np.argsort(of_rows, kind="stable")
        sorted_rows = batch.select(order)
        ends = np.cumsum(np.bincount(of_rows, minlength=self._parallelism)).tolist()
        begin = 0
        for subtask, end in enumerate(ends):
            if end > begin:
                yield subtask, sorted_rows.slice(begin, end)
            begin = end

    def _lookup(self, keys: DistinctKeys) -> Any:
        if self._index is None:
            # Only jobs with Arrow batches have numpy.
            from penstock.dataflow.columns.key_index import KeyIndex

            self._index = KeyIndex(self._subtask_of, MAX_KEYS)
        return self._index.lookup(keys)

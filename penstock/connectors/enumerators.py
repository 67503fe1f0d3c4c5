"""An enumerator that assigns each split to a fixed subtask.

`ListEnumerator` assigns the next split to the first task that asks. That is right for files and
ranges, because a fast task should read more of them. It is wrong for splits that belong to one
subtask each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.dataflow.source import Split, SplitEnumerator

__all__ = ["SubtaskEnumerator"]


class SubtaskEnumerator(SplitEnumerator):
    """Assign split *i* to subtask *i*; after rescaling, *i* modulo the parallelism.

    Arguments:
        payloads: the payload of each split, by index.
        parallelism: number of readers.
    """

    def __init__(self, payloads: Sequence[Any], parallelism: int) -> None:
        self._left = dict(enumerate(payloads))
        self._parallelism = parallelism

    def next_split(self, subtask: int) -> Split | None:
        """Return the first split of this subtask that is left."""
        for index in sorted(self._left):
            if index % self._parallelism == subtask:
                return Split(str(index), self._left.pop(index))
        return None

    def snapshot(self) -> Any:
        """Return the splits that are left, with their indices."""
        return [[index, payload] for index, payload in sorted(self._left.items())]

    def restore(self, state: Any) -> None:
        """Restore the splits that were left."""
        self._left = dict(state)

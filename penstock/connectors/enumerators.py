"""A split enumerator that assigns each split to a fixed subtask.

`ListEnumerator` assigns the next split to whichever subtask requests one first. This suits files
and ranges, because a fast subtask then reads more of them. It does not suit sources that have one
split for each subtask. Such sources use `SubtaskEnumerator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.dataflow.source import Split, SplitEnumerator


class SubtaskEnumerator(SplitEnumerator):
    """Assigns split *i* to subtask *i* modulo the parallelism.

    At first there is one split for each subtask. After rescaling, a subtask may get several splits,
    or none.

    Arguments:
        payloads: the payloads of the splits, in the order of the splits' indices.
        parallelism: the number of readers.
    """

    def __init__(self, payloads: Sequence[Any], parallelism: int) -> None:
        self._left = dict(enumerate(payloads))
        self._parallelism = parallelism

    def next_split(self, subtask: int) -> Split | None:
        """Return the next unassigned split of a subtask, or None if there is none."""
        for index in sorted(self._left):
            if index % self._parallelism == subtask:
                return Split(str(index), self._left.pop(index))
        return None

    def snapshot(self) -> Any:
        """Return the unassigned splits as a list of [index, payload]."""
        return [[index, payload] for index, payload in sorted(self._left.items())]

    def restore(self, state: Any) -> None:
        """Restore the unassigned splits from a state that `snapshot` returned."""
        self._left = dict(state)

"""An enumerator that ties splits to subtasks.

`ListEnumerator` gives the next split to the task that asks first. That suits files and ranges, of
which a fast task should read more. It does not suit splits that are made for one subtask each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.dataflow.source import Split, SplitEnumerator

__all__ = ["SubtaskEnumerator"]


class SubtaskEnumerator(SplitEnumerator):
    """Hands split *i* to subtask *i*; after rescaling, to subtask *i* modulo the parallelism.

    Arguments:
        payloads: the payload of each split, by index.
        parallelism: how many readers there are.
    """

    def __init__(self, payloads: Sequence[Any], parallelism: int) -> None:
        self._left = dict(enumerate(payloads))
        self._parallelism = parallelism

    def next_split(self, subtask: int) -> Split | None:
        """The lowest split of this subtask that is left."""
        for index in sorted(self._left):
            if index % self._parallelism == subtask:
                return Split(str(index), self._left.pop(index))
        return None

    def snapshot(self) -> Any:
        """The splits that are left, with their indices."""
        return [[index, payload] for index, payload in sorted(self._left.items())]

    def restore(self, state: Any) -> None:
        """Take the splits that were left."""
        self._left = dict(state)

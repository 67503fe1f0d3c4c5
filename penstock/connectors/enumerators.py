"""An enumerator that ties splits to subtasks.

`ListEnumerator` gives the next split to whoever asks; that is wrong for splits that never end
or that are made for one subtask, since the first to ask could take two and leave another
subtask with nothing. It is not for files or ranges, where taking more is the point.
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

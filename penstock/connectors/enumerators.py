"""Split enumerators of sources that have one split for each subtask, or for each name.

`ListEnumerator` assigns the next split to whichever subtask requests one first. This suits files
and ranges, because a fast subtask then reads more of them. It does not suit sources that have one
split for each subtask. Such sources use `SubtaskEnumerator`.
"""

from __future__ import annotations

from abc import abstractmethod
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


class NamesEnumerator(SplitEnumerator):
    """Assigns one split for each name that the program gives a source, such as a stream.

    A resumed program may have more names, which are then looked up, or fewer.

    Arguments:
        names: the names, which are the ids of the splits.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._left: list[Split] = []
        self._known: list[str] = []

    @abstractmethod
    def find(self, names: list[str]) -> list[Split]:
        """Return the split of each name. This may block."""

    def start(self) -> None:
        """Find the splits of all names."""
        self._add(list(self._names))

    def next_split(self, subtask: int) -> Split | None:
        """Return the next split for any subtask, or None if all are assigned."""
        del subtask
        return self._left.pop(0) if self._left else None

    def snapshot(self) -> Any:
        """Return the splits that are not assigned, and the names that have been looked up."""
        left = [[split.id, split.payload] for split in self._left]
        return {"left": left, "known": list(self._known)}

    def restore(self, state: Any) -> None:
        """Restore the splits, and find those of names that the program has got since then."""
        self._left = [Split(id, payload) for id, payload in state["left"] if id in self._names]
        self._known = list(state["known"])
        self._add([name for name in self._names if name not in self._known])

    def _add(self, names: list[str]) -> None:
        if names:
            self._left += self.find(names)
            self._known += names

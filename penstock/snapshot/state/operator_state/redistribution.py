"""Divide the operator state of a snapshot among the subtasks of a restored job.

The rules are the same as in Flink's `RoundRobinOperatorStateRepartitioner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state.packing import PackedState

__all__ = ["redistribute"]


def redistribute(
    before: Mapping[int, Sequence[PackedState]], subtask: int, old: int, new: int
) -> list[PackedState]:
    """Return the operator state that one subtask restores.

    * Each subtask gets all elements of a union list.
    * If the parallelism has not changed, a subtask gets the lists and broadcast states that it had.
    * If it has changed, all elements of a list, in the order of the subtasks, are divided into runs
      of equal length. The first runs have one element more if the number does not divide evenly.
    * If it has changed, subtask i gets the broadcast states of subtask i modulo the old
      parallelism.

    Arguments:
        before: the states of each old subtask that had states, keyed by the index of the subtask.
        subtask: the index of the new subtask.
        old: the parallelism of the operator in the snapshot.
        new: the parallelism of the operator now.
    """
    modes = {state.name: state.mode for index in sorted(before) for state in before[index]}
    return [
        PackedState(name, mode, _share(name, mode, before, subtask, old, new))
        for name, mode in modes.items()
    ]


def _share(
    name: str,
    mode: StateMode,
    before: Mapping[int, Sequence[PackedState]],
    subtask: int,
    old: int,
    new: int,
) -> Sequence[bytes]:
    lists = {
        index: state.elements
        for index in sorted(before)
        for state in before[index]
        if state.name == name
    }
    if mode is StateMode.BROADCAST:
        # A subtask that had not opened its state yet has no entries. In that case, the entries of
        # another subtask are used.
        holders = list(lists)
        own = subtask % old
        return lists[own] if own in lists else lists[holders[subtask % len(holders)]]
    if mode is StateMode.SPLIT and old == new:
        return lists.get(subtask, ())
    everything = [element for elements in lists.values() for element in elements]
    if mode is StateMode.UNION:
        return everything
    share, more = divmod(len(everything), new)
    start = subtask * share + min(subtask, more)
    return everything[start : start + share + (subtask < more)]

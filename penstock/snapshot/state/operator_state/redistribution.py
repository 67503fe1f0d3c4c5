"""Divide the operator state of a snapshot among the subtasks of a restored job.

The rules are the same as in Flink's `RoundRobinOperatorStateRepartitioner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state.packing import PackedState

__all__ = ["redistribute"]


def redistribute(
    before: Mapping[int, Sequence[PackedState]], subtask: int, parallelism: int, *, rescaled: bool
) -> list[PackedState]:
    """Return the operator state that one subtask restores.

    * Each subtask gets all elements of a union list.
    * If the parallelism has not changed, a subtask gets its own lists and broadcast states.
    * Otherwise all elements of a list, in the order of the subtasks, are divided into runs of equal
      length. The first subtasks get one element more if the number does not divide evenly.
    * Otherwise subtask i gets the broadcast states of old subtask i modulo their number.

    Arguments:
        before: the states of each old subtask that had any, keyed by the index of the subtask.
        subtask: the index of the new subtask.
        parallelism: the parallelism of the operator now.
        rescaled: whether the parallelism has changed since the snapshot.
    """
    modes = {state.name: state.mode for index in sorted(before) for state in before[index]}
    result = []
    for name, mode in modes.items():
        lists = {
            index: state.elements
            for index in sorted(before)
            for state in before[index]
            if state.name == name
        }
        if mode is StateMode.BROADCAST:
            elements = _copy(lists, subtask, rescaled)
        elif mode is StateMode.SPLIT and not rescaled:
            elements = lists.get(subtask, ())
        else:
            elements = [element for part in lists.values() for element in part]
            if mode is StateMode.SPLIT:
                elements = _share(elements, subtask, parallelism)
        result.append(PackedState(name, mode, elements))
    return result


def _copy(copies: Mapping[int, Sequence[bytes]], subtask: int, rescaled: bool) -> Sequence[bytes]:
    if subtask in copies and not rescaled:
        return copies[subtask]
    # A subtask may lack its copy, because the state was new. Then it gets that of another one.
    holders = list(copies)
    return copies[holders[subtask % len(holders)]]


def _share(elements: Sequence[bytes], subtask: int, parallelism: int) -> Sequence[bytes]:
    share, more = divmod(len(elements), parallelism)
    start = subtask * share + min(subtask, more)
    return elements[start : start + share + (subtask < more)]

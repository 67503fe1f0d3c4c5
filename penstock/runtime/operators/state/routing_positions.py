"""Keep the positions of the partitioners behind an operator in its operator state.

A restarted task must send its records to the same tasks as before. `rebalance` and `rescale` depend
on how many records there were before, and `shuffle` on random numbers.
[Record 087](../../../../docs/inside/decisions/087-positions-of-partitioners.md) has the reasons.
"""

from __future__ import annotations

from typing import Any

from penstock.runtime.network.partitioners import PositionedPartitioner
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state import POSITIONS, ListElements, OperatorStateBackend


class RoutingPositions:
    """The positions of the partitioners behind one subtask of an operator.

    A position is restored only in the same subtask of a job whose parallelism has not changed.
    Otherwise the partitioner starts at its first position: the whole job restarts, so no receiver
    has counted its records.

    Arguments:
        backend: the operator state of the subtask.
        subtask: the index of the subtask.
        parallelism: the number of subtasks.
    """

    def __init__(self, backend: OperatorStateBackend, subtask: int, parallelism: int) -> None:
        self._backend = backend
        self._subtask, self._parallelism = subtask, parallelism
        self._partitioners: dict[tuple[Any, ...], PositionedPartitioner] = {}
        self._saved: ListElements | None = None

    def add(self, link: int, partitioner: PositionedPartitioner) -> None:
        """Add the partitioner of a link, before the positions are restored."""
        kind, outputs = type(partitioner).__name__, len(partitioner.outputs)
        place = self._subtask, self._parallelism, link, kind, outputs
        self._partitioners[place] = partitioner

    def restore(self) -> None:
        """Continue from the positions in the operator state, which is restored already."""
        self._saved = self._backend.list_state(POSITIONS, StateMode.SPLIT)
        restored: list[Any] = self._saved.values
        for *place, position in restored:
            if (partitioner := self._partitioners.get(tuple(place))) is not None:
                partitioner.restore_position(position)

    def save(self) -> None:
        """Put the positions into the operator state."""
        assert self._saved is not None
        self._saved.replace([*place, one.position] for place, one in self._partitioners.items())

"""The random numbers of an operator, which continue after a restore where the snapshot was taken.

[Record 086](../../../../docs/inside/decisions/086-random-numbers.md) explains the design.
"""

from __future__ import annotations

import random
from typing import Any

from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state import RANDOM_NUMBERS, OperatorStateBackend


class OperatorRandom(random.Random):
    """The generator that the function of an operator gets from its runtime context."""


class RandomNumbers:
    """The generator of one subtask of an operator, and its place in the operator state.

    A generator continues only in the same subtask at the same parallelism. After a change of the
    parallelism each subtask begins with a new one, because the old ones belong to other records.

    Arguments:
        backend: the operator state of the subtask, which is restored already.
        subtask: the index of the subtask.
        parallelism: the number of subtasks.
        seed: the seed of a new generator.
    """

    def __init__(
        self, backend: OperatorStateBackend, subtask: int, parallelism: int, seed: str
    ) -> None:
        self.generator = OperatorRandom(seed)
        self._place = subtask, parallelism
        self._saved = backend.list_state(RANDOM_NUMBERS, StateMode.SPLIT)
        restored: list[Any] = self._saved.values
        for index, subtasks, version, numbers, gauss in restored:
            if (index, subtasks) == self._place:
                self.generator.setstate((version, tuple(numbers), gauss))

    def save(self) -> None:
        """Put the state of the generator into the operator state."""
        version, numbers, gauss = self.generator.getstate()
        self._saved.replace([[*self._place, version, list(numbers), gauss]])

"""Operator state: state that belongs to a subtask and not to a key.

One `OperatorStateBackend` holds the operator state of one subtask in memory. There are lists, whose
elements are redistributed when the parallelism changes, and broadcast states, of which every
subtask has a copy. Other packages implement the state objects of users with them.

`backend.py` has the states and their capture, `packing.py` writes and reads them, and
`redistribution.py` divides the elements of a snapshot among the subtasks.
(Flink: `DefaultOperatorStateBackend`, `RoundRobinOperatorStateRepartitioner`.)
"""

from __future__ import annotations

from penstock.snapshot.state.operator_state.backend import (
    BroadcastEntries,
    ListElements,
    OperatorStateBackend,
)
from penstock.snapshot.state.operator_state.packing import (
    OperatorStateSnapshot,
    PackedState,
    read_operator_state,
)
from penstock.snapshot.state.operator_state.redistribution import redistribute

__all__ = [
    "BroadcastEntries",
    "ListElements",
    "OperatorStateBackend",
    "OperatorStateSnapshot",
    "PackedState",
    "read_operator_state",
    "redistribute",
]

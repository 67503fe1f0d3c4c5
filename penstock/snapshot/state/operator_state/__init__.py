"""Operator state: state that belongs to a subtask and not to a key.

One `OperatorStateBackend` holds the operator state of one subtask in memory. There are two kinds of
operator state. The elements of lists are redistributed when the parallelism changes. A broadcast
state has a copy in every subtask. Other packages implement the state objects of users with both.

`backend.py` contains the states and their capture, `packing.py` writes and reads them, and
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

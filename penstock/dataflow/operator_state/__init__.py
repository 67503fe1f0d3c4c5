"""Define the interface of operator state, which belongs to a subtask and not to a key.

A function gets lists by implementing `CheckpointedFunction`. Broadcast state belongs to the
functions of `penstock.dataflow.functions.broadcast_functions`.
"""

from __future__ import annotations

from penstock.dataflow.operator_state.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from penstock.dataflow.operator_state.checkpointed_function import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
)

__all__ = [
    "BroadcastState",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
]

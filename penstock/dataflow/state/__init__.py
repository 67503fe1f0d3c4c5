"""Define the interface of state: descriptors, state objects and the runtime context.

A function gets its keyed states in `open`, from descriptors that give them names. A state object
then always refers to the current key, which is the key of the record or timer that is being
processed.
`penstock.runtime.operators.state` implements the state objects, and `penstock.snapshot.state`
stores their contents.

Operator state belongs to a subtask and not to a key. A function gets lists of it by implementing
`CheckpointedFunction`. Broadcast state belongs to the functions of
`penstock.dataflow.functions.broadcast_functions`.
"""

from __future__ import annotations

from penstock.dataflow.state.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from penstock.dataflow.state.checkpointed_function import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
)
from penstock.dataflow.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from penstock.dataflow.state.runtime_context import KeyedStateStore, RuntimeContext
from penstock.dataflow.state.states import (
    AggregatingState,
    AppendingState,
    ListState,
    MapState,
    MergingState,
    ReducingState,
    State,
    ValueState,
)
from penstock.dataflow.state.time_to_live import StateTtlConfig

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AppendingState",
    "BroadcastState",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyedStateStore",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "RuntimeContext",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]

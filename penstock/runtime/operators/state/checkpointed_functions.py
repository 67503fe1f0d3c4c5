"""Call the functions with operator state: when they start, and at each barrier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dataflow.state import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedStateStore,
    OperatorStateStore,
)
from penstock.dataflow.state.checkpointed_function import checkpointed_function
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.state.operator_states import BackendStateStore
from penstock.snapshot.state.operator_state import OperatorStateSnapshot


@dataclass(frozen=True)
class _InitializationContext(FunctionInitializationContext):
    context: OperatorContext
    store: OperatorStateStore
    restored: int | None

    def is_restored(self) -> bool:
        return self.restored is not None

    def get_restored_checkpoint_id(self) -> int | None:
        return self.restored

    def get_operator_state_store(self) -> OperatorStateStore:
        return self.store

    def get_keyed_state_store(self) -> KeyedStateStore:
        return self.context


@dataclass(frozen=True)
class _SnapshotContext(FunctionSnapshotContext):
    number: int
    timestamp: int

    def get_checkpoint_id(self) -> int:
        return self.number

    def get_checkpoint_timestamp(self) -> int:
        return self.timestamp


def initialize_function(function: Any, context: OperatorContext) -> None:
    """Restore the operator state of the engine, and let the function restore its own.

    The function has some if it has a method `initialize_state`.

    Arguments:
        function: the function or the sink of the operator.
        context: the operator's place in the job; its operator state is restored already.
    """
    if context.positions is not None:
        context.positions.restore()
    checkpointed = checkpointed_function(function)
    if checkpointed is not None:
        backend = context.operator_state
        assert backend is not None
        store = BackendStateStore(backend)
        checkpointed.initialize_state(_InitializationContext(context, store, backend.restored_from))


def capture_operator_state(
    function: Any, context: OperatorContext, number: int, timestamp: int
) -> OperatorStateSnapshot | None:
    """Return the operator state as it is now, or None if there is none.

    The function puts the data for the snapshot into its state.

    Arguments:
        function: the function or the sink of the operator.
        context: the operator's place in the job.
        number: the number of the snapshot.
        timestamp: the current time, in milliseconds since the epoch.
    """
    checkpointed = checkpointed_function(function)
    if checkpointed is not None:
        checkpointed.snapshot_state(_SnapshotContext(number, timestamp))
    if context.random_numbers is not None:
        context.random_numbers.save()
    if context.positions is not None:
        context.positions.save()
    return None if context.operator_state is None else context.operator_state.capture()

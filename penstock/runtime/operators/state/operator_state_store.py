"""The store of the operator state of one subtask, as functions see it."""

from __future__ import annotations

from penstock.dataflow.arguments.aliases import UsedNames
from penstock.dataflow.state import (
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateStore,
)
from penstock.runtime.operators.state.operator_states import (
    OperatorListState,
    WritableBroadcastState,
)
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state import OperatorStateBackend

__all__ = ["BackendStateStore"]


class BackendStateStore(OperatorStateStore):
    """Returns the operator state of one subtask.

    Arguments:
        backend: the operator state of the subtask.
    """

    def __init__(self, backend: OperatorStateBackend) -> None:
        self._backend = backend
        self._names = UsedNames("states of one operator")

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """Return the list state with the descriptor's name."""
        return self._list(state_descriptor, StateMode.SPLIT)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """Return the union list state with the descriptor's name."""
        return self._list(state_descriptor, StateMode.UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState:
        """Return the broadcast state with the descriptor's name."""
        name, aliases = state_descriptor.name, state_descriptor.aliases
        self._names.add(name, aliases)
        return WritableBroadcastState(self._backend.broadcast_state(name, aliases))

    def get_registered_state_names(self) -> set[str]:
        """Return the names of all lists, with those of the snapshot that was restored."""
        modes = self._backend.modes.items()
        return {name for name, mode in modes if mode is not StateMode.BROADCAST}

    def get_registered_broadcast_state_names(self) -> set[str]:
        """Return the names of all broadcast states, with those of the restored snapshot."""
        modes = self._backend.modes.items()
        return {name for name, mode in modes if mode is StateMode.BROADCAST}

    def _list(self, state_descriptor: ListStateDescriptor, mode: StateMode) -> ListState:
        name, aliases = state_descriptor.name, state_descriptor.aliases
        self._names.add(name, aliases)
        return OperatorListState(self._backend.list_state(name, mode, aliases))

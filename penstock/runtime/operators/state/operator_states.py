"""The operator state of functions: lists, broadcast states, and the store that returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.dataflow.arguments.aliases import UsedNames
from penstock.dataflow.state import (
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    StateDescriptor,
)
from penstock.runtime.operators.state.migration import migration_of
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state import (
    BroadcastEntries,
    ListElements,
    OperatorStateBackend,
)


class OperatorListState(ListState):
    """A list of operator state.

    Arguments:
        elements: the elements of the list.
    """

    def __init__(self, elements: ListElements) -> None:
        self._elements = elements

    def get(self) -> list[Any]:
        """Return the elements in order. The list may change while a caller iterates over them."""
        return list(self._elements.values)

    def add(self, value: Any) -> None:
        """Append an element."""
        self._elements.values.append(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements."""
        self._elements.values.extend(values)

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements."""
        self._elements.replace(values)

    def clear(self) -> None:
        """Remove all elements."""
        self._elements.replace(())


class ReadOnlyView(ReadOnlyBroadcastState):
    """A broadcast state that cannot be changed.

    Arguments:
        entries: the entries of the state.
    """

    def __init__(self, entries: BroadcastEntries) -> None:
        self._entries = entries

    def get(self, key: Any) -> Any:
        """Return the value of `key`, or None if there is no such entry."""
        return self._entries.entries.get(key)

    def contains(self, key: Any) -> bool:
        """Return whether there is an entry with this key."""
        return key in self._entries.entries

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return all entries as pairs (key, value)."""
        return self._entries.entries.items()

    def keys(self) -> Iterable[Any]:
        """Return the keys of all entries."""
        return self._entries.entries.keys()

    def values(self) -> Iterable[Any]:
        """Return the values of all entries."""
        return self._entries.entries.values()

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return not self._entries.entries


class WritableBroadcastState(ReadOnlyView, BroadcastState):
    """A broadcast state that can be changed."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return all entries as pairs (key, value). The caller may change the state meanwhile."""
        return list(self._entries.entries.items())

    def keys(self) -> Iterable[Any]:
        """Return the keys of all entries. The caller may change the state meanwhile."""
        return list(self._entries.entries)

    def values(self) -> Iterable[Any]:
        """Return the values of all entries. The caller may change the state meanwhile."""
        return list(self._entries.entries.values())

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        self._entries.to_change()[key] = value

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Set all entries of a mapping."""
        self._entries.to_change().update(dict_value)

    def remove(self, key: Any) -> None:
        """Remove the entry with this key, if there is one."""
        self._entries.to_change().pop(key, None)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.to_change().clear()


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
        return WritableBroadcastState(broadcast_entries(self._backend, state_descriptor))

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
        state = self._backend.list_state(name, mode, aliases)
        migrate = _migration(self._backend, state_descriptor)
        if migrate is not None:
            state.replace(map(migrate, state.values))
        return OperatorListState(state)


def broadcast_entries(
    backend: OperatorStateBackend, descriptor: MapStateDescriptor
) -> BroadcastEntries:
    """Return the entries of a broadcast state, whose values have the version of the program."""
    state = backend.broadcast_state(descriptor.name, descriptor.aliases)
    migrate = _migration(backend, descriptor)
    if migrate is not None:
        entries = state.to_change()
        entries.update({key: migrate(value) for key, value in entries.items()})
    return state


def _migration(
    backend: OperatorStateBackend, descriptor: StateDescriptor
) -> Callable[[Any], Any] | None:
    """Return a function that converts the values of a restored state, if they are older."""
    stored = backend.version(descriptor.name)
    backend.set_version(descriptor.name, descriptor.version)
    return None if stored is None else migration_of(descriptor, stored)

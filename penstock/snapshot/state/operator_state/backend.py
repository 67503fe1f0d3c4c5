"""The operator state of one subtask: lists and broadcast states, which are held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from penstock.dataflow.errors import GraphError
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.operator_state.packing import OperatorStateSnapshot, PackedState
from penstock.snapshot.storage.decoding import Decoding

__all__ = ["BroadcastEntries", "ListElements", "OperatorStateBackend"]

_WORDS = {
    StateMode.SPLIT: "a list state",
    StateMode.UNION: "a union list state",
    StateMode.BROADCAST: "a broadcast state",
}


class ListElements:
    """The elements of a list state or of a union list state.

    Arguments:
        values: the restored elements.
    """

    def __init__(self, values: list[object]) -> None:
        self.values = values

    def replace(self, values: Iterable[object]) -> None:
        """Replace all elements by `values`."""
        self.values = list(values)

    def pack(self, codec: StateCodec) -> Sequence[bytes]:
        """Return the encoded elements as they are now."""
        # The function may have changed an element in place, so all elements are encoded.
        return codec.encode_values(self.values)


class BroadcastEntries:
    """The entries of a broadcast state.

    Arguments:
        entries: the restored entries.
        packed: the encoded entries, or None if they must be encoded.
    """

    def __init__(self, entries: dict[object, object], packed: Sequence[bytes] | None) -> None:
        self._entries = entries
        self._packed = packed

    @property
    def entries(self) -> dict[object, object]:
        """The entries, which the caller must not change."""
        return self._entries

    def to_change(self) -> dict[object, object]:
        """Return the entries, so that the caller can change them."""
        self._packed = None
        return self._entries

    def pack(self, codec: StateCodec) -> Sequence[bytes]:
        """Return the encoded entries as they are now.

        If the entries have not changed since the last snapshot, they are not encoded again.
        """
        if self._packed is None:
            self._packed = codec.encode_values(list(self._entries.items()))
        return self._packed


class OperatorStateBackend:
    """The operator state of one subtask.

    Arguments:
        name: the name of the operator, for error messages.
        codec: the codec, which encodes elements.
        restored_from: the number of the snapshot that the job continues from, or None.
    """

    def __init__(self, name: str, codec: StateCodec, restored_from: int | None = None) -> None:
        self.restored_from = restored_from
        self._name = name
        self._codec = codec
        #: The restored states that the function has not requested yet. Snapshots contain them.
        self._restored: dict[str, PackedState] = {}
        self._modes: dict[str, StateMode] = {}
        self._states: dict[str, ListElements | BroadcastEntries] = {}
        self._is_opening = True
        #: The names of the states of the restored snapshot.
        self._before: frozenset[str] = frozenset()

    def restore(self, states: Iterable[PackedState]) -> None:
        """Set the states of the snapshot from which the subtask is restored."""
        self._restored = {state.name: state for state in states}
        self._modes = {state.name: state.mode for state in self._restored.values()}
        self._before = frozenset(self._restored)

    def end_opening(self) -> tuple[dict[str, StateMode], dict[str, StateMode]]:
        """Return which restored states are gone, and which states are new, with their modes.

        Call this when the function has requested its states, and before its first record.
        """
        self._is_opening = False
        gone = {name: one.mode for name, one in self._restored.items() if one.elements}
        modes = self._modes.items()
        return gone, {name: mode for name, mode in modes if name not in self._before}

    def drop(self, name: str) -> None:
        """Remove a restored state that the function has not requested."""
        del self._restored[name], self._modes[name]

    @property
    def modes(self) -> dict[str, StateMode]:
        """The mode of each state, keyed by the name of the state. Restored states come first."""
        return dict(self._modes)

    def list_state(self, name: str, mode: StateMode, aliases: Sequence[str] = ()) -> ListElements:
        """Return the list state with this name, which is created if it does not exist.

        Arguments:
            name: the name of the state.
            mode: SPLIT or UNION.
            aliases: former names of the state. A restored state with such a name becomes this one.

        Raises:
            GraphError: if there is a state of another kind with this name, if the snapshot has
                states of two of the names, or if the operator is open already.
        """
        state = self._register(name, mode, aliases)
        if state is None:
            with self._decoding(name):
                values = list(map(self._codec.decode_value, self._take(name)))
            state = self._states[name] = ListElements(values)
        assert isinstance(state, ListElements)
        return state

    def broadcast_state(self, name: str, aliases: Sequence[str] = ()) -> BroadcastEntries:
        """Return the broadcast state with this name; see `list_state`."""
        state = self._register(name, StateMode.BROADCAST, aliases)
        if state is None:
            packed = self._take(name)
            with self._decoding(name):
                pairs = map(self._codec.decode_value, packed)
                entries = dict(cast("Iterable[tuple[object, object]]", pairs))
            state = self._states[name] = BroadcastEntries(entries, packed or None)
        assert isinstance(state, BroadcastEntries)
        return state

    def capture(self) -> OperatorStateSnapshot | None:
        """Return all states as they are now, or None if there is no state."""
        states = tuple(
            PackedState(
                name,
                mode,
                self._states[name].pack(self._codec)
                if name in self._states
                else self._restored[name].elements,
            )
            for name, mode in self._modes.items()
        )
        return OperatorStateSnapshot(states) if states else None

    def _register(
        self, name: str, mode: StateMode, aliases: Sequence[str]
    ) -> ListElements | BroadcastEntries | None:
        for alias in aliases:
            if alias in self._restored:
                self._rename(alias, name)
        if name not in self._modes and not self._is_opening:
            # Otherwise it would be unknown after a restore whether the program still has it.
            raise GraphError(
                f"operator {self._name!r} asked for {_WORDS[mode]} {name!r} while it ran: ask for "
                f"it in initialize_state"
            )
        was = self._modes.setdefault(name, mode)
        if was is not mode:
            where = "in the snapshot" if name in self._restored else "before"
            raise GraphError(
                f"operator {self._name!r} asked for {_WORDS[mode]} {name!r}, and {where} it was "
                f"{_WORDS[was]}: give the state another name"
            )
        return self._states.get(name)

    def _rename(self, alias: str, name: str) -> None:
        if name in self._before:
            raise GraphError(
                f"operator {self._name!r}: the snapshot has both a state {name!r} and a state "
                f"{alias!r}, so the latter is not the former name of the first: take it out of "
                f"the aliases"
            )
        state = self._restored.pop(alias)
        self._restored[name] = PackedState(name, state.mode, state.elements)
        self._modes = {name if one == alias else one: mode for one, mode in self._modes.items()}
        self._before = self._before - {alias} | {name}

    def _take(self, name: str) -> Sequence[bytes]:
        restored = self._restored.pop(name, None)
        return () if restored is None else restored.elements

    def _decoding(self, name: str) -> Decoding:
        state = f"the state {name!r} of operator {self._name!r} in snapshot {self.restored_from}"
        return Decoding(state)

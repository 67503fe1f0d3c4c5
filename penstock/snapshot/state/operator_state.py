"""The operator state of one subtask: state that belongs to a subtask and not to a key.

One `OperatorStateBackend` holds the operator state of one subtask in memory. There are two kinds of
operator state. The elements of lists are redistributed when the parallelism changes. A broadcast
state has a copy in every subtask. Other packages implement the state objects of users with both.

The module has three parts: snapshots that are written and read, the redistribution of a snapshot
among the subtasks of a restored job, and the states in memory.
(Flink: `DefaultOperatorStateBackend`, `RoundRobinOperatorStateRepartitioner`.)
`docs/reference/snapshot-format.md` describes the packed bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from penstock.dataflow.errors import GraphError, Recoverability, StoreError
from penstock.snapshot.metadata.handles import (
    FileRecord,
    OperatorStateEntry,
    OperatorStateHandle,
    SnapshotBytes,
    StateMode,
)
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.slices import Work
from penstock.snapshot.storage.decoding import Decoding
from penstock.snapshot.storage.filesystem.durable_files import write_file
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error

_LENGTH = struct.Struct(">I")
#: The names of the list states with the random numbers of an operator, and with the positions of
#: the partitioners behind it.
RANDOM_NUMBERS, POSITIONS = "penstock.random_numbers", "penstock.positions"
#: The states that the engine adds to those of a function. A program that no longer has one of them
#: loses nothing.
_OF_ENGINE = frozenset({RANDOM_NUMBERS, POSITIONS})


@dataclass(frozen=True)
class PackedState:
    """One operator state of one subtask, with encoded elements.

    Arguments:
        name: the name of the state.
        mode: the way in which the state is redistributed.
        elements: the encoded elements of a list, or the encoded entries of a broadcast state.
        version: the version of the elements, or of the values of the entries.
    """

    name: str
    mode: StateMode
    elements: Sequence[bytes]
    version: int = 1


@dataclass(frozen=True)
class OperatorStateSnapshot:
    """The operator state of one subtask as it was at a barrier.

    Arguments:
        states: all states of the subtask.
    """

    states: tuple[PackedState, ...]

    def write(
        self, path: Path, inline_threshold: int
    ) -> Work[tuple[OperatorStateHandle, SnapshotBytes]]:
        """Write the state, and return its handle and its size.

        Arguments:
            path: the file to create if the state is too large for its handle. The folder must
                exist. The caller makes the name of the file durable.
            inline_threshold: the largest size of a state that is stored in the handle, in bytes.

        Raises:
            StoreError: if the file cannot be written.
        """
        entries = tuple(
            OperatorStateEntry(state.name, state.mode, len(state.elements), state.version)
            for state in self.states
        )
        size = sum(
            len(element) + _LENGTH.size for state in self.states for element in state.elements
        )
        if size <= inline_threshold:
            return OperatorStateHandle(entries, self._pack()), SnapshotBytes(new=size)
        checksum = yield partial(self._write_file, path)
        assert isinstance(checksum, str)
        record = FileRecord(path.name, size, checksum)
        return OperatorStateHandle(entries, None, (record,)), SnapshotBytes(new=size)

    def _pack(self) -> bytes:
        parts: list[bytes] = []
        for state in self.states:
            for element in state.elements:
                parts += _LENGTH.pack(len(element)), element
        return b"".join(parts)

    def _write_file(self, path: Path) -> str:
        data = self._pack()
        with raising_store_error("write operator state", path):
            write_file(path, data)
        return _checksum(data)


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_operator_state(handle: OperatorStateHandle, folder: Path) -> list[PackedState]:
    """Return the operator states that a handle refers to.

    Arguments:
        handle: the handle of the operator state of one subtask.
        folder: the folder of the snapshot.

    Raises:
        StoreError: if the file is missing or damaged.
    """
    if handle.inline is not None:
        data, path = handle.inline, folder
    else:
        path = folder / handle.files[0].name
        with raising_store_error("read operator state", path):
            data = path.read_bytes()
        # A resume has checked all files of the snapshot, but a restart has not.
        if _checksum(data) != handle.files[0].checksum:
            raise _damaged("it has another checksum than recorded", path)
    elements = list(_elements(data, path))
    if len(elements) != sum(entry.elements for entry in handle.states):
        raise _damaged(f"it has {len(elements)} elements", path)
    states, start = [], 0
    for entry in handle.states:
        end = start + entry.elements
        states.append(PackedState(entry.name, entry.mode, elements[start:end], entry.version))
        start = end
    return states


def _elements(data: bytes, path: Path) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        begin = at + _LENGTH.size
        if begin > len(data):
            raise _damaged(f"it ends within the length at byte {at}", path)
        end = begin + _LENGTH.unpack_from(data, at)[0]
        if end > len(data):
            raise _damaged(f"the element at byte {at} is cut off", path)
        yield data[begin:end]
        at = end


def _damaged(problem: str, path: Path) -> StoreError:
    return StoreError(
        f"the operator state is damaged: {problem}; resume from another snapshot",
        path,
        recoverability=Recoverability.NON_RECOVERABLE,
    )


def redistribute(
    before: Mapping[int, Sequence[PackedState]], subtask: int, parallelism: int, *, rescaled: bool
) -> list[PackedState]:
    """Return the operator state that one subtask restores.

    * Each subtask gets all elements of a union list.
    * If the parallelism has not changed, a subtask gets its own lists and broadcast states.
    * Otherwise all elements of a list, in the order of the subtasks, are divided into runs of equal
      length. The first subtasks get one element more if the number does not divide evenly.
    * Otherwise subtask i gets the broadcast states of old subtask i modulo their number.

    Arguments:
        before: the states of each old subtask that had any, keyed by the index of the subtask.
        subtask: the index of the new subtask.
        parallelism: the parallelism of the operator now.
        rescaled: whether the parallelism has changed since the snapshot.
    """
    states = [state for index in sorted(before) for state in before[index]]
    kinds = {state.name: (state.mode, state.version) for state in states}
    result = []
    for name, (mode, version) in kinds.items():
        lists = {
            index: state.elements
            for index in sorted(before)
            for state in before[index]
            if state.name == name
        }
        if mode is StateMode.BROADCAST:
            elements = _copy(lists, subtask, rescaled)
        elif mode is StateMode.SPLIT and not rescaled:
            elements = lists.get(subtask, ())
        else:
            elements = [element for part in lists.values() for element in part]
            if mode is StateMode.SPLIT:
                elements = _share(elements, subtask, parallelism)
        result.append(PackedState(name, mode, elements, version))
    return result


def _copy(copies: Mapping[int, Sequence[bytes]], subtask: int, rescaled: bool) -> Sequence[bytes]:
    if subtask in copies and not rescaled:
        return copies[subtask]
    # A subtask may lack its copy, because the state was new. Then it gets that of another one.
    holders = list(copies)
    return copies[holders[subtask % len(holders)]]


def _share(elements: Sequence[bytes], subtask: int, parallelism: int) -> Sequence[bytes]:
    share, more = divmod(len(elements), parallelism)
    start = subtask * share + min(subtask, more)
    return elements[start : start + share + (subtask < more)]


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
        #: The version of each state whose values are not of version 1.
        self._versions: dict[str, int] = {}
        self._is_opening = True
        #: The names of the states of the restored snapshot.
        self._before: frozenset[str] = frozenset()

    def restore(self, states: Iterable[PackedState]) -> None:
        """Set the states of the snapshot from which the subtask is restored."""
        self._restored = {state.name: state for state in states}
        self._modes = {state.name: state.mode for state in self._restored.values()}
        self._versions = {state.name: state.version for state in self._restored.values()}
        self._before = frozenset(self._restored)

    def end_opening(self) -> tuple[dict[str, StateMode], dict[str, StateMode]]:
        """Return which restored states are gone, and which states are new, with their modes.

        Call this when the function has requested its states, and before its first record. States
        of the engine that the operator no longer has are dropped, since it loses nothing.
        """
        self._is_opening = False
        for name in _OF_ENGINE & self._restored.keys():
            self.drop(name)
        gone = {name: one.mode for name, one in self._restored.items() if one.elements}
        old = self._before | _OF_ENGINE
        return gone, {name: mode for name, mode in self._modes.items() if name not in old}

    def drop(self, name: str) -> None:
        """Remove a restored state that the function has not requested."""
        del self._restored[name], self._modes[name]
        self._versions.pop(name, None)

    def version(self, name: str) -> int | None:
        """Return the version of the values of a state, or None if the state is new."""
        return self._versions.get(name)

    def set_version(self, name: str, version: int) -> None:
        """Declare the version of the values of a state from now on."""
        self._versions[name] = version

    @property
    def is_opening(self) -> bool:
        """Whether the function may still request states for the first time."""
        return self._is_opening

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
                self._versions.get(name, 1),
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
        self._restored[name] = replace(state, name=name)
        self._versions[name] = self._versions.pop(alias)
        self._modes = {name if one == alias else one: mode for one, mode in self._modes.items()}
        self._before = self._before - {alias} | {name}

    def _take(self, name: str) -> Sequence[bytes]:
        restored = self._restored.pop(name, None)
        return () if restored is None else restored.elements

    def _decoding(self, name: str) -> Decoding:
        state = f"the state {name!r} of operator {self._name!r} in snapshot {self.restored_from}"
        return Decoding(state)

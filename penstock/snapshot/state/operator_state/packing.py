"""Write the operator state of a subtask into a snapshot, and read it back.

`docs/reference/snapshot-format.md` describes the packed bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.handles import (
    FileRecord,
    OperatorStateEntry,
    OperatorStateHandle,
    SnapshotBytes,
    StateMode,
)
from penstock.snapshot.state.slices import Work
from penstock.snapshot.storage.filesystem.durable_files import write_file
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error

__all__ = ["OperatorStateSnapshot", "PackedState", "read_operator_state"]

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class PackedState:
    """One operator state of one subtask, with encoded elements.

    Arguments:
        name: the name of the state.
        mode: the way in which the state is redistributed.
        elements: the encoded elements of a list, or the encoded entries of a broadcast state.
    """

    name: str
    mode: StateMode
    elements: Sequence[bytes]


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
            OperatorStateEntry(state.name, state.mode, len(state.elements)) for state in self.states
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
        states.append(PackedState(entry.name, entry.mode, elements[start:end]))
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

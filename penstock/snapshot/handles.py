"""What a task hands over for a snapshot, and what a manifest keeps of it.

Frozen records only; every field is a value that msgpack carries, and `to_wire`/`from_wire` turn a
record into plain lists and back. Nothing here reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["FileRecord", "KeyedHandle", "OperatorHandle", "SnapshotBytes"]


@dataclass(frozen=True)
class FileRecord:
    """One file of a snapshot.

    Arguments:
        name: path relative to the snapshot's folder, with forward slashes.
        size: bytes.
        checksum: hex BLAKE2b-128 of the whole content.
    """

    name: str
    size: int
    checksum: str


@dataclass(frozen=True)
class KeyedHandle:
    """The keyed state of one subtask of one operator, as a snapshot holds it.

    Arguments:
        first_group, end_group: the key groups it covers, `first_group <= group < end_group`.
        states: the names of its states; a state's id in the RocksDB keys is its index here.
        inline: all entries packed (see `docs/snapshot-format.md`), or None if in RocksDB.
        folder: folder of the RocksDB checkpoint, relative to the snapshot's folder, or None.
        files: the files of that folder.
    """

    first_group: int
    end_group: int
    states: tuple[str, ...]
    inline: bytes | None = None
    folder: str | None = None
    files: tuple[FileRecord, ...] = ()

    def to_wire(self) -> list[Any]:
        """A plain list for msgpack."""
        files = [[file.name, file.size, file.checksum] for file in self.files]
        states = list(self.states)
        return [self.first_group, self.end_group, states, self.inline, self.folder, files]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> KeyedHandle:
        """The record again."""
        first, end, states, inline, folder, files = wire
        records = tuple(FileRecord(*file) for file in files)
        return cls(first, end, tuple(states), inline, folder, records)


@dataclass(frozen=True)
class SnapshotBytes:
    """How large a part of a snapshot is: newly written, linked from before, and both together."""

    new: int = 0
    linked: int = 0

    @property
    def total(self) -> int:
        """All bytes that a restore reads or links."""
        return self.new + self.linked

    def __add__(self, other: SnapshotBytes) -> SnapshotBytes:
        return SnapshotBytes(self.new + other.new, self.linked + other.linked)


@dataclass(frozen=True)
class OperatorHandle:
    """The state of one subtask of one operator.

    Arguments:
        uid: the operator.
        subtask: index of the subtask.
        keyed: its keyed state, if it has any.
        small: a small value that travels in the manifest (source splits with positions, operator
            lists); None if there is none.
    """

    uid: str
    subtask: int
    keyed: KeyedHandle | None = None
    small: Any = None

    def to_wire(self) -> list[Any]:
        """A plain list for msgpack."""
        keyed = None if self.keyed is None else self.keyed.to_wire()
        return [self.uid, self.subtask, keyed, self.small]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> OperatorHandle:
        """The record again."""
        uid, subtask, keyed, small = wire
        return cls(uid, subtask, None if keyed is None else KeyedHandle.from_wire(keyed), small)

"""What a task hands over for a snapshot, and what a manifest keeps of it.

Frozen records only; every field is a value that msgpack carries, and `to_wire`/`from_wire` turn a
record into plain lists and back. Nothing here reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["OWN_INPUT", "FileRecord", "KeyedHandle", "LogHandle", "OperatorHandle", "SnapshotBytes"]


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


#: The `input` of a log of what a source had read and not yet processed: it is its own producer.
OWN_INPUT = -1


@dataclass(frozen=True)
class LogHandle:
    """The records that were in flight on one channel, as a snapshot holds them.

    The edge is identified by its producer, its consumer (the operator whose handle this is in)
    and the consumer's input; its target subtask is the handle's.

    Arguments:
        producer: uid of the operator that the edge comes from.
        input: index of the consumer's input.
        source: subtask of the producer.
        partitioning: how the edge spread records, by its name.
        records: how many there are.
        size: bytes of all frames.
        inline: the frames (see `docs/snapshot-format.md`), or None if they are in files.
        pieces: (index in `files`, start, end), in order; byte offsets of whole frames.
        files: the files; a spilled segment may hold more than the pieces of it.
    """

    producer: str
    input: int
    source: int
    partitioning: str
    records: int
    size: int
    inline: bytes | None = None
    pieces: tuple[tuple[int, int, int], ...] = ()
    files: tuple[FileRecord, ...] = ()

    def to_wire(self) -> list[Any]:
        """A plain list for msgpack."""
        files = [[file.name, file.size, file.checksum] for file in self.files]
        edge = [self.producer, self.input, self.source, self.partitioning]
        return [*edge, self.records, self.size, self.inline, [*map(list, self.pieces)], files]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> LogHandle:
        """The record again."""
        producer, input, source, partitioning, records, size, inline, pieces, files = wire
        return cls(
            producer,
            input,
            source,
            partitioning,
            records,
            size,
            inline,
            tuple((index, start, end) for index, start, end in pieces),
            tuple(FileRecord(*file) for file in files),
        )


@dataclass(frozen=True)
class OperatorHandle:
    """The state of one subtask of one operator.

    Arguments:
        uid: the operator.
        subtask: index of the subtask.
        keyed: its keyed state, if it has any.
        small: a small value that travels in the manifest (source splits with positions, operator
            lists); None if there is none.
        logs: of the edges that lead to it.
        ended: how often the end-of-input hooks of its task have run; 0 unless it is the first
            operator of the task, or has such a hook.
        emitted: whether the last of these runs emitted into the task's loop.
    """

    uid: str
    subtask: int
    keyed: KeyedHandle | None = None
    small: Any = None
    logs: tuple[LogHandle, ...] = ()
    ended: int = 0
    emitted: bool = False

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """All files of it: of keyed state and of logs."""
        logs = tuple(file for log in self.logs for file in log.files)
        return logs if self.keyed is None else self.keyed.files + logs

    def to_wire(self) -> list[Any]:
        """A plain list for msgpack."""
        keyed = None if self.keyed is None else self.keyed.to_wire()
        logs = [log.to_wire() for log in self.logs]
        return [self.uid, self.subtask, keyed, self.small, logs, self.ended, self.emitted]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> OperatorHandle:
        """The record again; of format 1 too, which ends after `small`."""
        uid, subtask, keyed, small, *rest = wire
        logs, ended, emitted = rest or ([], 0, False)
        return cls(
            uid,
            subtask,
            None if keyed is None else KeyedHandle.from_wire(keyed),
            small,
            tuple(LogHandle.from_wire(log) for log in logs),
            ended,
            emitted,
        )

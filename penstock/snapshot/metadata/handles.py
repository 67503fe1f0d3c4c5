"""Records of a task's snapshot, which a manifest contains.

All are frozen, and every field is a value that msgpack can pack. `to_wire` and `from_wire` turn a
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
        """Return the record as a plain list for msgpack."""
        files = [[file.name, file.size, file.checksum] for file in self.files]
        states = list(self.states)
        return [self.first_group, self.end_group, states, self.inline, self.folder, files]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> KeyedHandle:
        """Return the record in a list from `to_wire`."""
        first, end, states, inline, folder, files = wire
        records = tuple(FileRecord(*file) for file in files)
        return cls(first, end, tuple(states), inline, folder, records)


@dataclass(frozen=True)
class SnapshotBytes:
    """The size of a part of a snapshot, in bytes: newly written, and linked from earlier ones."""

    new: int = 0
    linked: int = 0

    @property
    def total(self) -> int:
        """Bytes that a restore reads or links."""
        return self.new + self.linked

    def __add__(self, other: SnapshotBytes) -> SnapshotBytes:
        return SnapshotBytes(self.new + other.new, self.linked + other.linked)


#: The `input` of a log of records that a source had read and not processed: it is the producer.
OWN_INPUT = -1


@dataclass(frozen=True)
class LogHandle:
    """The records that were in flight on one channel, as a snapshot holds them.

    The edge is identified by its producer, its consumer (the operator whose handle contains the
    log) and the consumer's input. Its target subtask is the handle's.

    Arguments:
        producer: uid of the producer.
        input: index of the consumer's input.
        source: subtask of the producer.
        partitioning: name of the edge's partitioning.
        records: number of records.
        size: bytes of all frames.
        inline: the frames (see `docs/snapshot-format.md`), or None if they are in files.
        pieces: (index in `files`, start, end), in order; byte offsets of whole frames.
        files: the files; a spilled segment may contain more than its pieces.
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
        """Return the record as a plain list for msgpack."""
        files = [[file.name, file.size, file.checksum] for file in self.files]
        edge = [self.producer, self.input, self.source, self.partitioning]
        return [*edge, self.records, self.size, self.inline, [*map(list, self.pieces)], files]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> LogHandle:
        """Return the record in a list from `to_wire`."""
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
        ended: number of rounds of end-of-input hooks that its task has run; 0 unless it is the
            first operator of the task, or has such a hook.
        emitted: whether the last of these rounds emitted into the task's loop.
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
        """The files of its keyed state and of its logs."""
        logs = tuple(file for log in self.logs for file in log.files)
        return logs if self.keyed is None else self.keyed.files + logs

    def to_wire(self) -> list[Any]:
        """Return the record as a plain list for msgpack."""
        keyed = None if self.keyed is None else self.keyed.to_wire()
        logs = [log.to_wire() for log in self.logs]
        return [self.uid, self.subtask, keyed, self.small, logs, self.ended, self.emitted]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> OperatorHandle:
        """Return the record in a list from `to_wire`; in format 1 it ends after `small`."""
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

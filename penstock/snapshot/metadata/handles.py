"""Define handles: the descriptions of a task's state and files in a manifest.

All classes are frozen, and every field has a value that msgpack can pack. `to_wire` converts a
handle to plain lists, and `from_wire` converts it back. This module does not read or write files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.snapshot.metadata.state_kind import StateKind

#: The last items of a keyed handle without states that need them.
_NO_STATES: list[list[Any]] = [[], [], [], []]


@dataclass(frozen=True)
class FileRecord:
    """Describes one file of a snapshot.

    Arguments:
        name: the path relative to the snapshot's folder, with forward slashes.
        size: the size of the file, in bytes.
        checksum: the BLAKE2b-128 checksum of the whole content, in hex.
    """

    name: str
    size: int
    checksum: str


@dataclass(frozen=True)
class KeyedHandle:
    """Describes the keyed state of one subtask of one operator in a snapshot.

    Arguments:
        first_group, end_group: the range of key groups, `first_group <= group < end_group`.
        states: the names of the states. The index of a name is the state's id in RocksDB keys.
        inline: all entries as packed bytes (see `docs/reference/snapshot-format.md`), or None if
            they are in RocksDB.
        folder: the folder of the RocksDB checkpoint, relative to the snapshot's folder, or None.
        files: the files in that folder.
        kinds: the kind of each state, in the order of `states`. Empty in a handle of an older
            format, in which all states are values.
        expiring: the ids of the states with a time to live. Each value is stored as a tuple
            (value, time in milliseconds since the epoch at which it expires).
        late: the ids of the states that the program did not request when it was opened, but later.
        versions: the version of the values of each state, if it is not 1, by the id of the state.
    """

    first_group: int
    end_group: int
    states: tuple[str, ...]
    inline: bytes | None = None
    folder: str | None = None
    files: tuple[FileRecord, ...] = ()
    kinds: tuple[StateKind, ...] = ()
    expiring: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()

    def version(self, state_id: int) -> int:
        """Return the version of the values of the state with this id."""
        return dict(self.versions).get(state_id, 1)

    def kind(self, state_id: int) -> StateKind:
        """Return the kind of the state with this id."""
        return self.kinds[state_id] if self.kinds else StateKind.VALUE

    def to_wire(self) -> list[Any]:
        """Return the handle as a plain list for msgpack.

        Few handles have late states or versions. Both items are left out if they are not needed.
        """
        wire = [
            self.first_group,
            self.end_group,
            list(self.states),
            self.inline,
            self.folder,
            [[file.name, file.size, file.checksum] for file in self.files],
            [kind.value for kind in self.kinds],
            list(self.expiring),
        ]
        if self.versions:
            return [*wire, list(self.late), [*map(list, self.versions)]]
        return [*wire, list(self.late)] if self.late else wire

    @classmethod
    def from_wire(cls, wire: list[Any]) -> KeyedHandle:
        """Create a handle from a list that `to_wire` returned.

        A list from a manifest of format 3 or lower has only the first six items.
        """
        first, end, states, inline, folder, files, *rest = wire
        kinds, expiring, late, versions = rest + _NO_STATES[len(rest) :]
        return cls(
            first,
            end,
            tuple(states),
            inline,
            folder,
            tuple(FileRecord(*file) for file in files),
            tuple(map(StateKind, kinds)),
            tuple(expiring),
            tuple(late),
            tuple((state_id, version) for state_id, version in versions),
        )


@dataclass(frozen=True)
class SnapshotBytes:
    """The size of a snapshot, or of a part of it.

    Arguments:
        new: the number of bytes that were newly written.
        linked: the number of bytes in files that are linked from earlier snapshots.
    """

    new: int = 0
    linked: int = 0

    @property
    def total(self) -> int:
        """The number of bytes that a restore reads or links."""
        return self.new + self.linked

    def __add__(self, other: SnapshotBytes) -> SnapshotBytes:
        return SnapshotBytes(self.new + other.new, self.linked + other.linked)


#: The value of `LogHandle.input` for records that a source had read but not yet processed. The
#: source is then both the producer and the consumer.
OWN_INPUT = -1


@dataclass(frozen=True)
class LogHandle:
    """Describes the in-flight log of one channel in a snapshot.

    The consumer is the operator whose `OperatorHandle` contains the log, and the target subtask is
    the subtask of that handle.

    Arguments:
        producer: the uid of the producer.
        input: the index of the consumer's input.
        source: the subtask of the producer.
        partitioning: the name of the edge's partitioning.
        records: the number of records.
        size: the size of all frames, in bytes.
        inline: the frames (see `docs/reference/snapshot-format.md`), or None if they are in files.
        pieces: the ranges of bytes in files that contain the frames, in order. Each is a tuple
            (index in `files`, start, end).
        files: the files of the log. A spilled segment may also contain frames that are not part of
            the log.
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
        """Return the handle as a plain list for msgpack."""
        files = [[file.name, file.size, file.checksum] for file in self.files]
        edge = [self.producer, self.input, self.source, self.partitioning]
        return [*edge, self.records, self.size, self.inline, [*map(list, self.pieces)], files]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> LogHandle:
        """Create a handle from a list that `to_wire` returned."""
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


class StateMode(Enum):
    """The way in which an operator state is given to the subtasks of a restored job.

    (Flink: `OperatorStateHandle.Mode`.)

    SPLIT: the elements of all subtasks are divided among the new subtasks.
    UNION: each new subtask gets the elements of all subtasks.
    BROADCAST: all subtasks have the same entries, and each new subtask gets those of one.
    """

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class OperatorStateEntry:
    """Describes one operator state of one subtask.

    Arguments:
        name: the name of the state.
        mode: the way in which the state is redistributed.
        elements: the number of elements of a list, or of entries of a broadcast state.
        version: the version of the elements, or of the values of the entries.
    """

    name: str
    mode: StateMode
    elements: int
    version: int = 1

    def to_wire(self) -> list[Any]:
        """Return the record as a plain list for msgpack. Version 1 is left out."""
        wire = [self.name, self.mode.value, self.elements]
        return wire if self.version == 1 else [*wire, self.version]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> OperatorStateEntry:
        """Create the record from a list that `to_wire` returned."""
        name, mode, elements, *version = wire
        return cls(name, StateMode(mode), elements, *version)


@dataclass(frozen=True)
class OperatorStateHandle:
    """Describes the operator state of one subtask of one operator in a snapshot.

    Arguments:
        states: the states, in the order of their elements in the packed bytes.
        inline: all elements as packed bytes (see `docs/reference/snapshot-format.md`), or None if
            they are in the file.
        files: the file with the packed bytes; empty if they are inline.
    """

    states: tuple[OperatorStateEntry, ...]
    inline: bytes | None = None
    files: tuple[FileRecord, ...] = ()

    def to_wire(self) -> list[Any]:
        """Return the handle as a plain list for msgpack."""
        files = [[file.name, file.size, file.checksum] for file in self.files]
        states = [state.to_wire() for state in self.states]
        return [states, self.inline, files]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> OperatorStateHandle:
        """Create the record from a list that `to_wire` returned."""
        states, inline, files = wire
        entries = map(OperatorStateEntry.from_wire, states)
        return cls(tuple(entries), inline, tuple(FileRecord(*file) for file in files))


@dataclass(frozen=True)
class EventTimeState:
    """The event time of one subtask of an operator in a snapshot.

    Arguments:
        watermark: the watermark of the task, in milliseconds since the epoch, if the operator is
            the first of its task; else None.
        generator: the state of the operator's watermark generator, or None.
        has_fired: whether the timers up to the watermark had fired at the barrier. It is unknown,
            and then False, in older snapshots.
        highest: the highest watermark for which timers and windows of the state have fired, if it
            is higher than `watermark`; else None.
    """

    watermark: int | None = None
    generator: list[int] | None = None
    has_fired: bool = False
    highest: int | None = None

    def to_wire(self) -> list[Any]:
        """Return the record as a plain list for msgpack. Older snapshots have two items only."""
        return [self.watermark, self.generator, self.has_fired, self.highest]


@dataclass(frozen=True)
class OperatorHandle:
    """Describes the state of one subtask of one operator in a snapshot.

    Arguments:
        uid: the uid of the operator.
        subtask: the index of the subtask.
        keyed: the handle of the keyed state, or None.
        small: a small value that is stored in the manifest itself, or None. Examples are the splits
            of a source with their positions.
        logs: the in-flight logs of the channels that lead to the subtask.
        ended: the number of rounds of end-of-input hooks that the task has run. It is 0 unless the
            operator is the first of its task, or has such a hook.
        emitted: whether the last of these rounds emitted a record into the task's loop.
        operator_state: the handle of the operator state, or None.
        event_time: the watermark of the subtask and the state of its watermark generator, or None.
    """

    uid: str
    subtask: int
    keyed: KeyedHandle | None = None
    small: Any = None
    logs: tuple[LogHandle, ...] = ()
    ended: int = 0
    emitted: bool = False
    operator_state: OperatorStateHandle | None = None
    event_time: EventTimeState | None = None

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files of the subtask's keyed state, of its logs and of its operator state."""
        files = () if self.keyed is None else self.keyed.files
        files += tuple(file for log in self.logs for file in log.files)
        return files if self.operator_state is None else files + self.operator_state.files

    def to_wire(self) -> list[Any]:
        """Return the handle as a plain list for msgpack."""
        keyed = None if self.keyed is None else self.keyed.to_wire()
        logs = [log.to_wire() for log in self.logs]
        # Parts that few handles have are in a map, so that a new kind of part changes no other.
        parts: dict[str, Any] = {}
        if self.operator_state is not None:
            parts["operator_state"] = self.operator_state.to_wire()
        if self.event_time is not None:
            parts["event_time"] = self.event_time.to_wire()
        return [self.uid, self.subtask, keyed, self.small, logs, self.ended, self.emitted, parts]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> OperatorHandle:
        """Create a handle from a list that `to_wire` returned.

        A list from a manifest of format 1 has only the first four items, and one from formats 2 and
        3 has no map of further parts.
        """
        uid, subtask, keyed, small, *rest = wire
        logs, ended, emitted, *further = rest or ([], 0, False)
        parts: dict[str, Any] = dict(further[0]) if further else {}
        operator_state, event_time = parts.get("operator_state"), parts.get("event_time")
        return cls(
            uid,
            subtask,
            None if keyed is None else KeyedHandle.from_wire(keyed),
            small,
            tuple(LogHandle.from_wire(log) for log in logs),
            ended,
            emitted,
            None if operator_state is None else OperatorStateHandle.from_wire(operator_state),
            None if event_time is None else EventTimeState(*event_time),
        )

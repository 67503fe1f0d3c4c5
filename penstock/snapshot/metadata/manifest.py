"""The manifest of a snapshot, and the records that it consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NewType

from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.protocols.events import SnapshotKind

__all__ = [
    "FORMAT",
    "Manifest",
    "OperatorEntry",
    "SnapshotInfo",
    "SnapshotKind",
    "SnapshotNumber",
]

#: The format of manifests that is written.
FORMAT = 3

SnapshotNumber = NewType("SnapshotNumber", int)


@dataclass(frozen=True)
class OperatorEntry:
    """An operator of the job graph, with the properties that resuming depends on.

    Arguments:
        uid: its identity between runs.
        name: its display name.
        kind: its kind; state is never restored into another kind.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        stateful: whether snapshots contain state of it (keyed or operator state, splits, timers).
            Logs of edges do not count.
    """

    uid: str
    name: str
    kind: str
    parallelism: int
    max_parallelism: int
    stateful: bool


@dataclass(frozen=True)
class Manifest:
    """The manifest: the record that makes a folder of files a snapshot.

    Arguments:
        job: name of the job.
        lineage: hex id of the line of snapshots that it belongs to; a fork begins a new one.
        parent: (lineage, number) of the snapshot that the run was resumed from, or None.
        number: its number; never used twice in a job's folder.
        kind: the reason for taking it.
        created_ms: time of creation, in milliseconds since the epoch.
        attempt: number of the execution attempt that took it.
        version: version of Penstock that wrote it.
        fingerprint: of the job graph; for reports only.
        operators: every operator of the job graph, with or without state.
        handles: the state of every subtask that has any.
        enumerators: uid of each source → result of its enumerator's `snapshot`.
        committables: staged output that is not confirmed as committed.
        types: the job's record classes; values refer to them by index.
        sizes: bytes newly written and linked.
        finished: whether the job had read all its input.
        format: format that it was read from; manifests are always written in `FORMAT`.
    """

    job: str
    lineage: str
    parent: tuple[str, int] | None
    number: SnapshotNumber
    kind: SnapshotKind
    created_ms: int
    attempt: int
    version: str
    fingerprint: str
    operators: tuple[OperatorEntry, ...] = ()
    handles: tuple[OperatorHandle, ...] = ()
    enumerators: dict[str, Any] = field(default_factory=dict)
    committables: tuple[Committable, ...] = ()
    types: tuple[RecordSchema, ...] = ()
    sizes: SnapshotBytes = field(default_factory=SnapshotBytes)
    finished: bool = False
    format: int = FORMAT


@dataclass(frozen=True)
class SnapshotInfo:
    """An entry of a listing: a snapshot, or the remains of one.

    Arguments:
        number: its number, from its folder's name.
        published: whether its manifest exists.
        kind, lineage, created_ms, size: from the manifest, if it can be read; size in bytes.
        problem: the reason why it cannot be restored; None if it can.
    """

    number: SnapshotNumber
    published: bool
    kind: SnapshotKind | None = None
    lineage: str | None = None
    created_ms: int | None = None
    size: int | None = None
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether its manifest can be restored from; its files are not checked."""
        return self.problem is None

"""Define the manifest of a snapshot, and the entries that it consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.protocols.events import SnapshotKind

#: The number of the format in which manifests are written.
FORMAT = 4

SnapshotNumber = NewType("SnapshotNumber", int)


@dataclass(frozen=True)
class OperatorEntry:
    """Describes an operator of the job graph, with the properties that matter for resuming.

    Arguments:
        uid: the id of the operator, which is the same in every run.
        name: the name that is shown to users.
        kind: the kind of operator. State is never restored into an operator of another kind.
        parallelism: the number of subtasks.
        max_parallelism: the number of key groups.
        stateful: whether snapshots contain state of the operator (keyed or operator state, splits,
            timers). In-flight logs do not count as state.
        key_version: the version of its keys, which the program declares.
    """

    uid: str
    name: str
    kind: str
    parallelism: int
    max_parallelism: int
    stateful: bool
    key_version: int = 1


@dataclass(frozen=True)
class Manifest:
    """Describes a complete snapshot.

    A folder of files is a snapshot only if it contains a manifest.

    Arguments:
        job: the name of the job.
        lineage: the id of the snapshot's lineage, in hex. A fork begins a new lineage.
        parent: the (lineage, number) of the snapshot that the run was resumed from, or None.
        number: the number of the snapshot. It is used only once in a job's folder.
        kind: the kind of snapshot: checkpoint, savepoint or final snapshot.
        created_ms: the time of creation, in milliseconds since the epoch.
        attempt: the number of the execution attempt that took the snapshot.
        version: the version of Penstock that wrote the manifest.
        fingerprint: the fingerprint of the job graph; used only in reports.
        operators: all operators of the job graph, with and without state.
        handles: the handles of all subtasks that have state.
        enumerators: maps the uid of each source to the state of its split enumerator.
        committables: staged output whose commit is not confirmed.
        types: the schemas of the job's record classes. Encoded values refer to them by index.
        sizes: the numbers of bytes that were newly written and linked.
        finished: whether the job had read all its input.
        format: the format that the manifest was read from. It is always written in `FORMAT`.
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
    enumerators: dict[str, object] = field(default_factory=dict)
    committables: tuple[Committable, ...] = ()
    types: tuple[RecordSchema, ...] = ()
    sizes: SnapshotBytes = field(default_factory=SnapshotBytes)
    finished: bool = False
    format: int = FORMAT


@dataclass(frozen=True)
class SnapshotInfo:
    """Describes a complete or incomplete snapshot in a listing.

    Arguments:
        number: the number of the snapshot, taken from the name of its folder.
        published: whether the snapshot has, or had, a manifest.
        kind, lineage, created_ms: the values in the manifest, or None if it cannot be read.
        size: the size of the snapshot in bytes, or None if the manifest cannot be read.
        problem: the reason why the snapshot cannot be restored, or None if it can be restored.
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
        """Whether the snapshot has an intact manifest. The snapshot's files are not checked."""
        return self.problem is None

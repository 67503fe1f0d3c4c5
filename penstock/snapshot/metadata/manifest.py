"""The manifest of a snapshot: the record that makes a folder of files a snapshot.

Nothing here opens a file, and nothing decides what a manifest means for a restore.
"""

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
    """One operator of the job graph, as far as resuming must know it.

    Arguments:
        uid: its identity between runs.
        name: its name as shown.
        kind: what sort of operator it is; state is never handed to another kind.
        parallelism: how many subtasks it had.
        max_parallelism: how many key groups it has.
        stateful: whether anything of its own lies in snapshots (keyed or operator state, splits,
            timers). Logs of edges do not count: what becomes of them is decided by edge.
    """

    uid: str
    name: str
    kind: str
    parallelism: int
    max_parallelism: int
    stateful: bool


@dataclass(frozen=True)
class Manifest:
    """What makes a folder of files a snapshot.

    Arguments:
        job: name of the job.
        lineage: hex id of the line of snapshots it belongs to; a fork has a new one.
        parent: (lineage, number) of the snapshot that the run was resumed from, or None.
        number: its number; never used twice in a job's folder.
        kind: why it was taken.
        created_ms: when, in milliseconds since the epoch.
        attempt: number of the execution attempt that took it.
        version: version of Penstock that wrote it.
        fingerprint: of the job graph; for people and reports, nothing is decided by it.
        operators: every operator of the job graph, with or without state.
        handles: the state of every subtask that has any.
        enumerators: uid of each source → what its enumerator's `snapshot` returned.
        committables: what is staged and not yet confirmed as committed.
        types: the job's record classes; values refer to them by index.
        sizes: bytes written anew and linked.
        finished: whether the job had read all its input.
        format: format of the bytes it came from; what is written is always `FORMAT`.
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
    """One line of a listing: a snapshot, or what is left of one.

    Arguments:
        number: its number, from its folder's name.
        published: whether its manifest exists.
        kind, lineage, created_ms, size: from the manifest, where that can be read; size in bytes.
        problem: why it cannot be restored from; None if it can.
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
        """Whether it can be restored from, as far as its manifest tells."""
        return self.problem is None

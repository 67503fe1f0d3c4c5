"""The manifest of a snapshot: its record, its bytes, and the names of all files of a job's folder.

Reader and writer of the format are both here, and `docs/snapshot-format.md` describes it. Nothing
in this module opens a file: `store.py` does, and `resolve.py` decides what a manifest means.

Invariants: the frame (magic, format, length, body, checksum) is the same in every format for
ever, so that an old Penstock can tell a newer manifest from a damaged one; and nobody but `Paths`
makes up the name of a file or folder.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NewType

from penstock.dataflow.errors import JobError, StoreError
from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.consistency import require_consistent
from penstock.snapshot.metadata.handles import OperatorHandle, SnapshotBytes
from penstock.snapshot.metadata.plain_values import (
    ALLOWED,
    NOT_PLAIN,
    pack_plain,
    require_plain,
    unpack_plain,
)
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.protocols.events import SnapshotKind

__all__ = [
    "FORMAT",
    "MAGIC",
    "Manifest",
    "OperatorEntry",
    "Paths",
    "SnapshotInfo",
    "SnapshotKind",
    "SnapshotNumber",
    "decode",
    "encode",
]

# On disk: never change these; a new layout of the body is a new FORMAT beside the old ones.
MAGIC = b"PENSTOCK"
FORMAT = 3
_HEADER = struct.Struct(">8sIQ")  # magic, format, length of the body in bytes
_CHECKSUM_BYTES = 16

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


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest. Equal manifests give equal bytes.

    Raises `JobError` if a source, sink or operator put something into it that msgpack cannot
    give back as it was (a tuple, a set, an object); the error names the culprit.
    """
    operators = [
        [
            entry.uid,
            entry.name,
            entry.kind,
            entry.parallelism,
            entry.max_parallelism,
            entry.stateful,
        ]
        for entry in manifest.operators
    ]
    body = {
        "job": manifest.job,
        "lineage": manifest.lineage,
        "parent": None if manifest.parent is None else list(manifest.parent),
        "number": manifest.number,
        "kind": SnapshotKind(manifest.kind).value,
        "created_ms": manifest.created_ms,
        "attempt": manifest.attempt,
        "version": manifest.version,
        "fingerprint": manifest.fingerprint,
        "operators": operators,
        "handles": [handle.to_wire() for handle in manifest.handles],
        "enumerators": dict(sorted(manifest.enumerators.items())),
        "committables": [[*item.identity, item.payload] for item in manifest.committables],
        "types": [schema.to_wire() for schema in manifest.types],
        "sizes": [manifest.sizes.new, manifest.sizes.linked],
        "finished": manifest.finished,
    }
    try:
        packed = pack_plain(body)
    except NOT_PLAIN as error:
        _require_plain_values(manifest)
        raise JobError(
            f"a value does not fit into a snapshot's manifest ({error}): {ALLOWED}"
        ) from error
    frame = _HEADER.pack(MAGIC, FORMAT, len(packed)) + packed
    return frame + _checksum(frame)


def decode(data: bytes, path: object) -> Manifest:
    """The manifest in `data`, which was read from `path` (named in errors, not opened).

    Raises `StoreError` if the data is truncated, altered, no manifest, or of a newer format.
    """
    if not data.startswith(MAGIC[: len(data)]):
        raise StoreError("this is not a manifest of Penstock: it begins otherwise", path)
    if len(data) < _HEADER.size:
        raise _truncated(len(data), f"at least {_HEADER.size}", path)
    _, version, length = _HEADER.unpack_from(data)
    expected = _HEADER.size + length + _CHECKSUM_BYTES
    if len(data) < expected:
        raise _truncated(len(data), str(expected), path)
    # The checksum comes before the format: a flipped bit in the format's number must be called
    # damage, and not send people looking for a Penstock that does not exist.
    if len(data) > expected or _checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
        raise StoreError(
            "the manifest was altered after it was written: its checksum differs; "
            "this snapshot cannot be used, resume from another one",
            path,
        )
    if version > FORMAT:
        raise StoreError(
            f"the manifest has format {version}, and this Penstock reads up to {FORMAT}: "
            "upgrade Penstock to the version that wrote it, or a later one",
            path,
        )
    try:
        body = unpack_plain(data[_HEADER.size : -_CHECKSUM_BYTES])
        manifest = _READERS[version](body, version)
        require_consistent(manifest)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        what = str(error) if type(error) is ValueError else repr(error)[:200]
        raise StoreError(
            f"the manifest is intact, but not what format {version} says ({what}): "
            "it was not written by a release of Penstock",
            path,
        ) from error
    return manifest


def _read(body: dict[str, Any], format: int) -> Manifest:
    parent = body["parent"]
    new, linked = body["sizes"]
    return Manifest(
        job=body["job"],
        lineage=body["lineage"],
        parent=None if parent is None else tuple(parent),
        number=SnapshotNumber(body["number"]),
        kind=SnapshotKind(body["kind"]),
        created_ms=body["created_ms"],
        attempt=body["attempt"],
        version=body["version"],
        fingerprint=body["fingerprint"],
        operators=tuple(OperatorEntry(*entry) for entry in body["operators"]),
        handles=tuple(OperatorHandle.from_wire(wire) for wire in body["handles"]),
        enumerators=body["enumerators"],
        committables=tuple(Committable(*wire) for wire in body["committables"]),
        types=tuple(_read_type(wire) for wire in body["types"]),
        sizes=SnapshotBytes(new, linked),
        finished=body["finished"],
        format=format,
    )


def _read_type(wire: Any) -> RecordSchema:
    # Formats 1 and 2 have the name only.
    return RecordSchema(wire) if isinstance(wire, str) else RecordSchema.from_wire(wire)


# Formats 1 and 2 differ in the handles of operators only, whose length shows which it is.
_READERS: dict[int, Callable[[dict[str, Any], int], Manifest]] = {1: _read, 2: _read, 3: _read}


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


def _truncated(found: int, expected: str, path: object) -> StoreError:
    return StoreError(
        f"the manifest is truncated: {found} bytes, expected {expected}; "
        "this snapshot cannot be used, resume from another one",
        path,
    )


def _require_plain_values(manifest: Manifest) -> None:
    for uid, value in manifest.enumerators.items():
        require_plain("enumerator's state", value, uid)
    for item in manifest.committables:
        require_plain("committable's payload", item.payload, item.uid)
    for handle in manifest.handles:
        require_plain("operator's state", handle.small, handle.uid)


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_SNAPSHOT_NAME = re.compile(r"[0-9]{6,}")
_ATTEMPT_NAME = re.compile(r"[0-9]+", re.ASCII)
#: Also the form in which a source prepares its folder; see `make_pin`.
_SOURCE_NAME = re.compile(r"\.?[A-Za-z0-9_-]{0,40}\.[0-9a-f]{16}(\.[0-9a-f]{8})?")
#: The files that are written under a temporary name first. Only these names are ever removed.
_TEMPORARY_NAME = re.compile(r"(job|numbers|commits|manifest|probe2?)\.[0-9]+\.tmp", re.ASCII)


@dataclass(frozen=True)
class Paths:
    """The name of every file and folder of a job's checkpoint folder.

    Arguments:
        root: the job's checkpoint folder.
    """

    root: Path

    @property
    def lock(self) -> Path:
        """The file that the JobManager holds locked for life."""
        return self.root / "lock"

    @property
    def job(self) -> Path:
        """The identity file: whose folder this is."""
        return self.root / "job"

    @property
    def numbers(self) -> Path:
        """The record of which snapshot numbers were given out."""
        return self.root / "numbers"

    @property
    def commits(self) -> Path:
        """The record of which output is known to be published."""
        return self.root / "commits"

    @property
    def checkpoints(self) -> Path:
        """The folder of all snapshots, savepoints too: they share one sequence of numbers."""
        return self.root / "checkpoints"

    @property
    def staging(self) -> Path:
        """Where sinks stage that have no better place."""
        return self.root / "staging"

    @property
    def sources(self) -> Path:
        """Where sources keep what a resumed job reads again."""
        return self.root / "sources"

    def source(self, uid: str) -> Path:
        """The folder in which a source keeps what a resumed job reads again."""
        return self.sources / self.task_name(uid, 0, 0).removesuffix(".0.0")

    def snapshot(self, number: int) -> Path:
        """The folder of one snapshot; names in `FileRecord` are relative to it."""
        return self.checkpoints / f"{number:06d}"

    def manifest(self, number: int) -> Path:
        """The manifest of one snapshot."""
        return self.snapshot(number) / "manifest"

    def task(self, number: int, uid: str, subtask: int, attempt: int) -> Path:
        """The folder of what one subtask wrote for one snapshot."""
        return self.snapshot(number) / self.task_name(uid, subtask, attempt)

    def log(self, number: int, uid: str, subtask: int, attempt: int, place: int) -> Path:
        """The folder of one of the logs of edges that one subtask wrote for one snapshot."""
        name = self.task_name(uid, subtask, attempt)
        return self.snapshot(number) / f"{name}.log{place}"

    @property
    def work_root(self) -> Path:
        """Where the local folders of all attempts lie."""
        return self.root / "work"

    @property
    def parent(self) -> Paths:
        """Where a fork keeps the snapshot that it started from."""
        return Paths(self.work_root / "parent")

    def work(self, attempt: int) -> Path:
        """Where the workers of one attempt have their local folders."""
        return self.work_root / str(attempt)

    def task_work(self, attempt: int, uid: str, subtask: int) -> Path:
        """The local working folder of one subtask."""
        return self.work(attempt) / self.task_name(uid, subtask, attempt)

    def spill(self, attempt: int, link: int, source: int, target: int) -> Path:
        """The local folder for what one back-edge channel does not hold in memory."""
        return self.work(attempt) / f"back-edge.{link}.{source}.{target}"

    @staticmethod
    def task_name(uid: str, subtask: int, attempt: int) -> str:
        """A folder's name for a subtask: at most 40 characters of the uid, its hash, the numbers.

        Any uid will do. The hash keeps uids apart that look the same when made safe, cut, or
        compared without case, as some file systems do.
        """
        digest = hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{_UNSAFE.sub('_', uid)[:40]}.{digest}.{subtask}.{attempt}"

    @staticmethod
    def temporary(path: Path, owner: int) -> Path:
        """Where process `owner` writes what is to become `path`."""
        return path.with_name(f"{path.name}.{owner}.tmp")

    @staticmethod
    def is_temporary(name: str) -> bool:
        """Return whether `temporary` made this name, for a file of a job's folder."""
        return _TEMPORARY_NAME.fullmatch(name) is not None

    @staticmethod
    def is_attempt(name: str) -> bool:
        """Return whether `work` made this name."""
        return _ATTEMPT_NAME.fullmatch(name) is not None

    @staticmethod
    def is_source(name: str) -> bool:
        """Return whether this is the name of a source's folder, or of one in the making."""
        return _SOURCE_NAME.fullmatch(name) is not None

    @staticmethod
    def number_of(name: str) -> SnapshotNumber | None:
        """The snapshot number that a folder's name says, or None if it is no snapshot's folder."""
        if not _SNAPSHOT_NAME.fullmatch(name) or f"{int(name):06d}" != name:
            return None
        return SnapshotNumber(int(name))

    @classmethod
    def locate(cls, path: Path) -> tuple[Paths, SnapshotNumber | None]:
        """The job's folder that `path` points into, and the snapshot if it points to one.

        `path` may be a job's checkpoint folder, a snapshot's folder or its manifest.
        """
        path = path.absolute()
        folder = path.parent if path.name == "manifest" else path
        number = cls.number_of(folder.name)
        if number is None or folder.parent.name != "checkpoints":
            return cls(path), None
        return cls(folder.parent.parent), number

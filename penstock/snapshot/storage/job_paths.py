"""The names of all files and folders of a job's checkpoint folder.

Only this module makes up such names.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.snapshot.metadata.manifest import SnapshotNumber

__all__ = ["JobPaths"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_SNAPSHOT_NAME = re.compile(r"[0-9]{6,}")
_ATTEMPT_NAME = re.compile(r"[0-9]+", re.ASCII)
#: Also the form in which a source prepares its folder; see `make_pin`.
_SOURCE_NAME = re.compile(r"\.?[A-Za-z0-9_-]{0,40}\.[0-9a-f]{16}(\.[0-9a-f]{8})?")
#: The files that are written under a temporary name first. Only these names are ever removed.
_TEMPORARY_NAME = re.compile(r"(job|numbers|commits|manifest|probe2?)\.[0-9]+\.tmp", re.ASCII)


@dataclass(frozen=True)
class JobPaths:
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
    def parent(self) -> JobPaths:
        """Where a fork keeps the snapshot that it started from."""
        return JobPaths(self.work_root / "parent")

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
    def locate(cls, path: Path) -> tuple[JobPaths, SnapshotNumber | None]:
        """The job's folder that `path` points into, and the snapshot if it points to one.

        `path` may be a job's checkpoint folder, a snapshot's folder or its manifest.
        """
        path = path.absolute()
        folder = path.parent if path.name == "manifest" else path
        number = cls.number_of(folder.name)
        if number is None or folder.parent.name != "checkpoints":
            return cls(path), None
        return cls(folder.parent.parent), number

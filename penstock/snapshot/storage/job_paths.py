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
        """The file that a JobManager locks until it ends."""
        return self.root / "lock"

    @property
    def job(self) -> Path:
        """The identity file: the name of the job that owns the folder."""
        return self.root / "job"

    @property
    def numbers(self) -> Path:
        """The record of the snapshot numbers that were given out."""
        return self.root / "numbers"

    @property
    def commits(self) -> Path:
        """The record of the output that is known to be published."""
        return self.root / "commits"

    @property
    def checkpoints(self) -> Path:
        """The folder of all snapshots, savepoints too: they share one sequence of numbers."""
        return self.root / "checkpoints"

    @property
    def staging(self) -> Path:
        """The folder in which sinks without a better place stage output."""
        return self.root / "staging"

    @property
    def sources(self) -> Path:
        """The folder of all sources' data for resumed jobs."""
        return self.root / "sources"

    def source(self, uid: str) -> Path:
        """Return the folder of a source's data, which a resumed job reads again."""
        return self.sources / self.task_name(uid, 0, 0).removesuffix(".0.0")

    def snapshot(self, number: int) -> Path:
        """Return the folder of a snapshot; names in `FileRecord` are relative to it."""
        return self.checkpoints / f"{number:06d}"

    def manifest(self, number: int) -> Path:
        """Return the manifest of a snapshot."""
        return self.snapshot(number) / "manifest"

    def task(self, number: int, uid: str, subtask: int, attempt: int) -> Path:
        """Return the folder of the files of a subtask for a snapshot."""
        return self.snapshot(number) / self.task_name(uid, subtask, attempt)

    def log(self, number: int, uid: str, subtask: int, attempt: int, place: int) -> Path:
        """Return the folder of an edge's log, written by a subtask for a snapshot."""
        name = self.task_name(uid, subtask, attempt)
        return self.snapshot(number) / f"{name}.log{place}"

    @property
    def work_root(self) -> Path:
        """The folder of all attempts' local folders."""
        return self.root / "work"

    @property
    def parent(self) -> JobPaths:
        """The folder in which a fork keeps the snapshot that it started from."""
        return JobPaths(self.work_root / "parent")

    def work(self, attempt: int) -> Path:
        """Return the folder of the local folders of an attempt's workers."""
        return self.work_root / str(attempt)

    def task_work(self, attempt: int, uid: str, subtask: int) -> Path:
        """Return the local working folder of a subtask."""
        return self.work(attempt) / self.task_name(uid, subtask, attempt)

    def spill(self, attempt: int, link: int, source: int, target: int) -> Path:
        """Return the local folder for the spilled records of a back-edge channel."""
        return self.work(attempt) / f"back-edge.{link}.{source}.{target}"

    @staticmethod
    def task_name(uid: str, subtask: int, attempt: int) -> str:
        """Return a folder's name for a subtask: part of the uid, its hash, and the numbers.

        The hash distinguishes uids that become equal when they are shortened, when unsafe
        characters are replaced, or on a file system that ignores case.
        """
        digest = hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{_UNSAFE.sub('_', uid)[:40]}.{digest}.{subtask}.{attempt}"

    @staticmethod
    def temporary(path: Path, owner: int) -> Path:
        """Return the path at which process `owner` writes the future content of `path`."""
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
        """Return whether this is the name of a source's folder, or of an unfinished one."""
        return _SOURCE_NAME.fullmatch(name) is not None

    @staticmethod
    def number_of(name: str) -> SnapshotNumber | None:
        """Return the number in the name of a snapshot's folder; None for other names."""
        if not _SNAPSHOT_NAME.fullmatch(name) or f"{int(name):06d}" != name:
            return None
        return SnapshotNumber(int(name))

    @classmethod
    def locate(cls, path: Path) -> tuple[JobPaths, SnapshotNumber | None]:
        """Return the job's folder that contains `path`, and the number if it is a snapshot.

        Arguments:
            path: a job's checkpoint folder, a snapshot's folder or its manifest.
        """
        path = path.absolute()
        folder = path.parent if path.name == "manifest" else path
        number = cls.number_of(folder.name)
        if number is None or folder.parent.name != "checkpoints":
            return cls(path), None
        return cls(folder.parent.parent), number

"""Name all files and folders in a job's checkpoint folder.

No other module constructs such names.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from penstock.snapshot.metadata.manifest import SnapshotNumber

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_SNAPSHOT_NAME = re.compile(r"[0-9]{6,}")
_ATTEMPT_NAME = re.compile(r"[0-9]+", re.ASCII)
#: The form of the names of folders with a source's data. While `make_pin` prepares such a folder,
#: the name begins with a dot and has a random suffix.
_SOURCE_NAME = re.compile(r"\.?[A-Za-z0-9_-]{0,40}\.[0-9a-f]{16}(\.[0-9a-f]{8})?")
#: The form of the names of temporary files. Only files with such names are removed as leftovers of
#: a crash.
_TEMPORARY_NAME = re.compile(
    r"(job|numbers|commits|origin|manifest|probe2?)\.[0-9]+\.tmp", re.ASCII
)


@dataclass(frozen=True)
class JobPaths:
    """The paths of all files and folders in a job's checkpoint folder.

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
        """The file that records which snapshot numbers were given out."""
        return self.root / "numbers"

    @property
    def commits(self) -> Path:
        """The file that records which output is known to be published."""
        return self.root / "commits"

    @property
    def checkpoints(self) -> Path:
        """The folder of all snapshots. It contains both checkpoints and savepoints."""
        return self.root / "checkpoints"

    @property
    def origin(self) -> Path:
        """The file with the URL of the object store that has the job's snapshots."""
        return self.root / "origin"

    @property
    def claimed(self) -> Path:
        """The file that names the snapshot of another job that this job owns."""
        return self.root / "claimed"

    @property
    def fetched_from(self) -> Path:
        """The file with the URL of the object store from which snapshots were copied to read."""
        return self.root / "fetched-from"

    @property
    def fetched(self) -> Path:
        """The folder for a snapshot of an object store while a fork is started from it."""
        return self.work_root / "fetched"

    @property
    def staging(self) -> Path:
        """The folder in which sinks without a staging folder stage output."""
        return self.root / "staging"

    @property
    def leases(self) -> Path:
        """The folder of the leases of processes that read snapshots."""
        return self.root / "leases"

    def lease(self, number: int, token: str) -> Path:
        """Return the path of the lease of one reader of a snapshot.

        Arguments:
            number: the number of the snapshot.
            token: a text that no other reader has.
        """
        return self.leases / f"{number:06d}.{token}"

    @property
    def sources(self) -> Path:
        """The folder of the data that sources keep for a resumed job."""
        return self.root / "sources"

    def source(self, uid: str) -> Path:
        """Return the folder for the data of a source that a resumed job reads again."""
        return self.sources / self.task_name(uid, 0, 0).removesuffix(".0.0")

    def snapshot(self, number: int) -> Path:
        """Return the folder of a snapshot. The names in `FileRecord` are relative to it."""
        return self.checkpoints / f"{number:06d}"

    def manifest(self, number: int) -> Path:
        """Return the path of the manifest of a snapshot."""
        return self.snapshot(number) / "manifest"

    def task(self, number: int, uid: str, subtask: int, attempt: int) -> Path:
        """Return the folder into which a subtask writes its files for a snapshot."""
        return self.snapshot(number) / self.task_name(uid, subtask, attempt)

    def log(self, number: int, uid: str, subtask: int, attempt: int, place: int) -> Path:
        """Return the folder into which a subtask writes the log of one channel for a snapshot.

        Arguments:
            number: the number of the snapshot.
            uid: the uid of the operator.
            subtask: the index of the subtask.
            attempt: the number of the execution attempt.
            place: the index of the log among the logs of the subtask.
        """
        name = self.task_name(uid, subtask, attempt)
        return self.snapshot(number) / f"{name}.log{place}"

    def operator_state(self, number: int, uid: str, subtask: int, attempt: int) -> Path:
        """Return the file into which a subtask writes its operator state for a snapshot."""
        return self.snapshot(number) / f"{self.task_name(uid, subtask, attempt)}.state"

    @property
    def work_root(self) -> Path:
        """The folder that contains the local working folders of all execution attempts."""
        return self.root / "work"

    @property
    def parent(self) -> JobPaths:
        """The folder in which a fork keeps the files of the snapshot that it started from."""
        return JobPaths(self.work_root / "parent")

    def work(self, attempt: int) -> Path:
        """Return the folder that contains the local working folders of one attempt."""
        return self.work_root / str(attempt)

    def task_work(self, attempt: int, uid: str, subtask: int) -> Path:
        """Return the local working folder of a subtask."""
        return self.work(attempt) / self.task_name(uid, subtask, attempt)

    def spill(self, attempt: int, link: int, source: int, target: int) -> Path:
        """Return the local folder for the spilled records of a back-edge channel."""
        return self.work(attempt) / f"back-edge.{link}.{source}.{target}"

    @staticmethod
    def task_name(uid: str, subtask: int, attempt: int) -> str:
        """Return the name of a subtask's folder.

        The name consists of the first part of the uid, a hash of the uid, the subtask and the
        attempt. The hash distinguishes uids that become equal when they are shortened, when unsafe
        characters are replaced, or on a file system that ignores case.
        """
        digest = hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{_UNSAFE.sub('_', uid)[:40]}.{digest}.{subtask}.{attempt}"

    @staticmethod
    def temporary(path: Path, owner: int) -> Path:
        """Return the path of the temporary file for the new content of `path`.

        Arguments:
            path: the file that gets the content in the end.
            owner: the id of the process that writes the content.
        """
        return path.with_name(f"{path.name}.{owner}.tmp")

    @staticmethod
    def is_temporary(name: str) -> bool:
        """Return whether this is the name of a temporary file of a job's folder."""
        return _TEMPORARY_NAME.fullmatch(name) is not None

    @staticmethod
    def is_attempt(name: str) -> bool:
        """Return whether this is the name of an attempt's working folder."""
        return _ATTEMPT_NAME.fullmatch(name) is not None

    @staticmethod
    def is_source(name: str) -> bool:
        """Return whether this is the name of a source's folder, complete or unfinished."""
        return _SOURCE_NAME.fullmatch(name) is not None

    @staticmethod
    def number_of(name: str) -> SnapshotNumber | None:
        """Return the snapshot number if this is the name of a snapshot's folder, else None."""
        if not _SNAPSHOT_NAME.fullmatch(name) or f"{int(name):06d}" != name:
            return None
        return SnapshotNumber(int(name))

    @classmethod
    def locate(cls, path: Path) -> tuple[JobPaths, SnapshotNumber | None]:
        """Return the paths of the job that `path` belongs to, and the number of the snapshot.

        Arguments:
            path: a job's checkpoint folder, a snapshot's folder, or a snapshot's manifest.

        Returns:
            The paths of the job's folder, and the snapshot's number. The number is None if `path`
            is not a snapshot.
        """
        path = path.absolute()
        folder = path.parent if path.name == "manifest" else path
        number = cls.number_of(folder.name)
        if number is None or folder.parent.name != "checkpoints":
            return cls(path), None
        return cls(folder.parent.parent), number

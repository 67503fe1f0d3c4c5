"""The store of a job's snapshots: a folder in which a manifest makes a snapshot.

The order of the file operations guarantees:

* a snapshot is complete because its manifest exists; nothing else records it;
* a manifest appears whole or not at all, after everything it names, and at most once
  (`manifest_publisher.py`);
* a snapshot's manifest is durably removed before the first of its files is (`retention.py`);
* a number that was given out is never given out again, crash or not (`snapshot_numbers.py`).

This holds on a file system that loses any part of the unsynced changes in a crash;
`MemoryFileSystem` simulates one. The store does not know what the files of a task contain, nor
which snapshot a job starts from (`coordination/restore_decision.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import Manifest, SnapshotNumber
from penstock.snapshot.storage.confirmed_output import Confirmed, read_confirmed, write_confirmed
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.folder_lock import FolderLock
from penstock.snapshot.storage.job_identity import JobIdentity
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.manifest_publisher import ManifestPublisher
from penstock.snapshot.storage.retention import Retention
from penstock.snapshot.storage.snapshot_numbers import NumberRecord
from penstock.snapshot.storage.snapshot_reader import SnapshotReader

__all__ = ["Store"]


class Store(SnapshotReader):
    """The snapshots of one job, in its checkpoint folder.

    Any process may read (`list`, `load`, `newest`, `verify`, `job_name`, `confirmed`) at any time.
    All methods that change the folder need the lock, except `open`. All methods block, and expect
    one caller at a time.

    Arguments:
        root: the job's checkpoint folder.
        files: the file system; the disk's by default.
        clock: seconds since the epoch.
    """

    def __init__(
        self, root: Path, files: FileSystem | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.paths = JobPaths(root.absolute())
        files = FileSystem() if files is None else files
        record = NumberRecord(files, self.paths)
        super().__init__(files, self.paths, record)
        self._clock = clock
        self._identity = JobIdentity(files, self.paths, self)
        self._lock = FolderLock(files, self.paths.lock)
        self._publisher = ManifestPublisher(files, self.paths, record, self._lock)
        self._retention = Retention(files, self.paths, record, self, self._lock)

    def open(self, job_name: str) -> None:
        """Create the folder if there is none, and check that it is this job's and fit for use.

        Raises:
            StoreError: if it cannot be written, is full, has no hard links, is another job's, or
                holds files that are not Penstock's.
        """
        self._identity.establish(job_name, int(self._clock() * 1000))
        with raising_store_error("read the checkpoint folder", self.paths.numbers):
            self._record.require()

    def require_usable(self, job_name: str) -> None:
        """Refuse a folder that is another job's or holds other files; change nothing.

        A folder that does not exist can be used.

        Raises:
            StoreError: with the reason.
        """
        self._identity.require_usable(job_name)

    def require_own(self, manifest: Manifest, job_name: str) -> None:
        """Raise `StoreError` for a snapshot of this folder that another job took."""
        self._identity.require_own(manifest, job_name)

    def job_name(self) -> str:
        """Return the name of the folder's job; raise `StoreError` if the folder is no job's."""
        return self._identity.job_name()

    def lock(self) -> None:
        """Take the folder for this process, until `unlock` or the end of the process.

        All changes that are visible afterwards are durable, even those that a former holder did
        not sync.

        Raises:
            StoreError: if another process has it, or locks do not work there.
        """
        self._lock.acquire()
        try:
            with raising_store_error("take over the checkpoint folder", self.paths.checkpoints):
                self._publisher.make_durable(self)
        except StoreError:
            self._lock.release()
            raise

    def unlock(self) -> None:
        """Release the folder; does nothing if it is not locked."""
        self._lock.release()

    def reserve_numbers(self, count: int) -> range:
        """Give out `count` new snapshot numbers, durably: they are never given out again.

        Raises:
            StoreError: if that cannot be recorded; then none are given out.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        self._lock.require()
        with raising_store_error("reserve snapshot numbers", self.paths.numbers):
            # An old record may have been restored from a backup: look at the folders, too.
            least = max((number + 1 for number in self.numbers()), default=0)
            return self._record.reserve(count, least)

    def create_folder(self, number: int) -> Path:
        """Create the folder of a new snapshot and return its path."""
        return self._publisher.create_folder(number)

    def persist_folder(self, number: int) -> None:
        """Make the name of a snapshot's folder durable before `publish` would."""
        self._publisher.persist_folder(number)

    def publish(self, manifest: Manifest) -> Path:
        """Complete a snapshot: write its manifest durably and return the path.

        All files that it names must be durable, with their names in the tasks' folders. The names
        in the snapshot's own folder are synced here.

        Raises:
            StoreError: if there is a manifest already, or it cannot be written. The snapshot then
                counts as aborted. After a crash at this moment the manifest may still be there,
                and restoring from it would be right: its committables are in the next one, too.
        """
        path = self._publisher.publish(manifest)
        self._retention.note_kind(manifest.number, manifest.kind)
        return path

    def discard(self, number: int) -> None:
        """Remove a snapshot, or the remains of one."""
        self._retention.discard(number)

    def retain(self, keep: int, protect: AbstractSet[int] = frozenset()) -> tuple[int, ...]:
        """Remove all checkpoints but the newest `keep` and those in `protect`; return which.

        Savepoints, final snapshots and damaged ones stay.

        Arguments:
            keep: number of checkpoints to keep, at least 1.
            protect: snapshots that unconfirmed committables need (`committables.needed_numbers`).
        """
        return self._retention.retain(keep, protect)

    def clean_debris(self) -> tuple[SnapshotNumber, ...]:
        """Remove snapshots without a manifest, and temporary files; return those numbers."""
        return self._retention.clean_debris()

    def confirmed(self) -> dict[tuple[str, str], int]:
        """Return which output is known to be published; see `confirmed_output.py`."""
        with raising_store_error("read the checkpoint folder", self.paths.commits):
            return read_confirmed(self._files, self.paths)

    def confirm(self, confirmed: Confirmed) -> None:
        """Record durably which output is published."""
        self._lock.require()
        with raising_store_error("record what is published", self.paths.commits):
            write_confirmed(self._files, self.paths, confirmed)

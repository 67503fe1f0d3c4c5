"""Store a job's snapshots in its checkpoint folder.

The order of the file operations guarantees these properties:

* A snapshot is complete if its manifest exists. Nothing else records that it is complete.
* A crash leaves either a whole manifest or none. A manifest is published at most once, and only
  after all files that it names are durable (`manifest_publisher.py`).
* The manifest of a snapshot is removed durably before its first file is removed (`retention.py`).
* A snapshot number is given out only once, even after a crash (`snapshot_numbers.py`).

They hold on a file system that may lose any unsynced change in a crash. `MemoryFileSystem`
simulates such a file system. The store does not interpret the files of a task. It does not decide
from which snapshot a job starts, either (`coordination/restore_decision.py` does).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest, SnapshotNumber
from penstock.snapshot.storage.confirmed_output import (
    Confirmed,
    read_confirmed,
    require_published,
    write_confirmed,
)
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.folder_lock import FolderLock
from penstock.snapshot.storage.job_identity import JobIdentity
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.manifest_publisher import ManifestPublisher
from penstock.snapshot.storage.retention import Retention
from penstock.snapshot.storage.snapshot_numbers import NumberRecord
from penstock.snapshot.storage.snapshot_reader import SnapshotReader


@dataclass(frozen=True)
class Upload:
    """A file to send to an object store.

    Arguments:
        path: the local file.
        content: a name for its content, which no other content has.
        key: the key of the object.
        size: the size of the file, in bytes.
    """

    path: Path
    content: str
    key: str
    size: int


class Store(SnapshotReader):
    """Reads and writes the snapshots of one job in its checkpoint folder.

    Any process may call the methods that only read (`list`, `load`, `newest`, `verify`, `job_name`,
    `confirmed`, `damaged_records`) at any time. All methods that change the folder, except `open`,
    require the lock of the folder. All methods block. Only one thread at a time may call them.

    Arguments:
        root: the job's checkpoint folder.
        files: the file system; the local disk by default.
        clock: a function that returns the seconds since the epoch.
    """

    def __init__(
        self, root: Path, files: FileSystem | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.paths = JobPaths(root.absolute())
        files = FileSystem() if files is None else files
        record = NumberRecord(files, self.paths)
        super().__init__(files, self.paths, record)
        #: Whether files must be sent to another place before a snapshot is complete.
        self.sends = False
        self._clock = clock
        self._identity = JobIdentity(files, self.paths, self)
        self._lock = FolderLock(files, self.paths.lock)
        self._publisher = ManifestPublisher(files, self.paths, record, self._lock)
        self._retention = Retention(files, self.paths, record, self, self._lock)

    def open(self, job_name: str) -> None:
        """Create the folder if it does not exist, and check that this job can use it.

        Raises:
            StoreError: if the folder cannot be written, belongs to another job, or contains files
                of other programs. Also if the disk is full, or if its file system does not support
                hard links.
        """
        self._identity.establish(job_name, int(self._clock() * 1000))
        self._require_numbers()

    def require_usable(self, job_name: str) -> None:
        """Check that the job may use the folder; do not change the folder.

        A folder that does not exist passes the check.

        Raises:
            StoreError: if the folder belongs to another job, or contains files of other programs.
        """
        self._identity.require_usable(job_name)

    def require_own(self, manifest: Manifest, job_name: str) -> None:
        """Raise a `StoreError` if another job took this snapshot of the folder."""
        self._identity.require_own(manifest, job_name)

    def job_name(self) -> str:
        """Return the name of the job that owns the folder.

        Raises:
            StoreError: if this is not a checkpoint folder, or its file `job` cannot be used.
        """
        return self._identity.job_name()

    def lock(self) -> None:
        """Lock the folder for this process, until `unlock` or the end of the process.

        Then sync all changes in the folder, because a former process may not have synced its last
        changes.

        Raises:
            StoreError: if another process has locked the folder, if locks do not work on the file
                system, or if the changes cannot be synced.
        """
        self._lock.acquire()
        try:
            with raising_store_error("take over the checkpoint folder", self.paths.checkpoints):
                self._publisher.make_durable(self)
        except StoreError:
            self._lock.release()
            raise

    def unlock(self) -> None:
        """Release the lock of the folder; do nothing if it is not locked."""
        self._lock.release()

    def foresee(self, number: int | None = None) -> Manifest | None:
        """Return the manifest of a snapshot in the object store, before `lock` takes the job over.

        Return None if there is no such snapshot, and for a local folder: its lock shows whether the
        job runs, so nothing is taken over.

        Arguments:
            number: the number of the snapshot; None for the newest one.

        Raises:
            StoreError: if the object store cannot be used.
        """
        del number
        return None

    @property
    def in_doubt(self) -> bool:
        """Whether `settle` may find a newer snapshot. In a local folder it never does."""
        return False

    def settle(self) -> None:
        """Find out whether the newest snapshot is complete, if that is unknown.

        In a local folder it is always known. See `objects/mirrored_store.py`.
        """

    def fetch(self, number: int) -> None:
        """Make a snapshot of the job available in the folder; in a local folder, all are."""

    def uploads(self, number: int, handles: Iterable[OperatorHandle]) -> Sequence[Upload]:
        """Return the files of some handles that have to be sent before snapshot `number`."""
        del number, handles
        return ()

    def send(self, upload: Upload) -> None:
        """Send a file that `uploads` has returned. Several threads may call this at a time.

        Raises:
            StoreError: if the file cannot be sent.
        """

    def sent(self, uploads: Iterable[Upload]) -> None:
        """Record that files were sent."""

    def require_lock(self) -> None:
        """Check that this process still has the lock of the folder.

        Raises:
            StoreError: if the folder or its lock file was removed or replaced.
        """
        self._lock.require()

    def reserve_numbers(self, count: int) -> range:
        """Reserve `count` new snapshot numbers durably, and return them.

        A number is reserved only once in a job's folder.

        Raises:
            StoreError: if the reservation cannot be recorded. Then no numbers are reserved.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        self._lock.require()
        with raising_store_error("reserve snapshot numbers", self.paths.numbers):
            # The record may come from an old backup. So make sure that the new numbers are above
            # those of all snapshot folders.
            least = max((number + 1 for number in self.numbers()), default=0)
            return self._record.reserve(count, least)

    def create_folder(self, number: int) -> Path:
        """Create the folder of a new snapshot and return its path.

        Raises:
            StoreError: if the folder exists already or cannot be created.
        """
        return self._publisher.create_folder(number)

    def persist_folder(self, number: int) -> None:
        """Make the name of a snapshot's folder durable, so that `publish` need not do it."""
        self._publisher.persist_folder(number)

    def carry_over(self, handles: Iterable[OperatorHandle], before: int, number: int) -> None:
        """Link the files of some handles from snapshot `before` into the folder of a new snapshot.

        The files and their names are durable then, except the names in the new folder itself.

        Raises:
            StoreError: if a file cannot be linked.
        """
        self._publisher.carry_over(handles, before, number)

    def publish(self, manifest: Manifest) -> Path:
        """Complete a snapshot: write its manifest durably and return the manifest's path.

        All files that the manifest names must be durable, and so must be their names in the tasks'
        folders. This method syncs the names in the snapshot's own folder.

        Raises:
            StoreError: if the snapshot has a manifest already, or it cannot be written. The
                snapshot then counts as aborted. If the process crashes at this moment, the manifest
                may still exist. Restoring from it is correct, because the next manifest contains
                its committables, too.
        """
        path = self._publisher.publish(manifest)
        self._retention.note_kind(manifest.number, manifest.kind)
        return path

    def discard(self, number: int) -> None:
        """Remove a snapshot, or the folder of an incomplete snapshot."""
        self._retention.discard(number)

    def retain(self, keep: int, protect: AbstractSet[int] = frozenset()) -> tuple[int, ...]:
        """Remove all checkpoints except the newest `keep`, and except those in `protect`.

        Savepoints, final snapshots and damaged snapshots are not removed.

        Arguments:
            keep: the number of checkpoints to keep, at least 1.
            protect: the numbers of snapshots that unconfirmed committables need; see
                `committables.needed_numbers`.

        Returns:
            The numbers of the removed checkpoints.
        """
        return self._retention.retain(keep, protect)

    def remove_checkpoints(self) -> None:
        """Remove all snapshots of the job, except savepoints and damaged ones.

        The records of the folder stay, so that its next job neither uses a number again nor
        publishes output twice.
        """
        self._retention.remove_all()

    def clean_debris(self) -> tuple[SnapshotNumber, ...]:
        """Remove snapshots without a manifest, and temporary files.

        Returns:
            The numbers of the removed snapshots.
        """
        return self._retention.clean_debris()

    def confirmed(self) -> dict[tuple[str, str], int]:
        """Return the record of published output; see `confirmed_output.py`."""
        with raising_store_error("read the checkpoint folder", self.paths.commits):
            return read_confirmed(self._files, self.paths)

    def damaged_records(self) -> list[str]:
        """Check the files `numbers` and `commits`. Return a text for each damaged file.

        Raises:
            StoreError: if the files cannot be read, or the file `job` is missing or damaged.
        """
        damage = []
        for check in (self._require_numbers, self._require_commits):
            try:
                check()
            except StoreError as error:
                damage.append(str(error))
        return damage

    def _require_numbers(self) -> None:
        with raising_store_error("read the checkpoint folder", self.paths.numbers):
            self._record.require()

    def _require_commits(self) -> None:
        """Raise a `StoreError` if the file `commits` is damaged, or missing although it existed."""
        if not self._files.exists(self.paths.commits):
            if self._identity.has_commits():
                raise StoreError(
                    "the record of what is published is missing; put it back from a backup. A job "
                    "that is resumed without it publishes all output of the newest snapshot "
                    "again, which must still be there",
                    self.paths.commits,
                )
            return
        confirmed, newest = self.confirmed(), self.newest_published()
        if newest and self.is_published(SnapshotNumber(newest)):
            # The lineage of a damaged manifest is unknown; `list` reports the damage.
            lineage = self.info(SnapshotNumber(newest)).lineage
            require_published(confirmed, lineage or "", self.highest_published(), self.paths)

    def confirm(self, confirmed: Confirmed) -> None:
        """Write the record of published output durably."""
        self._lock.require()
        with raising_store_error("record what is published", self.paths.commits):
            write_confirmed(self._files, self.paths, confirmed)

"""Make the folders of snapshots and publish their manifests.

A manifest appears whole or not at all, after everything that it names, and at most once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.folder_lock import FolderLock
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.snapshot_numbers import NumberRecord
from penstock.snapshot.storage.snapshot_reader import SnapshotReader

__all__ = ["ManifestPublisher"]


class ManifestPublisher:
    """Publishes the snapshots of one job; needs the folder's lock.

    Arguments:
        files: the file system.
        paths: of the job's folder.
        record: the record of snapshot numbers.
        lock: of the folder.
    """

    def __init__(
        self, files: FileSystem, paths: JobPaths, record: NumberRecord, lock: FolderLock
    ) -> None:
        self._files, self._paths, self._record, self._lock = files, paths, record, lock
        #: The snapshot whose folder is known to have a durable name.
        self._persisted: int | None = None

    def create_folder(self, number: int) -> Path:
        """Create the folder of a new snapshot and return its path."""
        self._lock.require()
        folder = self._paths.snapshot(number)
        with raising_store_error(f"create snapshot {number}", folder):
            try:
                self._files.make_folder(folder)
            except FileExistsError:
                raise _fenced(number, folder) from None
        return folder

    def persist_folder(self, number: int) -> None:
        """Make the name of a snapshot's folder durable before `publish` would."""
        self._lock.require()
        with raising_store_error(f"create snapshot {number}", self._paths.checkpoints):
            if self._files.exists(self._paths.snapshot(number)):
                self._files.sync(self._paths.checkpoints)
                self._persisted = number

    def publish(self, manifest: Manifest) -> Path:
        """Complete a snapshot: write its manifest durably and return the path."""
        self._lock.require()
        number, files = manifest.number, self._files
        folder, final = self._paths.snapshot(number), self._paths.manifest(number)
        data = encode_manifest(manifest)
        temporary = JobPaths.temporary(final, os.getpid())
        with raising_store_error(f"publish snapshot {number}", final):
            try:
                files.write(temporary, data)
                files.sync(temporary)
                # The manifest must not survive a crash that the tasks' folders do not survive.
                files.sync(folder)
                # Not a rename: it would replace the manifest of a JobManager that took over.
                files.link(temporary, final)
            except FileExistsError:
                self._remove_if_possible(temporary)
                raise _fenced(number, final) from None
            except OSError:
                self._remove_if_possible(temporary)
                raise
            try:
                files.remove(temporary)
                files.sync(folder)
                if self._persisted != number:
                    files.sync(self._paths.checkpoints)
            except OSError:
                # No sink has been notified yet, so the manifest can be withdrawn.
                self._remove_if_possible(final)
                raise
        self._record_published(number)
        return final

    def make_durable(self, reader: SnapshotReader) -> None:
        """Sync all changes that a killed process may not have synced.

        Such a change is visible and could still be lost: for example a manifest whose output a
        restore commits, or the removal of one.
        """
        if self._files.exists(self._paths.checkpoints):
            for number in reader.numbers():
                self._files.sync(self._paths.snapshot(number))
            self._files.sync(self._paths.checkpoints)
            # The process may have been killed between publishing and recording that.
            self._record_published(max(reader.published(), default=0))

    def _record_published(self, number: int) -> None:
        # A record that is behind raises no alarm, so its failure does not fail the snapshot.
        with suppress(StoreError, OSError):
            self._record.publish(number)

    def _remove_if_possible(self, path: Path) -> None:
        with suppress(OSError):
            self._files.remove(path)


def _fenced(number: int, path: Path) -> StoreError:
    return StoreError(
        f"snapshot {number} is there already, and this JobManager did not make it: another one "
        "has taken the job over, so this one must stop",
        path,
        recoverability=Recoverability.NON_RECOVERABLE,
    )

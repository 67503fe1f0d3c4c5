"""Create the folders of snapshots and publish their manifests.

A crash leaves either a whole manifest or none. A manifest is published at most once, and only after
all files that it names are durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.folder_lock import FolderLock
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.snapshot_numbers import NumberRecord
from penstock.snapshot.storage.snapshot_reader import SnapshotReader


class ManifestPublisher:
    """Publishes the snapshots of one job.

    All methods except `make_durable` require the lock of the job's folder.

    Arguments:
        files: the file system.
        paths: the paths in the job's folder.
        record: the record of snapshot numbers.
        lock: the lock of the job's folder.
    """

    def __init__(
        self, files: FileSystem, paths: JobPaths, record: NumberRecord, lock: FolderLock
    ) -> None:
        self._files, self._paths, self._record, self._lock = files, paths, record, lock
        #: The number of the snapshot whose folder's name `persist_folder` has made durable.
        self._persisted: int | None = None

    def create_folder(self, number: int) -> Path:
        """Create the folder of a new snapshot and return its path.

        Raises:
            StoreError: if the folder exists already or cannot be created.
        """
        self._lock.require()
        folder = self._paths.snapshot(number)
        with raising_store_error(f"create snapshot {number}", folder):
            try:
                self._files.make_folder(folder)
            except FileExistsError:
                raise _fenced(number, folder) from None
        return folder

    def persist_folder(self, number: int) -> None:
        """Make the name of a snapshot's folder durable, so that `publish` need not do it."""
        self._lock.require()
        with raising_store_error(f"create snapshot {number}", self._paths.checkpoints):
            if self._files.exists(self._paths.snapshot(number)):
                self._files.sync(self._paths.checkpoints)
                self._persisted = number

    def carry_over(self, handles: Iterable[OperatorHandle], before: int, number: int) -> None:
        """Link files of an earlier snapshot into the folder of a new one, durably.

        Arguments:
            handles: the handles that name the files.
            before: the number of the earlier snapshot.
            number: the number of the new snapshot, whose folder exists.

        Raises:
            StoreError: if a file cannot be linked.
        """
        self._lock.require()
        source, folder = self._paths.snapshot(before), self._paths.snapshot(number)
        made: set[Path] = set()
        with raising_store_error(f"publish snapshot {number}", folder):
            # Two handles may name the same file.
            for name in {record.name: None for handle in handles for record in handle.files}:
                target = folder / name
                for parent in reversed(target.relative_to(folder).parents[:-1]):
                    if folder / parent not in made:
                        self._files.make_folder(folder / parent)
                        made.add(folder / parent)
                self._files.link(source / name, target)
            for path in made:
                self._files.sync(path)

    def publish(self, manifest: Manifest) -> Path:
        """Complete a snapshot: write its manifest durably and return the manifest's path.

        Raises:
            StoreError: if the snapshot has a manifest already, or it cannot be written.
        """
        self._lock.require()
        number, files = manifest.number, self._files
        folder, final = self._paths.snapshot(number), self._paths.manifest(number)
        data = encode_manifest(manifest)
        temporary = JobPaths.temporary(final, os.getpid())
        with raising_store_error(f"publish snapshot {number}", final):
            try:
                files.write(temporary, data)
                files.sync(temporary)
                # Make the names of the tasks' folders durable before the manifest's name. Else a
                # crash could keep the manifest and lose these folders. Small state has none.
                if any(handle.files for handle in manifest.handles):
                    files.sync(folder)
                # Do not use a rename. If another JobManager has taken over the job, a rename would
                # replace the manifest of that JobManager.
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
                # No sink has committed output yet, so the manifest can be removed again.
                self._remove_if_possible(final)
                raise
        self._record_published(number)
        return final

    def make_durable(self, reader: SnapshotReader) -> None:
        """Sync all changes in the folder that a killed process may not have synced.

        Such a change is visible, but a crash of the machine could still undo it. Examples are a new
        manifest, whose output this run may commit, and the removal of a manifest.
        """
        if self._files.exists(self._paths.checkpoints):
            for number in reader.numbers():
                self._files.sync(self._paths.snapshot(number))
            self._files.sync(self._paths.checkpoints)
            # The former process may have been killed after it published a snapshot, and before it
            # recorded the number of that snapshot.
            self._record_published(max(reader.published(), default=0))

    def _record_published(self, number: int) -> None:
        # The record may name an older snapshot without harm, so an error here is ignored.
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

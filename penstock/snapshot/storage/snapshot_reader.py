"""Read the snapshots of a job's checkpoint folder.

Reading needs no lock: a manifest is published in one step, and never changes afterwards.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.manifest import Manifest, SnapshotInfo, SnapshotNumber
from penstock.snapshot.metadata.manifest_format import decode_manifest
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.snapshot_numbers import NumberRecord


class SnapshotReader:
    """Lists, loads and verifies the snapshots of one job.

    Arguments:
        files: the file system.
        paths: the paths in the job's folder.
        record: the record of snapshot numbers.
    """

    def __init__(self, files: FileSystem, paths: JobPaths, record: NumberRecord) -> None:
        self._files, self._paths, self._record = files, paths, record

    def list(self) -> Sequence[SnapshotInfo]:
        """Return a description of every snapshot, oldest first; include incomplete snapshots.

        If the manifest of the newest snapshot was lost, that snapshot is listed as published.

        Raises:
            StoreError: if the folder cannot be read.
        """
        with raising_store_error("list the snapshots", self._paths.checkpoints):
            lost = self.lost()
            infos = [self.info(number) for number in self.numbers() if number != lost]
            if lost is not None:
                infos.append(SnapshotInfo(lost, published=True, problem=_gone(lost)))
            return sorted(infos, key=lambda info: info.number)

    def load(self, number: int) -> Manifest:
        """Return the manifest of a snapshot.

        Raises:
            StoreError: if the snapshot has no manifest, or the manifest is damaged.
        """
        path = self._paths.manifest(number)
        with raising_store_error(f"read snapshot {number}", path):
            if not self._files.exists(path):
                raise StoreError(f"there is no complete snapshot {number}", path)
            data = self._files.read(path)
        try:
            manifest = decode_manifest(data, path)
        except StoreError as error:
            error.recoverability = Recoverability.NON_RECOVERABLE
            raise
        if manifest.number != number:
            raise StoreError(
                f"the folder says snapshot {number} and its manifest {manifest.number}: it was "
                "copied or renamed; give it its own name back",
                path,
            )
        return manifest

    def newest(self, since: int = 0) -> Manifest | None:
        """Return the manifest of the newest snapshot, or None if there is no snapshot.

        Arguments:
            since: the lowest number of a snapshot to return.

        Raises:
            StoreError: if the newest manifest is damaged or lost. An older snapshot is not returned
                instead. A job that is resumed from it would produce some output again, so the user
                must decide.
        """
        with raising_store_error("look for the newest snapshot", self._paths.checkpoints):
            lost = self.lost()
            if lost is not None and lost >= since:
                raise StoreError(_gone(lost), self._paths.manifest(lost))
            number = max(self.published(), default=0)
            return self.load(number) if number >= max(since, 1) else None

    def verify(self, manifest: Manifest, *, checksums: bool = False) -> None:
        """Check that all files of a snapshot exist and have their recorded sizes.

        Arguments:
            manifest: the snapshot.
            checksums: whether to read all files and compare their checksums, too.

        Raises:
            StoreError: if a file is missing or differs from its record. The error names the file.
        """
        folder = self._paths.snapshot(manifest.number)
        for handle in manifest.handles:
            for record in handle.files:
                path = folder / record.name
                with raising_store_error(f"read snapshot {manifest.number}", path):
                    if not self._files.exists(path):
                        problem = "is missing"
                    elif (size := self._files.size(path)) != record.size:
                        problem = f"has {size} bytes instead of {record.size}"
                    elif checksums and self._files.checksum(path) != record.checksum:
                        problem = "has another checksum than recorded: its content was altered"
                    else:
                        continue
                raise StoreError(
                    f"snapshot {manifest.number} is damaged: a file of operator {handle.uid!r}, "
                    f"subtask {handle.subtask}, {problem}; resume from another snapshot",
                    path,
                    recoverability=Recoverability.NON_RECOVERABLE,
                )

    def info(self, number: SnapshotNumber) -> SnapshotInfo:
        """Return the description of a snapshot for a listing."""
        if not self.is_published(number):
            problem = "it has no manifest: it is being taken, or was never completed"
            return SnapshotInfo(number, published=False, problem=problem)
        try:
            manifest = self.load(number)
        except StoreError as error:
            return SnapshotInfo(number, published=True, problem=str(error))
        return SnapshotInfo(
            number,
            True,
            manifest.kind,
            manifest.lineage,
            manifest.created_ms,
            manifest.sizes.total,
        )

    def numbers(self) -> builtins.list[SnapshotNumber]:
        """Return the numbers of all snapshot folders, in order.

        Raises:
            OSError: if the folder cannot be read.
        """
        if not self._files.exists(self._paths.checkpoints):
            return []
        found = map(JobPaths.number_of, self._files.names(self._paths.checkpoints))
        return sorted(number for number in found if number is not None)

    def published(self) -> builtins.list[SnapshotNumber]:
        """Return the numbers of all snapshots that have a manifest, in order.

        Raises:
            OSError: if the folder cannot be read.
        """
        return [number for number in self.numbers() if self.is_published(number)]

    def newest_published(self) -> int:
        """Return the number of the newest snapshot that was ever published; 0 if there is none.

        Its manifest may have been lost.

        Raises:
            StoreError: if the folder cannot be read.
        """
        with raising_store_error("read the checkpoint folder", self._paths.numbers):
            # A crash may leave the record behind the manifests.
            return max(self._record.published, *self.published(), 0)

    def highest_published(self) -> int:
        """Return the highest number that was ever published, also if the snapshot was removed.

        Raises:
            StoreError: if the folder cannot be read.
        """
        with raising_store_error("read the checkpoint folder", self._paths.numbers):
            return max(self._record.highest_published, self.newest_published())

    def is_published(self, number: int) -> bool:
        """Return whether a snapshot has a manifest."""
        return self._files.exists(self._paths.manifest(number))

    def lost(self) -> SnapshotNumber | None:
        """Return the number of the newest snapshot if its manifest was lost, else None."""
        with raising_store_error("read the checkpoint folder", self._paths.numbers):
            return self._record.lost(self.published)


def _gone(number: int) -> str:
    return (
        f"snapshot {number} was the newest, and its manifest is gone: somebody removed it, or the "
        "disk lost it. Output up to it exists and would be produced again from an older one; put "
        "it back, or name an older one with --resume NUMBER --fork if that is what you want"
    )

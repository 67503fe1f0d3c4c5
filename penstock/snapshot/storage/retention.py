"""Remove old snapshots, and files that a crash left behind.

The manifest of a snapshot is removed durably before the first of its files is removed. The files
of a snapshot that a process reads are not removed (`leases.py`).
"""

from __future__ import annotations

import errno
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import SnapshotNumber
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.folder_lock import FolderLock
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.leases import leased_numbers
from penstock.snapshot.storage.snapshot_numbers import NumberRecord
from penstock.snapshot.storage.snapshot_reader import SnapshotReader


class Retention:
    """Removes snapshots of one job. The caller must hold the lock of the job's folder.

    Arguments:
        files: the file system.
        paths: the paths in the job's folder.
        record: the record of snapshot numbers.
        reader: the reader of the job's snapshots.
        lock: the lock of the job's folder.
    """

    def __init__(
        self,
        files: FileSystem,
        paths: JobPaths,
        record: NumberRecord,
        reader: SnapshotReader,
        lock: FolderLock,
    ) -> None:
        self._files, self._paths, self._record = files, paths, record
        self._reader, self._lock = reader, lock
        #: The kind of each snapshot whose kind is known. It is kept because it never changes, and
        #: because `retain` would otherwise read every manifest in each call.
        self._kinds: dict[int, SnapshotKind] = {}

    def note_kind(self, number: int, kind: SnapshotKind) -> None:
        """Store the kind of a snapshot, so that `retain` need not read its manifest."""
        self._kinds[number] = kind

    def retain(self, keep: int, protect: AbstractSet[int]) -> tuple[int, ...]:
        """Remove old checkpoints; see `Store.retain`."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self._lock.require()
        with raising_store_error("list the snapshots", self._paths.checkpoints):
            published = self._reader.published()
        checkpoints = [n for n in published if self._kind(n) is SnapshotKind.CHECKPOINT]
        candidates = [number for number in checkpoints[:-keep] if number not in protect]
        leased = self._leased() if candidates else set()
        candidates = [number for number in candidates if number not in leased]
        removed = tuple(n for n in candidates if self._reader.info(n).problem is None)
        for number in removed:
            self.discard(number)
        return removed

    def remove_all(self) -> None:
        """Remove all snapshots that are no savepoints; see `Store.remove_checkpoints`."""
        self._lock.require()
        with raising_store_error("list the snapshots", self._paths.checkpoints):
            published = self._reader.published()
        for number in published:
            if self._kind(number) in (SnapshotKind.CHECKPOINT, SnapshotKind.FINAL):
                self.discard(number)

    def discard(self, number: int) -> None:
        """Remove a snapshot, or the folder of an incomplete snapshot."""
        self._lock.require()
        folder, manifest = self._paths.snapshot(number), self._paths.manifest(number)
        self._kinds.pop(number, None)
        with raising_store_error(f"remove snapshot {number}", folder):
            if self._files.exists(manifest):
                before = max((n for n in self._reader.published() if n != number), default=0)
                is_newest = before < number
                if is_newest:
                    self._record.withdraw(number, before)
                # Without a manifest, the folder is no longer a snapshot.
                self._files.remove(manifest)
                # An old snapshot of small state has no other files. If a crash brings its manifest
                # back, it is whole.
                if is_newest or self._files.names(folder):
                    self._files.sync(folder)
            # A reader takes its lease first, and then reads the manifest. So a reader that has a
            # manifest also has its lease by now.
            if self._files.exists(folder) and number not in self._leased():
                self._files.remove_tree(folder)

    def clean_debris(self) -> tuple[SnapshotNumber, ...]:
        """Remove snapshots without a manifest, and temporary files.

        Returns:
            The numbers of the removed snapshots.
        """
        self._lock.require()
        removed = []
        with raising_store_error("remove what crashes left", self._paths.checkpoints):
            self._remove_temporary(self._paths.root)
            lost, leased = self._reader.lost(), self._leased()
            for number in self._reader.numbers():
                if number in leased:
                    continue
                if self._reader.is_published(number):
                    self._remove_temporary(self._paths.snapshot(number))
                elif number != lost:  # the user may put the lost manifest back
                    self._remove_unfinished(number)
                    removed.append(number)
        return tuple(removed)

    def _leased(self) -> set[int]:
        """Return the numbers of the snapshots that processes read."""
        if not self._files.exists(self._paths.leases):
            return set()
        with raising_store_error("list the leases of snapshots", self._paths.leases):
            return leased_numbers(self._paths)

    def _remove_unfinished(self, number: SnapshotNumber) -> None:
        try:
            self._files.remove_tree(self._paths.snapshot(number))
        except OSError as error:
            # A worker may still write into the folder until it notices that its attempt ended.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise

    def _remove_temporary(self, folder: Path) -> None:
        for name in self._files.names(folder):
            if JobPaths.is_temporary(name):
                self._files.remove(folder / name)

    def _kind(self, number: SnapshotNumber) -> SnapshotKind | None:
        """Return the kind of a published snapshot, or None if its manifest is damaged."""
        if number not in self._kinds:
            with suppress(StoreError):
                self._kinds[number] = self._reader.load(number).kind
        return self._kinds.get(number)

"""Links or copies the files of checkpoints into snapshots and out of snapshots.

One database never uses the name of a table file twice, so the checksum of each name is computed
once. Two attempts may use the same name for different content, so only the checksum identifies a
file across attempts. All functions that read or write files are slow and must run off the event
loop. They make few system calls. Each system call releases the interpreter lock, and has to wait
for it again under load.

The database syncs a table file before it links the file, so a linked table file is durable. RocksDB
has other files, too. The MANIFEST is written and synced for each checkpoint. CURRENT is linked
from the previous snapshot if its content is the same. The folder is synced last, so that the
names of the files are durable.

For an announced snapshot, the checkpoint is made before the barrier (`begin_early`). After the
barrier the log of the later writes is added. It is one file, whose name is already durable.

If the snapshot is on another file system, a table file is copied there once. Later snapshots link
it from the previous snapshot. If the file system has no links, all files are copied into each
snapshot.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.handles import FileRecord, SnapshotBytes
from penstock.snapshot.state.backoff import Backoff
from penstock.snapshot.state.cold.database import StateDatabase
from penstock.snapshot.state.cold.errors import no_room_message, recoverability_of_database
from penstock.snapshot.storage.filesystem.durable_files import sync_file, sync_path, write_file
from penstock.snapshot.storage.filesystem.file_errors import with_advice

logger = logging.getLogger(__name__)

#: The suffixes of table files: those of RocksDB, and the change files of SQLite.
_TABLE_SUFFIXES = (".sst", ".changes")
# The number of bytes of one read call. Most table files of RocksDB are smaller.
_CHUNK_BYTES = 1024 * 1024


def link_or_copy(source: Path, target: Path) -> bool:
    """Make `target` a hard link to `source`, or a copy if a link is not possible.

    Returns:
        Whether `target` is a link.

    Raises:
        OSError: if `source` does not exist or cannot be copied.
    """
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        return False
    return True


def _hash(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _checksum(path: Path) -> str:
    digest = _hash()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while True:
            data = os.read(descriptor, _CHUNK_BYTES)
            digest.update(data)
            if len(data) < _CHUNK_BYTES:
                return digest.hexdigest()
    finally:
        os.close(descriptor)


#: The files of a checkpoint, and the numbers of their new and linked bytes.
_Made = tuple[tuple[FileRecord, ...], SnapshotBytes]


@dataclass(frozen=True)
class _KnownFile:
    size: int
    checksum: str
    stored: Path


@dataclass(frozen=True)
class _EarlyCheckpoint:
    """A checkpoint that was made before the barrier, and does not contain its log yet.

    Arguments:
        target: the folder of the checkpoint.
        log: the name of the log file, which is still empty.
        files: all other files of the checkpoint.
        size: the numbers of the new and linked bytes of `files`.
        known: the files of the previous checkpoint, keyed by name.
    """

    target: Path
    log: str
    files: tuple[FileRecord, ...]
    size: SnapshotBytes
    known: dict[str, _KnownFile]


class CheckpointFiles:
    """Makes the checkpoints of one database.

    It remembers the files of the newest checkpoint, so that the next one can share them.

    Arguments:
        scratch: a temporary folder on the file system of the database. It is used for snapshots
            on another file system.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        # The files of the newest checkpoint, or of the restored snapshot, keyed by name.
        self._known: dict[str, _KnownFile] = {}
        # The checksums of files that are in no checkpoint yet, keyed by name.
        self._checksums: dict[str, str] = {}
        self._way: str | None = None
        self._early: _EarlyCheckpoint | None = None
        # The backoff that skips early checkpoints after the log of one lacked some writes.
        self._backoff = Backoff()

    @property
    def has_early(self) -> bool:
        """Whether there is an early checkpoint that was neither completed nor discarded."""
        return self._early is not None

    def take_over(self, source: Path, files: Sequence[FileRecord], folder: Path) -> None:
        """Link or copy the files of a snapshot into a working folder.

        Arguments:
            source: the folder of the snapshot, which is only read. The names of the files are
                relative to it.
            files: the files of the snapshot.
            folder: the working folder. If it exists, it is removed first.

        Raises:
            StoreError: if a file is missing or cannot be read, or the disk is full.
        """
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for file in files:
            stored = source / file.name
            path = folder / stored.name
            try:
                if path.suffix in _TABLE_SUFFIXES:
                    if not link_or_copy(stored, path):
                        # Later snapshots link this copy, so it must be durable.
                        sync_path(path)
                    self._known[path.name] = _KnownFile(file.size, file.checksum, stored)
                else:
                    # RocksDB writes to some of these files, so they are copied and not linked.
                    shutil.copyfile(stored, path)
            except OSError as error:
                if full := no_room_message(error):
                    raise StoreError(full, folder) from error
                message = f"cannot restore a file of the snapshot ({error}); use another snapshot"
                raise StoreError(message, stored) from error

    def compute_checksum(self, database: StateDatabase) -> bool:
        """Compute the checksum of one table file for the next checkpoint. This is slow.

        Returns:
            False if the checksums of all table files are known, or a file cannot be read.
        """
        try:
            for name in database.tables():
                if name not in self._known and name not in self._checksums:
                    self._checksums[name] = _checksum(database.folder / name)
                    return True
        except OSError as error:
            # A compaction may have removed the file. Other errors are raised at the checkpoint.
            logger.debug("a checksum was not computed early: %s", error)
        return False

    def begin_early(self, database: StateDatabase, target: Path) -> None:
        """Make an early checkpoint in `target` that has no log yet. This is slow.

        From then on the database logs its writes, until `checkpoint` or `discard_early` is called.
        If the log of the last early checkpoint lacked some writes, the method may only flush. If
        `target` exists, the call has no effect. Errors are raised only by the next `checkpoint`.
        """
        self.discard_early(database)
        if self._backoff.skip():
            database.flush()
            return
        if target.exists():
            return
        known = self._known
        try:
            files, size = self._write(database, target, begin_log=True)
            assert database.log is not None
            self._early = _EarlyCheckpoint(target, database.log, files, size, known)
        except Exception as error:
            logger.debug("a checkpoint was not made early: %s", error)
            self._known = known
            database.stop_log()
            shutil.rmtree(target, ignore_errors=True)

    def discard_early(self, database: StateDatabase) -> None:
        """Remove the early checkpoint that `begin_early` has made, if any. This is slow."""
        early, self._early = self._early, None
        if early is not None:
            database.stop_log()
            self._forget(early)

    def _forget(self, early: _EarlyCheckpoint) -> None:
        """Remove an early checkpoint, and keep the checksums of its files."""
        made, self._known = self._known, early.known
        for name, file in made.items():
            if name not in self._known:
                self._checksums[name] = file.checksum
        shutil.rmtree(early.target, ignore_errors=True)

    def checkpoint(self, database: StateDatabase, target: Path) -> _Made:
        """Make a durable checkpoint of the database in the folder `target`. This is slow.

        The parent folder of `target` is not synced. `ManifestPublisher` in the JobManager does this
        before it publishes the snapshot.

        Returns:
            The files with their checksums, and the numbers of their new and linked bytes. The files
            are named relative to the parent of `target`.

        Raises:
            StoreError: if the checkpoint cannot be written.
        """
        try:
            early, self._early = self._early, None
            if early is not None:
                data = database.end_log()
                self._backoff.judge(useless=data is None)
                if data is not None and early.target == target:
                    return self._add_log(early, data)
                self._forget(early)
            return self._write(database, target)
        except Exception as error:
            # All exceptions are caught, since rocksdict does not define an exception class.
            raise StoreError(
                f"cannot write the checkpoint of a state: {with_advice(error)}",
                target,
                recoverability=recoverability_of_database(error),
            ) from error

    @staticmethod
    def _add_log(early: _EarlyCheckpoint, data: bytes) -> _Made:
        with (early.target / early.log).open("r+b") as file:
            file.write(data)
            sync_file(file)
        name = f"{early.target.name}/{early.log}"
        record = FileRecord(name, len(data), _hash(data).hexdigest())
        return (*early.files, record), early.size + SnapshotBytes(new=len(data))

    def _write(self, database: StateDatabase, target: Path, begin_log: bool = False) -> _Made:
        upload = database.folder.stat().st_dev != target.parent.stat().st_dev
        if upload and self._scratch.exists():
            shutil.rmtree(self._scratch)
        folder = self._scratch if upload else target
        content = database.checkpoint(folder)
        known: dict[str, _KnownFile] = {}
        new = 0
        if upload:
            target.mkdir()
        for name, size in content.tables.items():
            stored, old = target / name, self._known.get(name)
            if upload:
                new += size * self._upload(folder / name, stored, old)
            elif name in content.copied:
                self._log_way("copied", target)
                new += size
                sync_path(stored)
            else:
                self._log_way("linked", target)
                new += size * (old is None)
            checksum = old.checksum if old else self._checksums.get(name)
            known[name] = _KnownFile(size, checksum or _checksum(folder / name), stored)
        for name, data in content.others.items():
            stored, old = target / name, self._known.get(name)
            checksum = _hash(data).hexdigest()
            if not (old and old.checksum == checksum and _link_stored(old.stored, stored)):
                new += len(data)
                write_file(stored, data)
            known[name] = _KnownFile(len(data), checksum, stored)
        if begin_log:
            (target / database.begin_log()).touch(exist_ok=False)
        # The folder is synced last. On most file systems, the sync of the last file has already
        # synced the folder, so this call is cheap.
        sync_path(target)
        if upload:
            shutil.rmtree(self._scratch)
        self._known, self._checksums = known, {}
        files = tuple(
            FileRecord(f"{target.name}/{name}", file.size, file.checksum)
            for name, file in sorted(known.items())
        )
        return files, SnapshotBytes(new, sum(file.size for file in files) - new)

    def _upload(self, source: Path, stored: Path, old: _KnownFile | None) -> bool:
        """Link or copy a table file into a snapshot on another file system.

        Returns:
            True if the file was copied, or False if it was linked from an earlier snapshot.
        """
        self._log_way("uploaded once to another file system", stored.parent)
        if old is not None and _link_stored(old.stored, stored):
            return False
        shutil.copyfile(source, stored)
        sync_path(stored)
        return True

    def _log_way(self, way: str, target: Path) -> None:
        if self._way != way:
            self._way = way
            logger.info("files of checkpoints are %s [%s]", way, target)


def _link_stored(old: Path, new: Path) -> bool:
    # This fails if the snapshot with the old file was removed, or the file system has no links.
    try:
        os.link(old, new)
    except OSError:
        return False
    return True

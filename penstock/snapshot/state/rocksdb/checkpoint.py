"""The files of RocksDB checkpoints: linked or copied into snapshots, and out of them again.

A table file is recognised by its name within one database, where no name is used twice, so its
checksum is computed once. Across attempts names recur for other content, and only checksums
identify a file. All of it is slow and belongs off the event loop. System calls are few: each
releases the interpreter lock, and under load waits for it again.

A linked table file is durable, since RocksDB syncs it before it names it. The MANIFEST is written
and synced each time. CURRENT and the like are linked from the snapshot before if their content is
the same. The folder is synced last, for the names.

For an announced snapshot all of this is done early (`begin_early`). After its barrier the log of
the later writes is added: one file, whose name is durable already.

If the snapshot is on another file system, a file is copied there once and then linked from the
snapshot before. If nothing can be linked, everything is copied each time.
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
from penstock.snapshot.state.preparation.backoff import Backoff
from penstock.snapshot.state.rocksdb.database import RocksDatabase
from penstock.snapshot.state.rocksdb.errors import no_room_message, rocks_recoverability
from penstock.snapshot.storage.filesystem.durable_files import sync_file, sync_path, write_file

__all__ = ["CheckpointFiles", "link_or_copy"]

logger = logging.getLogger(__name__)

# Bytes of one read call; most table files of RocksDB are smaller.
_CHUNK_BYTES = 8 * 1024 * 1024


def link_or_copy(source: Path, target: Path) -> bool:
    """Make `target` a hard link of `source`, or else a copy; return whether it is a link.

    Raises:
        OSError: if neither is possible.
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


#: The files of a checkpoint, and how many bytes of them are new.
_Made = tuple[tuple[FileRecord, ...], SnapshotBytes]


@dataclass(frozen=True)
class _KnownFile:
    size: int
    checksum: str
    stored: Path


@dataclass(frozen=True)
class _EarlyCheckpoint:
    """A checkpoint without its log.

    Arguments:
        target: its folder.
        log: name of the log's file, which is still empty.
        files: all other files.
        size: of these files.
        known: the files that were known before.
    """

    target: Path
    log: str
    files: tuple[FileRecord, ...]
    size: SnapshotBytes
    known: dict[str, _KnownFile]


class CheckpointFiles:
    """Makes the checkpoints of one database and remembers the files of the newest.

    Arguments:
        scratch: a local folder beside the database, made and removed as needed.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        # By name, the files of the newest checkpoint, or of the snapshot that was restored.
        self._known: dict[str, _KnownFile] = {}
        # By name, the checksums of files that are in no checkpoint yet.
        self._checksums: dict[str, str] = {}
        self._way: str | None = None
        self._early: _EarlyCheckpoint | None = None
        # Skips early checkpoints after one whose log lacked writes.
        self._backoff = Backoff()

    @property
    def has_early(self) -> bool:
        """Whether `begin_early` has made a checkpoint that is not used yet."""
        return self._early is not None

    def take_over(self, source: Path, files: Sequence[FileRecord], folder: Path) -> None:
        """Link or copy the files of a snapshot into a working folder.

        Arguments:
            source: the snapshot's folder, which the files' names are relative to; only read.
            files: the files.
            folder: the working folder; an older one is replaced.

        Raises:
            StoreError: if a file is missing or can't be read.
        """
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for file in files:
            stored = source / file.name
            path = folder / stored.name
            try:
                if path.suffix == ".sst":
                    if not link_or_copy(stored, path):
                        # Later snapshots link it, and expect that it is durable.
                        sync_path(path)
                    self._known[path.name] = _KnownFile(file.size, file.checksum, stored)
                else:
                    # RocksDB continues to write to some of these.
                    shutil.copyfile(stored, path)
            except OSError as error:
                if full := no_room_message(error):
                    raise StoreError(full, folder) from error
                message = f"cannot restore a file of the snapshot ({error}); use another snapshot"
                raise StoreError(message, stored) from error

    def compute_checksum(self, database: RocksDatabase) -> bool:
        """Compute the checksum of one table file that the next checkpoint may have; slow.

        Returns False if there was none to compute.
        """
        try:
            for name in database.tables():
                if name not in self._known and name not in self._checksums:
                    self._checksums[name] = _checksum(database.folder / name)
                    return True
        except OSError as error:
            # A compaction may have removed the file. Other faults show at the checkpoint.
            logger.debug("a checksum was not computed early: %s", error)
        return False

    def begin_early(self, database: RocksDatabase, target: Path) -> None:
        """Make a checkpoint in `target` without its log; slow.

        The database logs the writes from now on, until `checkpoint` or `discard_early`. If the
        logs of early checkpoints lacked writes lately, the database is only flushed. A fault shows
        at the next `checkpoint`. An existing `target` is left as it is.
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

    def discard_early(self, database: RocksDatabase) -> None:
        """Remove the checkpoint that `begin_early` made, if there is one; slow."""
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

    def checkpoint(self, database: RocksDatabase, target: Path) -> _Made:
        """Make a durable checkpoint of the database in `target`; slow.

        The caller makes the entry of `target` in its parent durable.

        Returns:
            The files with their checksums, named relative to the parent of `target`, and how many
            bytes of them are new.

        Raises:
            StoreError: if it can't be written.
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
            # rocksdict raises plain exceptions.
            raise StoreError(
                f"cannot write the checkpoint of a state: {error}",
                target,
                recoverability=rocks_recoverability(error),
            ) from error

    @staticmethod
    def _add_log(early: _EarlyCheckpoint, data: bytes) -> _Made:
        with (early.target / early.log).open("r+b") as file:
            file.write(data)
            sync_file(file)
        name = f"{early.target.name}/{early.log}"
        record = FileRecord(name, len(data), _hash(data).hexdigest())
        return (*early.files, record), early.size + SnapshotBytes(new=len(data))

    def _write(self, database: RocksDatabase, target: Path, begin_log: bool = False) -> _Made:
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
                self._log_way("copied by RocksDB", target)
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
        # Last: on most file systems the sync of the file before has synced it already.
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
        """Bring a table file to another file system; return whether it had to be copied."""
        self._log_way("uploaded once to another file system", stored.parent)
        if old is not None and _link_stored(old.stored, stored):
            return False
        shutil.copyfile(source, stored)
        sync_path(stored)
        return True

    def _log_way(self, way: str, target: Path) -> None:
        if self._way != way:
            self._way = way
            logger.info("files of RocksDB checkpoints are %s [%s]", way, target)


def _link_stored(old: Path, new: Path) -> bool:
    # The snapshot that held it may be deleted by now, or its file system has no links.
    try:
        os.link(old, new)
    except OSError:
        return False
    return True

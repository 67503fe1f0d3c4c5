"""The files of RocksDB checkpoints: linked or copied into snapshots, and out of them again.

A file is recognised by inode, size and time of writing, together with its name in this one
database, so that a checksum is computed once per file; across attempts, where names recur for
other content, only checksums count. All of it is slow and belongs off the event loop.

Where the snapshot lies on another file system, a file is copied there once and then linked from
the snapshot before. Where nothing can be linked, everything is copied each time.
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
from penstock.snapshot.handles import FileRecord, SnapshotBytes
from penstock.snapshot.state.rocks import RocksStore

__all__ = ["CheckpointFiles", "link_or_copy"]

logger = logging.getLogger(__name__)

_Identity = tuple[str, int, int, int]


def link_or_copy(source: Path, target: Path) -> bool:
    """Makes `target` a hard link of `source`, or else a copy; returns whether it is a link.

    Raises:
        OSError: if neither was possible.
    """
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        return False
    return True


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return (path.name, status.st_ino, status.st_size, status.st_mtime_ns)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _KnownFile:
    checksum: str
    stored: Path


class CheckpointFiles:
    """Makes the checkpoints of one database and remembers the files of the newest.

    Arguments:
        scratch: a local folder beside the database, made and removed as needed.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        # Only files of the newest checkpoint, or of the snapshot that was restored: the database
        # still has them, so that their inodes can't have passed to other files.
        self._known: dict[_Identity, _KnownFile] = {}
        self._way: str | None = None

    def take_over(self, source: Path, files: Sequence[FileRecord], folder: Path) -> None:
        """Brings the files of a snapshot into a working folder.

        Arguments:
            source: the snapshot's folder, which the files' names are relative to; only read.
            files: the files.
            folder: the working folder, made anew.

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
                    link_or_copy(stored, path)
                    self._known[_identity(path)] = _KnownFile(file.checksum, stored)
                else:
                    # RocksDB writes on in some of these.
                    shutil.copyfile(stored, path)
            except OSError as error:
                message = f"cannot restore a file of the snapshot ({error}); use another snapshot"
                raise StoreError(message, stored) from error

    def checkpoint(
        self, store: RocksStore, target: Path
    ) -> tuple[tuple[FileRecord, ...], SnapshotBytes]:
        """Makes a durable checkpoint of `store` in `target`, with the files and their checksums.

        Names of files are relative to the parent of `target`. The entry of `target` in its
        parent is not made durable; whoever publishes the snapshot does that.

        Raises:
            StoreError: if it can't be written.
        """
        try:
            if store.folder.stat().st_dev == target.parent.stat().st_dev:
                result = self._link(store, target)
            else:
                result = self._upload(store, target)
            _fsync(target)
        except Exception as error:
            # rocksdict raises plain exceptions.
            raise StoreError(f"cannot write the checkpoint of a state: {error}", target) from error
        return result

    def _link(
        self, store: RocksStore, target: Path
    ) -> tuple[tuple[FileRecord, ...], SnapshotBytes]:
        store.checkpoint(target)
        files, known = [], {}
        new = linked = 0
        for path in sorted(target.iterdir()):
            status = path.stat()
            # RocksDB copies where it can't link, without a word; and it doesn't fsync copies.
            if status.st_nlink == 1 and status.st_size:
                _fsync(path)
            if path.suffix == ".sst":
                self._say("linked" if status.st_nlink > 1 else "copied by RocksDB", target)
            identity = _identity(path)
            old = self._known.get(identity)
            if old is None:
                new += status.st_size
                old = _KnownFile(_checksum(path), path)
            else:
                linked += status.st_size
            known[identity] = _KnownFile(old.checksum, path)
            name = f"{target.name}/{path.name}"
            files.append(FileRecord(name, status.st_size, old.checksum))
        self._known = known
        return tuple(files), SnapshotBytes(new, linked)

    def _upload(
        self, store: RocksStore, target: Path
    ) -> tuple[tuple[FileRecord, ...], SnapshotBytes]:
        if self._scratch.exists():
            shutil.rmtree(self._scratch)
        store.checkpoint(self._scratch)
        target.mkdir()
        files, known = [], {}
        new = linked = 0
        for path in sorted(self._scratch.iterdir()):
            stored = target / path.name
            identity = _identity(path)
            size = identity[2]
            old = self._known.get(identity)
            if old is not None and self._link_stored(old.stored, stored):
                linked += size
                checksum = old.checksum
            else:
                shutil.copyfile(path, stored)
                if size:
                    _fsync(stored)
                new += size
                checksum = _checksum(path) if old is None else old.checksum
            if path.suffix == ".sst":
                self._say("uploaded once to another file system", target)
            known[identity] = _KnownFile(checksum, stored)
            files.append(FileRecord(f"{target.name}/{path.name}", size, checksum))
        self._known = known
        shutil.rmtree(self._scratch)
        return tuple(files), SnapshotBytes(new, linked)

    @staticmethod
    def _link_stored(old: Path, new: Path) -> bool:
        # The snapshot that held it may be deleted by now, or its file system has no links.
        try:
            os.link(old, new)
        except OSError:
            return False
        return True

    def _say(self, way: str, target: Path) -> None:
        if self._way != way:
            self._way = way
            logger.info("files of RocksDB checkpoints are %s [%s]", way, target)

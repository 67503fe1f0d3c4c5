"""The files of RocksDB checkpoints: linked or copied into snapshots, and out of them again.

A table file is recognised by its name in this one database, where none is used twice, so that a
checksum is computed once per file; across attempts, where names recur for other content, only
checksums count. All of it is slow and belongs off the event loop. System calls are few: each lets
go of the interpreter lock, and under load waits for it again.

A linked table file is durable, since RocksDB syncs it before it names it. The MANIFEST is written
and synced each time. CURRENT and the like are linked from the snapshot before, as long as they say
the same. The folder is synced last, for the names.

A snapshot that was announced finds all that done (`begin`), and what is left is to write the log of
what has changed since: one file, whose name is durable already.

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
from penstock.snapshot.metadata.handles import FileRecord, SnapshotBytes
from penstock.snapshot.state.preparation.backoff import Backoff
from penstock.snapshot.state.rocksdb.database import (
    RocksDatabase,
    no_room_message,
    rocks_recoverability,
)

__all__ = ["CheckpointFiles", "link_or_copy"]

logger = logging.getLogger(__name__)

# Of one read call; table files of RocksDB are mostly smaller.
_CHUNK_BYTES = 8 * 1024 * 1024


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


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _KnownFile:
    size: int
    checksum: str
    stored: Path


@dataclass(frozen=True)
class _Begun:
    """A checkpoint that was made ahead.

    Arguments:
        target: its folder.
        log: name of the file that is empty yet.
        files, size: what there is besides.
        known: what was known before.
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
        # By name the files of the newest checkpoint, or of the snapshot that was restored.
        self._known: dict[str, _KnownFile] = {}
        # Of files that were not in a checkpoint yet, by name.
        self._sums: dict[str, str] = {}
        self._way: str | None = None
        self._begun: _Begun | None = None
        # A turn is in vain if the log lacked something.
        self._turns = Backoff()

    @property
    def has_early(self) -> bool:
        """Whether a checkpoint was begun early."""
        return self._begun is not None

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
                    if not link_or_copy(stored, path):
                        # Later snapshots link it and take it for durable.
                        _fsync(path)
                    self._known[path.name] = _KnownFile(file.size, file.checksum, stored)
                else:
                    # RocksDB writes on in some of these.
                    shutil.copyfile(stored, path)
            except OSError as error:
                if full := no_room_message(error):
                    raise StoreError(full, folder) from error
                message = f"cannot restore a file of the snapshot ({error}); use another snapshot"
                raise StoreError(message, stored) from error

    def compute_checksum(self, store: RocksDatabase) -> bool:
        """Computes the checksum of one table file that the next checkpoint may have; slow.

        Returns False if there was none.
        """
        try:
            for name in store.tables():
                if name not in self._known and name not in self._sums:
                    self._sums[name] = _checksum(store.folder / name)
                    return True
        except OSError as error:
            # A compaction may have removed it, and the checkpoint will tell of all else.
            logger.debug("a checksum was not computed ahead: %s", error)
        return False

    def begin_early(self, store: RocksDatabase, target: Path) -> None:
        """Makes most of a checkpoint in `target` ahead; slow. `checkpoint` tells of faults.

        `store` logs what is written from now on, until `checkpoint` or `discard_early`. What is in
        `target` already stays. If it was for nothing lately, `store` is only flushed.
        """
        self.discard_early(store)
        if self._turns.skip():
            store.flush()
            return
        if target.exists():
            return
        known = self._known
        try:
            files, size = self._write(store, target, begin_log=True)
            assert store.log is not None
            self._begun = _Begun(target, store.log, files, size, known)
        except Exception as error:
            logger.debug("a checkpoint was not begun ahead: %s", error)
            self._known = known
            store.stop_log()
            shutil.rmtree(target, ignore_errors=True)

    def discard_early(self, store: RocksDatabase) -> None:
        """Nothing comes of what `begin` made, and nothing is left of it; slow."""
        begun, self._begun = self._begun, None
        if begun is not None:
            store.stop_log()
            self._forget(begun)

    def _forget(self, begun: _Begun) -> None:
        """Its files are in no snapshot, though their checksums are right."""
        sums = {name: file.checksum for name, file in self._known.items()}
        self._known = begun.known
        self._sums.update((name, sum) for name, sum in sums.items() if name not in self._known)
        shutil.rmtree(begun.target, ignore_errors=True)

    def checkpoint(
        self, store: RocksDatabase, target: Path
    ) -> tuple[tuple[FileRecord, ...], SnapshotBytes]:
        """Makes a durable checkpoint of `store` in `target`, with the files and their checksums.

        Names of files are relative to the parent of `target`. The entry of `target` in its
        parent is not made durable; whoever publishes the snapshot does that.

        Raises:
            StoreError: if it can't be written.
        """
        try:
            begun, self._begun = self._begun, None
            if begun is not None:
                data = store.end_log()
                self._turns.judge(useless=data is None)
                if data is not None and begun.target == target:
                    return self._add_log(begun, data)
                self._forget(begun)
            return self._write(store, target)
        except Exception as error:
            # rocksdict raises plain exceptions.
            raise StoreError(
                f"cannot write the checkpoint of a state: {error}",
                target,
                recoverability=rocks_recoverability(error),
            ) from error

    @staticmethod
    def _add_log(begun: _Begun, data: bytes) -> tuple[tuple[FileRecord, ...], SnapshotBytes]:
        with (begun.target / begun.log).open("r+b") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        name = f"{begun.target.name}/{begun.log}"
        record = FileRecord(name, len(data), _hash(data).hexdigest())
        return (*begun.files, record), begun.size + SnapshotBytes(new=len(data))

    def _write(
        self, store: RocksDatabase, target: Path, begin_log: bool = False
    ) -> tuple[tuple[FileRecord, ...], SnapshotBytes]:
        upload = store.folder.stat().st_dev != target.parent.stat().st_dev
        if upload and self._scratch.exists():
            shutil.rmtree(self._scratch)
        content = store.checkpoint(self._scratch if upload else target)
        known: dict[str, _KnownFile] = {}
        new = 0
        if upload:
            target.mkdir()
        for name, size in content.tables.items():
            source = stored = target / name
            old = self._known.get(name)
            if upload:
                source = self._scratch / name
                way = "uploaded once to another file system"
                if old is None or not self._link_stored(old.stored, stored):
                    new += size
                    shutil.copyfile(source, stored)
                    _fsync(stored)
            elif name in content.copied:
                way = "copied by RocksDB"
                new += size
                _fsync(stored)
            else:
                way = "linked"
                new += size if old is None else 0
            self._say(way, target)
            checksum = old.checksum if old else self._sums.get(name) or _checksum(source)
            known[name] = _KnownFile(size, checksum, stored)
        for name, data in content.others.items():
            stored = target / name
            checksum = _hash(data).hexdigest()
            old = self._known.get(name)
            if not (old and old.checksum == checksum and self._link_stored(old.stored, stored)):
                new += len(data)
                _write_durably(stored, data)
            known[name] = _KnownFile(len(data), checksum, stored)
        if begin_log:
            (target / store.begin_log()).touch(exist_ok=False)
        # Last, so that on most file systems the sync of the file before has done it already.
        _fsync(target)
        if upload:
            shutil.rmtree(self._scratch)
        self._known, self._sums = known, {}
        files = tuple(
            FileRecord(f"{target.name}/{name}", file.size, file.checksum)
            for name, file in sorted(known.items())
        )
        return files, SnapshotBytes(new, sum(file.size for file in files) - new)

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

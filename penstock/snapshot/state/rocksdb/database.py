"""One RocksDB database in a local working folder: opening, writing, reading.

Raw mode, and as a rule no write-ahead log: a snapshot is the log.

Calls that take more than microseconds are said to be slow: they belong off the event loop, and
release the interpreter lock.

A **checkpoint** is made here and not by RocksDB's own function, which holds that lock while it
syncs: 5 ms on a quiet disk, 30 and more on a busy one, in which no record moves. It is the table
files that a prefix of the MANIFEST names, and that prefix. Why it is consistent:

* A crash may leave any number of complete edits in the MANIFEST, and RocksDB opens what it finds.
  A prefix with its files is what a crash would have left, so nothing need be locked.
* A table file is complete and synced before the edit that adds it is written, and never changes
  after; a number is not used twice. So a link to it needs no sync of content.
* A table file is deleted only after an edit that removes it is in the MANIFEST. So when one cannot
  be linked, the MANIFEST has grown (or was replaced, and CURRENT says so), and the next reading
  no longer asks for it. When all could be linked, it doesn't matter what was appended meanwhile.
* `flush` returns after the edits that add its files are in the MANIFEST that CURRENT names, and
  CURRENT is read after that. So all that was written before is in the checkpoint.

There is no write-ahead log to copy: RocksDB's is empty, and opening doesn't ask for it. But a
checkpoint may be made ahead: then what is written after it is logged, and a copy of the **log** is
added to it. It is what a crash right after the last write would have left, as long as one log has
all of it; when a buffer is full RocksDB begins another one, and there is nothing to be added.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from penstock.dataflow.errors import Recoverability, StoreError, recoverability_of
from penstock.snapshot.state.rocksdb.blocks import BLOCKS
from penstock.snapshot.state.rocksdb.version import ManifestReader, UnknownManifestError

__all__ = ["CheckpointContent", "RocksDatabase", "SharedMemory", "rocks_recoverability"]

logger = logging.getLogger(__name__)

_GROUP = struct.Struct(">H")
# Small, so that most of a capture is flushed in the background while the rest is being written:
# flushing 100,000 entries at the end takes about 45 ms, with half of this what is left takes 8 to
# 15. But what is written while a checkpoint that was begun is waiting for its log has to fit.
MAX_WRITE_BUFFER_BYTES = 1024 * 1024
MIN_WRITE_BUFFER_BYTES = 256 * 1024
# Every checkpoint has a copy of the MANIFEST, which grows by 2 KiB or so a snapshot. Each of its
# files takes 150 to 300 bytes of a new one, so that this leaves room for more than 1,000 of them.
MAX_MANIFEST_BYTES = 512 * 1024
# Each takes one edit that removes files while they are being linked.
LINK_ATTEMPTS = 10
# After so much was written there are table files that were not there before.
CHECKSUM_BYTES = 1024 * 1024


class SharedMemory:
    """The block cache and the write-buffer limit that all backends of a process share.

    Write buffers are charged to the cache, so `capacity_bytes` bounds both together.

    Arguments:
        capacity_bytes: memory for both.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.cache = Cache(capacity_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            capacity_bytes // 2, False, self.cache
        )
        self._users = 0

    def join(self) -> None:
        """Count one more backend that uses it."""
        self._users += 1

    def leave(self) -> None:
        """Count one backend less."""
        self._users -= 1

    def share_bytes(self) -> int:
        """Return the share of one backend, in bytes."""
        return self.capacity_bytes // max(1, self._users)


def _options(shared: SharedMemory) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # It is written by one thread only.
    options.set_allow_concurrent_memtable_write(False)
    buffer_bytes = min(MAX_WRITE_BUFFER_BYTES, shared.capacity_bytes // 4)
    options.set_write_buffer_size(max(MIN_WRITE_BUFFER_BYTES, buffer_bytes))
    options.set_write_buffer_manager(shared.write_buffers)
    # Levels and files in proportion to the buffers; small files are shared by more snapshots.
    options.set_level_zero_file_num_compaction_trigger(8)
    # Not soon: on a busy machine a compaction takes its time, and a flush, and so a snapshot, waits
    # for it already when one more file would slow down writes.
    options.set_level_zero_slowdown_writes_trigger(400)
    options.set_level_zero_stop_writes_trigger(500)
    options.set_max_bytes_for_level_base(32 * 1024 * 1024)
    options.set_target_file_size_base(8 * 1024 * 1024)
    # What a compaction writes goes to the disk bit by bit, and is not what the next sync waits for.
    options.set_bytes_per_sync(256 * 1024)
    # Flushing 100,000 entries takes as long with lz4 as without, and half the space.
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(shared.cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    # The log of a snapshot is whole, or it is damaged.
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    options.set_max_open_files(128)
    options.set_max_background_jobs(2)
    # Records come first; a compaction has time.
    environment = Env()
    environment.lower_thread_pool_cpu_priority()
    options.set_env(environment)
    # Quiet: one small LOG, no statistics, and no 4 MiB reserved for each MANIFEST.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_max_manifest_file_size(MAX_MANIFEST_BYTES)
    return options


@dataclass(frozen=True)
class CheckpointContent:
    """The files of a checkpoint.

    Arguments:
        tables: per name of a table file its size in bytes; these are in its folder.
        copied: those of them that are copies, whose content isn't synced.
        others: the content of all others by name, which are yet to be written there.
    """

    tables: Mapping[str, int]
    copied: frozenset[str]
    others: Mapping[str, bytes]


class RocksDatabase:
    """The database of one subtask.

    Arguments:
        folder: its folder; if there is a database in it, that is opened.
        shared: block cache and write buffers.
    """

    def __init__(self, folder: Path, shared: SharedMemory) -> None:
        self.folder = folder
        self._shared = shared
        self._write_options, self._logged_options = WriteOptions(), WriteOptions()
        # The package's stub takes this property for a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        #: The name of the log, while what is written is logged.
        self.log: str | None = None
        self._warned = False
        #: Bytes that were written since the names of table files were asked for.
        self.unlisted_bytes = 0
        #: Bytes that were written since the last flush that was asked for.
        self.unflushed_bytes = 0
        self._database = self._open()

    @classmethod
    def create(cls, folder: Path, shared: SharedMemory) -> RocksDatabase:
        """An empty database in `folder`, whatever an earlier run left there; slow."""
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return cls(folder, shared)

    def _open(self) -> Rdict:
        options = _options(self._shared)
        # Named so, or rocksdict takes buffers and cache from the OPTIONS file there.
        database = Rdict(str(self.folder), options, column_families={"default": options})
        database.set_write_options(self._write_options)
        self._manifest = ManifestReader(self.folder)
        return database

    @staticmethod
    def new_batch() -> WriteBatch:
        """Return an empty batch of rows: `batch[key] = value`, `del batch[key]`."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        """Writes the rows of `batch`. Holds the interpreter lock.

        Raises:
            StoreError: if they can't be written; after that, nothing can.
        """
        try:
            size = batch.size_in_bytes()
            self.unlisted_bytes += size
            self.unflushed_bytes += size
            logged = self.log is not None
            self._database.write(batch, self._logged_options if logged else self._write_options)
        except Exception as error:
            raise self._explain("write", error) from error

    def get(self, row_key: bytes) -> bytes | None:
        """The value of a row, or None. `StoreError` if it can't be read."""
        try:
            value: bytes | None = self._database.get(row_key)
        except Exception as error:
            raise self._explain("read", error) from error
        return value

    def rows(self, first_group: int, end_group: int) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a range of key groups, in order, as they were when this was called."""
        end = _GROUP.pack(end_group)
        items = self._items(_GROUP.pack(first_group))
        return takewhile(lambda row: row[0] < end, items)

    def rows_of(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All rows whose key begins with `prefix`, as they were when this was called."""
        return takewhile(lambda row: row[0].startswith(prefix), self._items(prefix))

    def _items(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        items = self._database.items(from_key=begin)

        def explained() -> Iterator[tuple[bytes, bytes]]:
            try:
                yield from items
            except Exception as error:
                raise self._explain("read", error) from error

        return explained()

    def _explain(self, what: str, error: Exception) -> StoreError:
        # rocksdict raises plain exceptions.
        return StoreError(
            f"cannot {what} keyed state: {error}",
            self.folder,
            recoverability=rocks_recoverability(error),
        )

    def holds_blocks(self) -> bool:
        """Whether there is a block in it."""
        return next(self.rows_of(BLOCKS), None) is not None

    def tables(self) -> list[str]:
        """Names of the table files that it has now; slow.

        Raises:
            OSError: if they can't be told.
        """
        self.unlisted_bytes = 0
        try:
            return [_table_name(number) for number in self._manifest.read().files]
        except UnknownManifestError as error:
            # What was read of it is of no use any more.
            self._manifest = ManifestReader(self.folder)
            raise OSError(str(error)) from error

    def flush(self) -> None:
        """Makes a table file of what is in memory; slow. The next checkpoint tells of faults."""
        self.unflushed_bytes = 0
        # So that the checksum of what is made is computed ahead, too.
        self.unlisted_bytes = max(self.unlisted_bytes, CHECKSUM_BYTES)
        try:
            self._database.flush()
        except Exception as error:
            logger.debug("what was written ahead was not flushed: %s", error)

    def checkpoint(self, folder: Path) -> CheckpointContent:
        """Flushes, and links the table files of the database into `folder`; slow.

        Arguments:
            folder: to be made; its parent exists, it does not. The caller writes the other files
                and syncs it.

        Raises:
            OSError: if the folder can't be made.
            Exception: if RocksDB can't flush, or can't make the checkpoint where we couldn't.
        """
        self._database.flush()
        self.unlisted_bytes = self.unflushed_bytes = 0
        folder.mkdir()
        try:
            return self._link_newest(folder)
        except (UnknownManifestError, OSError) as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "RocksDB makes the checkpoint itself, which holds records up for longer: %s",
                    error,
                )
            self._manifest = ManifestReader(self.folder)
            shutil.rmtree(folder, ignore_errors=True)
        return self._let_rocksdb(folder)

    def _link_newest(self, folder: Path) -> CheckpointContent:
        sources, targets = f"{self.folder}/", f"{folder}/"
        linked: set[int] = set()
        for _ in range(LINK_ATTEMPTS):
            version = self._manifest.read()
            try:
                for number in version.files.keys() - linked:
                    name = _table_name(number)
                    os.link(sources + name, targets + name)
                    linked.add(number)
            except FileNotFoundError:
                continue
            for number in linked - version.files.keys():
                (folder / _table_name(number)).unlink()
            tables = {_table_name(number): size for number, size in version.files.items()}
            current = os.fsencode(f"{version.name}\n")
            others = {version.name: version.data, "CURRENT": current}
            return CheckpointContent(tables, frozenset(), others)
        message = "table files of RocksDB vanish faster than they can be linked"
        raise UnknownManifestError(message, self.folder)

    def _let_rocksdb(self, folder: Path) -> CheckpointContent:
        Checkpoint(self._database).create_checkpoint(str(folder))
        tables, copied, others = {}, set(), {}
        for path in folder.iterdir():
            if path.suffix == ".sst":
                status = path.stat()
                tables[path.name] = status.st_size
                # It copies where it can't link, without a word; and it doesn't sync copies.
                if status.st_nlink == 1:
                    copied.add(path.name)
                continue
            # How we happened to open it is not state, and would keep others from opening it
            # plainly. There is nothing in its log, since all is flushed.
            if not path.name.startswith("OPTIONS-") and path.suffix != ".log":
                others[path.name] = path.read_bytes()
            path.unlink()
        return CheckpointContent(tables, frozenset(copied), others)

    def begin_log(self) -> str:
        """Right after `checkpoint`: logs what is written from now on; slow.

        Returns the name of the log.
        """
        self.log = self._newest_log()
        return self.log

    def stop_log(self) -> str | None:
        """Logs nothing any more. Returns the name of the log, if there was one."""
        name, self.log = self.log, None
        return name

    def end_log(self) -> bytes | None:
        """Logs nothing any more. Returns the log, or None if it lacks something; slow.

        Raises:
            OSError: if it can't be read.
        """
        name = self.stop_log()
        if name is None:
            return None
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        # What it had is in a table file when there is another one.
        return data if self._newest_log() == name else None

    def _newest_log(self) -> str:
        return max((path.name for path in self.folder.glob("*.log")), key=lambda n: int(n[:-4]))

    def close(self) -> None:
        """Flushes and closes it; slow."""
        self._database.close()


def _table_name(number: int) -> str:
    return f"{number:06}.sst"


def rocks_recoverability(error: Exception) -> Recoverability:
    """Return whether a restart may mend an error of RocksDB. It has a text, but no number."""
    if isinstance(error, OSError):
        return recoverability_of(error)
    if os.strerror(errno.EFBIG) in str(error):
        return Recoverability.NON_RECOVERABLE
    disk = str(error).startswith("IO error")
    return Recoverability.ENVIRONMENT if disk else Recoverability.RECOVERABLE


def no_room_message(error: Exception) -> str | None:
    """Return what to say if an error of restoring is that of a full disk, else None."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not full and os.strerror(errno.ENOSPC) not in str(error):
        return None
    return (
        f"the disk is full, so the state of a snapshot cannot be restored ({error}); the snapshot "
        f"itself is well: make room, and resume from it"
    )

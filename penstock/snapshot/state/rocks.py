"""One RocksDB database in a local working folder: opening, writing, reading.

Raw mode, no write-ahead log: a snapshot is the log. There are two ways to open it. *Write-only*,
while every entry is hot too: the memtable is a vector, which takes writes about six times as
fast and holds the interpreter lock that much shorter. *Readable*: the memtable is a skip list,
since reading a vector sorts it each time.

Calls that take more than microseconds are said to be slow: they belong off the event loop. They
release the interpreter lock, except that creating a checkpoint holds it for about 2 ms.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Env,
    MemtableFactory,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

__all__ = ["RocksStore", "SharedMemory", "new_batch"]

_GROUP = struct.Struct(">H")
# Small, so that most of a capture is flushed in the background while the rest is being written:
# flushing 100,000 entries at the end takes about 45 ms, with this what is left takes 8 to 15.
MAX_WRITE_BUFFER_BYTES = 512 * 1024
MIN_WRITE_BUFFER_BYTES = 256 * 1024


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
        self.users = 0

    def share_bytes(self) -> int:
        """The part of one of the backends that use it."""
        return self.capacity_bytes // max(1, self.users)


def _options(shared: SharedMemory, *, readable: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Both kinds of memtable are written by one thread only, and a vector insists on it.
    options.set_allow_concurrent_memtable_write(False)
    if not readable:
        options.set_memtable_factory(MemtableFactory.vector())
    buffer_bytes = min(MAX_WRITE_BUFFER_BYTES, shared.capacity_bytes // 4)
    options.set_write_buffer_size(max(MIN_WRITE_BUFFER_BYTES, buffer_bytes))
    options.set_write_buffer_manager(shared.write_buffers)
    # Levels and files in proportion to the buffers; small files are shared by more snapshots.
    # Many files cost reads, of which there are none while all entries are hot; compacting them
    # costs the time in which snapshots are written.
    options.set_level_zero_file_num_compaction_trigger(6 if readable else 40)
    options.set_level_zero_slowdown_writes_trigger(80)
    options.set_level_zero_stop_writes_trigger(120)
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
    return options


def new_batch() -> WriteBatch:
    """An empty batch of rows: `batch[key] = value`, `del batch[key]`."""
    return WriteBatch(raw_mode=True)


class RocksStore:
    """The database of one subtask.

    Arguments:
        folder: its folder; if there is a database in it, that is opened.
        shared: block cache and write buffers.
        readable: whether reading must be quick; else writing is.
    """

    def __init__(self, folder: Path, shared: SharedMemory, *, readable: bool) -> None:
        self.folder = folder
        self.readable = readable
        self._shared = shared
        self._write_options = WriteOptions()
        # The package's stub takes this property for a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._database = self._open(readable=readable)

    @classmethod
    def create(cls, folder: Path, shared: SharedMemory, *, readable: bool) -> RocksStore:
        """An empty database in `folder`, whatever an earlier run left there; slow."""
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return cls(folder, shared, readable=readable)

    def _open(self, *, readable: bool) -> Rdict:
        options = _options(self._shared, readable=readable)
        # Named so, or rocksdict takes memtable, buffers and cache from the OPTIONS file there.
        database = Rdict(str(self.folder), options, column_families={"default": options})
        database.set_write_options(self._write_options)
        return database

    def make_readable(self) -> None:
        """Opens it anew for quick reading; slow. Nothing may use it meanwhile."""
        self._database.flush()
        self._database.close()
        self._database = self._open(readable=True)
        self.readable = True

    def write(self, batch: WriteBatch) -> None:
        """Writes the rows of `batch`. Holds the interpreter lock."""
        self._database.write(batch, self._write_options)

    def get(self, row_key: bytes) -> bytes | None:
        """The value of a row, or None."""
        value: bytes | None = self._database.get(row_key)
        return value

    def rows(self, first_group: int, end_group: int) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a range of key groups, in order, as they were when this was called."""
        items = self._database.items(from_key=_GROUP.pack(first_group))
        return _until(items, _GROUP.pack(end_group))

    def rows_of(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All rows whose key begins with `prefix`, as they were when this was called."""
        return _with_prefix(self._database.items(from_key=prefix), prefix)

    def checkpoint(self, target: Path) -> None:
        """Flushes, and links or copies all files of the database into `target`; slow.

        Arguments:
            target: the folder to make; its parent exists, it does not.
        """
        # A checkpoint would flush by itself, but holding the interpreter lock.
        self._database.flush()
        Checkpoint(self._database).create_checkpoint(str(target))
        # How we happened to open it is not state, and would keep others from opening it plainly.
        for options in target.glob("OPTIONS-*"):
            options.unlink()

    def close(self) -> None:
        """Flushes and closes it; slow."""
        self._database.close()


def _until(items: Any, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in items:
        if key >= end:
            return
        yield key, value


def _with_prefix(items: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in items:
        if not key.startswith(prefix):
            return
        yield key, value

"""The options of a RocksDB database: memory, file sizes and background work."""

from __future__ import annotations

import contextlib
import resource

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    WriteBufferManager,
)

from penstock.snapshot.state.cold.database import SharedMemory

# The write buffer is small, so that RocksDB flushes most of a snapshot in the background while the
# rest is written. With this size, the flush at the end of 100,000 entries takes 15 ms instead of
# 45 ms. A smaller buffer might not hold the writes after an early checkpoint.
_MAX_WRITE_BUFFER_BYTES = 1024 * 1024
_MIN_WRITE_BUFFER_BYTES = 256 * 1024
# A large state is written with a larger buffer, in fewer files. Otherwise compactions, which then
# take long, fall behind, and each read looks into hundreds of files: to write 3 GB of values of
# 10 KB takes 70 s with the small buffer, and 29 s with this one.
LARGE_STATE_BYTES = 256 * 1024 * 1024
_LARGE_WRITE_BUFFER_BYTES = 8 * 1024 * 1024
# Each checkpoint contains a copy of the MANIFEST, which grows by about 2 KiB for each snapshot. In
# a new MANIFEST each table file takes 150 to 300 bytes, so this size is enough for 1,000 files.
_MAX_MANIFEST_BYTES = 512 * 1024
# A file that is closed and opened again reads its index and its filter again. If a database has
# more files than it may keep open, each read of a row may do so in several files.
_MIN_OPEN_FILES, _MAX_OPEN_FILES = 128, 8192
# A worker may have several databases, and connections.
_SHARE_OF_FILES = 8


class RocksMemory(SharedMemory):
    """The block cache and the write-buffer limit that all databases of a process share.

    The memory of the write buffers counts as a part of the cache. So `capacity_bytes` limits both
    together.

    Arguments:
        capacity_bytes: the memory of the block cache and the write buffers together, in bytes.
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.cache = Cache(capacity_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            capacity_bytes // 2, False, self.cache
        )


def options_for_large_state(shared: RocksMemory) -> dict[str, str]:
    """Return the options that an open database gets when it has `LARGE_STATE_BYTES`."""
    return {"write_buffer_size": str(_write_buffer_bytes(shared, _LARGE_WRITE_BUFFER_BYTES))}


def _write_buffer_bytes(shared: RocksMemory, largest: int) -> int:
    return max(_MIN_WRITE_BUFFER_BYTES, min(largest, shared.capacity_bytes // 4))


def _max_open_files() -> int:
    """Return how many files a database may keep open, after raising the limit of the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES * _SHARE_OF_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        # Some systems refuse what their hard limit allows. Then the database has fewer open files.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY:
        return _MAX_OPEN_FILES
    return max(_MIN_OPEN_FILES, min(soft // _SHARE_OF_FILES, _MAX_OPEN_FILES))


def database_options(shared: RocksMemory, max_manifest_bytes: int = _MAX_MANIFEST_BYTES) -> Options:
    """Return the RocksDB options with which to open a database.

    Arguments:
        shared: the block cache and write buffers of the database.
        max_manifest_bytes: the size of the MANIFEST, in bytes, at which RocksDB begins a new one.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Only one thread writes to the database.
    options.set_allow_concurrent_memtable_write(False)
    options.set_write_buffer_size(_write_buffer_bytes(shared, _MAX_WRITE_BUFFER_BYTES))
    options.set_write_buffer_manager(shared.write_buffers)
    # Levels and files are small, like the write buffers. More snapshots can share small files.
    options.set_level_zero_file_num_compaction_trigger(8)
    # These limits are high, since a compaction takes long on a busy machine. At the first limit, a
    # flush and its snapshot would have to wait for the compaction.
    options.set_level_zero_slowdown_writes_trigger(400)
    options.set_level_zero_stop_writes_trigger(500)
    options.set_max_bytes_for_level_base(32 * 1024 * 1024)
    options.set_target_file_size_base(8 * 1024 * 1024)
    # Each snapshot links all files and names them. Files of deeper levels are larger and change
    # less often, so 10 GB of state are about 200 files and not 1,250.
    options.set_target_file_size_multiplier(2)
    # A compaction syncs its output in small parts, so that other syncs do not wait long for it.
    options.set_bytes_per_sync(256 * 1024)
    # With lz4, a flush of 100,000 entries takes the same time, and its files take half the space.
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(shared.cache)
    # Indexes and filters are not in the cache. Blocks of entries would displace them there, and
    # each read needs several of them. A read of 1 KB then takes 22 us instead of 4.
    blocks.set_cache_index_and_filter_blocks(False)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    # The log in a snapshot must be complete. If its end is missing, RocksDB must raise an error.
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    options.set_max_open_files(_max_open_files())
    # One thread flushes. The others compact: a long compaction does not hold up those of other
    # levels, so fewer files of level 0 wait, into each of which a read looks.
    options.set_max_background_jobs(4)
    # Compactions are less urgent than records, so their threads have a lower priority.
    environment = Env()
    environment.lower_thread_pool_cpu_priority()
    options.set_env(environment)
    # RocksDB keeps one small LOG file, writes no statistics, and reserves little space for each
    # MANIFEST instead of 4 MiB.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_max_manifest_file_size(max_manifest_bytes)
    return options

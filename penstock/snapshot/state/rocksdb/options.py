"""How a database is opened: memory, sizes of files, background work."""

from __future__ import annotations

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    WriteBufferManager,
)

__all__ = ["SharedMemory", "database_options"]

# Small, so that most of a snapshot is flushed in the background while the rest is being written:
# flushing 100,000 entries at the end takes about 45 ms, and the rest that is left with this size
# 15 ms. Half of it would make that 8 ms. But the writes after an early checkpoint have to fit.
_MAX_WRITE_BUFFER_BYTES = 1024 * 1024
_MIN_WRITE_BUFFER_BYTES = 256 * 1024
# Every checkpoint has a copy of the MANIFEST, which grows by about 2 KiB a snapshot. Each table
# file takes 150 to 300 bytes of a new one, so this leaves room for more than 1,000 of them.
_MAX_MANIFEST_BYTES = 512 * 1024


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


def database_options(
    shared: SharedMemory, max_manifest_bytes: int = _MAX_MANIFEST_BYTES
) -> Options:
    """Return the options of a database.

    Arguments:
        shared: its block cache and write buffers.
        max_manifest_bytes: a MANIFEST that is larger is replaced.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Only one thread writes.
    options.set_allow_concurrent_memtable_write(False)
    buffer_bytes = min(_MAX_WRITE_BUFFER_BYTES, shared.capacity_bytes // 4)
    options.set_write_buffer_size(max(_MIN_WRITE_BUFFER_BYTES, buffer_bytes))
    options.set_write_buffer_manager(shared.write_buffers)
    # Levels and files in proportion to the buffers; small files are shared by more snapshots.
    options.set_level_zero_file_num_compaction_trigger(8)
    # High: on a busy machine a compaction takes long. A flush, and with it a snapshot, waits for it
    # when one more file would slow down writes.
    options.set_level_zero_slowdown_writes_trigger(400)
    options.set_level_zero_stop_writes_trigger(500)
    options.set_max_bytes_for_level_base(32 * 1024 * 1024)
    options.set_target_file_size_base(8 * 1024 * 1024)
    # The output of a compaction is synced bit by bit, so that the next sync need not wait for it.
    options.set_bytes_per_sync(256 * 1024)
    # Flushing 100,000 entries takes as long with lz4 as without, and half the space.
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_block_cache(shared.cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    # The log of a snapshot is complete, or it is damaged.
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    options.set_max_open_files(128)
    options.set_max_background_jobs(2)
    # Records come first; a compaction is not urgent.
    environment = Env()
    environment.lower_thread_pool_cpu_priority()
    options.set_env(environment)
    # One small LOG, no statistics, and no 4 MiB reserved for each MANIFEST.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_max_manifest_file_size(max_manifest_bytes)
    return options

"""Define state backends and checkpoint storages by the names of Flink.

Penstock has one backend: state is in memory while it is small, and then in a database. A state
backend chooses this database at most. A checkpoint storage sets the folder of the snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.config.job_config import JobConfig
from penstock.dataflow.config.snapshot_stores import checkpoint_place

_LOGGER = logging.getLogger("penstock")
_TUNED = (
    "Penstock tunes RocksDB by itself; the memory of a worker is set with env.set_memory(bytes)"
)


class StateBackend:
    """Where operators keep their state. (Flink: `StateBackend`.)

    Every state backend is accepted. Penstock keeps state in memory while it is small, and then in a
    database; the limit is set with `StreamExecutionEnvironment.set_memory`. The database is RocksDB
    unless `EmbeddedSQLiteStateBackend` or the setting `cold_store` chooses SQLite.

    Examples:
        >>> issubclass(EmbeddedRocksDBStateBackend, StateBackend)
        True
    """

    #: The database that this backend chooses; None for the default one.
    cold_store: ClassVar[ColdStoreKind | None] = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class HashMapStateBackend(StateBackend):
    """Keeps state in memory; see `StateBackend`. (Flink: `HashMapStateBackend`.)

    Examples:
        >>> _ = env.set_state_backend(HashMapStateBackend())
    """


class PredefinedOptions(Enum):
    """Options for RocksDB. (Flink: `PredefinedOptions`.) They have no effect.

    Examples:
        >>> backend = EmbeddedRocksDBStateBackend()
        >>> backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    """

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


def _note(method: str) -> None:
    _LOGGER.info("%s has no effect: %s", method, _TUNED)


class EmbeddedRocksDBStateBackend(PyFlinkNames, StateBackend):
    """Keeps state in RocksDB; see `StateBackend`. (Flink: `EmbeddedRocksDBStateBackend`.)

    Arguments:
        enable_incremental_checkpointing: has no effect, since snapshots are incremental.

    Examples:
        >>> _ = env.set_state_backend(EmbeddedRocksDBStateBackend())
    """

    cold_store = ColdStoreKind.ROCKSDB
    _missing: ClassVar[Mapping[str, str]] = dict.fromkeys(("set_options", "get_options"), _TUNED)

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        self._incremental = enable_incremental_checkpointing is not False
        self._storage_paths: list[str] | None = None
        self._options = PredefinedOptions.DEFAULT
        self._threads = 4

    def is_incremental_checkpoints_enabled(self) -> bool:
        """Return the value that was given, else True: a snapshot has only changed data."""
        return self._incremental

    def set_db_storage_paths(self, *paths: str) -> None:
        """Accept the folders of RocksDB: its files are in the folder of the job."""
        self._storage_paths = list(paths) or None
        _note("set_db_storage_paths")

    def get_db_storage_paths(self) -> list[str] | None:
        """Return the folders that were set; None if there are none."""
        return self._storage_paths

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        """Accept options for RocksDB, and ignore them."""
        self._options = options
        _note("set_predefined_options")

    def get_predefined_options(self) -> PredefinedOptions:
        """Return the options that were set."""
        return self._options

    def set_number_of_transfer_threads(self, number_of_transfer_threads: int) -> None:
        """Accept the number of threads that transfer files, and ignore it."""
        name = "number_of_transfer_threads"
        self._threads = whole_number(name, number_of_transfer_threads, least=1)
        _note(f"set_{name}")

    def get_number_of_transfer_threads(self) -> int:
        """Return the number that was set, by default 4."""
        return self._threads


class EmbeddedSQLiteStateBackend(StateBackend):
    """Keeps state that is not small in SQLite instead of RocksDB; see `StateBackend`.

    SQLite is a part of Python, so this needs no further package. Snapshots of both databases can be
    resumed with both. Flink has no such backend.

    Examples:
        >>> from penstock import EmbeddedSQLiteStateBackend, StreamExecutionEnvironment
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> env.set_state_backend(EmbeddedSQLiteStateBackend()).config.cold_store
        <ColdStoreKind.SQLITE: 'sqlite'>
    """

    cold_store = ColdStoreKind.SQLITE


_STORAGE = {
    "get_savepoint_path": "savepoints are in the checkpoint folder",
    "get_max_state_size": "there is no limit",
    "get_write_buffer_size": "Penstock chooses the sizes of its buffers",
}


class CheckpointStorage(PyFlinkNames):
    """Where snapshots are stored. (Flink: `CheckpointStorage`.)

    Examples:
        >>> storage = FileSystemCheckpointStorage("/var/snapshots/job")
        >>> isinstance(storage, CheckpointStorage)
        True
    """

    _missing: ClassVar[Mapping[str, str]] = _STORAGE

    def apply_to(self, config: JobConfig) -> None:
        """Change the settings of a job as the storage says."""


class JobManagerCheckpointStorage(CheckpointStorage):
    """Stores snapshots in a temporary folder, unless a path is given.

    Flink keeps them in the memory of the JobManager. Neither survives the job.
    (Flink: `JobManagerCheckpointStorage`.)

    Arguments:
        checkpoint_path: the folder of the snapshots; None for a temporary one.
        max_state_size: ignored; there is no limit.

    Examples:
        >>> _ = env.get_checkpoint_config().set_checkpoint_storage(JobManagerCheckpointStorage())
    """

    def __init__(
        self, checkpoint_path: str | None = None, max_state_size: int | None = None
    ) -> None:
        del max_state_size
        self.checkpoint_path = checkpoint_path

    def apply_to(self, config: JobConfig) -> None:
        """Set the folder of the snapshots."""
        path = self.checkpoint_path
        config.checkpoint_dir = None if path is None else checkpoint_place(str(path))

    def get_checkpoint_path(self) -> str | None:
        """Return the folder of the snapshots; None for a temporary one."""
        return self.checkpoint_path


class FileSystemCheckpointStorage(CheckpointStorage):
    """Stores snapshots in a folder. (Flink: `FileSystemCheckpointStorage`.)

    Arguments:
        checkpoint_path: the folder, as a local path or a `file://` URL, or the URL of an object
            store such as `s3://bucket/prefix`.
        file_state_size_threshold: the largest size of keyed state that is stored in the manifest
            itself, in bytes. None does not change it.
        write_buffer_size: ignored.

    Raises:
        GraphError: if the path is an address of another kind.

    Examples:
        >>> storage = FileSystemCheckpointStorage("file:///var/snapshots/job")
        >>> _ = env.get_checkpoint_config().set_checkpoint_storage(storage)
        >>> storage.get_checkpoint_path()
        'file:///var/snapshots/job'
    """

    def __init__(
        self,
        checkpoint_path: str,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int = -1,
    ) -> None:
        del write_buffer_size
        self.checkpoint_path = str(checkpoint_path)
        self._folder = checkpoint_place(self.checkpoint_path)
        self.file_state_size_threshold = file_state_size_threshold

    def apply_to(self, config: JobConfig) -> None:
        """Set the folder of the snapshots, and the size of state in a manifest."""
        config.checkpoint_dir = self._folder
        if self.file_state_size_threshold is not None:
            config.inline_threshold = self.file_state_size_threshold

    def get_checkpoint_path(self) -> str:
        """Return the folder of the snapshots, as it was given."""
        return self.checkpoint_path

    def get_min_file_size_threshold(self) -> int | None:
        """Return the threshold that was given; None if it was not."""
        return self.file_state_size_threshold

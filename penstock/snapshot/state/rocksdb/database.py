"""Opens, writes, reads and flushes one RocksDB database in a local working folder.

Keys and values are bytes (raw mode). Usually writes are not logged, since the state is restored
from a snapshot after a failure.

The log of an early checkpoint is RocksDB's write-ahead log. RocksDB opens such a checkpoint as it
opens a database after a crash. All later writes must be in one log. If RocksDB has begun a second
log, because a write buffer was full, the early checkpoint is not used.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import AccessType, Options, Rdict, ReadOptions, WriteOptions
from rocksdict import WriteBatch as RocksBatch

from penstock.dataflow.errors import ProtocolError, StoreError
from penstock.snapshot.state.cold.database import (
    CHECKSUM_BYTES,
    CheckpointContent,
    DatabaseEngine,
    SharedMemory,
    StateDatabase,
    WriteBatch,
)
from penstock.snapshot.state.cold.errors import state_error
from penstock.snapshot.state.rocksdb.options import (
    LARGE_STATE_BYTES,
    RocksMemory,
    database_options,
    options_for_large_state,
)
from penstock.snapshot.state.rocksdb.table_files import TableFiles

if TYPE_CHECKING:
    from rocksdict.rocksdict import RdictItems

logger = logging.getLogger(__name__)

#: The bytes that a scan of a snapshot reads ahead. Its files are read in order.
_READAHEAD_BYTES = 1024 * 1024
#: The properties of table files that count deletions: of rows, and of ranges of rows.
_DELETION_COUNTS = 2


class RocksDatabase(StateDatabase):
    """One open RocksDB database, which holds the keyed state of one subtask.

    Arguments:
        folder: the folder of the database. A new database is made if the folder has none.
        shared: the block cache and write buffers.
        make_options: a function that returns the options with which to open the database.
    """

    def __init__(
        self,
        folder: Path,
        shared: SharedMemory,
        make_options: Callable[[RocksMemory], Options] = database_options,
    ) -> None:
        if not isinstance(shared, RocksMemory):
            raise ProtocolError("the shared memory of a RocksDB database is a RocksMemory")
        self.folder = folder
        self._write_options, self._logged_options = WriteOptions(), WriteOptions()
        # The type stub of rocksdict declares this property as a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        options = make_options(shared)
        self._database = self._open(folder, options)
        self._database.set_write_options(self._write_options)
        self._table_files = TableFiles(folder)
        self._shared = shared
        #: Whether the database has the options for large state.
        self._is_large = False

    @staticmethod
    def _open(folder: Path, options: Options) -> Rdict:
        # The column family is named, since rocksdict would otherwise take the sizes of buffers and
        # cache from the OPTIONS file in the folder.
        return Rdict(str(folder), options, column_families={"default": options})

    @classmethod
    def create(
        cls,
        folder: Path,
        shared: SharedMemory,
        make_options: Callable[[RocksMemory], Options] = database_options,
    ) -> RocksDatabase:
        """Remove `folder` if it exists, and open an empty database there. This is slow.

        Raises:
            StoreError: if the database cannot be created.
        """
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            return cls(folder, shared, make_options)
        except Exception as error:
            raise state_error("create", folder, error) from error

    # --- methods that read and write rows ---

    def new_batch(self) -> WriteBatch:
        """Return an empty batch of writes."""
        batch: WriteBatch = RocksBatch(raw_mode=True)
        return batch

    def write(self, batch: WriteBatch) -> None:
        """Write the rows of a batch. This call does not release the interpreter lock."""
        assert isinstance(batch, RocksBatch)
        try:
            size = batch.size_in_bytes()
            self.unlisted_bytes += size
            self.unflushed_bytes += size
            logged = self.log is not None
            self._database.write(batch, self._logged_options if logged else self._write_options)
        except Exception as error:
            raise self._explain("write", error) from error

    def get(self, row_key: bytes) -> bytes | None:
        """Return the value of a row, or None if there is no such row."""
        try:
            value: bytes | None = self._database.get(row_key)
        except Exception as error:
            raise self._explain("read", error) from error
        return value

    def get_all(self, row_keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each row, or None where there is no such row."""
        try:
            return list(self._database.get(row_keys))  # type: ignore[arg-type]
        except Exception as error:
            raise self._explain("read", error) from error

    def scan(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows with `begin <= key < end`, in order."""
        rows = self._items(begin)
        return rows if end is None else takewhile(lambda row: row[0] < end, rows)

    def _items(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._explained(self._database.items(from_key=begin))

    def _explained(self, items: RdictItems) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from items
        except Exception as error:
            raise self._explain("read", error) from error

    def _explain(self, what: str, error: Exception) -> StoreError:
        return state_error(what, self.folder, error)

    # --- methods for table files, checkpoints and logs ---

    def tables(self) -> list[str]:
        """Return the names of the table files of the database. This is slow."""
        self.unlisted_bytes = 0
        return self._table_files.names()

    def flush(self) -> None:
        """Flush the write buffers to a table file. This is slow.

        An error is only logged here. The next `checkpoint` raises it.
        """
        self.unflushed_bytes = 0
        # This makes `wants_checksums` true, so that the checksum of the new file is computed early.
        self.unlisted_bytes = max(self.unlisted_bytes, CHECKSUM_BYTES)
        try:
            self._database.flush()
        except Exception as error:
            logger.debug("an early flush failed: %s", error)

    def checkpoint(self, folder: Path) -> CheckpointContent:
        """Flush the database, and link its table files into a new folder. This is slow."""
        self._database.flush()
        self.unlisted_bytes = self.unflushed_bytes = 0
        content = self._table_files.link(folder, self._database)
        if not self._is_large and sum(content.tables.values()) >= LARGE_STATE_BYTES:
            self._is_large = True
            self._database.set_options(options_for_large_state(self._shared))
        return content

    def begin_log(self) -> str:
        """Begin to log all writes, and return the name of the log file. This is slow."""
        self.log = self._newest_log()
        return self.log

    def end_log(self) -> bytes | None:
        """Stop logging writes, and return the content of the log, or None if it lacks some."""
        name = self.stop_log()
        if name is None:
            return None
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        # If there is a newer log, some writes are in that log, and this log is not complete.
        return data if self._newest_log() == name else None

    def _newest_log(self) -> str:
        return max((path.name for path in self.folder.glob("*.log")), key=lambda n: int(n[:-4]))

    def close(self) -> None:
        """Flush and close the database. This is slow."""
        try:
            self._database.close()
        except Exception as error:
            raise StoreError(f"cannot close the state: {error}", self.folder) from error


class ReadOnlyRocksDatabase(RocksDatabase):
    """A RocksDB database with the files of a snapshot, which is only read.

    It writes and compacts no table file. RocksDB may write small files of its own into the folder.

    Arguments:
        folder: the folder with the files of a checkpoint.
        shared: the block cache.
    """

    def __init__(self, folder: Path, shared: SharedMemory) -> None:
        super().__init__(folder, shared, _options_to_read)

    @staticmethod
    def _open(folder: Path, options: Options) -> Rdict:
        # A checkpoint that was made early has a log, which is part of the state.
        access = AccessType.read_only(error_if_log_file_exist=False)
        families = {"default": options}
        return Rdict(str(folder), options, column_families=families, access_type=access)

    def scan(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows with `begin <= key < end`, in order."""
        if end is not None:
            # An upper bound in the options is not used: rocksdict frees it too early.
            return super().scan(begin, end)
        options = ReadOptions()
        options.set_readahead_size(_READAHEAD_BYTES)
        # The blocks of a long scan are not read again, and would displace those of look-ups.
        options.fill_cache(False)  # type: ignore[call-arg]  # the stub lacks the argument
        return self._explained(self._database.items(from_key=begin, read_opt=options))

    def holds_deletions(self) -> bool:
        """Return whether a table file or the log has a deletion, or it is unknown."""
        totals = self._database.property_value("rocksdb.aggregated-table-properties") or ""
        counts = re.findall(r"# (?:range )?deletions=(\d+);", totals)
        in_log = self._database.property_int_value("rocksdb.num-deletes-active-mem-table")
        return len(counts) != _DELETION_COUNTS or any(map(int, counts)) or in_log != 0


def _options_to_read(shared: RocksMemory) -> Options:
    options = database_options(shared)
    # Otherwise each file would be opened at once.
    options.set_skip_stats_update_on_db_open(True)
    return options


#: RocksDB as an engine.
ROCKSDB = DatabaseEngine(
    "RocksDB", RocksDatabase.create, RocksDatabase, RocksMemory, ReadOnlyRocksDatabase
)

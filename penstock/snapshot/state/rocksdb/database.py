"""Opens, writes, reads and flushes one RocksDB database in a local working folder.

Keys and values are bytes (raw mode). Usually writes are not logged, since the state is restored
from a snapshot after a failure.

An *early checkpoint* is a checkpoint that is made shortly before the barrier of a snapshot. From
then on, RocksDB writes a write-ahead log. After the barrier, a copy of this log is added to the
checkpoint, so that the checkpoint has the later writes, too. RocksDB opens it as it opens a
database after a crash. All later writes must be in one log. If RocksDB has begun a second log,
because a write buffer was full, the early checkpoint is not used.

Methods that take more than a few microseconds are marked as slow. They must run off the event loop,
and they release the interpreter lock.
"""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state.cold.blocks import BLOCKS
from penstock.snapshot.state.rocksdb.errors import rocks_recoverability
from penstock.snapshot.state.rocksdb.options import SharedMemory, database_options
from penstock.snapshot.state.rocksdb.table_files import CheckpointContent, TableFiles
from penstock.snapshot.storage.filesystem.file_errors import with_advice

__all__ = ["CHECKSUM_BYTES", "RocksDatabase"]

logger = logging.getLogger(__name__)

_GROUP = struct.Struct(">H")
#: The number of written bytes after which there are probably table files without a checksum.
CHECKSUM_BYTES = 1024 * 1024


class RocksDatabase:
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
        make_options: Callable[[SharedMemory], Options] = database_options,
    ) -> None:
        self.folder = folder
        self._write_options, self._logged_options = WriteOptions(), WriteOptions()
        # The type stub of rocksdict declares this property as a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        #: The name of the log file while writes are logged, otherwise None.
        self.log: str | None = None
        #: The number of bytes that were written since the table files were last listed.
        self.unlisted_bytes = 0
        #: The number of bytes that were written since the last requested flush.
        self.unflushed_bytes = 0
        options = make_options(shared)
        # The column family is named, since rocksdict would otherwise take the sizes of buffers and
        # cache from the OPTIONS file in the folder.
        self._database = Rdict(str(folder), options, column_families={"default": options})
        self._database.set_write_options(self._write_options)
        self._table_files = TableFiles(folder)

    @classmethod
    def create(
        cls,
        folder: Path,
        shared: SharedMemory,
        make_options: Callable[[SharedMemory], Options] = database_options,
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
            raise _explained("create", folder, error) from error

    # --- methods that read and write rows ---

    @staticmethod
    def new_batch() -> WriteBatch:
        """Return an empty batch of writes.

        Use `batch[key] = value` to put a row, and `del batch[key]` to delete a row.
        """
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        """Write the rows of `batch` to the database.

        This call does not release the interpreter lock.

        Raises:
            StoreError: if the rows cannot be written. All later writes will also fail.
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
        """Return the value of a row, or None if there is no such row.

        Raises:
            StoreError: if the row cannot be read.
        """
        try:
            value: bytes | None = self._database.get(row_key)
        except Exception as error:
            raise self._explain("read", error) from error
        return value

    def get_all(self, row_keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each row, or None where there is no such row.

        This takes less time if the keys are sorted.

        Raises:
            StoreError: if a row cannot be read.
        """
        try:
            return list(self._database.get(row_keys))  # type: ignore[arg-type]
        except Exception as error:
            raise self._explain("read", error) from error

    def rows(self, first_group: int, end_group: int) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows of a range of key groups, in order.

        Writes after this call do not change the result.

        Arguments:
            first_group: the first key group.
            end_group: the key group after the last one.
        """
        end = _GROUP.pack(end_group)
        items = self._items(_GROUP.pack(first_group))
        return takewhile(lambda row: row[0] < end, items)

    def rows_of(self, prefix: bytes, begin: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows whose key begins with `prefix`.

        Writes after this call do not change the result.

        Arguments:
            prefix: the prefix of the keys.
            begin: the key at which to begin; by default the first one with the prefix.
        """
        return takewhile(lambda row: row[0].startswith(prefix), self._items(begin or prefix))

    def _items(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        items = self._database.items(from_key=begin)

        def explained() -> Iterator[tuple[bytes, bytes]]:
            try:
                yield from items
            except Exception as error:
                raise self._explain("read", error) from error

        return explained()

    def _explain(self, what: str, error: Exception) -> StoreError:
        return _explained(what, self.folder, error)

    def holds_blocks(self) -> bool:
        """Return whether the database holds at least one block."""
        return next(self.rows_of(BLOCKS), None) is not None

    # --- methods for table files, checkpoints and logs ---

    def tables(self) -> list[str]:
        """Return the names of the table files of the database. This is slow.

        Raises:
            OSError: if the MANIFEST cannot be read.
        """
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
        """Flush the database, and link its table files into a new folder. This is slow.

        The caller writes the other files of the checkpoint, and syncs the folder.

        Arguments:
            folder: the folder to make. Its parent must exist.

        Raises:
            OSError: if the folder cannot be made.
            Exception: if RocksDB cannot flush the database, or cannot make the checkpoint.
        """
        self._database.flush()
        self.unlisted_bytes = self.unflushed_bytes = 0
        return self._table_files.link(folder, self._database)

    def begin_log(self) -> str:
        """Begin to log all writes, and return the name of the log file. This is slow.

        Call this method after `checkpoint`, and before any later write.
        """
        self.log = self._newest_log()
        return self.log

    def stop_log(self) -> str | None:
        """Stop logging writes, and return the name of the log file, or None if there was none."""
        name, self.log = self.log, None
        return name

    def end_log(self) -> bytes | None:
        """Stop logging writes, and return the content of the log. This is slow.

        Returns:
            The bytes of the log, or None if the log does not contain all writes since `begin_log`.

        Raises:
            OSError: if the log file cannot be read.
        """
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
        """Flush and close the database. This is slow.

        Raises:
            StoreError: if RocksDB cannot close it, for example because a thread is using it.
        """
        try:
            self._database.close()
        except Exception as error:
            raise StoreError(f"cannot close the state: {error}", self.folder) from error


def _explained(what: str, folder: Path, error: Exception) -> StoreError:
    # rocksdict does not define an exception class, so the text of the error is examined.
    return StoreError(
        f"cannot {what} keyed state: {with_advice(error)}",
        folder,
        recoverability=rocks_recoverability(error),
    )

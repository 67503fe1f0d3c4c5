"""One RocksDB database in a local working folder: opening, writing, reading, flushing.

Keys and values are bytes (raw mode). As a rule there is no write-ahead log: a snapshot serves
as one.

After an early checkpoint the later writes are logged, and a copy of this **log** is added to the
checkpoint. That is what a crash right after the last write would have left, as long as one log has
all these writes. When a write buffer is full, RocksDB begins another log, and there is none to add.

Methods that take more than microseconds are marked as slow. They belong off the event loop, and
release the interpreter lock.
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
from penstock.snapshot.state.rocksdb.blocks import BLOCKS
from penstock.snapshot.state.rocksdb.errors import rocks_recoverability
from penstock.snapshot.state.rocksdb.options import SharedMemory, database_options
from penstock.snapshot.state.rocksdb.table_files import CheckpointContent, TableFiles

__all__ = ["CHECKSUM_BYTES", "RocksDatabase"]

logger = logging.getLogger(__name__)

_GROUP = struct.Struct(">H")
#: After this many bytes were written there are likely to be table files whose checksum is unknown.
CHECKSUM_BYTES = 1024 * 1024


class RocksDatabase:
    """The database of one subtask.

    Arguments:
        folder: its folder; if there is a database in it, that is opened.
        shared: block cache and write buffers.
        make_options: returns the options to open it with.
    """

    def __init__(
        self,
        folder: Path,
        shared: SharedMemory,
        make_options: Callable[[SharedMemory], Options] = database_options,
    ) -> None:
        self.folder = folder
        self._write_options, self._logged_options = WriteOptions(), WriteOptions()
        # The package's stub takes this property for a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        #: The name of the log, while writes are logged.
        self.log: str | None = None
        #: Bytes that were written since the names of table files were last read.
        self.unlisted_bytes = 0
        #: Bytes that were written since the last requested flush.
        self.unflushed_bytes = 0
        options = make_options(shared)
        # With a named column family, or rocksdict takes buffers and cache from the OPTIONS file.
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
        """Open an empty database in `folder`, and remove what an earlier run left there; slow."""
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return cls(folder, shared, make_options)

    # --- rows ---

    @staticmethod
    def new_batch() -> WriteBatch:
        """Return an empty batch of rows: `batch[key] = value`, `del batch[key]`."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        """Write the rows of `batch`. Holds the interpreter lock.

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
        """Return the value of a row, or None.

        Raises:
            StoreError: if it can't be read.
        """
        try:
            value: bytes | None = self._database.get(row_key)
        except Exception as error:
            raise self._explain("read", error) from error
        return value

    def rows(self, first_group: int, end_group: int) -> Iterator[tuple[bytes, bytes]]:
        """Return all rows of a range of key groups, in order, as they are at this call."""
        end = _GROUP.pack(end_group)
        items = self._items(_GROUP.pack(first_group))
        return takewhile(lambda row: row[0] < end, items)

    def rows_of(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return all rows whose key begins with `prefix`, as they are at this call."""
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
        """Return whether there is a block in it."""
        return next(self.rows_of(BLOCKS), None) is not None

    # --- files ---

    def tables(self) -> list[str]:
        """Return the names of the table files; slow.

        Raises:
            OSError: if they can't be read.
        """
        self.unlisted_bytes = 0
        return self._table_files.names()

    def flush(self) -> None:
        """Write the entries in memory to a table file; slow. Faults show at the next checkpoint."""
        self.unflushed_bytes = 0
        # The checksum of the new file can be computed early, too.
        self.unlisted_bytes = max(self.unlisted_bytes, CHECKSUM_BYTES)
        try:
            self._database.flush()
        except Exception as error:
            logger.debug("an early flush failed: %s", error)

    def checkpoint(self, folder: Path) -> CheckpointContent:
        """Flush, and link the table files of the database into a new folder; slow.

        Arguments:
            folder: is made; its parent exists. The caller writes the other files and syncs it.

        Raises:
            OSError: if the folder can't be made.
            Exception: if RocksDB can't flush, or can't make the checkpoint itself if it has to.
        """
        self._database.flush()
        self.unlisted_bytes = self.unflushed_bytes = 0
        return self._table_files.link(folder, self._database)

    def begin_log(self) -> str:
        """Log the writes from now on, and return the log's name; slow. Only after `checkpoint`."""
        self.log = self._newest_log()
        return self.log

    def stop_log(self) -> str | None:
        """Stop logging, and return the name of the log, if there was one."""
        name, self.log = self.log, None
        return name

    def end_log(self) -> bytes | None:
        """Stop logging, and return the log, or None if it lacks some of the writes; slow.

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
        # If there is a newer log, RocksDB has flushed the writes that this one had.
        return data if self._newest_log() == name else None

    def _newest_log(self) -> str:
        return max((path.name for path in self.folder.glob("*.log")), key=lambda n: int(n[:-4]))

    def close(self) -> None:
        """Flush and close the database; slow."""
        self._database.close()

"""Opens, writes, reads and scans one SQLite database in a local working folder.

SQLite is in the standard library, so it is there wherever Python is. All rows are in one table.
Nothing is synced, because the state is restored from a snapshot after a failure. Snapshots consist
of change files, and not of SQLite's own file (`change_files.py`).

The database is in WAL mode: a reader on another connection sees the rows as they were when it
began. So each long scan has a connection of its own. Writes are committed together, after about
`_COMMIT_BYTES`, and before each long scan. See docs/inside/decisions/046-sqlite-as-cold-store.md.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.state.cold.blocks import BLOCKS
from penstock.snapshot.state.cold.database import (
    CHECKSUM_BYTES,
    CheckpointContent,
    DatabaseEngine,
    SharedMemory,
    StateDatabase,
    WriteBatch,
)
from penstock.snapshot.state.cold.errors import state_error
from penstock.snapshot.state.sqlite.change_files import Change, ChangeFiles, read_changes

logger = logging.getLogger(__name__)

# The table has row ids. Without them, SQLite stores values of 1 KB in pages of their own, and a
# write takes five times as long.
_CREATE = "CREATE TABLE rows (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
_PUT = "INSERT INTO rows VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELETE = "DELETE FROM rows WHERE key = ?"
_DELETE_RANGE = "DELETE FROM rows WHERE key >= ? AND key < ?"
_GET = "SELECT value FROM rows WHERE key = ?"
#: The numbers of keys that are read by one statement. Few numbers mean few statements to prepare.
_READ_SIZES = (8, 64, 256)
_GET_ALL = {
    size: f"SELECT key, value FROM rows WHERE key IN ({', '.join('?' * size)})"
    for size in _READ_SIZES
}
_SCAN = "SELECT key, value FROM rows WHERE key >= ? ORDER BY key"
_SCAN_TO = "SELECT key, value FROM rows WHERE key >= ? AND key < ? ORDER BY key"
#: A scan of fewer rows needs no connection of its own, since all rows are read at once.
_SHORT_SCAN = 64
_BATCH_ROWS = 256
#: The parts of a change that deletes a range: its begin, None and its end.
_RANGE_PARTS = 3
_COMMIT_BYTES = 1024 * 1024
_SCAN_CACHE_KIB = 512
#: All rows are written again when the change files have more bytes than this factor times the bytes
#: of the database, and this many more.
_GARBAGE_FACTOR, _SLACK_BYTES = 2, 4 * 1024 * 1024


class _Batch(dict[bytes, bytes | None]):
    """Rows to put; the value of a row to delete is None."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[Change] = []

    def __delitem__(self, row_key: bytes) -> None:
        self[row_key] = None

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.ranges.append((begin, None, end))


class SqliteDatabase(StateDatabase):
    """One open SQLite database, which holds the keyed state of one subtask.

    Arguments:
        folder: the folder of the database. If it has change files, their changes are made first.
        shared: the memory whose share is the size of the page cache.
        slack_bytes: the bytes of outdated changes that are always kept.
    """

    def __init__(self, folder: Path, shared: SharedMemory, slack_bytes: int = _SLACK_BYTES) -> None:
        if sqlite3.threadsafety < 3:
            raise StoreError(
                "the SQLite library of this Python cannot be used by several threads, so it cannot "
                "hold keyed state: use RocksDB, or another build of Python",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        self.folder = folder
        self._shared = shared
        self._slack_bytes = slack_bytes
        self._cache_bytes = 0
        self._uncommitted_bytes = 0
        self._commit_lock = threading.Lock()
        self._has_failed = self._is_closed = False
        self._path = folder / "rows.sqlite"
        self._files = ChangeFiles(folder)
        #: Connections for scans that are not in use.
        self._idle: list[sqlite3.Connection] = []
        self._path.unlink(missing_ok=True)
        self._connection = self._connect()
        try:
            self._load()
        except Exception:
            self.close()
            raise

    @classmethod
    def create(
        cls, folder: Path, shared: SharedMemory, slack_bytes: int = _SLACK_BYTES
    ) -> SqliteDatabase:
        """Remove `folder` if it exists, and open an empty database there. This is slow.

        Raises:
            StoreError: if the database cannot be created.
        """
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            return cls(folder, shared, slack_bytes)
        except (sqlite3.Error, OSError) as error:
            raise state_error("create", folder, error) from error

    def _connect(self) -> sqlite3.Connection:
        # Transactions are begun explicitly. Threads take turns, and SQLite itself is locked.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def _load(self) -> None:
        """Make the table, and make all changes of the change files."""
        execute = self._connection.execute
        # There is nothing to roll back to yet.
        execute("PRAGMA journal_mode = OFF")
        self._use_share()
        execute("BEGIN")
        execute(_CREATE)
        for name in self._files.names():
            for changes in read_changes(self.folder / name):
                self._apply(changes)
        execute("COMMIT")
        execute("PRAGMA journal_mode = WAL")

    def _use_share(self) -> None:
        """Set the size of the page cache, which depends on the number of backends."""
        share = self._shared.share_bytes()
        if share != self._cache_bytes:
            self._cache_bytes = share
            self._connection.execute(f"PRAGMA cache_size = -{max(1, share // 1024)}")

    # --- methods that read and write rows ---

    def new_batch(self) -> WriteBatch:
        """Return an empty batch of writes."""
        return _Batch()

    def write(self, batch: WriteBatch) -> None:
        """Write the rows of a batch."""
        assert isinstance(batch, _Batch)
        self._check()
        changes: list[Change] = [*batch.items(), *batch.ranges]
        try:
            size = self._files.append(changes)
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
            self._apply(changes)
            self.unlisted_bytes += size
            self.unflushed_bytes += size
            self._uncommitted_bytes += size
            if self._uncommitted_bytes >= _COMMIT_BYTES:
                self._commit()
                self._use_share()
        except (sqlite3.Error, OSError) as error:
            self._has_failed = True
            raise self._explain("write", error) from error

    def _check(self) -> None:
        """Raise `StoreError` if a write has failed.

        SQLite may then have rolled back the transaction, and with it earlier writes. So later reads
        and checkpoints fail, too.
        """
        if self._has_failed:
            raise StoreError("cannot use keyed state: an earlier write has failed", self.folder)

    def _apply(self, changes: Sequence[Change]) -> None:
        puts = [change for change in changes if change[1] is not None]
        self._connection.executemany(_PUT, puts)
        if len(puts) < len(changes):
            ends = [change for change in changes if change[1] is None]
            deleted = [change[:1] for change in ends if len(change) < _RANGE_PARTS]
            self._connection.executemany(_DELETE, deleted)
            if len(deleted) < len(ends):
                ranges = [change[::2] for change in ends if len(change) == _RANGE_PARTS]
                self._connection.executemany(_DELETE_RANGE, ranges)

    def _commit(self) -> None:
        # A scan may commit while a checkpoint does so in a thread. It must not begin to read before
        # the commit is visible.
        with self._commit_lock:
            if self._connection.in_transaction:
                try:
                    self._connection.execute("COMMIT")
                except sqlite3.Error:
                    self._has_failed = True
                    raise
            self._uncommitted_bytes = 0

    def get(self, row_key: bytes) -> bytes | None:
        """Return the value of a row, or None if there is no such row."""
        self._check()
        try:
            row = self._connection.execute(_GET, (row_key,)).fetchone()
        except sqlite3.Error as error:
            raise self._explain("read", error) from error
        return None if row is None else row[0]

    def get_all(self, row_keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each row, or None where there is no such row."""
        self._check()
        found: dict[bytes, bytes] = {}
        largest = _READ_SIZES[-1]
        try:
            for begin in range(0, len(row_keys), largest):
                keys = row_keys[begin : begin + largest]
                size = next(size for size in _READ_SIZES if size >= len(keys))
                # The rest of the places is filled with the last key.
                padded = keys + keys[-1:] * (size - len(keys))
                found.update(self._connection.execute(_GET_ALL[size], padded))
        except sqlite3.Error as error:
            raise self._explain("read", error) from error
        return [found.get(key) for key in row_keys]

    def scan(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows with `begin <= key < end`, in order."""
        self._check()
        try:
            cursor = _select(self._connection, begin, end)
            rows = cursor.fetchmany(_SHORT_SCAN)
            cursor.close()
        except sqlite3.Error as error:
            raise self._explain("read", error) from error
        return iter(rows) if len(rows) < _SHORT_SCAN else self.scan_each([(begin, end)])

    def scan_each(
        self, ranges: Sequence[tuple[bytes, bytes | None]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over the rows of several ranges, as `scan` does for each of them."""
        self._check()
        try:
            self._commit()
            connection = self._scan_connection()
            connection.execute("BEGIN")
            # The view of the rows begins with the first read.
            connection.execute(_GET, (b"",)).fetchone()
        except sqlite3.Error as error:
            raise self._explain("read", error) from error
        return _Scan(self, connection, ranges)

    def holds_blocks(self) -> bool:
        """Return whether the database holds at least one block."""
        # A scan would read many blocks at once.
        query = "SELECT 1 FROM rows WHERE key >= ? LIMIT 1"
        return self._connection.execute(query, (BLOCKS,)).fetchone() is not None

    def _scan_connection(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._connect()
            connection.execute(f"PRAGMA cache_size = -{_SCAN_CACHE_KIB}")
            return connection

    def end_scan(self, connection: sqlite3.Connection) -> None:
        """Take back the connection of a scan that has ended."""
        if self._is_closed:
            connection.close()
        else:
            connection.execute("ROLLBACK")
            self._idle.append(connection)

    def _explain(self, what: str, error: Exception) -> StoreError:
        return state_error(what, self.folder, error)

    # --- methods for table files, checkpoints and logs ---

    def tables(self) -> list[str]:
        """Return the names of the complete change files."""
        self.unlisted_bytes = 0
        return self._files.names()

    def flush(self) -> None:
        """Complete the change file that is written. This is slow."""
        self.unflushed_bytes = 0
        # This makes `wants_checksums` true, so that the checksum of the file is computed early.
        self.unlisted_bytes = max(self.unlisted_bytes, CHECKSUM_BYTES)
        try:
            self._files.complete()
        except OSError as error:
            logger.debug("an early flush failed: %s", error)

    def checkpoint(self, folder: Path) -> CheckpointContent:
        """Complete the change file, and link all change files into a new folder. This is slow."""
        self._check()
        self._files.complete()
        if self._files.complete_bytes() > self._largest_bytes():
            with closing(self._all_rows()) as rows:
                self._files.replace_all(rows)
        else:
            self._files.join_small()
        self.unlisted_bytes = self.unflushed_bytes = 0
        return self._files.link(folder)

    def _largest_bytes(self) -> int:
        """Return the size of the change files above which all rows are written again."""
        value = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, "
        value += "pragma_freelist_count, pragma_page_size"
        ((size,),) = self._connection.execute(value)
        return _GARBAGE_FACTOR * int(size) + self._slack_bytes

    def _all_rows(self) -> Generator[list[Change], None, None]:
        self._commit()
        connection = self._scan_connection()
        connection.execute("BEGIN")
        cursor = connection.execute("SELECT key, value FROM rows")
        try:
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield rows
        finally:
            cursor.close()
            self.end_scan(connection)

    def begin_log(self) -> str:
        """Begin a change file with all later writes, and return its name."""
        self.log = self._files.begin_file()
        return self.log

    def end_log(self) -> bytes | None:
        """Stop logging writes, and return the content of the log, or None if it lacks some."""
        name = self.stop_log()
        return None if name is None else self._files.incomplete_bytes(name)

    def close(self) -> None:
        """Close the database. This is slow."""
        self._is_closed = True
        try:
            self._files.close()
            for connection in (*self._idle, self._connection):
                connection.close()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot close the state: {error}", self.folder) from error


def _select(connection: sqlite3.Connection, begin: bytes, end: bytes | None) -> sqlite3.Cursor:
    if end is None:
        return connection.execute(_SCAN, (begin,))
    return connection.execute(_SCAN_TO, (begin, end))


class _Scan(Iterator[tuple[bytes, bytes]]):
    """Yields the rows of some ranges, and returns the connection when they have ended.

    Arguments:
        database: the database.
        connection: the connection of this scan, which is in a transaction.
        ranges: the begin and end of each range.
    """

    def __init__(
        self,
        database: SqliteDatabase,
        connection: sqlite3.Connection,
        ranges: Sequence[tuple[bytes, bytes | None]],
    ) -> None:
        self._database = database
        self._connection: sqlite3.Connection | None = connection
        self._rows: Iterator[tuple[bytes, bytes]] = chain.from_iterable(
            _select(connection, *bounds) for bounds in ranges
        )

    def __next__(self) -> tuple[bytes, bytes]:
        try:
            row = next(self._rows)
        except StopIteration:
            self._end()
            raise
        except sqlite3.Error as error:
            raise state_error("read", self._database.folder, error) from error
        return row

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # A cursor that is not read to its end would hold the view of the rows.
            self._rows = chain()
            self._database.end_scan(connection)

    def __del__(self) -> None:
        # A scan need not be read to its end.
        self._end()


#: SQLite as an engine.
SQLITE = DatabaseEngine("SQLite", SqliteDatabase.create, SqliteDatabase)

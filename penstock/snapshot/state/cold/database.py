"""The interface of the database that holds the cold entries of one subtask.

A database maps bytes to bytes, in the order of the keys. It is used by one task, and is thrown away
with it: after a failure, the state is restored from a snapshot. So a database itself need not be
durable. Only the *table files* of a checkpoint must be durable: files that never change again, so
that later snapshots link them.

There are two implementations, RocksDB and SQLite. A `DatabaseEngine` describes one of them.

Methods that take more than a few microseconds are marked as slow. They must run off the event loop,
and they release the interpreter lock. Meanwhile the event loop may read, but it does not write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from penstock.snapshot.state.cold.blocks import BLOCKS

#: The number of written bytes after which there are probably table files without a checksum.
CHECKSUM_BYTES = 1024 * 1024


class SharedMemory:
    """The memory for caches and buffers that all databases of a process share.

    Arguments:
        capacity_bytes: the memory of all of them together, in bytes.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._users = 0

    def join(self) -> None:
        """Register one more backend that uses this memory."""
        self._users += 1

    def leave(self) -> None:
        """Unregister one backend that used this memory."""
        self._users -= 1

    def share_bytes(self) -> int:
        """Return the share of one registered backend in this memory, in bytes."""
        return self.capacity_bytes // max(1, self._users)


class WriteBatch(Protocol):
    """Rows to put and to delete, which are written together. A batch has each key once at most."""

    def __setitem__(self, row_key: bytes, value: bytes, /) -> None:
        """Put a row."""

    def __delitem__(self, row_key: bytes, /) -> None:
        """Delete a row, if the database contains it."""

    def delete_range(self, begin: bytes, end: bytes, /) -> None:
        """Delete all rows with `begin <= key < end`. The batch has no other row of the range."""

    def __len__(self) -> int:
        """Return the number of rows."""


@dataclass(frozen=True)
class CheckpointContent:
    """The files of a checkpoint whose table files are already in its folder.

    Arguments:
        tables: the size of each table file in bytes, keyed by name.
        copied: the names of the table files that are copies. Their content is not synced yet.
        others: the content of all other files, keyed by name. The caller must write these files.
    """

    tables: Mapping[str, int]
    copied: frozenset[str]
    others: Mapping[str, bytes]


class StateDatabase(ABC):
    """One open database in a local working folder.

    An *early checkpoint* is made shortly before the barrier of a snapshot. From then on the
    database logs its writes. After the barrier, the log is added to the checkpoint as one more
    file, so that the checkpoint has the later writes, too.
    """

    #: The working folder.
    folder: Path
    #: The name of the log file while writes are logged, otherwise None.
    log: str | None = None
    #: The number of bytes that were written since the table files were last listed.
    unlisted_bytes: int = 0
    #: The number of bytes that were written since the last requested flush.
    unflushed_bytes: int = 0

    # --- methods that read and write rows ---

    @abstractmethod
    def new_batch(self) -> WriteBatch:
        """Return an empty batch of writes."""

    @abstractmethod
    def write(self, batch: WriteBatch) -> None:
        """Write the rows of a batch that `new_batch` has returned.

        Raises:
            StoreError: if the rows cannot be written. All later writes will also fail.
        """

    @abstractmethod
    def get(self, row_key: bytes) -> bytes | None:
        """Return the value of a row, or None if there is no such row.

        Raises:
            StoreError: if the row cannot be read.
        """

    @abstractmethod
    def get_all(self, row_keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each row, or None where there is no such row.

        This takes less time if the keys are sorted.

        Raises:
            StoreError: if a row cannot be read.
        """

    @abstractmethod
    def scan(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows with `begin <= key < end`, in order.

        Writes after this call do not change the result.

        Arguments:
            begin: the first key.
            end: the key behind the last one; None for all rows from `begin` on.

        Raises:
            StoreError: if a row cannot be read.
        """

    def rows_of(self, prefix: bytes, begin: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows whose key begins with `prefix`, as `scan` does.

        Arguments:
            prefix: the prefix of the keys.
            begin: the key at which to begin; by default the first one with the prefix.
        """
        return self.scan(begin or prefix, _behind(prefix))

    def rows_of_each(self, prefixes: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all rows of several prefixes, one prefix after the other.

        Writes after this call do not change the result.
        """
        return self.scan_each([(prefix, _behind(prefix)) for prefix in prefixes])

    def scan_each(
        self, ranges: Sequence[tuple[bytes, bytes | None]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over the rows of several ranges, as `scan` does for each of them."""
        return chain.from_iterable([self.scan(begin, end) for begin, end in ranges])

    def holds_blocks(self) -> bool:
        """Return whether the database holds at least one block."""
        return next(self.rows_of(BLOCKS), None) is not None

    # --- methods for table files, checkpoints and logs ---

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the names of the table files of the database. This is slow.

        Raises:
            OSError: if they cannot be listed.
        """

    @abstractmethod
    def flush(self) -> None:
        """Write all rows that are in no table file yet into a new one. This is slow.

        An error is raised only by the next `checkpoint`.
        """

    @abstractmethod
    def checkpoint(self, folder: Path) -> CheckpointContent:
        """Flush the database, and link its table files into a new folder. This is slow.

        The caller writes the other files of the checkpoint, and syncs the folder.

        Arguments:
            folder: the folder to make. Its parent must exist.

        Raises:
            OSError: if the folder cannot be made.
            Exception: if the database cannot be flushed, or the checkpoint cannot be made.
        """

    @abstractmethod
    def begin_log(self) -> str:
        """Begin to log all writes, and return the name of the log file. This is slow.

        Call this method after `checkpoint`, and before any later write.
        """

    @abstractmethod
    def end_log(self) -> bytes | None:
        """Stop logging writes, and return the content of the log. This is slow.

        Returns:
            The bytes of the log, or None if the log does not contain all writes since `begin_log`.

        Raises:
            OSError: if the log file cannot be read.
        """

    def stop_log(self) -> str | None:
        """Stop logging writes, and return the name of the log file, or None if there was none."""
        name, self.log = self.log, None
        return name

    @abstractmethod
    def close(self) -> None:
        """Close the database. This is slow.

        Raises:
            StoreError: if it cannot be closed, for example because a thread is using it.
        """


def _behind(prefix: bytes) -> bytes | None:
    """Return the first key behind all keys with a prefix; None if there is no such key."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes((rest[-1] + 1,)) if rest else None


@dataclass(frozen=True)
class DatabaseEngine:
    """Describes one kind of database.

    Arguments:
        name: the name of the database in messages.
        create: a function that removes a folder if it exists, and opens an empty database there.
            This is slow.
        open: a function that opens a database in a folder with the files of a checkpoint. It is
            slow, and it may change the folder, but no table file.
        memory: a function that takes a number of bytes, and returns the memory that databases of
            this kind can share.
        read: a function that opens a database as `open` does, to be read only; None means `open`.
    """

    name: str
    create: Callable[[Path, SharedMemory], StateDatabase]
    open: Callable[[Path, SharedMemory], StateDatabase]
    memory: Callable[[int], SharedMemory] = SharedMemory
    read: Callable[[Path, SharedMemory], StateDatabase] | None = None

"""The interface of the storage to which the entries of tables are written.

A small state is in memory only, and its snapshots are stored in their handles. A larger state is
written to a database (RocksDB or SQLite) as *blocks* while all of it fits into memory. When it
exceeds the memory budget, it is written again as *rows*. Rows can be read one by one, so entries
may be evicted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence

from penstock.snapshot.state.slices import SliceTimer, Work
from penstock.snapshot.state.table.keyed_table import KeyedTable


class ColdStore(ABC):
    """The interface of a cold store, to which a backend writes the entries of its tables."""

    #: Whether a database is open. It then holds all clean entries.
    is_open = True
    #: Whether individual entries can be read from the store, so that clean entries may be evicted.
    is_readable = False

    @property
    @abstractmethod
    def unflushed_bytes(self) -> int:
        """The number of bytes that were written since the last requested flush."""

    @property
    @abstractmethod
    def unlisted_bytes(self) -> int:
        """The number of bytes that were written since the table files were last listed."""

    @abstractmethod
    def chunk_entries(self, table: KeyedTable) -> int:
        """Return how many entries of a table to write in one step."""

    @abstractmethod
    def write(self, table: KeyedTable, keys: list[object], values: list[object]) -> None:
        """Write dirty or captured entries of a table, and mark them as clean."""

    def compact(
        self,
        table: KeyedTable,
        number: int,
        written: Sequence[Container[object]],
        timer: SliceTimer,
    ) -> Work[None]:
        """Remove outdated entries after the captured entries of a snapshot were written.

        Arguments:
            table: the table. It must still hold the captured entries of this snapshot.
            number: the number of the snapshot.
            written: collections of the keys that were written since the previous snapshot.
            timer: the timer of the current slice.
        """
        del table, number, written, timer
        yield from ()

    def end_interval(self) -> None:
        """Begin a new interval, after a state snapshot was written."""
        return

    def cold_entries(
        self, table_id: int, groups: Iterable[int], hot: Container[object]
    ) -> Iterator[tuple[object, object]]:
        """Return the stored entries of a table whose keys are not in `hot`, in no special order.

        Writes after this call do not change the result. A store that cannot read single entries
        returns no entries.

        Arguments:
            table_id: the id of the table.
            groups: the key groups of the entries.
            hot: the keys that are in memory.
        """
        del table_id, groups, hot
        return iter(())

    def page(
        self, table: KeyedTable, groups: range, cursor: bytes, limit: int
    ) -> tuple[list[tuple[object, object]], bytes | None]:
        """Return some stored entries of a table, and the cursor of the next page.

        Arguments:
            table: the table.
            groups: the key groups of the entries.
            cursor: the cursor that the call before returned; empty for the first page.
            limit: the largest number of entries.

        Returns:
            The entries as keys and values; and the cursor, or None behind the last page.
        """
        del table, groups, cursor, limit
        return [], None

    def remove_table(self, table: KeyedTable, groups: Iterable[int]) -> bool:
        """Remove all stored entries of a table at once. Return False if the store cannot.

        The entries in memory stay. No snapshot may be captured and not written.

        Arguments:
            table: the table.
            groups: the key groups of the subtask.
        """
        del table, groups
        return False

    def memory_bytes(self) -> int:
        """Return an estimate of the memory that this store takes, in bytes."""
        return 0

    def free_memory(self) -> None:
        """Free the memory of values that the store can compute again."""
        return


class MemoryOnly(ColdStore):
    """The cold store while no database is open: it stores no entries.

    Entries are marked as clean without being written, since each snapshot captures the whole state.
    """

    is_open = False
    unflushed_bytes = 0
    unlisted_bytes = 0

    def chunk_entries(self, table: KeyedTable) -> int:
        """Return how many entries of a table to mark as clean in one step."""
        return table.size.chunk_entries()

    def write(self, table: KeyedTable, keys: list[object], values: list[object]) -> None:
        """Mark dirty or captured entries of a table as clean, without writing them."""
        table.absorb(keys, values, marked=True)

    def remove_table(self, table: KeyedTable, groups: Iterable[int]) -> bool:
        """Return True: this store has no entries."""
        del table, groups
        return True

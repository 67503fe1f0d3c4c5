"""Where entries are stored besides memory: nowhere yet, in blocks, or in rows.

A small state is in memory only, and its snapshots travel in their handles. A larger one is written
to RocksDB as *blocks* as long as all of it fits into memory. When it exceeds the memory budget it
is written again as *rows*, which can be read one by one, so that entries may be evicted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.slices import SliceTimer, Work

__all__ = ["ColdStore", "MemoryOnly"]


class ColdStore(ABC):
    """Stores the entries of all tables of a backend."""

    #: Whether there is a RocksDB database, which holds the clean entries.
    is_open = True
    #: Whether single entries can be read, so that clean ones may be evicted.
    is_readable = False

    @property
    @abstractmethod
    def unflushed_bytes(self) -> int:
        """Bytes that were written since the last requested flush."""

    @property
    @abstractmethod
    def unlisted_bytes(self) -> int:
        """Bytes that were written since the table files were last listed."""

    @abstractmethod
    def chunk_entries(self, table: KeyedTable) -> int:
        """Return how many entries of a table to write in one step."""

    @abstractmethod
    def write(self, table: KeyedTable, keys: list[Any], values: list[Any]) -> None:
        """Write dirty or captured entries of a table, and make them clean."""

    def compact(
        self,
        table: KeyedTable,
        number: int,
        written: Sequence[Container[Any]],
        timer: SliceTimer,
    ) -> Work[None]:
        """Remove outdated entries, once the map that a snapshot captured is written.

        Arguments:
            table: the table; the map of the snapshot is still its oldest captured one.
            number: of the snapshot.
            written: levels whose keys were written since the snapshot before.
            timer: of the current slice.
        """
        del table, number, written, timer
        yield from ()

    def end_interval(self) -> None:
        """Note that a state snapshot is written."""
        return

    def cold_entries(
        self, table_id: int, groups: Iterable[int], hot: Container[Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Return the entries of a table that are readable and not in `hot`, in no order.

        They are the entries at the moment of this call, whatever is written later.
        """
        del table_id, groups, hot
        return iter(())

    def memory_bytes(self) -> int:
        """Return an estimate of the memory that it takes, in bytes."""
        return 0

    def free_memory(self) -> None:
        """Free memory whose content can be computed again."""
        return


class MemoryOnly(ColdStore):
    """The cold store before RocksDB is opened: it stores nothing.

    Entries become clean without being written, since each snapshot captures the whole state.
    """

    is_open = False
    unflushed_bytes = 0
    unlisted_bytes = 0

    def chunk_entries(self, table: KeyedTable) -> int:
        """Return how many entries of a table to move in one step."""
        return table.size.chunk_entries()

    def write(self, table: KeyedTable, keys: list[Any], values: list[Any]) -> None:
        """Make dirty or captured entries of a table clean."""
        table.absorb(keys, values, marked=True)

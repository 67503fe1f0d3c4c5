"""The interface of the layouts, which capture and write the entries of a table.

There are two layouts. The *levelled* layout writes the changed entries. The *dense* layout compares
and writes whole blocks. It is for tables in which most entries change between two snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from penstock.snapshot.state.cold.cold_store import ColdStore
from penstock.snapshot.state.slices import SliceTimer, Work
from penstock.snapshot.state.table.keyed_table import KeyedTable


class CapturedTable(Protocol):
    """The entries of one table that a snapshot has captured.

    Later writes to the table do not change these entries. The caller may abandon `write` at any
    step, and then begin it again from the start.
    """

    @property
    def table_id(self) -> int:
        """The id of the table."""

    def entries(self) -> dict[object, object]:
        """Return all captured entries. The snapshot must have captured the whole state."""

    def must_write(self, flushed: object) -> bool:
        """Return whether an eagerly flushed entry or block must be written again.

        Arguments:
            flushed: the key of the entry, or the position of the block.
        """

    def note_flushed(self, keys: Collection[object]) -> None:
        """Record which entries or blocks were flushed eagerly since the previous snapshot.

        Arguments:
            keys: the keys of the entries, or the positions of the blocks.
        """

    def write(self, cold: ColdStore, number: int, timer: SliceTimer) -> Work[None]:
        """Write the changed entries to the cold store.

        Arguments:
            cold: the cold store.
            number: the number of the snapshot.
            timer: the timer of the current slice.
        """

    def release(self) -> None:
        """Drop the captured entries, after all of them were written."""

    def abandon(self) -> bool:
        """Drop the captured entries of an aborted snapshot, if they need not be written.

        Returns:
            Whether the entries were dropped. If so, the next snapshot writes these changes.
        """


class StateLayout(Protocol):
    """Captures one table at barriers, and finds blocks to flush between two barriers."""

    @property
    def table(self) -> KeyedTable:
        """The table of this layout."""

    def still_pays(self) -> bool:
        """Return whether to keep this layout. The method is called at each barrier.

        If not, the table gets a levelled layout.
        """

    def capture(self, *, whole: bool) -> CapturedTable | None:
        """Capture the table, or return None if no entry changed.

        Arguments:
            whole: whether to capture all entries, not only the changed ones.
        """

    def after_snapshot(self, cold: ColdStore) -> StateLayout:
        """Return the layout to use from now on. The method is called after each snapshot."""

    def held_entries(self) -> int:
        """Estimate how many values this layout holds that are no longer in the table."""

    def flushable_entries(self) -> int:
        """Return the number of dirty entries that can be flushed one by one."""

    def may_scan(self, now: float) -> bool:
        """Return whether a scan for blocks to flush is due at the time `now`, in seconds."""

    def flush_blocks(self, now: float) -> Iterator[int | None]:
        """Write blocks that are unlikely to change again before the next snapshot.

        Yields the position of each block that was written. Yields None if all values of a block
        were compared but the block was not written.

        Arguments:
            now: the current time in seconds.
        """

    def announce_snapshot(self) -> None:
        """Let the next scan for blocks begin at once, because a snapshot is due soon."""

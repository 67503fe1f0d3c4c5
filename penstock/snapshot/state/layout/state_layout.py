"""How the entries of a table are kept so that a snapshot can capture and write them.

There are two layouts. The *levelled* one writes the entries that changed. The *dense* one is for
tables of which most entries change between two snapshots: it compares and writes whole blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

from penstock.snapshot.state.cold_store import ColdStore
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.slices import SliceTimer, Work

__all__ = ["CapturedTable", "StateLayout"]


class CapturedTable(Protocol):
    """The part of one table in a snapshot. Later writes to the table do not change it.

    Writing may be given up at any step; it then begins from the start again.
    """

    @property
    def table_id(self) -> int:
        """The number of the table."""

    def entries(self) -> dict[Any, Any]:
        """Return the captured entries, if the whole state was captured."""

    def must_write(self, flushed: Any) -> bool:
        """Return whether an entry or block that was flushed eagerly must be written again."""

    def note_flushed(self, keys: Collection[Any]) -> None:
        """Note the entries or blocks that were flushed eagerly since the snapshot before."""

    def write(self, cold: ColdStore, number: int, timer: SliceTimer) -> Work[None]:
        """Write what changed to the cold store.

        Arguments:
            cold: the cold store.
            number: of the snapshot.
            timer: of the current slice.
        """

    def release(self) -> None:
        """Drop the captured entries, which are written."""

    def abandon(self) -> bool:
        """Drop the entries if the next snapshot will write them anyway; return whether it will."""


class StateLayout(Protocol):
    """Captures one table at barriers, and finds blocks to flush between them."""

    @property
    def table(self) -> KeyedTable:
        """The table."""

    def still_pays(self) -> bool:
        """Return whether to keep this layout at a barrier; if not, the table is levelled."""

    def capture(self, *, whole: bool) -> CapturedTable | None:
        """Capture the table; None if nothing changed.

        Arguments:
            whole: capture all entries, not only those that changed.
        """

    def after_snapshot(self, cold: ColdStore) -> StateLayout:
        """Return the layout to go on with once a snapshot is written."""

    def held_entries(self) -> int:
        """Return about how many values it holds that are not in the table any more."""

    def flushable_entries(self) -> int:
        """Return how many dirty entries may be flushed one by one."""

    def may_scan(self, now: float) -> bool:
        """Return whether to scan for blocks to flush, at a time in seconds."""

    def flush_blocks(self, now: float) -> Iterator[int | None]:
        """Write blocks that are unlikely to change again before the snapshot.

        Yields where each written block begins, or None after a longer look that found nothing.
        """

    def announce_snapshot(self) -> None:
        """Scan soon, since a snapshot is due."""

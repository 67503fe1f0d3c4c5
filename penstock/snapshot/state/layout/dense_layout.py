"""The layout of a table of which most entries change between two snapshots.

In the levelled layout each changed entry costs, once per snapshot, a look-up in one level, an
insertion into another, and a move between two. If most entries change, that is more than the
record itself costs.

A dense table has one level only, `dirty`, which is never replaced. A dict keeps the order in which
keys came, and nothing is removed, so the n-th value always belongs to the n-th key. A snapshot
captures the list of all values. It compares this list, object by object, with the values that were
written last, and writes the blocks in which a value differs. Listing costs about 20 ns an entry,
at the barrier.

The layout is for tables whose values cannot change in place, and from which nothing is deleted.
They have to be small enough to be listed at a barrier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import is_, is_not
from typing import Any

from penstock.snapshot.state.cold_store import ColdStore
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.layout.block_scan import BlockScan
from penstock.snapshot.state.layout.dense_blocks import DenseBlocks
from penstock.snapshot.state.rocksdb.block_store import BlockStore
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import SliceTimer, Work

__all__ = ["DenseLayout"]

# The layout ends when less than this share of the entries changed. A change costs about ten times
# as much in the levelled layout as an unchanged entry that is written again with its block. The
# share is well below the one that begins the layout: a switch writes the whole table.
_END_SHARE = 1 / 12


class DenseLayout:
    """Captures the list of all values of a table, and writes the blocks that changed.

    Arguments:
        table: the table, with one level.
        store: where its blocks are written.
        codec: encodes keys and values.
        settings: thresholds of the backend.
    """

    def __init__(
        self, table: KeyedTable, store: BlockStore, codec: StateCodec, settings: StateSettings
    ) -> None:
        self.table = table
        self.blocks = DenseBlocks(table, store, codec, settings)
        #: Which share of the entries changed before the last snapshot that was written, about.
        self.changed_share = 1.0
        self._scan = BlockScan(self.blocks, settings)
        self._settings = settings
        self._sample = settings.dense_sample
        #: Captured lists that are not written yet.
        self._pending = 0
        #: By where a block begins, its first values in the snapshot before.
        self._samples: dict[int, list[Any]] = {}

    def still_pays(self) -> bool:
        """Return whether the table stays dense at a barrier."""
        return (
            self.table.only_immutable
            and self.changed_share >= _END_SHARE
            and len(self.table.dirty) <= self._settings.max_dense_entries
            # Values that have grown would make steps of writing too long.
            and self.blocks.size <= 2 * self.table.size.block_entries()
        )

    def capture(self, *, whole: bool) -> CapturedList:
        """List all values as they are now."""
        del whole
        self._pending += 1
        self._scan.restart()
        values = list(self.table.dirty.values())
        self.blocks.add_keys(self.table.dirty)
        return CapturedList(self, values)

    def after_snapshot(self, cold: ColdStore) -> DenseLayout:
        """Return this layout."""
        del cold
        return self

    def write(self, values: list[Any], timer: SliceTimer) -> Work[None]:
        """Write the blocks of a captured list that differ from those in the database."""
        changed = compared = 0
        samples: dict[int, list[Any]] = {}
        blocks = self.blocks
        for begin in range(0, len(values), blocks.size):
            end = begin + blocks.size
            new, old = values[begin:end], blocks.written[begin:end]
            samples[begin] = sample = new[: self._sample]
            compared += len(sample)
            changed += len(sample)
            if begin not in blocks.rewritten:
                changed -= sum(map(is_, sample, self._samples.get(begin, old)))
            differs = len(new) != len(old) or any(map(is_not, new, old))
            if differs:
                blocks.write(begin, new)
            if timer.is_over(len(new) if differs else 0):
                yield None
                timer.restart()
        self._samples = samples
        self.changed_share = changed / compared if compared else 0.0
        blocks.end_interval()

    def release(self) -> None:
        """Forget one captured list."""
        self._pending -= 1

    def held_entries(self) -> int:
        """Return about how many values are in memory for it that are not in the table any more."""
        lists = len(self.blocks.written) + self._pending * len(self.blocks.keys)
        return int(lists * self.changed_share)

    def flushable_entries(self) -> int:
        """Return 0: entries are flushed in blocks."""
        return 0

    def may_scan(self, now: float) -> bool:
        """Return whether to scan for blocks to flush, at a time in seconds."""
        return self.blocks.is_complete and self._scan.is_due(now)

    def flush_blocks(self, now: float) -> Iterator[int | None]:
        """Write blocks that are unlikely to change again before the snapshot."""
        return self._scan.flush(self.table.dirty, now)

    def announce_snapshot(self) -> None:
        """Scan soon, since a snapshot is due."""
        self._scan.announce_snapshot()


class CapturedList:
    """All values of a dense table at a barrier.

    Arguments:
        layout: captured them.
        values: in the order of the table's keys.
    """

    def __init__(self, layout: DenseLayout, values: list[Any]) -> None:
        self._layout = layout
        self._values = values

    @property
    def table_id(self) -> int:
        """The number of the table."""
        return self._layout.table.table_id

    def entries(self) -> dict[Any, Any]:
        """Return the captured entries."""
        return dict(zip(self._layout.blocks.keys, self._values, strict=False))

    def must_write(self, flushed: Any) -> bool:
        """Return whether a block, given by where it begins, has changed again."""
        return self._layout.blocks.differs(flushed, self._values)

    def note_flushed(self, keys: Collection[Any]) -> None:
        """Do nothing: the layout knows which blocks are in the database."""

    def write(self, cold: ColdStore, number: int, timer: SliceTimer) -> Work[None]:
        """Write the blocks that changed."""
        del cold, number
        yield from self._layout.write(self._values, timer)

    def release(self) -> None:
        """Drop the list."""
        self._layout.release()

    def abandon(self) -> bool:
        """Drop the list; the next snapshot writes what this one would have."""
        self._layout.release()
        return True

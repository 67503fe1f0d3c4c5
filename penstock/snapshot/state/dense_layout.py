"""The layout of a table in which most entries change between two snapshots.

In the levelled layout, each changed entry costs three operations per snapshot: a look-up in one
level, an insertion into another level, and a move between two levels. If most entries change, this
costs more than the processing of the records.

A dense table has only one level, `dirty`, which is never replaced. A dict keeps the order of its
insertions, and no key is removed, so the n-th value always belongs to the n-th key. At a barrier,
the list of all values is captured, which takes about 20 ns for each entry. Later the snapshot
compares this list, object by object, with the values in the database. It writes the blocks in which
a value differs.

The layout is for tables whose values cannot change in place, and from which no entry is deleted.
The tables must be small enough that all values can be listed at a barrier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import is_, is_not

from penstock.snapshot.state.cold.block_store import BlockStore
from penstock.snapshot.state.cold.cold_store import ColdStore
from penstock.snapshot.state.dense_blocks import BlockScan, DenseBlocks
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import SliceTimer, Work
from penstock.snapshot.state.table.keyed_table import KeyedTable

# A table stops being dense when less than this share of its entries changed. In the levelled layout
# a changed entry costs about ten times as much as an unchanged entry costs in a dense block. The
# share is much lower than `_BEGIN_SHARE` of the levelled layout, since a switch writes all entries.
_END_SHARE = 1 / 12


class DenseLayout:
    """Captures the list of all values of a table, and writes the blocks that changed.

    Arguments:
        table: the table, with all its entries in the dirty level.
        store: the store to which the blocks are written.
        codec: the codec, which encodes keys and values.
        settings: the thresholds of the backend.
    """

    def __init__(
        self, table: KeyedTable, store: BlockStore, codec: StateCodec, settings: StateSettings
    ) -> None:
        self.table = table
        self.blocks = DenseBlocks(table, store, codec, settings)
        #: The estimated share of the entries that changed in the interval before the last written
        #: snapshot, from 0 to 1.
        self.changed_share = 1.0
        self._scan = BlockScan(self.blocks, settings)
        self._settings = settings
        self._sample = settings.dense_sample
        #: The number of captured lists that are not written yet.
        self._pending = 0
        #: The first values of each block in the previous snapshot, keyed by the block's position.
        self._samples: dict[int, list[object]] = {}

    def still_pays(self) -> bool:
        """Return whether the table should stay dense. The method is called at each barrier."""
        return (
            self.table.only_immutable
            and self.changed_share >= _END_SHARE
            and len(self.table.dirty) <= self._settings.max_dense_entries
            # The number of entries in a block is fixed. If the values have grown, it takes too long
            # to write a block.
            and self.blocks.size <= 2 * self.table.size.block_entries()
        )

    def capture(self, *, whole: bool) -> CapturedList:
        """Capture the list of all current values of the table."""
        del whole
        self._pending += 1
        self._scan.restart()
        values = list(self.table.dirty.values())
        self.blocks.add_keys(self.table.dirty)
        return CapturedList(self, values)

    def after_snapshot(self, cold: ColdStore) -> DenseLayout:
        """Return this layout, since a dense table becomes levelled only at a barrier."""
        del cold
        return self

    def write(self, values: list[object], timer: SliceTimer) -> Work[None]:
        """Write the blocks of a captured list that differ from the blocks in the database."""
        changed = compared = 0
        samples: dict[int, list[object]] = {}
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
        """Reduce the number of pending captured lists by one."""
        self._pending -= 1

    def held_entries(self) -> int:
        """Estimate how many values this layout holds that are no longer in the table."""
        lists = len(self.blocks.written) + self._pending * len(self.blocks.keys)
        return int(lists * self.changed_share)

    def flushable_entries(self) -> int:
        """Return 0, since a dense table flushes whole blocks instead of single entries."""
        return 0

    def may_scan(self, now: float) -> bool:
        """Return whether a scan for blocks to flush is due at the time `now`, in seconds."""
        # The table may have tombstones if entries may be deleted again. A block cannot hold them.
        only_values = self.table.only_immutable
        return only_values and self.blocks.is_complete and self._scan.is_due(now)

    def flush_blocks(self, now: float) -> Iterator[int | None]:
        """Write blocks that are unlikely to change again before the next snapshot."""
        return self._scan.flush(self.table.dirty, now)

    def announce_snapshot(self) -> None:
        """Let the next scan begin at once, because a snapshot is due soon."""
        self._scan.announce_snapshot()


class CapturedList:
    """The values that a dense table had at a barrier.

    Arguments:
        layout: the layout that captured the values.
        values: the values, in the order of the keys of the table.
    """

    def __init__(self, layout: DenseLayout, values: list[object]) -> None:
        self._layout = layout
        self._values = values

    @property
    def table_id(self) -> int:
        """The id of the table."""
        return self._layout.table.table_id

    def entries(self) -> dict[object, object]:
        """Return a dict of the captured keys and values."""
        return dict(zip(self._layout.blocks.keys, self._values, strict=False))

    def must_write(self, flushed: object) -> bool:
        """Return whether the block at position `flushed` has changed since its flush.

        Only its first values are compared.
        """
        assert isinstance(flushed, int)
        return self._layout.blocks.differs(flushed, self._values)

    def note_flushed(self, keys: Collection[object]) -> None:
        """Do nothing, since the layout knows which values are in the database."""

    def write(self, cold: ColdStore, number: int, timer: SliceTimer) -> Work[None]:
        """Write the blocks that differ from the blocks in the database."""
        del cold, number
        yield from self._layout.write(self._values, timer)

    def release(self) -> None:
        """Notify the layout that the captured list is no longer needed."""
        self._layout.release()

    def abandon(self) -> bool:
        """Drop the captured list, and return True.

        The next snapshot compares all values, so it writes the changes that this one would have
        written.
        """
        self._layout.release()
        return True

"""The blocks of a dense table: each range of entries has a fixed block number.

`DenseBlocks` writes the blocks. `BlockScan` finds blocks that can be flushed before the next
snapshot, because they are unlikely to change again. A block is flushed in two cases:

* All its values have changed. Records often arrive in the order of their keys, and the following
  records then belong to later blocks.
* Many of its values have changed, but none since the last comparison. This happens when several
  sources send records in the order of the keys, at different positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from operator import is_not

from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.cold.block_store import BlockStore
from penstock.snapshot.state.eager_flush_policy import MAX_FLUSHES
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.table.keyed_table import KeyedTable


class DenseBlocks:
    """Writes the blocks of one dense table, and keeps the values that are in the database.

    Keys and values have the same order. The *position* of a block is the index of its first key.

    Arguments:
        table: the dense table.
        store: the store to which the blocks are written.
        codec: the codec, which encodes keys and values.
        settings: the thresholds of the backend.
    """

    def __init__(
        self, table: KeyedTable, store: BlockStore, codec: StateCodec, settings: StateSettings
    ) -> None:
        #: The number of entries in a full block.
        self.size = table.size.block_entries()
        #: All keys of the table, in the order of the table.
        self.keys: list[object] = []
        #: The values that are in the database, in the order of the keys.
        self.written: list[object] = []
        #: The positions of the blocks that were written since the last snapshot was written.
        self.rewritten: set[int] = set()
        self._table = table
        self._store = store
        self._codec = codec
        self._sample = settings.dense_sample
        #: The encoded keys of full blocks, keyed by the position of the block. They never change.
        self._packed_keys: dict[int, bytes] = {}
        self._older_blocks = True
        self._first = store.next_number
        store.reserve(self._first + settings.max_dense_entries // self.size + 1)

    @property
    def is_complete(self) -> bool:
        """Whether the blocks that were written before the dense layout have been removed."""
        return not self._older_blocks

    def add_keys(self, live: Mapping[object, object]) -> None:
        """Add the keys that were added to the table since the last call.

        Arguments:
            live: the current entries of the table.
        """
        if len(live) > len(self.keys):
            self.keys.extend(islice(live, len(self.keys), None))

    def write(self, begin: int, values: list[object]) -> None:
        """Write the block at the position `begin` with these values."""
        self.written[begin : begin + self.size] = values
        self.rewritten.add(begin)
        packed = self._codec.encode_batch(values)
        number = self._first + begin // self.size
        keys = self._encoded_keys(begin, len(values))
        self._store.put_block(self._table, number, keys, packed, len(values))

    def _encoded_keys(self, begin: int, count: int) -> bytes:
        if count == self.size and begin in self._packed_keys:
            return self._packed_keys[begin]
        packed = self._codec.encode_batch(plain_keys(self.keys[begin : begin + count]))
        if count == self.size:
            self._packed_keys[begin] = packed
        return packed

    def end_interval(self) -> None:
        """Begin a new interval after a snapshot was written.

        The first call removes the blocks that were written before the dense layout.
        """
        self.rewritten.clear()
        if self._older_blocks:
            self._store.remove_below(self._table, self._first)
            self._older_blocks = False

    def differs(self, begin: int, values: list[object]) -> bool:
        """Return whether any of the first values of a block differs from the database.

        Arguments:
            begin: the position of the block.
            values: all values of the table.
        """
        end = begin + self._sample
        return any(map(is_not, values[begin:end], self.written[begin:end]))


# The scan first compares a sample of the values of a block, which takes 5 us. If this share of the
# sample has changed, it compares all values, which takes 100 us.
_CHANGED_SHARE = 0.25


class BlockScan:
    """Scans a dense table, and writes the blocks that are unlikely to change again.

    Arguments:
        blocks: the blocks of the table.
        settings: the thresholds of the backend.
    """

    def __init__(self, blocks: DenseBlocks, settings: StateSettings) -> None:
        self._blocks = blocks
        self._settings = settings
        self._position: Iterator[int | None] | None = None
        self._next_scan = 0.0
        self._interval = settings.scan_seconds
        #: For each block, keyed by its position: the number of its values that differed from the
        #: written block when the scan compared them last.
        self._changed: dict[int, int] = {}
        #: The number of flushes of each block since the last barrier, keyed by the position of the
        #: block. A flush counts as the share of the block that had changed, for example 0.5.
        self._flushes: dict[int, float] = {}

    def restart(self) -> None:
        """Begin at the first block again, because a snapshot was captured."""
        self._position = None
        self._flushes.clear()

    def announce_snapshot(self) -> None:
        """Let the next scan begin at once, because a snapshot is due soon."""
        self._next_scan, self._interval = 0.0, self._settings.scan_seconds

    def is_due(self, now: float) -> bool:
        """Return whether a scan is due at the time `now`, in seconds."""
        return now >= self._next_scan

    def flush(self, live: Mapping[object, object], now: float) -> Iterator[int | None]:
        """Continue the scan, and write the blocks that it finds.

        Yields the position of each block that was written. Yields None if all values of a block
        were compared but the block was not written.

        Arguments:
            live: the current entries of the table.
            now: the current time in seconds.
        """
        if self._position is None:
            # The interval doubles after each scan that finds no block.
            self._interval = min(2 * self._interval, self._settings.max_scan_seconds)
            self._position = self._scan(live)
        for begin in self._position:
            if begin is not None:
                self._interval = self._settings.scan_seconds
            yield begin
        self._position, self._next_scan = None, now + self._interval

    def _scan(self, live: Mapping[object, object]) -> Iterator[int | None]:
        value_of, blocks = live.__getitem__, self._blocks
        stride = max(1, blocks.size // self._settings.dense_sample)
        # The last block is also scanned, even if it is not full. It changes when keys are added.
        for begin in range(0, len(blocks.written), blocks.size):
            end = min(begin + blocks.size, len(blocks.written))
            old = blocks.written[begin:end:stride]
            changed = sum(map(is_not, map(value_of, blocks.keys[begin:end:stride]), old))
            share, flushes = changed / len(old), self._flushes.get(begin, 0.0)
            if share < _CHANGED_SHARE or flushes > MAX_FLUSHES - _CHANGED_SHARE:
                continue
            values = list(map(value_of, blocks.keys[begin:end]))
            if not self._has_settled(begin, values):
                yield None
                continue
            self._flushes[begin] = flushes + share
            self._changed.pop(begin, None)
            blocks.write(begin, values)
            yield begin

    def _has_settled(self, begin: int, values: list[object]) -> bool:
        """Return whether a block is unlikely to change again before the next snapshot.

        This is so if all values of the block have changed, or if no value has changed since the
        last comparison.

        Arguments:
            begin: the position of the block.
            values: the current values of the block.
        """
        before = self._changed.get(begin)
        written = self._blocks.written[begin : begin + self._blocks.size]
        changed = sum(map(is_not, values, written))
        self._changed[begin] = changed
        return changed in (len(values), before)

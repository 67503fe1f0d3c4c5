"""The blocks of a dense table: each range of entries has a fixed block number."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import is_not

from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.cold.block_store import BlockStore
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.table.keyed_table import KeyedTable

__all__ = ["DenseBlocks"]


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

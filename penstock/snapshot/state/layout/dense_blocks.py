"""The blocks of a dense table: ranges of its entries, each written under a fixed number."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import is_not
from typing import Any

from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.rocksdb.block_store import BlockStore
from penstock.snapshot.state.settings import StateSettings

__all__ = ["DenseBlocks"]


class DenseBlocks:
    """Writes the blocks of one dense table, and remembers which values are in the database.

    A block begins at a *position*: the n-th value of the table belongs to its n-th key.

    Arguments:
        table: the table.
        store: where its blocks are written.
        codec: encodes keys and values.
        settings: thresholds of the backend.
    """

    def __init__(
        self, table: KeyedTable, store: BlockStore, codec: StateCodec, settings: StateSettings
    ) -> None:
        #: Entries of a block.
        self.size = table.size.block_entries()
        #: All keys, in the order of the table.
        self.keys: list[Any] = []
        #: The values as they are in the database.
        self.written: list[Any] = []
        #: Where blocks begin that were written since the last snapshot was.
        self.rewritten: set[int] = set()
        self._table = table
        self._store = store
        self._codec = codec
        self._sample = settings.dense_sample
        #: Encoded keys of full blocks, by where they begin; they never change.
        self._packed_keys: dict[int, bytes] = {}
        self._older_blocks = True
        self._first = store.next_number
        store.reserve(self._first + settings.max_dense_entries // self.size + 1)

    @property
    def is_complete(self) -> bool:
        """Whether these are all blocks of the table: the ones from before are removed."""
        return not self._older_blocks

    def add_keys(self, live: Mapping[Any, Any]) -> None:
        """Add the keys that came since the last call."""
        if len(live) > len(self.keys):
            self.keys.extend(islice(live, len(self.keys), None))

    def write(self, begin: int, values: list[Any]) -> None:
        """Write the block that begins at a position."""
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
        """Note that a snapshot is written, and remove the blocks from before the dense layout."""
        self.rewritten.clear()
        if self._older_blocks:
            self._store.remove_below(self._table, self._first)
            self._older_blocks = False

    def differs(self, begin: int, values: list[Any]) -> bool:
        """Return whether some of a block's first values are not those in the database.

        Arguments:
            begin: the position where the block begins.
            values: all values of the table.
        """
        end = begin + self._sample
        return any(map(is_not, values[begin:end], self.written[begin:end]))

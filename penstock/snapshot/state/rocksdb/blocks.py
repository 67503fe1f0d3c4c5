"""The format of blocks in RocksDB: many entries of one state in one value, by column.

    key    FF FF · state id (2 bytes, big-endian) · number (8 bytes, big-endian)
    value  msgpack: [keys, values, deleted]     each the codec's bytes of a batch

Key groups are below FF FF, so blocks and rows never mix. Blocks are read in the order of their
numbers, and the last block that has a key decides. A database holds blocks or rows, never both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state.entries import StateCodec

__all__ = ["BLOCKS", "StoredBlock", "block_key", "newest_entries", "pack_block", "read_block"]

#: The prefix of all keys of blocks; no key group is as high.
BLOCKS = b"\xff\xff"
_KEY = struct.Struct(">HHQ")
_NO_GROUP = 0xFFFF


@dataclass(frozen=True)
class StoredBlock:
    """A block as it was read.

    Arguments:
        state: id of the state.
        number: number of the block; the highest number that has a key decides.
        keys: keys that got a value.
        values: for each of them, the value.
        deleted: keys that were deleted.
    """

    state: int
    number: int
    keys: list[Any]
    values: list[Any]
    deleted: list[Any]


def block_key(state: int, number: int) -> bytes:
    """Return the key of a block in RocksDB."""
    return _KEY.pack(_NO_GROUP, state, number)


def pack_block(keys: bytes, values: bytes, deleted: bytes) -> bytes:
    """Return the value of a block in RocksDB.

    Arguments:
        keys: the codec's bytes of the keys that got a value.
        values: the codec's bytes of these values.
        deleted: the codec's bytes of the keys that were deleted.
    """
    packed: bytes = msgpack.packb((keys, values, deleted))
    return packed


def read_block(codec: StateCodec, row_key: bytes, data: bytes) -> StoredBlock:
    """Return the block in a row of RocksDB.

    Raises:
        StoreError: if the row holds no block.
    """
    try:
        _, state, number = _KEY.unpack(row_key)
        keys, values, deleted = map(codec.decode_batch, msgpack.unpackb(data))
    except Exception as error:
        message = f"a block of keyed state can't be decoded ({error}); use another snapshot"
        raise StoreError(message) from error
    return StoredBlock(state, number, keys, values, deleted)


def newest_entries(blocks: Iterable[StoredBlock]) -> Iterator[tuple[int, Any, Any]]:
    """Yield state id, key and value of each live entry in all blocks of a database."""
    states: dict[int, dict[Any, Any]] = {}
    for block in blocks:
        entries = states.setdefault(block.state, {})
        entries.update(zip(block.keys, block.values, strict=True))
        for key in block.deleted:
            entries.pop(key, None)
    for state, entries in states.items():
        for key, value in entries.items():
            yield state, key, value

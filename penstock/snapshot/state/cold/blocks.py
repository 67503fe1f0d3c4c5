"""The format of blocks in a database: one value holds many entries of one state.

    key    FF FF · state id (2 bytes, big-endian) · number (8 bytes, big-endian)
    value  msgpack: [keys, values, deleted]     each of the three is a batch, encoded by the codec

The numbers of key groups are lower than FF FF, so the keys of blocks and rows differ. Blocks are
read in the order of their numbers. If several blocks have the same key, the last block is valid.
A database holds either blocks or rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgpack

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state.entries import StateCodec

#: The prefix of the keys of all blocks. No key group has this number.
BLOCKS = b"\xff\xff"
_KEY = struct.Struct(">HHQ")
_NO_GROUP = 0xFFFF


@dataclass(frozen=True)
class StoredBlock:
    """The decoded content of one block.

    Arguments:
        state: the id of the state.
        number: the number of the block. If several blocks have the same key, the entry in the block
            with the highest number is valid.
        keys: the keys that got a value.
        values: the values, in the order of `keys`.
        deleted: the keys that were deleted.
    """

    state: int
    number: int
    keys: list[object]
    values: list[object]
    deleted: list[object]


def block_key(state: int, number: int) -> bytes:
    """Return the key of block `number` in the database, for the state with id `state`."""
    return _KEY.pack(_NO_GROUP, state, number)


def pack_block(keys: bytes, values: bytes, deleted: bytes) -> bytes:
    """Return the value of a block in the database.

    Arguments:
        keys: the keys that got a value, encoded by the codec as a batch.
        values: the values of these keys, encoded by the codec as a batch.
        deleted: the deleted keys, encoded by the codec as a batch.
    """
    packed: bytes = msgpack.packb((keys, values, deleted))
    return packed


def read_block(codec: StateCodec, row_key: bytes, data: bytes) -> StoredBlock:
    """Decode a block from its key and value in the database.

    Raises:
        StoreError: if the key and value cannot be decoded as a block.
    """
    try:
        _, state, number = _KEY.unpack(row_key)
        keys, values, deleted = map(codec.decode_batch, msgpack.unpackb(data))
    except Exception as error:
        message = f"a block of keyed state can't be decoded ({error}); use another snapshot"
        raise StoreError(message) from error
    return StoredBlock(state, number, keys, values, deleted)


def newest_entries(blocks: Iterable[StoredBlock]) -> Iterator[tuple[int, object, object]]:
    """Yield the state id, key and value of each live entry in the blocks of a database.

    Arguments:
        blocks: all blocks of the database, in the order of their numbers.
    """
    states: dict[int, dict[object, object]] = {}
    for block in blocks:
        entries = states.setdefault(block.state, {})
        entries.update(zip(block.keys, block.values, strict=True))
        for key in block.deleted:
            entries.pop(key, None)
    for state, entries in states.items():
        for key, value in entries.items():
            yield state, key, value

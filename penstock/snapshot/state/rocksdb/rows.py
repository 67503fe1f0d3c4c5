"""The format of rows in RocksDB: one entry of a table each.

    key    key group (2 bytes, big-endian) · state id (2 bytes, big-endian) · canonical key
    value  original key · encoded value
    original key
           0                                the codec's bytes of the key are the canonical ones
           n (1 to 254) · n bytes           the codec's bytes of the key
           255 · length (4 bytes, big-endian) · the codec's bytes of the key

`penstock.dataflow.graph.keys` defines canonical bytes and key groups. All rows of a key group are
one range.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.entries import StateCodec

__all__ = ["REMEMBERED_BYTES", "ROW_PREFIX", "RowKeys", "original_key", "value_offset"]

ROW_PREFIX = struct.Struct(">HH")
_LENGTH = struct.Struct(">BI")
_LONG = 255
#: Memory of a remembered row: a tuple, two short bytes objects and a slot in a dict.
REMEMBERED_BYTES = 250


class RowKeys:
    """Makes the keys of rows, and remembers them, since keys recur from snapshot to snapshot.

    Arguments:
        codec: encodes the original key.
        canonical: the canonical bytes of a key; equal exactly for equal keys.
        max_parallelism: number of key groups, at most 32768.
        limit: how many rows to remember.
    """

    def __init__(
        self,
        codec: StateCodec,
        canonical: Callable[[Any], bytes],
        max_parallelism: int,
        limit: int,
    ) -> None:
        self._codec = codec
        self._canonical = canonical
        self._max_parallelism = max_parallelism
        self._limit = limit
        self._count = 0
        self._rows: dict[int, dict[Any, tuple[bytes, bytes]]] = {}

    def group(self, key: Any) -> int:
        """Return the key group of `key`."""
        return key_group(self._canonical(key), self._max_parallelism)

    def row_key(self, table_id: int, key: Any) -> bytes:
        """Return the key of the row of `key` in the table `table_id`; for reading."""
        remembered = self._rows.get(table_id)
        if remembered is not None:
            row = remembered.get(key)
            if row is not None:
                return row[0]
        canonical = self._canonical(key)
        group = key_group(canonical, self._max_parallelism)
        return ROW_PREFIX.pack(group, table_id) + canonical

    def rows(self, table_id: int, keys: list[Any]) -> list[tuple[bytes, bytes]]:
        """Return for each of `keys` the row's key, and the original key that opens its value."""
        remembered = self._rows.setdefault(table_id, {})
        try:
            return list(map(remembered.__getitem__, keys))
        except KeyError:
            new = [key for key in keys if key not in remembered]
        if self._count + len(new) > self._limit:
            # Simple, and rare: not needed while the keys in use fit.
            self.forget()
            remembered = self._rows[table_id] = {}
            new = keys
        canonical = self._canonical
        groups = self._max_parallelism
        for key, original in zip(new, self._codec.encode_values(plain_keys(new)), strict=True):
            form = canonical(key)
            size = len(original)
            if original == form:
                opening = b"\0"
            elif 0 < size < _LONG:
                opening = bytes((size,)) + original
            else:
                opening = _LENGTH.pack(_LONG, size) + original
            row = ROW_PREFIX.pack(key_group(form, groups), table_id) + form
            remembered[key] = (row, opening)
        self._count += len(new)
        return list(map(remembered.__getitem__, keys))

    def forget(self) -> None:
        """Forget all rows, to free their memory."""
        self._rows = {}
        self._count = 0

    def memory_bytes(self) -> int:
        """Return an estimate of the memory that remembered rows take, in bytes."""
        return self._count * REMEMBERED_BYTES


def value_offset(row_value: bytes) -> int:
    """Return where in a row's value the encoded value begins."""
    size = row_value[0]
    if size < _LONG:
        return 1 + size
    return _LENGTH.size + int(_LENGTH.unpack_from(row_value)[1])


def original_key(row_key: bytes, row_value: bytes) -> bytes:
    """Return the codec's bytes of the original key of a row."""
    size = row_value[0]
    if size == 0:
        return row_key[ROW_PREFIX.size :]
    start = 1 if size < _LONG else _LENGTH.size
    return row_value[start : value_offset(row_value)]

"""The format of rows in a database: each row holds one entry of a table.

    key    key group (2 bytes, big-endian) · state id (2 bytes, big-endian) · canonical key
           The canonical key of a composite table is the canonical form of the tuple
           (key, part, ...), and the key group is that of the key alone.
    value  original key · encoded value
    original key
           0                                the encoded key is equal to the canonical key
           n (1 to 254) · n bytes           the key as encoded by the codec
           255 · length (4 bytes, big-endian) · the key as encoded by the codec

`penstock.dataflow.graph.keys` defines the canonical bytes of a key. Since rows are sorted by key
group, all rows of one key group are adjacent. The canonical form of a tuple begins with its first
item and the length of this item. So in a composite table, all rows of one key are adjacent, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import plain_keys, tuple_prefix
from penstock.snapshot.state.entries import StateCodec

ROW_PREFIX = struct.Struct(">HH")
_LENGTH = struct.Struct(">BI")
_LONG = 255
#: The estimated memory of a remembered row in bytes: a tuple, two short bytes objects and a slot in
#: a dict.
REMEMBERED_BYTES = 250


class RowKeys:
    """Makes the keys of rows, and remembers them.

    Many snapshots write the same keys, so a remembered key saves time.

    Arguments:
        codec: the codec, which encodes the original key.
        canonical: a function that returns the canonical bytes of a key. Only equal keys have the
            same bytes.
        max_parallelism: the number of key groups, at most 32768.
        limit: the largest number of rows to remember.
    """

    def __init__(
        self,
        codec: StateCodec,
        canonical: Callable[[object], bytes],
        max_parallelism: int,
        limit: int,
    ) -> None:
        self._codec = codec
        self._canonical = canonical
        self._max_parallelism = max_parallelism
        self._limit = limit
        self._count = 0
        self._rows: dict[int, dict[object, tuple[bytes, bytes]]] = {}

    def group(self, key: object, *, is_composite: bool = False) -> int:
        """Return the number of the key group to which `key` belongs."""
        if is_composite:
            assert isinstance(key, tuple)
            key = key[0]
        return key_group(self._canonical(key), self._max_parallelism)

    def row_key(self, table_id: int, key: object, *, is_composite: bool = False) -> bytes:
        """Return the row key with which to read `key` of the table `table_id`."""
        remembered = self._rows.get(table_id)
        if remembered is not None:
            row = remembered.get(key)
            if row is not None:
                return row[0]
        form = self._canonical(key)
        group = (
            self.group(key, is_composite=True)
            if is_composite
            else key_group(form, self._max_parallelism)
        )
        return ROW_PREFIX.pack(group, table_id) + form

    def prefix_of(self, table_id: int, key: object) -> bytes:
        """Return the prefix of all row keys that `key` has in a composite table."""
        form = self._canonical(key)
        group = key_group(form, self._max_parallelism)
        return ROW_PREFIX.pack(group, table_id) + tuple_prefix(form)

    def rows(
        self, table_id: int, keys: list[object], *, is_composite: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return the row keys with which to write `keys` of the table `table_id`.

        Arguments:
            table_id: the id of the table.
            keys: the keys.
            is_composite: whether the keys are composite.

        Returns:
            For each key a pair: its row key, and the original key with which the value of the row
            begins.
        """
        remembered = self._rows.setdefault(table_id, {})
        try:
            return list(map(remembered.__getitem__, keys))
        except KeyError:
            new = [key for key in keys if key not in remembered]
        if self._count + len(new) > self._limit:
            # Forget all remembered rows. This is simple, and it is rare if the limit is large
            # enough for the keys in use.
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
            grouped = form
            if is_composite:
                assert isinstance(key, tuple)
                grouped = canonical(key[0])
            row = ROW_PREFIX.pack(key_group(grouped, groups), table_id) + form
            remembered[key] = (row, opening)
        self._count += len(new)
        return list(map(remembered.__getitem__, keys))

    def forget(self) -> None:
        """Forget all remembered rows, to free their memory."""
        self._rows = {}
        self._count = 0

    def memory_bytes(self) -> int:
        """Return an estimate of the memory that remembered rows take, in bytes."""
        return self._count * REMEMBERED_BYTES


def value_offset(row_value: bytes) -> int:
    """Return the offset in bytes at which the encoded value begins in the value of a row."""
    size = row_value[0]
    if size < _LONG:
        return 1 + size
    return _LENGTH.size + int(_LENGTH.unpack_from(row_value)[1])


def original_key(row_key: bytes, row_value: bytes) -> bytes:
    """Return the original key of a row, as encoded by the codec."""
    size = row_value[0]
    if size == 0:
        return row_key[ROW_PREFIX.size :]
    start = 1 if size < _LONG else _LENGTH.size
    return row_value[start : value_offset(row_value)]

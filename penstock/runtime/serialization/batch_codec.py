"""Encode batches of records as bytes, by column where that is possible.

A batch is written by column if all its records are tuples of one width, dicts with the same keys,
or instances of one registered class. This is fast, since msgpack is fast on long arrays of atoms. A
column whose values satisfy the same condition is itself written by column. Any other batch is
written by row, as one value (`penstock.runtime.serialization.value_codec`).

Invariant: a column is packed plainly only after the exact types of all its items were checked.

`docs/inside/decisions/013-batches-by-column.md` has the reasons and the figures.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.arrow_batch import ArrowBatch, decode_arrow, encode_arrow
from penstock.runtime.serialization.columns import columns_of
from penstock.runtime.serialization.leaf_encoding import ATOMS
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_codec import (
    NOT_PLAIN,
    ValueCodec,
    corrupt,
    new_packer,
    new_unpacker,
)

# The kinds of batches. The kind is the first item of a batch's array. A PLAIN batch holds atoms, or
# lists of atoms. A ROWS batch holds the bytes of one value. The other kinds hold columns: a column
# is an array of atoms, or the bytes of a batch. A TIMED batch holds the event times of its records,
# as little-endian integers of 64 bits, and then the items of a batch of another kind. An ARROW
# batch holds a stream in Arrow's IPC format.
_PLAIN, _ROWS, _TUPLES, _DICTS, _OBJECTS, _TIMED, _ARROW = range(7)

# The number of items from which on a column may be written in one of two short forms. If all items
# are equal, the column is a map of the number of items to the item. If all items are strings, the
# column is one string, in which a separator that none of them contains joins the items.
_LONG = 16
_SEPARATOR = "\0"
# The types for which a value can be replaced by an equal one. `float` is not one of them, since
# 0.0 equals -0.0.
_EXACT = frozenset({str, int, bool, bytes, type(None)})
# The greatest number of records that a decoder accepts. A greater number means damaged data.
_MOST = 1 << 24

_MAX_LEVELS = 4
"""The greatest depth of columns nested in columns. Each level is a separate call of msgpack."""


class BatchCodec:
    """Encodes and decodes batches of records.

    Arguments:
        registry: the job's record classes.
        values: the codec for batches that are written by row.
    """

    def __init__(self, registry: TypeRegistry, values: ValueCodec) -> None:
        self._registry = registry
        self._values = values
        self._pack = new_packer()
        self._unpack = new_unpacker()

    def encode(self, records: Sequence[Any]) -> bytes:
        """Return a list of records as bytes.

        Raises `UnsupportedTypeError` if the type of a record, or of a value in it, is not
        supported.
        """
        try:
            return self._pack(self._arrange(records, False, _MAX_LEVELS))
        except NOT_PLAIN:
            return self._pack(self._arrange(records, True, _MAX_LEVELS))

    def decode(self, data: bytes | memoryview) -> list[Any]:
        """Decode a batch of records. Raises `ProtocolError` for damaged bytes."""
        return self.decode_record_batch(data).rows()

    def encode_record_batch(self, batch: RecordBatch) -> bytes:
        """Return a batch as bytes, whether it is held by row or by column.

        Raises `UnsupportedTypeError` as `encode` does.
        """
        columns = batch.columns()
        timestamps = batch.timestamps
        if columns is None and timestamps is None and batch.arrow is None:
            return self.encode(batch.rows())
        header = [] if timestamps is None else [_TIMED, _encode_times(timestamps)]
        if batch.arrow is not None:
            return self._pack([*header, _ARROW, encode_arrow(batch.arrow)])
        try:
            return self._pack(header + self._arrange_batch(batch, columns, False))
        except NOT_PLAIN:
            return self._pack(header + self._arrange_batch(batch, columns, True))

    def _arrange_batch(
        self, batch: RecordBatch, columns: list[list[Any]] | None, careful: bool
    ) -> list[Any]:
        if columns is None:
            return self._arrange(batch.rows(), careful, _MAX_LEVELS)
        return self._arrange_columns([_TUPLES], columns, careful, _MAX_LEVELS)

    def decode_record_batch(self, data: bytes | memoryview) -> RecordBatch:
        """Decode a batch, and return it by column if its records are tuples.

        Raises `ProtocolError` for damaged bytes.
        """
        try:
            parts = self._unpack(data)
            if parts[0] == _TIMED:
                return self._with_times(parts[1], parts[2:])
            if parts[0] == _TUPLES:
                return RecordBatch.of_columns(self._items_of(parts[1:], _MAX_LEVELS))
            if parts[0] == _ARROW:
                return ArrowBatch(decode_arrow(parts[1]))
            return RecordBatch(self._restore(parts, _MAX_LEVELS))
        except ProtocolError:
            raise
        except Exception as error:
            raise corrupt("batch", data, error) from error

    def _with_times(self, times: bytes, parts: list[Any]) -> RecordBatch:
        if parts[0] == _TUPLES:
            batch = RecordBatch.of_columns(self._items_of(parts[1:], _MAX_LEVELS))
        elif parts[0] == _ARROW:
            batch = ArrowBatch(decode_arrow(parts[1]))
        else:
            batch = RecordBatch(self._restore(parts, _MAX_LEVELS))
        timestamps = _decode_times(times)
        if len(timestamps) != len(batch):
            raise ProtocolError(
                f"a batch of {len(batch)} records has {len(timestamps)} event times"
            )
        packed: Any = timestamps
        return batch.with_timestamps(packed if batch.arrow is not None else timestamps.tolist())

    def _arrange(self, values: Sequence[Any], careful: bool, levels: int) -> list[Any]:
        """Return the array that msgpack packs for a batch of records or values.

        Arguments:
            values: the records, or the values of the column.
            careful: whether msgpack has refused an atom of the batch. Then each column is packed
                once as a test before it is taken as plain.
            levels: the number of further levels of nested columns that are allowed.
        """
        kinds = list(map(type, values))
        kind = kinds[0] if kinds else NotImplemented
        if levels and kinds.count(kind) == len(kinds):
            header, columns = self._split(kind, values, careful)
            if columns:
                return self._arrange_columns(header, columns, careful, levels)
        if self._is_plain(values, kinds, careful):
            return [_PLAIN, values]
        return [_ROWS, self._values.encode(list(values))]

    def _arrange_columns(
        self, header: list[Any], columns: Sequence[Sequence[Any]], careful: bool, levels: int
    ) -> list[Any]:
        return header + [self._column(column, careful, levels - 1) for column in columns]

    def _split(
        self, kind: type, values: Sequence[Any], careful: bool
    ) -> tuple[list[Any], list[Sequence[Any]]]:
        """Return the header and the columns of values of one type.

        Returns an empty list of columns for values that cannot be written by column.
        """
        if kind is tuple:
            return [_TUPLES], columns_of(values)
        if kind is dict:
            keys = list(values[0])
            # All keys must be of the exact type `str`. Otherwise keys such as 1 and True, which are
            # equal but of two types, would be mixed up.
            if (
                set(map(type, chain.from_iterable(values))) == {str}
                and list(map(list, values)).count(keys) == len(values)
                and (not careful or self._packs(keys))
            ):
                return [_DICTS, keys], columns_of([value.values() for value in values])
            return [], []
        serializer = self._registry.serializer_of(kind)
        if serializer is None:
            return [], []
        serializer.mark_written()
        return [_OBJECTS, serializer.index], columns_of(serializer.to_rows(values))

    def _column(self, values: Sequence[Any], careful: bool, levels: int) -> Any:
        """Return the object that msgpack packs for a column.

        It is the list of the values, one of the short forms, or the bytes of a nested batch.
        """
        kinds = list(map(type, values))
        size = len(kinds)
        if not careful and kinds.count(kinds[0]) == size:
            first, kind = values[0], kinds[0]
            if size >= _LONG:
                if kind in _EXACT and first == values[-1] and values.count(first) == size:
                    return {size: first}
                if kind is str:
                    # msgpack packs one long string many times faster than many short ones.
                    joined = _SEPARATOR.join(values)
                    if joined.count(_SEPARATOR) == size - 1:
                        return joined
            if kind in ATOMS:
                return values
        if self._is_plain(values, kinds, careful):
            return values
        return self._pack(self._arrange(values, careful, levels))

    def _is_plain(self, values: Sequence[Any], kinds: list[type], careful: bool) -> bool:
        if not kinds:
            return True
        kind = kinds[0]
        if kind is list and kinds.count(list) == len(kinds):
            plain = ATOMS.issuperset(map(type, chain.from_iterable(values)))
        else:
            # `count` is faster than `issuperset`, which hashes each type. Most columns have values
            # of one type only.
            uniform = kind in ATOMS and kinds.count(kind) == len(kinds)
            plain = uniform or ATOMS.issuperset(kinds)
        return plain and (not careful or self._packs(values))

    def _packs(self, atoms: Sequence[Any]) -> bool:
        try:
            self._pack(atoms)
        except NOT_PLAIN:
            return False
        return True

    def _restore(self, parts: Any, levels: int) -> list[Any]:
        kind = parts[0]
        if kind in (_PLAIN, _ROWS):
            _, content = parts
            values = content if kind == _PLAIN else self._values.decode(content)
            if type(values) is not list:
                raise ProtocolError("a batch does not hold a list")
            return values
        if kind == _TUPLES:
            return list(self._rows(parts[1:], levels))
        rows = self._rows(parts[2:], levels)
        if kind == _DICTS:
            keys = parts[1]
            return [dict(zip(keys, row, strict=True)) for row in rows]
        if kind == _OBJECTS:
            return self._registry.serializer_at(parts[1]).from_rows(len(parts) - 2, rows)
        raise ProtocolError(f"a batch is of unknown kind {kind!r}")

    def _rows(self, columns: list[Any], levels: int) -> Iterable[tuple[Any, ...]]:
        return zip(*self._items_of(columns, levels), strict=True)

    def _items_of(self, columns: list[Any], levels: int) -> list[list[Any]]:
        """Decode each column in place, and return the given list.

        Raises `ProtocolError` if the columns differ in length, or are nested too deeply.
        """
        if not columns or levels == 0:
            raise ProtocolError("a batch by column has no columns, or is nested too deeply")
        sizes: list[int] = []
        for index, column in enumerate(columns):
            kind = type(column)
            if kind is dict:
                (size,) = column
                sizes.append(size)
                continue
            if kind is str:
                columns[index] = column.split(_SEPARATOR)
            elif kind is not list:
                columns[index] = self._restore(self._unpack(column), levels - 1)
            sizes.append(len(columns[index]))
        # The sizes are checked before equal items are repeated, since a damaged size may be huge.
        size = sizes[0]
        if sizes.count(size) != len(sizes) or not 0 <= size <= _MOST:
            raise ProtocolError(f"the columns of a batch have {sizes} items")
        for index, column in enumerate(columns):
            if type(column) is dict:
                columns[index] = [*column.values()] * size
        return columns


def _encode_times(timestamps: Any) -> bytes:
    times = array("q", timestamps) if type(timestamps) is not array else timestamps[:]
    if sys.byteorder == "big":
        times.byteswap()
    return times.tobytes()


def _decode_times(data: bytes) -> array[int]:
    times = array("q")
    times.frombytes(data)
    if sys.byteorder == "big":
        times.byteswap()
    return times

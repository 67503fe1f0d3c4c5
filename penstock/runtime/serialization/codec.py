"""Records and state values as bytes and back, equal in value and in type.

A batch of records of one shape (tuples of one length, dicts with the same keys, instances of one
registered class) is written by column, since msgpack is fast on long arrays of atoms; a column
that is of one shape itself, again so. Anything else is written by row, lowered where msgpack
would change it (`penstock.runtime.serialization.value_encoding`). A value that can't come back
equal in value and type is refused with an `UnsupportedTypeError`. Which objects were one and the
same is not kept: a list that occurs twice in a record comes back as two equal lists.

Nothing is pickled, and nothing is imported by a name found in data. This module writes no frames
and no files; docs/types.md says which types are carried.

Invariant: a column or value is packed plainly only after the exact types of all its items were
checked, because msgpack silently turns tuples into lists, subclasses into their bases and
bytearrays into bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgpack

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.record_batch import Columns, Records
from penstock.runtime.serialization.value_encoding import (
    ATOMS,
    IMMUTABLE,
    MAX_DEPTH,
    Extensions,
    Shape,
    TypeTable,
    UnsupportedTypeError,
    is_numpy_scalar,
)

__all__ = ["Codec", "TypeTable", "UnsupportedTypeError"]

# Kinds of batch, the first item of its array. PLAIN: atoms, or lists of atoms. ROWS: a value, as
# bytes. Then the columns: arrays of atoms, or batches of their own as bytes.
_PLAIN, _ROWS, _TUPLES, _DICTS, _OBJECTS = range(5)

# A column of at least so many items may be written shorter: equal items as {their number: one of
# them}, strings as one string with this between them, if it is in none of them.
_LONG = 16
_SEPARATOR = "\0"
# Types whose equal values are the same in all respects; 0.0 and -0.0 are equal.
_EXACT = frozenset({str, int, bool, bytes, type(None)})
# More records than any batch has; what says that there are more is damaged.
_MOST = 1 << 24

# msgpack never uses this byte. A value begins with one if it is a tuple of atoms, with two if it
# is lowered, and with none if it is plain.
_MARK = b"\xc1"
_MARK_BYTE = 0xC1

_MAX_LEVELS = 4
"""How deeply batches are nested as columns; each level is a call of msgpack with its own stack."""

_NOT_PLAIN = (OverflowError, UnicodeEncodeError)
"""What msgpack raises for a big integer and for a string with surrogates."""


def _refuse_extension(code: int, data: bytes) -> Any:
    del data
    raise ProtocolError(f"data holds a msgpack extension {code}; Penstock writes none")


class Codec:
    """Encodes and decodes batches and values.

    Encoding raises `UnsupportedTypeError` for what can't be carried. Decoding raises
    `ProtocolError` for bytes that no codec with this table wrote.

    Arguments:
        table: the job's record classes. It may grow while the codec is in use.
    """

    def __init__(self, table: TypeTable) -> None:
        self._table = table
        self._extensions = Extensions(table)
        # Not strict: tuples are packed as arrays, which is wanted where types were checked.
        self._pack: Callable[[Any], bytes] = msgpack.Packer(autoreset=True).pack
        unpack = partial(msgpack.unpackb, strict_map_key=False, ext_hook=_refuse_extension)
        self._unpack: Callable[[Any], Any] = unpack
        self._unpack_tuple: Callable[[Any], Any] = partial(unpack, use_list=False)
        self._unpack_lowered: Callable[[Any], Any] = partial(
            unpack, list_hook=self._extensions.revive
        )

    # Values

    def encode_value(self, value: Any) -> bytes:
        """One value as bytes."""
        kind = type(value)
        try:
            if kind is tuple:
                for item in value:
                    if type(item) not in ATOMS:
                        break
                else:
                    return _MARK + self._pack(value)
            elif kind in ATOMS or _is_flat(kind, value):
                return self._pack(value)
        except _NOT_PLAIN:
            pass
        return _MARK + _MARK + self._pack(self._extensions.lower(value))

    def encode_values(self, values: Sequence[Any]) -> list[bytes]:
        """`encode_value` of each, quicker where all are atoms or tuples of atoms."""
        try:
            kinds = set(map(type, values))
            if ATOMS.issuperset(kinds):
                return list(map(self._pack, values))
            if kinds == {tuple} and ATOMS.issuperset(map(type, chain.from_iterable(values))):
                return [_MARK + packed for packed in map(self._pack, values)]
        except _NOT_PLAIN:
            pass
        return list(map(self.encode_value, values))

    def decode_value(self, data: bytes | memoryview) -> Any:
        """The value that `encode_value` made bytes of."""
        try:
            if data[0] != _MARK_BYTE:
                return self._unpack(data)
            if data[1] != _MARK_BYTE:
                return self._unpack_tuple(data[1:])
            return self._unpack_lowered(data[2:])
        except ProtocolError:
            raise
        except Exception as error:
            raise _corrupt("value", data, error) from error

    # Batches

    def encode_batch(self, records: Records) -> bytes:
        """A batch of records as bytes."""
        try:
            return self._pack(self._arrange(records, False, _MAX_LEVELS))
        except _NOT_PLAIN:
            return self._pack(self._arrange(records, True, _MAX_LEVELS))

    def decode_batch(self, data: bytes | memoryview) -> list[Any]:
        """The records that `encode_batch` made bytes of."""
        try:
            return self._restore(self._unpack(data), _MAX_LEVELS)
        except ProtocolError:
            raise
        except Exception as error:
            raise _corrupt("batch", data, error) from error

    def decode_columns(self, data: bytes | memoryview) -> Records:
        """As `decode_batch`; tuples come by column."""
        try:
            parts = self._unpack(data)
            if parts[0] == _TUPLES:
                return Columns(self._items_of(parts[1:], _MAX_LEVELS))
            return self._restore(parts, _MAX_LEVELS)
        except ProtocolError:
            raise
        except Exception as error:
            raise _corrupt("batch", data, error) from error

    def _arrange(self, values: Records | Sequence[Any], careful: bool, levels: int) -> list[Any]:
        """What to pack for a batch, or for a column that is a batch of its own.

        `careful`: some atom can't be packed plainly, so each column is tried before it is.
        """
        if isinstance(values, Columns):
            packed = [self._column(column, careful, levels - 1) for column in values.columns]
            return [_TUPLES, *packed]
        kinds = list(map(type, values))
        kind = kinds[0] if kinds else NotImplemented
        if levels and kinds.count(kind) == len(kinds):
            header: list[Any] = []
            columns: list[Sequence[Any]] = []
            if kind is tuple:
                header, columns = [_TUPLES], _columns(values)
            elif kind is dict:
                keys = list(values[0])
                # Exact strings only: 1 and True are one key to Python, and two types.
                if (
                    set(map(type, chain.from_iterable(values))) == {str}
                    and list(map(list, values)).count(keys) == len(values)
                    and (not careful or self._packs(keys))
                ):
                    header, columns = [_DICTS, keys], _columns([v.values() for v in values])
            elif (shape := self._table.shape_of(kind)) is not None:
                shape.written = True
                header, columns = [_OBJECTS, shape.index], _columns(shape.take_all(values))
            if columns:
                return header + [self._column(column, careful, levels - 1) for column in columns]
        if self._is_plain(values, kinds, careful):
            return [_PLAIN, values]
        return [_ROWS, self.encode_value(list(values))]

    def _column(self, values: Sequence[Any], careful: bool, levels: int) -> Any:
        """What to pack for a column: the values themselves, or bytes of a batch of them."""
        kinds = list(map(type, values))
        size = len(kinds)
        if not careful and kinds.count(kinds[0]) == size:
            first, kind = values[0], kinds[0]
            if size >= _LONG:
                if kind in _EXACT and first == values[-1] and values.count(first) == size:
                    return {size: first}
                if kind is str:
                    # One string for all, which msgpack handles many times faster than its parts.
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
            # Counting is quicker than hashing each type, and most columns are of one type.
            uniform = kind in ATOMS and kinds.count(kind) == len(kinds)
            plain = uniform or ATOMS.issuperset(kinds)
        return plain and (not careful or self._packs(values))

    def _packs(self, atoms: Sequence[Any]) -> bool:
        try:
            self._pack(atoms)
        except _NOT_PLAIN:
            return False
        return True

    def _restore(self, parts: Any, levels: int) -> list[Any]:
        kind = parts[0]
        if kind in (_PLAIN, _ROWS):
            _, content = parts
            values = content if kind == _PLAIN else self.decode_value(content)
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
            return self._table.shape_at(parts[1]).make_all(len(parts) - 2, rows)
        raise ProtocolError(f"a batch is of unknown kind {kind!r}")

    def _rows(self, columns: list[Any], levels: int) -> Iterable[tuple[Any, ...]]:
        return zip(*self._items_of(columns, levels), strict=True)

    def _items_of(self, columns: list[Any], levels: int) -> list[list[Any]]:
        """The items of each column; they are put into the list that is given."""
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
        # Before there is room made for equal items: a damaged number may be a large one.
        size = sizes[0]
        if sizes.count(size) != len(sizes) or not 0 <= size <= _MOST:
            raise ProtocolError(f"the columns of a batch have {sizes} items")
        for index, column in enumerate(columns):
            if type(column) is dict:
                columns[index] = [*column.values()] * size
        return columns

    def written_types(self) -> list[int]:
        """Return the indices of the record classes of which an instance was encoded."""
        return self._table.written()

    # Copies

    @property
    def hash_tells(self) -> bool:
        """Whether what has a hash can't change; not so with `eq=False` or a hash of one's own."""
        return self._table.hash_tells

    def is_immutable(self, value: Any) -> bool:
        """Whether neither the value, which can be carried, nor anything in it can change."""
        # State is looked up one value at a time: the types of a tuple's items would take six
        # times as long, and the way by columns, made for batches, more than that.
        if self._table.hash_tells:
            try:
                hash(value)
            except TypeError:
                pass
            else:
                return True
        return self._all_immutable((value,), MAX_DEPTH)

    def is_immutable_batch(self, batch: list[Any]) -> bool:
        """Whether every record is deeply immutable."""
        return self._all_immutable(batch, MAX_DEPTH)

    def copy_mutable(self, batch: list[Any]) -> list[Any]:
        """The same list if every record is deeply immutable, else a list of copies.

        The copies are what a task in another process would get. Raises `UnsupportedTypeError`
        for records that can't be carried.
        """
        if self._all_immutable(batch, MAX_DEPTH):
            return batch
        # All of them: telling the mutable ones apart would cost more than copying by column.
        return self.decode_batch(self.encode_batch(batch))

    def _all_immutable(self, values: Sequence[Any], depth: int) -> bool:
        kinds = list(map(type, values))
        kind = kinds[0] if kinds else type(None)
        if kinds.count(kind) != len(kinds):
            if IMMUTABLE.issuperset(kinds):
                return True
            return depth > 0 and all(self._all_immutable((v,), depth) for v in values)
        if kind in IMMUTABLE:
            return True
        if depth == 0:
            return False
        if kind is tuple:
            rows: Sequence[Sequence[Any]] = values
        elif kind is frozenset:
            rows = list(map(tuple, values))
        elif (shape := self._table.shape_of(kind)) is not None and shape.frozen:
            rows = _take_all_or_none(shape, values)
            if not rows:
                return False
        else:
            return is_numpy_scalar(kind)
        columns = _columns(rows) or rows
        return all(self._all_immutable(column, depth - 1) for column in columns)


def _is_flat(kind: type, value: Any) -> bool:
    """Whether a value is exactly a list or dict of atoms."""
    if kind is list:
        return ATOMS.issuperset(map(type, value))
    return (
        kind is dict
        and ATOMS.issuperset(map(type, value))
        and ATOMS.issuperset(map(type, value.values()))
    )


def _columns(rows: Sequence[Collection[Any]]) -> list[Sequence[Any]]:
    """The columns of rows of one length; none if their lengths differ or are 0."""
    width = len(rows[0])
    if width == 2:
        # The most frequent, and quicker than what is quick for longer rows.
        left: list[Any] = []
        right: list[Any] = []
        try:
            for first, second in rows:
                left.append(first)
                right.append(second)
        except ValueError:
            return []
        return [left, right]
    if list(map(len, rows)).count(width) != len(rows):
        return []
    # All items one after the other: `zip(*rows)` makes an iterator for each row, and takes thrice
    # as long.
    items = list(chain.from_iterable(rows))
    return [items[column::width] for column in range(width)]


def _take_all_or_none(shape: Shape, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """The rows of the values; none if any holds more than its fields, and so may change."""
    try:
        return shape.take_all(values)
    except UnsupportedTypeError:
        return ()


def _corrupt(what: str, data: bytes | memoryview, error: Exception) -> ProtocolError:
    return ProtocolError(
        f"a {what} of {len(data)} bytes can't be decoded ({type(error).__name__}: {error}); "
        "it is damaged, or was written with another table of record classes"
    )

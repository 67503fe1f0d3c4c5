"""Encode single values, such as keys and states, as bytes.

Most values are plain: atoms, or lists and dicts of atoms, which msgpack does not change. Any other
value is lowered first (`penstock.runtime.serialization.value_encoding`). The first bytes show in
which form a value was encoded.

Invariant: a value is packed plainly only after the exact types of all its items were checked. The
reason is that msgpack silently turns tuples into lists, subclasses into their bases and bytearrays
into bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgpack

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.leaf_encoding import ATOMS
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_encoding import ValueEncoding

# A byte that msgpack never writes. The bytes of a tuple of atoms begin with one such byte, and the
# bytes of a lowered value with two. The bytes of a plain value begin with none.
_MARK = b"\xc1"
_MARK_BYTE = 0xC1

NOT_PLAIN = (OverflowError, UnicodeEncodeError)
"""The exceptions that msgpack raises for a big integer and for a string with surrogates."""


def new_packer() -> Callable[[Any], bytes]:
    """Return a function that packs values with msgpack, without checking their types."""
    # The packer is not strict about types, so that it packs tuples as arrays.
    pack: Callable[[Any], bytes] = msgpack.Packer(autoreset=True).pack
    return pack


def new_unpacker(**options: Any) -> Callable[[Any], Any]:
    """Return a function that unpacks bytes with msgpack.

    Arguments:
        options: further keyword arguments of `msgpack.unpackb`.
    """
    return partial(msgpack.unpackb, strict_map_key=False, ext_hook=_refuse_extension, **options)


def corrupt(what: str, data: bytes | memoryview, error: Exception) -> ProtocolError:
    """Return the error for bytes that cannot be decoded.

    Arguments:
        what: the word for the encoded object in the message, such as "batch".
        data: the bytes.
        error: the exception that decoding raised.
    """
    return ProtocolError(
        f"a {what} of {len(data)} bytes can't be decoded ({type(error).__name__}: {error}); "
        "it is damaged, or was written with another table of record classes"
    )


def _refuse_extension(code: int, data: bytes) -> Any:
    del data
    raise ProtocolError(f"data holds a msgpack extension {code}; Penstock writes none")


class ValueCodec:
    """Encodes and decodes single values.

    Arguments:
        registry: the job's record classes.
    """

    def __init__(self, registry: TypeRegistry) -> None:
        self._encoding = ValueEncoding(registry)
        self.why_unsupported = self._encoding.why_unsupported
        self._pack = new_packer()
        self._unpack = new_unpacker()
        self._unpack_tuple = new_unpacker(use_list=False)
        self._unpack_lowered = new_unpacker(list_hook=self._encoding.restore)

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes.

        Raises `UnsupportedTypeError` if the type of the value, or of a value in it, is not
        supported.
        """
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
        except NOT_PLAIN:
            pass
        return _MARK + _MARK + self._pack(self._encoding.lower(value))

    def encode_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return each value as bytes, as `encode` does.

        This is faster than `encode` if all values are atoms, or all are tuples of atoms.
        """
        try:
            kinds = set(map(type, values))
            if ATOMS.issuperset(kinds):
                return list(map(self._pack, values))
            if kinds == {tuple} and ATOMS.issuperset(map(type, chain.from_iterable(values))):
                return [_MARK + packed for packed in map(self._pack, values)]
        except NOT_PLAIN:
            pass
        return list(map(self.encode, values))

    def decode(self, data: bytes | memoryview) -> Any:
        """Decode one value. Raises `ProtocolError` for damaged bytes."""
        try:
            if data[0] != _MARK_BYTE:
                return self._unpack(data)
            if data[1] != _MARK_BYTE:
                return self._unpack_tuple(data[1:])
            return self._unpack_lowered(data[2:])
        except ProtocolError:
            raise
        except Exception as error:
            raise corrupt("value", data, error) from error

    def decode_all(self, datas: Sequence[bytes]) -> list[Any]:
        """Decode many values, as `decode` does for each of them.

        This is faster if all values are plain, or all are tuples of atoms.
        """
        if len(datas) > 0 and b"" not in datas:
            try:
                values = self._unpack_all(datas)
            except Exception:
                # A value is damaged. `decode` explains which one.
                values = None
            if values is not None and len(values) == len(datas):
                return values
        return list(map(self.decode, datas))

    def _unpack_all(self, datas: Sequence[bytes]) -> list[Any] | None:
        first = {data[0] for data in datas}
        if _MARK_BYTE not in first:
            return _unpack_stream(b"".join(datas), use_list=True)
        if len(first) > 1 or _MARK_BYTE in {data[1] for data in datas}:
            return None
        return _unpack_stream(b"".join([data[1:] for data in datas]), use_list=False)


def _unpack_stream(data: bytes, use_list: bool) -> list[Any]:
    unpacker = msgpack.Unpacker(
        strict_map_key=False,
        ext_hook=_refuse_extension,
        use_list=use_list,
        max_buffer_size=max(len(data), 1),
    )
    unpacker.feed(data)
    return list(unpacker)


def _is_flat(kind: type, value: Any) -> bool:
    """Return whether a value is exactly a list or a dict, and holds only atoms."""
    if kind is list:
        return ATOMS.issuperset(map(type, value))
    return (
        kind is dict
        and ATOMS.issuperset(map(type, value))
        and ATOMS.issuperset(map(type, value.values()))
    )

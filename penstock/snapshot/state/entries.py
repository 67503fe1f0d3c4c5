"""The marks that a table holds in place of values, and the codec of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Protocol, TypeVar

Value = TypeVar("Value")


class StateCodec(Protocol):
    """Encodes keys and values as bytes, and decodes them."""

    def encode_value(self, value: object) -> bytes:
        """Encode one value, and return its bytes."""

    def encode_values(self, values: list[object]) -> list[bytes]:
        """Encode each of `values` separately, and return the list of their bytes.

        This is faster than one call of `encode_value` for each value.
        """

    def decode_value(self, data: bytes) -> object:
        """Decode one value. It has the same type as the encoded value, and is equal to it."""

    def encode_batch(self, records: list[object]) -> bytes:
        """Encode all `records` together, by column if they have the same type."""

    def decode_batch(self, data: bytes) -> list[object]:
        """Decode the records that `encode_batch` has encoded."""

    def is_immutable(self, value: object) -> bool:
        """Return whether `value` is deeply immutable: no part of it can change in place."""


class Missing:
    """The type of `MISSING`, which means that a key has no entry."""

    def __repr__(self) -> str:
        return "MISSING"


class Tombstone:
    """The type of `TOMBSTONE`, which marks a deleted entry."""

    data: ClassVar[None] = None

    def __repr__(self) -> str:
        return "TOMBSTONE"


class EncodedValue:
    """The encoded bytes of a captured value.

    The bytes replace the value when an operator looks up the same object again, since the operator
    may change the object in place.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


#: The result of a look-up if the key has no entry. It is never stored in a table.
MISSING: Final = Missing()
#: The mark of an entry that was deleted, while the deletion is not written yet.
TOMBSTONE: Final = Tombstone()

#: The types whose values are always deeply immutable, so `is_immutable` need not be called.
ATOMS: Final = frozenset({str, int, float, bool, bytes, type(None)})
#: The types of the marks that a table holds in place of values.
MARKS: Final = frozenset({Tombstone, EncodedValue})
_MARK_CLASSES: Final = (Tombstone, EncodedValue)


def encode_entries(codec: StateCodec, values: list[object]) -> tuple[Sequence[bytes | None], bool]:
    """Encode values of a table, among which there may be tombstones and encoded values.

    Returns:
        A pair. Its first item is the bytes of each value, with None for each tombstone. Its second
        item is whether any of `values` is a tombstone or an `EncodedValue`.
    """
    if MARKS.isdisjoint(map(type, values)):
        return codec.encode_values(values), False
    encoded = iter(codec.encode_values([value for value in values if type(value) not in MARKS]))
    return [
        value.data if isinstance(value, _MARK_CLASSES) else next(encoded) for value in values
    ], True


def in_order_of_bytes(codec: StateCodec, values: list[Value]) -> list[Value]:
    """Return values in the order of their encoded bytes, which does not depend on history."""
    encoded = zip(codec.encode_values([*values]), range(len(values)), strict=True)
    return [values[index] for _, index in sorted(encoded)]

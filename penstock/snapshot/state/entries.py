"""Marks that stand in a table in place of a value, and the codec of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol

__all__ = [
    "ATOMS",
    "MARKS",
    "MISSING",
    "TOMBSTONE",
    "EncodedValue",
    "StateCodec",
    "encode_entries",
]


class StateCodec(Protocol):
    """Encodes keys and values as bytes, and decodes them."""

    def encode_value(self, value: Any) -> bytes:
        """Return the bytes of `value`."""

    def encode_values(self, values: list[Any]) -> list[bytes]:
        """Return the bytes of each of `values`; quicker than one call for each."""

    def decode_value(self, data: bytes) -> Any:
        """Return the value that was encoded, equal in value and type."""

    def encode_batch(self, records: list[Any]) -> bytes:
        """Return the bytes of all `records`, by column if they have the same type."""

    def decode_batch(self, data: bytes) -> list[Any]:
        """Return the records that were encoded."""

    def is_immutable(self, value: Any) -> bool:
        """Return whether nothing within `value` can be changed in place."""


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


class Tombstone:
    """The type of `TOMBSTONE`."""

    data: ClassVar[None] = None

    def __repr__(self) -> str:
        return "TOMBSTONE"


class EncodedValue:
    """The bytes of a captured value whose object was handed out again and may change."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


#: There is no entry. Never stored in a table.
MISSING: Final = Missing()
#: The entry was deleted, and the deletion is not written yet.
TOMBSTONE: Final = Tombstone()

#: Types of which every value is deeply immutable, so that the codec need not be asked.
ATOMS: Final = frozenset({str, int, float, bool, bytes, type(None)})
#: Types that stand in a table in place of a value.
MARKS: Final = frozenset({Tombstone, EncodedValue})


def encode_entries(codec: StateCodec, values: list[Any]) -> tuple[Sequence[bytes | None], bool]:
    """Encode values of a table; None stands for a tombstone.

    Returns:
        The bytes, and whether tombstones or encoded values are among `values`.
    """
    if MARKS.isdisjoint(map(type, values)):
        return codec.encode_values(values), False
    encoded = iter(codec.encode_values([value for value in values if type(value) not in MARKS]))
    return [value.data if type(value) in MARKS else next(encoded) for value in values], True

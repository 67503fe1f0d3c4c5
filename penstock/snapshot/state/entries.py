"""What a table holds in place of a value, its codec, and how slow work is expressed and sliced.

Nothing here knows tables or RocksDB.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

__all__ = [
    "ATOMS",
    "MARKS",
    "MAX_SLICE_ENTRIES",
    "MISSING",
    "TOMBSTONE",
    "EncodedValue",
    "SliceTimer",
    "Step",
    "ValueCodec",
    "Work",
    "encode_entries",
]

T = TypeVar("T")

# A bound for slices beside the time, for clocks that stand still.
MAX_SLICE_ENTRIES = 8192

# What a generator of slow work yields: None after each slice of work on the event loop (records
# may be processed before it is resumed), or a callable to be run off the loop, in a thread, whose
# result is sent back or whose exception is thrown in.
Step = Callable[[], Any] | None
Work = Generator[Step, Any, T]


class SliceTimer:
    """Tells when a slice of work on the event loop should end.

    Arguments:
        clock: seconds, monotonic.
        seconds: how long a slice may be.
    """

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        # The step that crosses the line is not to overshoot it.
        self._seconds = seconds * 0.85
        self.restart()

    def restart(self) -> None:
        """A new slice begins."""
        self._entries = 0
        self._begin = self._clock()

    def is_over(self, entries: int) -> bool:
        """Whether the slice should end, after `entries` more."""
        self._entries += entries
        return self._entries >= MAX_SLICE_ENTRIES or self._clock() - self._begin >= self._seconds


class ValueCodec(Protocol):
    """How values and keys become bytes."""

    def encode_value(self, value: Any) -> bytes:
        """The bytes of `value`."""

    def encode_values(self, values: list[Any]) -> list[bytes]:
        """The bytes of each of `values`; one call for many is quicker."""

    def decode_value(self, data: bytes) -> Any:
        """The value again, equal in value and type."""

    def encode_batch(self, records: list[Any]) -> bytes:
        """The bytes of all of `records`, by column where they are of one shape."""

    def decode_batch(self, data: bytes) -> list[Any]:
        """The records again."""

    def is_immutable(self, value: Any) -> bool:
        """Whether nothing within `value` can be changed in place."""


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


# There is no entry. Never stored in a table.
MISSING: Final = Missing()
# The entry was deleted and that is not written yet.
TOMBSTONE: Final = Tombstone()

# Types of which every value is deeply immutable; saves asking the codec.
ATOMS: Final = frozenset({str, int, float, bool, bytes, type(None)})
# Types that stand in a table for a value and are not one.
MARKS: Final = frozenset({Tombstone, EncodedValue})


def encode_entries(codec: ValueCodec, values: list[Any]) -> tuple[Sequence[bytes | None], bool]:
    """The bytes of the `values` of a table, None for a tombstone; whether marks are among them."""
    if MARKS.isdisjoint(map(type, values)):
        return codec.encode_values(values), False
    encoded = iter(codec.encode_values([value for value in values if type(value) not in MARKS]))
    return [value.data if type(value) in MARKS else next(encoded) for value in values], True

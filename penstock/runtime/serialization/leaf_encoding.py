"""Encode values that are not containers, and that msgpack would change or refuse.

Such values are big integers, strings with surrogates, dates and times, decimals, numpy scalars and
a few others. Each is lowered to an array that begins with a tag.
`penstock.runtime.serialization.value_encoding` lowers containers and instances of record classes.

The tags are part of the snapshot format, so new tags must be added at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.record_schemas import name_of
from penstock.runtime.serialization.record_serializers import UnsupportedTypeError

ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
"""Types that msgpack carries unchanged, except big integers and strings with surrogates."""

# The tags of lowered values. `value_encoding` writes the tags of containers and record classes.
# fmt: off
(
    LIST, TUPLE, SET, FROZENSET, DICT, ORDERED_DICT, COUNTER, DEFAULT_DICT, DEQUE, BYTEARRAY,
    BIG_INT, SURROGATES, COMPLEX, DECIMAL, FRACTION, RANGE, UUID_, DATETIME, DATE, TIME,
    TIMEDELTA, OFFSET, ZONE, NUMPY, OBJECT, ROW,
) = range(26)
# fmt: on


def is_numpy_scalar(kind: type) -> bool:
    """Return whether a type is a numpy scalar type, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.generic)


def lower_atom(kind: type, value: Any) -> Any:
    """Return a value that msgpack can pack in place of a string, a number or another atom.

    This is the value itself, if msgpack can pack it. Otherwise it is a list with a mark, from which
    the decoder makes the value again.
    """
    if kind is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return [SURROGATES, value.encode("utf-8", "surrogatepass")]
    elif kind is int and not -(2**63) <= value < 2**64:
        return [BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]
    return value


def _lower_zone(zone: object) -> Any:
    kind = type(zone)
    if zone is None:
        return None
    if isinstance(zone, timezone):
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [OFFSET, offset.days, offset.seconds, offset.microseconds, *map(_lower_str, name)]
    if isinstance(zone, ZoneInfo) and kind is ZoneInfo and zone.key is not None:
        return [ZONE, zone.key]
    raise UnsupportedTypeError(
        f"the time zone {zone!r} of type {name_of(kind)} can't be carried; use "
        "zoneinfo.ZoneInfo(<name>) or datetime.timezone"
    )


def _lower_str(value: str) -> Any:
    return lower_atom(str, value)


def _lower_int(value: int) -> Any:
    return lower_atom(int, value)


def _lower_time(value: time | datetime) -> list[Any]:
    clock = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    return [*clock, _lower_zone(value.tzinfo)]


# The kinds of numpy types that are supported: numbers, booleans and dates. Strings are not, since
# numpy removes trailing zero characters from them.
_NUMPY_KINDS = frozenset("biufcmM")


def lower_numpy(value: Any) -> list[Any]:
    """Return the lowered array for a numpy scalar.

    Raises `UnsupportedTypeError` if it is not a number, a boolean, a date or a time span.
    """
    if value.dtype.kind not in _NUMPY_KINDS:
        raise UnsupportedTypeError(
            f"a numpy scalar of dtype {value.dtype} can't be carried; use value.item()"
        )
    return [NUMPY, value.dtype.str, value.tobytes()]


def _restore_numpy(items: list[Any]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise ProtocolError("data holds a numpy scalar, and the job has not imported numpy here")
    _, dtype, content = items
    if not isinstance(dtype, str) or dtype[1:2] not in _NUMPY_KINDS:
        raise ProtocolError(f"data holds a numpy scalar of dtype {dtype!r}")
    (value,) = numpy.frombuffer(content, dtype=numpy.dtype(dtype))
    return value


LEAF_LOWERERS: dict[type, Callable[[Any], list[Any]]] = {
    bytearray: lambda v: [BYTEARRAY, bytes(v)],
    complex: lambda v: [COMPLEX, v.real, v.imag],
    Decimal: lambda v: [DECIMAL, str(v)],
    Fraction: lambda v: [FRACTION, _lower_int(v.numerator), _lower_int(v.denominator)],
    range: lambda v: [RANGE, *map(_lower_int, (v.start, v.stop, v.step))],
    UUID: lambda v: [UUID_, v.bytes],
    datetime: lambda v: [DATETIME, v.year, v.month, v.day, *_lower_time(v)],
    date: lambda v: [DATE, v.toordinal()],
    time: lambda v: [TIME, *_lower_time(v)],
    timedelta: lambda v: [TIMEDELTA, v.days, v.seconds, v.microseconds],
    timezone: _lower_zone,
    ZoneInfo: _lower_zone,
}


def _restore_range(items: list[Any]) -> range:
    return range(*items[1:4])


def _restore_big_int(items: list[Any]) -> int:
    return int.from_bytes(items[1], "little", signed=True)


def _restore_clock(kind: Any, items: list[Any]) -> Any:
    *parts, fold, zone = items[1:]
    return kind(*parts, tzinfo=zone, fold=fold)


def _restore_offset(items: list[Any]) -> timezone:
    _, days, seconds, microseconds, *name = items
    return timezone(timedelta(days, seconds, microseconds), *name)


LEAF_RESTORERS: dict[int, Callable[[list[Any]], Any]] = {
    BYTEARRAY: lambda items: bytearray(memoryview(items[1])),
    BIG_INT: _restore_big_int,
    SURROGATES: lambda items: items[1].decode("utf-8", "surrogatepass"),
    COMPLEX: lambda items: complex(items[1], items[2]),
    DECIMAL: lambda items: Decimal(items[1]),
    FRACTION: lambda items: Fraction(items[1], items[2]),
    RANGE: _restore_range,
    UUID_: lambda items: UUID(bytes=items[1]),
    DATETIME: lambda items: _restore_clock(datetime, items),
    DATE: lambda items: date.fromordinal(items[1]),
    TIME: lambda items: _restore_clock(time, items),
    TIMEDELTA: lambda items: timedelta(*items[1:]),
    OFFSET: _restore_offset,
    ZONE: lambda items: ZoneInfo(items[1]),
    NUMPY: _restore_numpy,
}

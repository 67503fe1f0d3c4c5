"""Convert keys to canonical bytes, which are equal exactly when the keys are equal.

`docs/guides/types.md` lists the allowed types of keys. For two allowed keys, `a == b` is true
exactly when `canonical(a) == canonical(b)` is true. This holds in every process and every run.
Python's `hash()` cannot be used, because its results differ between processes. Values whose
equality cannot be expressed by bytes (NaN, sets, arbitrary objects) are refused.

The canonical bytes begin with a letter. Values of different types that can be equal to each other
have the same letter:

    n  None                           i I d q  numbers of any type, by their exact value
    s  str                            b  bytes
    z  aware datetime, the instant    f  aware datetime in an hour that a zone skips or repeats
    w  naive datetime                 D  date
    T  naive time                     t  aware time
    l  timedelta                      u  UUID
    e  plain enum member              (  tuple and named tuple: each item with its length

A numpy number has the canonical bytes of the Python number that it is equal to. The same is true
for an object of a subclass that does not change the equality of its base class. State stores the
plain value instead of such a key (`plain_keys`).

A key cannot be decoded from its canonical bytes, so state also stores the encoded key. Canonical
bytes are part of the snapshot format: if they change, existing snapshots become unreadable.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from itertools import chain
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock.dataflow.errors import JobError
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types.row import Row

MAX_DECIMAL_EXPONENT = 6144
"""The largest distance of a digit from the decimal point in a Decimal key.

This is the limit of IEEE 754 decimal128. Without a limit, `canonical` would compute the exact
integer value of a key such as `Decimal("1e999999999")`, which needs 400 MB.
"""

MAX_KEY_DEPTH = 100
"""The largest depth of nested tuples in a key."""

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class KeyRefusedError(JobError):
    """Raised for a key whose type is not allowed.

    `docs/guides/types.md` lists the allowed types.

    Examples:
        >>> issubclass(KeyRefusedError, JobError)
        True
    """


def canonical(key: UserValue) -> bytes:
    """Return the canonical bytes of a key.

    Two keys have the same canonical bytes exactly if they are equal.

    Raises:
        KeyRefusedError: if the type of the key is not allowed.
    """
    kind = type(key)
    if kind is str:
        return _of_str(key)
    if kind is int:
        return _of_int(key)
    if kind is bytes:
        return _of_bytes(key)
    return _canonical(key, MAX_KEY_DEPTH)


def tuple_prefix(first: bytes) -> bytes:
    """Return the prefix that the canonical bytes of all tuples with a certain first item share.

    Arguments:
        first: the canonical bytes of the first item. No other first item has the same prefix.
    """
    return b"(%d:" % len(first) + first


def plain_keys(keys: list[UserValue]) -> list[UserValue]:
    """Replace keys by equal values of plain types, for example `numpy.int64(5)` by `5`.

    Enums and named tuples are returned unchanged.
    """
    level = keys
    while True:
        kinds = set(map(type, level))
        has_tuples = tuple in kinds
        kinds.discard(tuple)
        if not kinds <= _OF_KIND.keys():
            return list(map(_plain, keys))
        if not has_tuples:
            return keys
        level = list(chain.from_iterable(key for key in level if type(key) is tuple))


def _canonical(key: UserValue, depth: int) -> bytes:
    kind = type(key)
    if kind is tuple:
        return _of_tuple(key, depth)
    of_kind = _OF_KIND.get(kind)
    if of_kind is not None:
        return of_kind(key)
    if isinstance(key, Enum):
        return _of_enum(key)
    equality: object = kind.__eq__
    if isinstance(key, tuple) and hasattr(kind, "_fields") and equality is tuple.__eq__:
        # A named tuple is equal to a plain tuple, unless its class defines another equality.
        return _of_tuple(tuple.__getitem__(key, slice(None)), depth)
    plain = _plain(key)
    if plain is not key:
        return _OF_KIND[type(plain)](plain)
    raise KeyRefusedError(_why_not(key))


def _plain(key: UserValue) -> UserValue:
    """Return the equal value of a plain type, or the key itself if there is no such value."""
    kind = type(key)
    if kind in _OF_KIND or issubclass(kind, Enum):
        return key
    if kind is tuple:
        return tuple(map(_plain, key))
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.generic):
        # Numpy dates are not converted: some are equal both to a date and to a datetime.
        item = key.item() if key.dtype.kind in "biufSU" else key
        return item if type(item) in _OF_KIND else key
    for base, converted in _CONVERTED.items():
        if issubclass(kind, base):
            own: set[object] = {kind.__eq__, kind.__hash__}
            return converted(key) if own == {base.__eq__, base.__hash__} else key
    return key


def _of_str(key: str) -> bytes:
    try:
        return b"s" + key.encode()
    except UnicodeEncodeError:
        return b"s" + key.encode("utf-8", "surrogatepass")


def _of_int(key: int) -> bytes:
    if _SMALLEST <= key <= _LARGEST:
        return b"i%d" % key
    # Conversion to decimal digits takes quadratic time, and Python limits their number.
    return b"I" + key.to_bytes(key.bit_length() // 8 + 1, "big", signed=True)


def _of_bytes(key: bytes) -> bytes:
    return b"b" + key


def _of_float(key: float) -> bytes:
    if key.is_integer():
        return _of_int(int(key))
    if key != key:
        raise KeyRefusedError("NaN can't be a key: it is not equal to itself; use None instead")
    return b"d" + struct.pack(">d", key)


def _of_ratio(numerator: int, denominator: int) -> bytes:
    if denominator == 1:
        return _of_int(numerator)
    try:
        nearest = numerator / denominator
    except OverflowError:
        nearest = 0.0
    if nearest.as_integer_ratio() == (numerator, denominator):
        return _of_float(nearest)
    top, bottom = _of_int(numerator), _of_int(denominator)
    return b"q%d:" % len(top) + top + bottom


def _of_decimal(key: Decimal) -> bytes:
    if not key.is_finite():
        return _of_float(float(key)) if key.is_infinite() else _of_float(float("nan"))
    if not key:
        return _of_int(0)
    exponent = key.as_tuple().exponent
    assert isinstance(exponent, int)
    if exponent < -MAX_DECIMAL_EXPONENT or key.adjusted() > MAX_DECIMAL_EXPONENT:
        raise KeyRefusedError(
            f"a Decimal key may not have digits more than {MAX_DECIMAL_EXPONENT} places from its "
            f"decimal point (it has exponent {exponent}); round it, or use its string"
        )
    return _of_ratio(*key.as_integer_ratio())


def _of_fraction(key: Fraction) -> bytes:
    return _of_ratio(key.numerator, key.denominator)


def _of_datetime(key: datetime) -> bytes:
    local = (key.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    zone = key.tzinfo
    if zone is None:
        return b"w%d" % local
    offset = _offset(key, zone)
    assert offset is not None  # these zones have an offset on every date
    if offset != key.replace(fold=not key.fold).utcoffset():
        # The zone skips or repeats this hour. By PEP 495, such a time is not equal to any time
        # in another zone. Within its zone, the fold is ignored. The bytes name the zone by its key.
        name = getattr(zone, "key", None)
        if name is None:
            raise KeyRefusedError(f"the zone of {key!r} has no key; use ZoneInfo(<name>)")
        return b"f%d:" % local + _of_str(name)
    return b"z%d" % (local - offset // _MICROSECOND)


def _of_date(key: date) -> bytes:
    return b"D%d" % key.toordinal()


def _of_time(key: time) -> bytes:
    local = ((key.hour * 60 + key.minute) * 60 + key.second) * 1_000_000 + key.microsecond
    offset = None if key.tzinfo is None else _offset(key, key.tzinfo)
    if offset is None:
        # If the offset of the zone depends on the date, a time without a date has no offset.
        # Python then treats it as a naive time.
        return b"T%d" % local
    # Python compares aware times by the whole seconds of their offsets.
    return b"t%d" % (local - offset // _SECOND * 1_000_000)


def _offset(key: datetime | time, zone: object) -> timedelta | None:
    # Other classes of zones may define their own equality, and many ignore the fold.
    if type(zone) is not timezone and type(zone) is not ZoneInfo:
        raise KeyRefusedError(
            f"the zone of {key!r} is a {_name(type(zone))}; as a key, use zones of zoneinfo or "
            "datetime.timezone, or key.astimezone(timezone.utc)"
        )
    return key.utcoffset()


def _of_enum(key: Enum) -> bytes:
    # A member of an IntEnum or StrEnum is equal to its value. A member of a plain enum is equal
    # only to itself. An enum with a user-defined equality is refused.
    kind = type(key)
    equality = kind.__eq__
    if equality is int.__eq__:
        return _of_int(int.__int__(key))  # type: ignore[arg-type]
    if equality is str.__eq__:
        return _of_str(str.__str__(key))
    if equality is not object.__eq__:
        raise KeyRefusedError(
            f"the enum {_name(kind)} has an equality of its own; use key.name or key.value"
        )
    # A combination of flags always has a value, but not always a name.
    member = _of_int(key._value_) if isinstance(key, Flag) else _of_str(key._name_)
    name = _of_str(f"{kind.__module__}:{kind.__qualname__}")
    return b"e%d:" % len(name) + name + member


def _of_tuple(key: tuple[UserValue, ...], depth: int) -> bytes:
    if depth == 0:
        raise KeyRefusedError(f"a key may not nest tuples deeper than {MAX_KEY_DEPTH}")
    parts = [b"("]
    for item in key:
        kind = type(item)
        if kind is str:
            part = _of_str(item)
        elif kind is int:
            part = _of_int(item)
        else:
            part = _canonical(item, depth - 1)
        # The length is written before each item. Otherwise different tuples could have the same
        # bytes.
        parts.append(b"%d:" % len(part))
        parts.append(part)
    return b"".join(parts)


_OF_KIND: dict[type, Callable[[UserValue], bytes]] = {
    type(None): lambda _: b"n",
    str: _of_str,
    int: _of_int,
    bool: _of_int,
    float: _of_float,
    bytes: _of_bytes,
    Decimal: _of_decimal,
    Fraction: _of_fraction,
    datetime: _of_datetime,
    date: _of_date,
    time: _of_time,
    timedelta: lambda key: b"l%d" % (key // _MICROSECOND),
    UUID: lambda key: b"u" + key.bytes,
}


# These functions call the methods of the base classes, since a subclass may override them.
_CONVERTED: dict[type, Callable[[UserValue], object]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda key: bytes.__getitem__(key, slice(None)),
}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _why_not(key: object) -> str:
    kind = type(key)
    if isinstance(key, (list, bytearray, memoryview)):
        advice = "it can change; use a tuple or bytes"
    elif isinstance(key, Row):
        advice = "it can change; use one of its fields, or tuple(row)"
    elif isinstance(key, (set, frozenset, dict)):
        advice = "its items have no order; use a tuple of them, sorted"
    elif kind.__module__.partition(".")[0] == "numpy":
        advice = "convert it to a number, a str, a date or a datetime"
    elif hasattr(kind, "__dataclass_fields__"):
        advice = "use a tuple of its fields, or a named tuple"
    elif base := next((base for base in kind.__mro__ if base in _OF_KIND or base is tuple), None):
        advice = f"a subclass may have an equality of its own; convert it to {base.__name__}"
    else:
        advice = "its equality can't be kept across processes; use a tuple of what identifies it"
    return f"a {_name(kind)} can't be a key: {advice} (allowed types: `penstock docs types`)"

"""Write values as Flink prints values of declared types: as Java writes them."""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal


def double_text(value: float) -> str:
    """Return a double as `Double.toString` writes it, such as `1.0E16`."""
    return _text_of_digits(float(value), repr(float(value)))


def float_text(value: float) -> str:
    """Return a float of 32 bits as `Float.toString` writes it, with as few digits as it needs."""
    if not math.isfinite(value):
        return double_text(value)
    try:
        [short] = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return double_text(math.copysign(math.inf, value))
    digits = next(
        text for count in range(9) if _as_float(text := f"{short:.{count}e}") == short or count == 8
    )
    return _text_of_digits(short, digits)


def timestamp_text(value: datetime.datetime) -> str:
    """Return a time as `java.sql.Timestamp` writes it, such as `2026-01-31 12:00:00.0`."""
    fraction = f"{value.microsecond:06}".rstrip("0") or "0"
    return f"{value:%Y-%m-%d %H:%M:%S}.{fraction}"


def _as_float(text: str) -> float:
    try:
        [value] = struct.unpack("f", struct.pack("f", float(text)))
    except OverflowError:  # rounded up to a number above the largest float
        return math.inf
    number: float = value
    return number


def _text_of_digits(value: float, text: str) -> str:
    """Return a number as Java writes it, given a text of it in Python."""
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0.0"
    _, digits, exponent = Decimal(text).normalize().as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits))
    #: The number is 0.FIGURES times ten to this power.
    power = len(figures) + exponent
    if not 1e-3 <= abs(value) < 1e7:
        return f"{sign}{figures[0]}.{figures[1:] or '0'}E{power - 1}"
    if power <= 0:
        return f"{sign}0.{'0' * -power}{figures}"
    whole = figures[:power].ljust(power, "0")
    return f"{sign}{whole}.{figures[power:] or '0'}"

"""Check numbers and durations that a program passes to the API.

A wrong value raises an error in the call that passes it, not when the job starts.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Protocol, runtime_checkable

from penstock.dataflow.errors import GraphError


@runtime_checkable
class InMilliseconds(Protocol):
    """A length of time that can be converted to milliseconds, such as PyFlink's `Time`."""

    def to_milliseconds(self) -> int:
        """Return the length in milliseconds."""


#: The type of a duration: a number of milliseconds, a `timedelta` (so also a `Duration`), or a
#: `Time`.
DurationLike = float | timedelta | InMilliseconds

_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?\s*")


def seconds_of(name: str, value: DurationLike, least_ms: float = 0) -> float:
    """Return a duration in seconds.

    Arguments:
        name: the name of the setting, for error messages.
        value: the duration: a number of milliseconds, a `timedelta` or a `Time`.
        least_ms: the shortest allowed duration, in milliseconds.

    Raises:
        GraphError: if the value has another type, is too short, or is not finite.
    """
    milliseconds = _milliseconds(name, value)
    if milliseconds < least_ms:
        rule = (
            f"must be at least {least_ms:g} ms, not" if least_ms else "must not be negative, but is"
        )
        raise GraphError(f"{name} {rule} {milliseconds:g} ms")
    return milliseconds / 1000


def milliseconds_of(name: str, value: DurationLike, least: int | None = 0) -> int:
    """Return a duration in whole milliseconds.

    Arguments:
        name: the name of the argument, for error messages.
        value: the duration: a number of milliseconds, a `timedelta` or a `Time`.
        least: the shortest allowed duration, in milliseconds. With None, it may be negative.

    Raises:
        GraphError: if the value has another type, is too short, or has a fraction of a millisecond.
    """
    milliseconds = _milliseconds(name, value)
    if milliseconds != int(milliseconds):
        raise GraphError(f"{name} is a whole number of milliseconds, and {milliseconds} is none")
    if least is not None and milliseconds < least:
        rule = f"must be at least {least} ms, not" if least else "must not be negative, but is"
        raise GraphError(f"{name} {rule} {int(milliseconds)} ms")
    return int(milliseconds)


def _milliseconds(name: str, value: DurationLike) -> float:
    milliseconds: float
    if isinstance(value, timedelta):
        milliseconds = value / timedelta(milliseconds=1)
    elif isinstance(value, InMilliseconds) and not isinstance(value, type):
        milliseconds = value.to_milliseconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        milliseconds = value
    else:
        raise GraphError(
            f"{name} is a number of milliseconds or a timedelta, not {value!r}{_hint(value)}"
        )
    if not math.isfinite(milliseconds):
        raise GraphError(f"{name} must be finite, and is {value}")
    return milliseconds


def whole_number(name: str, value: int, least: int = 0) -> int:
    """Check that a value is a whole number of at least `least`, and return it.

    Raises:
        GraphError: if the value is not an int, or is less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise GraphError(f"{name} is a whole number, not {value!r}")
    if value < least:
        raise GraphError(f"{name} must be at least {least}, not {value}")
    return value


def milliseconds_of_text(text: str) -> float:
    """Return the milliseconds of a text such as `10 s` or `5 min`. A number is in milliseconds.

    Raises:
        ValueError: if the text is not a length of time.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("it is a length of time such as 500 ms, 10 s, 5 min or 1 h")
    return float(found[1]) * _UNITS[found[2] or "ms"]


def _hint(value: object) -> str:
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    return f": write {float(found[1]) * _UNITS[found[2] or 'ms']:.15g}" if found else ""

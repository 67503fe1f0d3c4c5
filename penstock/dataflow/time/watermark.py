"""Watermarks: how far event time has advanced in a stream.

A stream has watermarks among its records. Behind a watermark of time *t*, no more records with an
event time of *t* or earlier are expected. All times are milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

_EPOCH = datetime(1970, 1, 1)

#: The event time of a record that has none. (Flink: `Long.MIN_VALUE`.)
NO_TIMESTAMP = -(2**63)
#: The watermark before the first one.
MIN_WATERMARK = -(2**63)
#: The last watermark, at the end of bounded input: no more records are expected.
MAX_WATERMARK = 2**63 - 1


@dataclass(frozen=True)
class Watermark:
    """States that no records with an event time of `timestamp` or earlier are expected.

    Arguments:
        timestamp: milliseconds since the epoch.

    Examples:
        >>> Watermark(4_999).get_timestamp()
        4999
    """

    timestamp: int

    def get_timestamp(self) -> int:
        """Return the time of the watermark, in milliseconds since the epoch."""
        return self.timestamp


def watermark_text(watermark: int) -> str:
    """Return a text for a watermark in milliseconds since the epoch: its date and time in UTC."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=watermark):%Y-%m-%d %H:%M:%S}"
    except OverflowError:  # a program may use small or large numbers that are no times of day
        return f"{watermark:,} ms"

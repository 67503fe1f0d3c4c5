"""A record with its event time, as tests write and read it."""

from __future__ import annotations

from typing import Any, NamedTuple


class TimedRecord(NamedTuple):
    """A record with its event time. (Flink: `StreamRecord`.)

    Arguments:
        value: the record.
        timestamp: its event time, in milliseconds since the epoch; None if it has none.

    Examples:
        >>> record = TimedRecord("a", 1_000)
        >>> record.value, record.timestamp
        ('a', 1000)
    """

    value: Any
    timestamp: int | None = None

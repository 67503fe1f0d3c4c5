"""Define the two kinds of time, and the time characteristic of older PyFlink programs."""

from __future__ import annotations

from enum import Enum

__all__ = ["TimeCharacteristic", "TimeDomain"]


class TimeDomain(Enum):
    """The kind of time of a timer. (Flink: `TimeDomain`.)

    EVENT_TIME: the time of the watermark.
    PROCESSING_TIME: the time of the machine's clock.
    """

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class TimeCharacteristic(Enum):
    """The kind of time of a program, in older PyFlink programs. (Flink: `TimeCharacteristic`.)

    In Penstock, as in Flink since 1.12, the window assigner and the timers decide what time is
    used. `ProcessingTime` only switches periodic watermarks off. The others switch them on.
    """

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2

"""Define the two kinds of time, and the time characteristic of older PyFlink programs."""

from __future__ import annotations

from enum import Enum


class TimeDomain(Enum):
    """The kind of time of a timer. (Flink: `TimeDomain`.)

    EVENT_TIME: the time of the watermark.
    PROCESSING_TIME: the time of the machine's clock.

    Examples:
        >>> class Domain(KeyedProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         ctx.timer_service().register_event_time_timer(value[1])
        ...     def on_timer(self, timestamp, ctx):
        ...         yield timestamp, ctx.time_domain() is TimeDomain.EVENT_TIME
        >>> clicks.key_by(lambda click: click[0]).process(Domain()).execute_and_collect(limit=1)
        [(1000, True)]
    """

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class TimeCharacteristic(Enum):
    """The kind of time of a program, in older PyFlink programs. (Flink: `TimeCharacteristic`.)

    In Penstock, as in Flink since 1.12, the window assigner and the timers decide what time is
    used. `ProcessingTime` only switches periodic watermarks off. The others switch them on.

    Examples:
        >>> _ = env.set_stream_time_characteristic(TimeCharacteristic.EventTime)
    """

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2

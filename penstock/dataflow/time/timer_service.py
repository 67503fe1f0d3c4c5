"""Define `TimerService`, with which a process function reads the time and registers timers."""

from __future__ import annotations

from abc import ABC, abstractmethod


class TimerService(ABC):
    """Gives the current times, and registers timers for the current key. (Flink: `TimerService`.)

    When a timer fires, the engine calls `on_timer` of the function with the key of the timer. A
    timer that is registered several times for one key fires once. All times are milliseconds since
    the epoch.

    Timers exist on keyed streams only.

    Examples:
        >>> class Silence(KeyedProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         ctx.timer_service().register_event_time_timer(value[1] + 5_000)
        ...     def on_timer(self, timestamp, ctx):
        ...         yield ctx.get_current_key(), timestamp
        >>> list(clicks.key_by(lambda click: click[0]).process(Silence()).execute_and_collect())
        [('ann', 6000), ('bob', 7000), ('ann', 9000), ('ann', 17000)]
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of the machine's clock."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the current watermark; `MIN_WATERMARK` before the first one."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the machine's clock has passed `timestamp`."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the watermark has reached `timestamp`.

        If the watermark has reached it already, the timer fires at the next watermark.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the processing-time timer of the current key with this time, if there is one."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the event-time timer of the current key with this time, if there is one."""

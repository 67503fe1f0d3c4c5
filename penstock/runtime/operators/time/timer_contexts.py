"""The contexts that process functions get: key, event time, and timer service."""

from __future__ import annotations

from operator import index
from typing import Any, NoReturn

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeyedProcessFunction, ProcessFunction
from penstock.dataflow.time import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    NO_TIMESTAMP,
    TimeDomain,
    TimerService,
)
from penstock.runtime.operators.context import OperatorContext


class ElementContext(ProcessFunction.Context):
    """The context of a record on a stream without keys.

    Arguments:
        context: the place of the operator in the job, which has the current record's event time.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._timer_service = _UnkeyedTimerService(context)

    def timestamp(self) -> int | None:
        """Return the event time of the record, or None."""
        timestamp = self._context.timestamp
        return None if timestamp == NO_TIMESTAMP else timestamp

    def timer_service(self) -> TimerService:
        """Return the service, which gives the current times only."""
        return self._timer_service


class KeyedElementContext(KeyedProcessFunction.Context):
    """The context of a record on a keyed stream. The arguments are those of `ElementContext`."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._timer_service = _KeyedTimerService(context)

    def get_current_key(self) -> Any:
        """Return the key of the record."""
        return self._context.key

    def timestamp(self) -> int | None:
        """Return the event time of the record, or None."""
        timestamp = self._context.timestamp
        return None if timestamp == NO_TIMESTAMP else timestamp

    def timer_service(self) -> TimerService:
        """Return the service, which registers timers for the current key."""
        return self._timer_service


class TimerContext(KeyedElementContext, KeyedProcessFunction.OnTimerContext):
    """The context of a timer that fires.

    Arguments:
        context: as in `ElementContext`.
        domain: whether the timer fires by event time or by processing time.
    """

    def __init__(self, context: OperatorContext, domain: TimeDomain) -> None:
        super().__init__(context)
        self._domain = domain

    def timestamp(self) -> int:
        """Return the time of the timer."""
        return self._context.timer_time

    def time_domain(self) -> TimeDomain:
        """Return whether the timer fires by event time or by processing time."""
        return self._domain


class _OperatorTimerService(TimerService):
    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def current_processing_time(self) -> int:
        return self._context.now_ms()

    def current_watermark(self) -> int:
        return self._context.watermark


class _UnkeyedTimerService(_OperatorTimerService):
    """The service of an operator without keys, which cannot have timers."""

    def _refuse(self, timestamp: int) -> NoReturn:
        del timestamp
        raise GraphError(
            f"operator {self._context.name!r} used a timer, but timers exist only on a keyed "
            f"stream: use key_by(...).process(...) with a KeyedProcessFunction"
        )

    register_processing_time_timer = _refuse
    register_event_time_timer = _refuse
    delete_processing_time_timer = _refuse
    delete_event_time_timer = _refuse


class _KeyedTimerService(_OperatorTimerService):
    """Registers timers for the key of the current record or timer."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._timers = context.timers

    # These methods run once per record, so each checks the type of its argument in place.

    def register_processing_time_timer(self, timestamp: int) -> None:
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            timestamp = _checked(timestamp)
        self._timers.processing.register(self._context.key, None, timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            timestamp = _checked(timestamp)
        self._timers.event.register(self._context.key, None, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            timestamp = _checked(timestamp)
        self._timers.processing.delete(self._context.key, None, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            timestamp = _checked(timestamp)
        self._timers.event.delete(self._context.key, None, timestamp)


def _checked(timestamp: Any) -> int:
    """Return the time of a timer as an `int`, such as a number of numpy.

    Raises:
        GraphError: if it is not a whole number, or has more than 64 bits.
    """
    if not isinstance(timestamp, bool) and hasattr(timestamp, "__index__"):
        time = index(timestamp)
        if MIN_WATERMARK <= time <= MAX_WATERMARK:
            return time
    hint = ""
    if timestamp is None:
        hint = (
            "; the record has no event time, unless the stream has a WatermarkStrategy "
            "(assign_timestamps_and_watermarks)"
        )
    raise GraphError(
        f"the time of a timer is a whole number of milliseconds of at most 64 bits, not "
        f"{timestamp!r}{hint}"
    )

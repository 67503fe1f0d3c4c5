"""Track the state of each key until the key has no more events (`KeyedStream.track`).

(Discretized Streams, section 3.3: the operator `track`.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import KeyedProcessFunction
from penstock.dataflow.state import RuntimeContext, ValueStateDescriptor
from penstock.dataflow.time import MAX_WATERMARK
from penstock.dataflow.type_variables import UserValue


class StateTracking(KeyedProcessFunction):
    """Keeps one state for each key, and emits (key, state) after each event.

    The state ends when the function `update` returns None, or when the key had no event for
    `timeout_ms`. Then (key, None) is emitted.

    One timer is pending for each key. If the key had events before the timer fires, the timer is
    registered again for the new end. So events need not replace the timer.

    Arguments:
        initialize: a function `(key, event)` that returns the first state of a key.
        update: a function `(key, state, event)` that returns the next state.
        timeout_ms: the time after the last event at which a state ends; None for no timeout.
        by_event_time: whether the timeout is by event time; else it is by processing time.
    """

    def __init__(
        self,
        initialize: Callable[[UserValue, UserValue], UserValue],
        update: Callable[[UserValue, UserValue, UserValue], UserValue],
        timeout_ms: int | None,
        by_event_time: bool,
    ) -> None:
        self._initialize, self._update = initialize, update
        self._timeout, self._by_event_time = timeout_ms, by_event_time
        self._moves_timer = True

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the keyed state: a list [state, time at which it ends, time of its timer]."""
        self._tracked = runtime_context.get_state(ValueStateDescriptor("tracked"))
        self._operator = runtime_context.get_task_name()

    def process_element(
        self, value: UserValue, ctx: KeyedProcessFunction.Context
    ) -> Iterator[tuple[UserValue, UserValue]]:
        """Update the state of the event's key."""
        key, now = ctx.get_current_key(), self._now(ctx)
        tracked = self._tracked.value()
        if tracked is not None and now is not None and _has_ended(tracked, now):
            # The event is later than the end of the state. Its timer has not fired yet.
            self._forget(tracked, ctx)
            yield key, None
            tracked = None
        if tracked is None:
            state, end, timer = self._initialize(key, value), None, None
        else:
            state, end, timer = tracked
            state = self._update(key, state, value)
        if state is None:
            self._forget(tracked, ctx)
            if tracked is not None:
                yield key, None
            return
        if now is not None and self._timeout is not None:
            ends = now + self._timeout
            end = min(ends if end is None else max(ends, end), MAX_WATERMARK)
            if timer is None:
                timer = end
                self._register(ctx, timer)
        self._tracked.update([state, end, timer])
        yield key, state

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[tuple[UserValue, UserValue]]:
        """End the state of the key, unless the key had another event after the timer was set."""
        tracked = self._tracked.value()
        if tracked is None or tracked[2] != timestamp:
            return
        state, end, _ = tracked
        if end > timestamp and self._moves_timer:
            self._register(ctx, end)
            self._tracked.update([state, end, end])
        else:
            self._tracked.clear()
            yield ctx.get_current_key(), None

    def in_batch_mode(self) -> StateTracking:
        """Return the function for batch mode, in which timers fire at the end of a key."""
        function = copy.copy(self)
        function._moves_timer = False
        return function

    def _now(self, ctx: KeyedProcessFunction.Context) -> int | None:
        """Return the time of the event; None if states have no timeout."""
        if self._timeout is None:
            return None
        if not self._by_event_time:
            return ctx.timer_service().current_processing_time()
        timestamp = ctx.timestamp()
        if timestamp is None:
            raise JobError(
                f"operator {self._operator!r} got an event without event time, and its timeout is "
                f"by event time: call assign_timestamps_and_watermarks before it, or pass "
                f"time_domain=TimeDomain.PROCESSING_TIME"
            )
        return timestamp

    def _register(self, ctx: KeyedProcessFunction.Context, time: int) -> None:
        timers = ctx.timer_service()
        if self._by_event_time:
            timers.register_event_time_timer(time)
        else:
            timers.register_processing_time_timer(time)

    def _forget(self, tracked: list[UserValue] | None, ctx: KeyedProcessFunction.Context) -> None:
        """Remove the state of the key, and its timer."""
        if tracked is None:
            return
        self._tracked.clear()
        timers = ctx.timer_service()
        if tracked[2] is not None:
            if self._by_event_time:
                timers.delete_event_time_timer(tracked[2])
            else:
                timers.delete_processing_time_timer(tracked[2])


def _has_ended(tracked: list[UserValue], now: int) -> bool:
    """Return whether a state has ended at a time. A state without an end does not end."""
    end: int | None = tracked[1]
    return end is not None and now >= end

"""Call `on_timer` of a function for the timers that are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.dataflow.object_reuse import copy_local_if_shared
from penstock.dataflow.time import NO_TIMESTAMP, TimeDomain
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.time.timer_contexts import TimerContext
from penstock.runtime.operators.time.timer_queue import TimerRow
from penstock.runtime.serialization.record_batch import RecordBatch

#: The largest number of timers that fire in one step of the task. A step also ends when they have
#: emitted as many records.
PIECE = 1024

MakeTimerContext = Callable[[OperatorContext, TimeDomain], TimerContext]
OnTimer = Callable[[int, Any], Iterable[Any] | None]


class TimerFiring:
    """Fires the timers of one operator.

    Arguments:
        context: the place of the operator in the job.
        on_timer: the method of the function that is called for each timer that fires.
        divided: moves records for side outputs; see `SideOutputs.divided`.
        shown: a function that returns the context that the method gets.
    """

    def __init__(
        self,
        context: OperatorContext,
        on_timer: OnTimer,
        divided: Callable[[RecordBatch], RecordBatch],
        shown: MakeTimerContext = TimerContext,
    ) -> None:
        self._context, self._on_timer = context, on_timer
        self._divided, self._shown = divided, shown
        self._timers = context.timers
        self._probe: Any = context.mutability_probe()

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire the event-time timers up to a watermark; see `RunningOperator`."""
        shown = self._shown(self._context, TimeDomain.EVENT_TIME)
        return self._fire(self._timers.due_by_watermark(timestamp), shown)

    def next_processing_time(self) -> int | None:
        """Return the time at which the first processing-time timer is due, or None."""
        return self._timers.next_processing_time()

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch]:
        """Fire the processing-time timers that are due; see `RunningOperator`."""
        shown = self._shown(self._context, TimeDomain.PROCESSING_TIME)
        return self._fire(self._timers.due_by_clock(now), shown)

    def _fire(self, due: Iterator[TimerRow], shown: TimerContext) -> Iterator[RecordBatch]:
        """Call `on_timer` for each timer, and yield the emitted records in pieces.

        A timer that `due` has yielded is no longer part of the state. So a piece ends only between
        two timers.
        """
        context, on_timer, probe = self._context, self._on_timer, self._probe
        by_event_time = shown.time_domain() is TimeDomain.EVENT_TIME
        context.timestamp = NO_TIMESTAMP
        out: list[Any] = []
        times: list[int] = []
        fired = 0
        for context.key, time, _ in due:
            context.timer_time = time
            if by_event_time:
                context.timestamp = time
            for emitted in on_timer(time, shown) or ():
                try:
                    emitted in probe  # noqa: B015 - see `record_loops`
                except TypeError:
                    emitted = copy_local_if_shared(emitted)
                out.append(emitted)
                times.append(time)
            fired += 1
            if fired >= PIECE or len(out) >= PIECE:
                yield self._divided(RecordBatch(out, None, times if by_event_time else None))
                out, times, fired = [], [], 0
        if fired:
            yield self._divided(RecordBatch(out, None, times if by_event_time else None))

"""The timers of one keyed operator, by event time and by processing time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import ClassVar

from penstock.runtime.operators.time.timer_queue import OrderedTimerQueue, TimerQueue, TimerRow
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import KeyedBackend

#: The names of the tables of timers. A function's state has no such name by accident.
EVENT, PROCESSING = "timers/event-time", "timers/processing-time"
#: The estimated memory of a timer in the queue, in bytes.
_TIMER_BYTES = 200
_LEAST_IN_MEMORY = 10_000


class OperatorTimers:
    """The timers of one keyed operator.

    A queue and its table are made when the first timer is registered. So an operator without
    timers has no such table in its snapshots.

    Arguments:
        backend: the keyed state of the operator.
    """

    _queue_class: ClassVar[type[TimerQueue]] = TimerQueue

    def __init__(self, backend: KeyedBackend) -> None:
        self._backend = backend
        self._restored = False

    def restore(self) -> None:
        """Read the timers of the restored state. Only the first call has an effect."""
        if self._restored:
            return
        self._restored = True
        # The tables of timers are made with the first timer, which may come at any time.
        self._backend.expect(EVENT)
        self._backend.expect(PROCESSING)
        names = self._backend.tables.names
        if EVENT in names:
            self.event.restore()
        if PROCESSING in names:
            self.processing.restore()

    @cached_property
    def event(self) -> TimerQueue:
        """The timers that are due by event time."""
        return self._queue(EVENT)

    @cached_property
    def processing(self) -> TimerQueue:
        """The timers that are due by processing time."""
        return self._queue(PROCESSING)

    @property
    def _event(self) -> TimerQueue | None:
        """The queue of `event`, or None before it is needed."""
        return self.__dict__.get("event")

    @property
    def _processing(self) -> TimerQueue | None:
        """The queue of `processing`, or None before it is needed."""
        return self.__dict__.get("processing")

    def due_by_watermark(self, watermark: int) -> Iterator[TimerRow]:
        """Remove and yield the event-time timers up to a watermark, in the order of their times."""
        return iter(()) if self._event is None else self._event.advance(watermark)

    def due_by_clock(self, now: int) -> Iterator[TimerRow]:
        """Remove and yield the processing-time timers before `now`, in the order of their times.

        As in Flink, a timer for a time fires when that millisecond is over. So it sees the same
        records as an event-time timer, for which the watermark must have reached the time.
        """
        return iter(()) if self._processing is None else self._processing.advance(now - 1)

    def next_processing_time(self) -> int | None:
        """Return the first time at which `due_by_clock` may yield a timer, or None."""
        if self._processing is None:
            return None
        first = self._processing.next_time()
        return None if first is None else first + 1

    @property
    def wait_for_watermark(self) -> bool:
        """Return whether timers wait for a watermark."""
        return self._event is not None and self._event.next_time() is not None

    def drop(self) -> list[TimerRow]:
        """Remove all timers. They never fire, because the input has ended.

        Return those by processing time.
        """
        dropped: list[TimerRow] = []
        for queue in self._event, self._processing:
            if queue is not None and queue.next_time() is not None:
                rows = queue.clear()
                dropped += rows if queue is self._processing else ()
        return dropped

    def _queue(self, name: str) -> TimerQueue:
        backend = self._backend
        table = backend.composite_table(name, StateKind.TIMER)
        if backend.in_order:
            return OrderedTimerQueue(table, partial(backend.scan, name), backend.codec)
        most = max(_LEAST_IN_MEMORY, backend.memory.budget_bytes // 4 // _TIMER_BYTES)
        return self._queue_class(table, partial(backend.scan, name), most)

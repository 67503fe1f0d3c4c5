"""Define the base class of all window operators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, ClassVar

from penstock.dataflow.time import MAX_WATERMARK, NO_TIMESTAMP
from penstock.dataflow.windows import TimeWindow, WindowOperation
from penstock.runtime.operators.base import HOOK_BATCH, RecordLoopOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.late_records import LateRecords
from penstock.runtime.operators.windowing.window_aggregation import Aggregation
from penstock.runtime.operators.windowing.window_caller import WindowCaller
from penstock.runtime.operators.windowing.window_output import WindowOutput
from penstock.runtime.operators.windowing.window_services import WindowServices
from penstock.runtime.serialization.record_batch import RecordBatch


class BaseWindowOperator(RecordLoopOperator):
    """An operator of windows on a keyed stream.

    Arguments:
        function: the windows and their functions.
        context: the operator's place in the job.
        key_of: returns the key of a record.
    """

    #: The beginning of the name of the state with the contents of windows.
    STATE: ClassVar[str]

    emits = "process"
    has_windows = True
    schedules_timers = True

    def __init__(
        self, function: WindowOperation, context: OperatorContext, key_of: Callable[[Any], Any]
    ) -> None:
        super().__init__(function, context)
        assert context.backend is not None
        self.operation, self.backend = function, context.backend
        self._key_of = key_of
        self._lateness = function.allowed_lateness
        self._late = LateRecords(function.late_tag, context, self.side_outputs)
        #: Whether windows are chosen by event time.
        self.is_event_time = function.assigner.is_event_time()

    def open(self) -> None:
        """Open the functions, and get the tables and timers, which are already restored."""
        self.context.timers.restore()
        self.services = WindowServices(self.context)
        self._timers = self.services.timers(is_event=self.is_event_time)
        probe = self.context.mutability_probe()
        self._output = WindowOutput(probe, self.side_outputs.divided)
        self._caller = WindowCaller(self.operation, self.services)
        #: A function that returns the only result of a window, given its contents. It is None if
        #: the operation has a window function, or has no aggregator.
        self._result_of: Callable[[Any], Any] | None = None
        if self.operation.window_function is None and self.operation.aggregator is not None:
            self._result_of = Aggregation.of(self.operation.aggregator).result
        for function in self.operation.functions:
            function.open(self.context)

    def close(self) -> None:
        """Close the functions."""
        for function in self.operation.functions:
            function.close()

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire the event-time timers that are due, and yield the results of the windows."""
        return self._fire(timestamp, is_event=True)

    def next_processing_time(self) -> int | None:
        """Return the time at which the first processing-time timer is due, or None."""
        return self.context.timers.next_processing_time()

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch]:
        """Fire the processing-time timers that are due, and yield the results of the windows."""
        return self._fire(now, is_event=False)

    def _fire(self, time: int, *, is_event: bool) -> Iterator[RecordBatch]:
        context, output, on_timer = self.context, self._output, self.on_timer
        due = self.services.due(time, is_event=is_event)
        for fired, (context.key, timestamp, namespace) in enumerate(due, 1):
            context.timestamp = timestamp
            on_timer(timestamp, namespace, is_event=is_event)
            # A timer that fired is no longer in the state, so a batch has all that it emitted.
            if fired % HOOK_BATCH == 0 or len(output) >= HOOK_BATCH:
                yield output.take()
        if len(output) or self.side_outputs:
            yield output.take()

    @classmethod
    @abstractmethod
    def windows_of_state(cls, operation: WindowOperation) -> str:
        """Return which windows the state with the contents of windows is of, for its name."""

    @classmethod
    def state_names(cls, operation: WindowOperation) -> list[str]:
        """Return the name of the state with the contents of windows, and then its former names.

        The name describes the use of the state. So a changed program does not read the state of
        windows in which it would find other values, or which it would never end.
        """
        contents = "records"
        if operation.aggregator is not None and operation.evictor is None:
            reduces = Aggregation.of(operation.aggregator).aggregate is None
            contents = "reduced" if reduces else "aggregated"
        windows = cls.windows_of_state(operation)
        return operation.state_names(cls.STATE, f"{contents}, {windows}")

    @abstractmethod
    def on_timer(self, time: int, namespace: Any, *, is_event: bool) -> None:
        """Handle a timer of the current key that has fired."""

    # ---- for subclasses

    def _times_of(self, batch: RecordBatch) -> Iterable[int]:
        """Return the time of each record: event time, or the time of the clock."""
        if self.is_event_time:
            return self._event_times(batch)
        return repeat(self.services.processing_time())

    def _event_times(self, batch: RecordBatch) -> Iterable[int]:
        """Return the event time of each record; `NO_TIMESTAMP` for a record without one."""
        return repeat(NO_TIMESTAMP) if batch.timestamps is None else batch.timestamps

    def _has_passed(self, time: int) -> bool:
        """Return whether the watermark is past an event time; False for processing time."""
        return self.is_event_time and time <= self.context.watermark

    def _cleanup_time(self, window: Any) -> int:
        """Return when a window is removed, in milliseconds since the epoch."""
        end: int = window.max_timestamp()
        return min(end + self._lateness, MAX_WATERMARK) if self.is_event_time else end

    def _emit(self, key: Any, window: Any, contents: Any) -> None:
        """Emit the results of a window, with the time of the record or timer that fires it.

        A window that fires at its end has a timer for its last timestamp, so this is the time of
        its results. The time of a window that fires earlier or later, or that has no end in time,
        is one at which a window behind it can still receive results. (PyFlink does the same;
        Flink in Java takes `window.max_timestamp()`.)
        """
        self._output.emit(self._caller.call(key, window, contents), self.context.timestamp)

    def _emit_span(self, key: Any, start: int, end: int, contents: Any) -> None:
        """Emit the results of a window of time; see `_emit`."""
        if self._result_of is None:
            self._emit(key, TimeWindow(start, end), contents)
        else:
            result = self._result_of(contents)
            if result is not None:
                self._output.append(result, self.context.timestamp)

    def _skip(self, record: Any, timestamp: int) -> None:
        """Handle a record that no window took. It is late if its time is over."""
        if self._has_passed(timestamp + self._lateness):
            self._late.add(record, timestamp)

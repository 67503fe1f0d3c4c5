"""Tumbling and sliding windows with their default trigger, which share panes."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.time import MIN_WATERMARK, NO_TIMESTAMP
from penstock.dataflow.windows import TimeWindow, WindowOperation
from penstock.dataflow.windows.time_windows import without_timestamp
from penstock.runtime.operators.windowing import pane_loops as loops
from penstock.runtime.operators.windowing.base import BaseWindowOperator
from penstock.runtime.operators.windowing.panes import Panes
from penstock.runtime.operators.windowing.window_aggregation import Aggregation
from penstock.runtime.operators.windowing.window_contents import (
    GROUP,
    AggregatedContents,
    ListedContents,
    WindowContents,
)
from penstock.runtime.operators.windowing.window_parts import time_of_windows
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import MISSING


class PaneOperator(BaseWindowOperator):
    """Tumbling and sliding windows that fire when their time is over.

    The length of a pane is the greatest common divisor of the size and the slide of the windows. A
    record is added to its pane only, and a window combines its panes when it fires. So the function
    must not depend on the order of records in different panes: it combines earlier panes first.

    A key has a timer for its next window only. A window that fires registers the timer of the next
    window if that has a pane. The namespace of these timers is None. With an allowed lateness, each
    pane has a timer that removes it. The namespace of such a timer is the pane.
    """

    STATE = "window-panes"

    def open(self) -> None:
        """Open the functions, and get the tables and timers, which are already restored."""
        super().open()
        assigner: Any = self.operation.assigner
        self.panes = Panes(assigner.size, assigner.slide, assigner.offset)
        name, *aliases = self.state_names(self.operation)
        self._table = self.backend.composite_table(name, StateKind.WINDOW, aliases)
        #: The newest pane to which a first record was added, and when its first window fires.
        self._newest_pane, self._first_fire = MIN_WATERMARK - 1, 0
        #: Further arguments of the loop.
        self._more: tuple[Any, ...] = ()
        self._contents = self._open_contents()

    @classmethod
    def windows_of_state(cls, operation: WindowOperation) -> str:
        """Return the size of windows and panes, which cannot change."""
        assigner: Any = operation.assigner
        return (
            f"{time_of_windows(assigner)}, size {assigner.size}, slide {assigner.slide}, "
            f"offset {assigner.offset}"
        )

    def _open_contents(self) -> WindowContents:
        copy = self.context.codec.copy_mutable
        if self.operation.aggregator is None:
            lists = ListedContents(self._table, copy)
            self._more = GROUP, lists.add
            self._set_loop(loops.collect_into_panes, key_of=self._key_of)
            return lists
        self._aggregation = aggregation = Aggregation.of(self.operation.aggregator)
        loop = aggregation.loop_of(loops.aggregate_into_panes)
        self._set_loop(loop, key_of=self._key_of, add=aggregation.call)
        return AggregatedContents(self._table, aggregation, copy)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Add the records of a batch to their panes, and return the results for late records."""
        table, panes, context = self._table, self.panes, self.context
        if self._may_fire_again:
            self._add_again(batch)
            return self._output.take()
        self._run_loop(
            batch,
            self._times_of(batch),
            table.dirty,
            table.get,
            context.watermark if self.is_event_time else MIN_WATERMARK - 1,
            panes.length,
            panes.offset,
            self._add_first,
            self._add_late,
            *self._more,
        )
        return self._output.take()

    def on_timer(self, time: int, namespace: Any, *, is_event: bool) -> None:
        """Fire the window of the current key that ends at a time, or remove a pane."""
        del is_event
        key, panes = self.context.key, self.panes
        if namespace is not None:
            self._contents.clear(key, namespace)
            return
        window = time + 1 - panes.size
        found = self._fire_window(key, window)
        self._leave(key, window, found)
        if found and found[-1] >= window + panes.slide:
            self._timers.register(key, None, time + panes.slide)

    def _fire_window(self, key: Any, window: int) -> list[int]:
        """Emit the results of a window, and return its panes that have contents."""
        panes, get = self.panes, self._contents.get
        # No later firing needs the panes before this one.
        needed_from = window if self._lateness else window + panes.slide
        found: list[int] = []
        leaving: list[Any] = []
        staying: list[Any] = []
        for pane in panes.panes_of(window):
            value = get(key, pane)
            if value is not MISSING:
                found.append(pane)
                (leaving if pane < needed_from else staying).append(value)
        if found:
            # The functions may change what they are given.
            contents = leaving + self._contents.copied(staying) if staying else leaving
            self._emit_span(key, window, window + panes.size, self._contents.combine(contents))
        return found

    def _leave(self, key: Any, window: int, found: list[int]) -> None:
        """Remove the panes of a window that has fired, unless the next window has them, too.

        With an allowed lateness, a timer removes them later. A pane has none yet if the program had
        no lateness when the pane got its first record.
        """
        leaving = self.panes.panes_leaving(window)
        for pane in found:
            if pane not in leaving:
                break
            if self._lateness:
                self._register_removal(key, pane)
            else:
                self._contents.clear(key, pane)
        if self._caller.has_clear and not self._lateness:
            self._caller.clear(TimeWindow(window, window + self.panes.size))

    def _add_first(self, key: Any, pane: int, record: Any) -> None:
        """Add the first record of a pane, and register the timers of the pane.

        The record is after the watermark, so none of the pane's windows has fired.
        """
        self._contents.add(key, pane, record)
        if pane != self._newest_pane:
            # Most keys have the first record of a pane at about the same time.
            window = self.panes.first_window_of(pane, MIN_WATERMARK)
            assert window is not None
            self._newest_pane, self._first_fire = pane, window + self.panes.size - 1
        self._timers.register(key, None, self._first_fire)
        if self._lateness:
            self._register_removal(key, pane)

    @property
    def _may_fire_again(self) -> bool:
        """Return whether windows that end after the watermark may have fired.

        The watermark of an old subtask was higher. With an allowed lateness, such a window has its
        contents still, and a record fires it again. But its panes may have no timer for it.
        """
        if not self._lateness or not self.is_event_time:
            return False
        return self.context.watermark < self.context.restored_watermark

    def _add_again(self, batch: RecordBatch) -> None:
        """Add records, and register the timer of the next window for each of them."""
        context, panes = self.context, self.panes
        self.iterator = iterator = iter(batch.rows())
        for record, timestamp in zip(iterator, self._event_times(batch), strict=False):
            if timestamp <= context.watermark:
                self._add_late(record, timestamp)
                continue
            context.key, context.timestamp = key, _ = self._key_of(record), timestamp
            pane = panes.pane_at(timestamp)
            self._contents.add(key, pane, record)
            window = panes.first_window_of(pane, context.watermark)
            assert window is not None
            self._timers.register(key, None, window + panes.size - 1)
            self._register_removal(key, pane)

    def _register_removal(self, key: Any, pane: int) -> None:
        last = self.panes.last_window_at(pane)
        window = TimeWindow(last, last + self.panes.size)
        self._timers.register(key, pane, self._cleanup_time(window))

    def _add_late(self, record: Any, timestamp: int) -> None:
        """Add a record whose time is not after the watermark, unless it is too late."""
        if timestamp == NO_TIMESTAMP:
            raise without_timestamp(self.operation.assigner)
        panes, end = self.panes, self.panes.size - 1
        windows = [
            window
            for window in panes.windows_at(timestamp)
            if not self._has_passed(window + end + self._lateness)
        ]
        if not windows:
            self._skip(record, timestamp)
            return
        context = self.context
        context.key, context.timestamp = key, _ = self._key_of(record), timestamp
        self._add_to_pane(key, panes.pane_at(timestamp), record)
        for window in windows:
            if self._has_passed(window + end):
                self._fire_window(key, window)

    def _add_to_pane(self, key: Any, pane: int, record: Any) -> None:
        """Add a record to a pane. Some of its windows may have fired."""
        is_new = self._contents.get(key, pane) is MISSING
        self._contents.add(key, pane, record)
        if not is_new and not self._may_fire_again:
            return
        window = self.panes.first_window_of(pane, self.context.watermark)
        if window is not None:
            self._timers.register(key, None, window + self.panes.size - 1)
        if self._lateness:
            self._register_removal(key, pane)

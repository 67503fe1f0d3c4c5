"""Sliding windows of a reduce function that has an inverse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.dataflow.functions import method_of
from penstock.runtime.operators.windowing.pane_operator import PaneOperator
from penstock.snapshot.state import MISSING


class InversePaneOperator(PaneOperator):
    """Sliding windows that keep a running value for each key.

    A window that fires adds the panes that are new, and takes back those that leave. (Discretized
    Streams: `reduceByWindow` with an inverse.)
    """

    #: The state with the running value of each key: the last window that has fired, the value of
    #: its panes that also belong to the next window, and the number of these panes.
    RUNNING = "window-running"

    def open(self) -> None:
        """Open the functions, and get the tables and timers, which are already restored."""
        super().open()
        self._running = self.backend.table(self.RUNNING)
        self._probe: Any = self.context.mutability_probe()
        self._combine = method_of(self.operation.aggregator, "reduce")
        self._inverse = method_of(self.operation.inverse, "reduce")
        self._forget_future_windows()

    def _forget_future_windows(self) -> None:
        """Remove restored values of windows that the restored watermark has not passed.

        The watermark of a task is lower than before if the parallelism has changed. Records could
        then come for panes that such a value contains. Without a value, the next window of the key
        combines all its panes.
        """
        end, watermark = self.panes.size - 1, self.context.watermark
        states: Iterator[tuple[Any, Any]] = self.backend.scan(self.RUNNING)
        for key in [key for key, running in states if running[0] + end > watermark]:
            self._running.delete(key)

    def on_timer(self, time: int, namespace: Any, *, is_event: bool) -> None:
        """Fire the window of the current key that ends at a time, or remove a pane."""
        if namespace is not None:
            super().on_timer(time, namespace, is_event=is_event)
            return
        key, panes, get = self.context.key, self.panes, self._table.get
        window = time + 1 - panes.size
        value, count, new_panes = None, 0, panes.panes_of(window)
        running: Any = self._running.get(key, None)
        if running is not None and running[0] == window - panes.slide:
            _, value, count = running
            new_panes = panes.panes_entering(window)
        for pane in new_panes:
            added = get((key, pane))
            if added is not MISSING:
                added = self._copied(added)
                value = self._combine(value, added) if count else added
                count += 1
        if not count:
            return
        self._emit_span(key, window, window + panes.size, self._copied(value))
        left = []
        for pane in panes.panes_leaving(window):
            leaving = get((key, pane))
            if leaving is not MISSING:
                left.append(pane)
                value = self._inverse(value, self._copied(leaving))
        count -= len(left)
        if count:
            self._running.dirty[key] = window, value, count
            self._timers.register(key, None, time + panes.slide)
        else:
            self._running.delete(key)
        self._leave(key, window, left)

    def _add_to_pane(self, key: Any, pane: int, record: Any) -> None:
        """Add a late record to its pane, and to the running value if that contains the pane."""
        is_new = self._contents.get(key, pane) is MISSING
        running: Any = self._running.get(key, None)
        if running is not None and pane in self.panes.panes_staying(running[0]):
            window, value, count = running
            value = self._combine(value, self._copied(record))
            self._running.put(key, (window, value, count + is_new))
        super()._add_to_pane(key, pane, record)

    def _copied(self, value: Any) -> Any:
        """Return a value, or a copy if it is mutable: the state keeps the value itself."""
        try:
            value in self._probe  # noqa: B015 - raises for mutable values, see `record_loops`
        except TypeError:
            return self.context.codec.copy_mutable([value])[0]
        return value

"""The general operator of windows, for any assigner, trigger and evictor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.object_reuse import can_change
from penstock.dataflow.time import MAX_WATERMARK
from penstock.dataflow.windows import (
    Evictor,
    MergingWindowAssigner,
    TimestampedValue,
    TriggerResult,
    WindowOperation,
)
from penstock.runtime.operators.windowing.base import BaseWindowOperator
from penstock.runtime.operators.windowing.merging_window_set import MergingWindowSet
from penstock.runtime.operators.windowing.window_aggregation import Aggregation
from penstock.runtime.operators.windowing.window_contents import (
    AggregatedContents,
    ListedContents,
    WindowContents,
)
from penstock.runtime.operators.windowing.window_contexts import (
    EvictorContext,
    MergeCallback,
    TriggerContext,
    WindowAssignerContext,
)
from penstock.runtime.operators.windowing.window_parts import (
    part_of,
    sort_of_windows,
    window_of,
)
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import MISSING


class WindowOperator(BaseWindowOperator):
    """Windows with any assigner, trigger and evictor.

    For each record it assigns windows, adds the record to their contents, and asks the trigger. For
    each timer it asks the trigger again. The namespace of a timer is the part of a composite key
    that names the window. (Flink: `WindowOperator` and `EvictingWindowOperator`.)
    """

    STATE = "window-contents"
    #: A timer of a user's trigger may always register another one.
    schedules_timers = False
    #: The state with the windows of each key, if they can merge: pairs of a window and its state
    #: window.
    MERGING = "merging-windows"

    def open(self) -> None:
        """Open the functions, and get the tables and timers, which are already restored."""
        super().open()
        operation = self.operation
        self._trigger, self._evictor = operation.trigger, operation.evictor
        self._contents = self._open_contents()
        self._merges = isinstance(operation.assigner, MergingWindowAssigner)
        self._assigner: Any = operation.assigner
        if self._merges:
            self._merging = self.backend.table(self.operation.state_names(self.MERGING)[0])
        self._assigner_context = WindowAssignerContext(self.services, self.context)
        self._trigger_context = TriggerContext(self.services)
        self._evictor_context = EvictorContext(self.services)

    @classmethod
    def windows_of_state(cls, operation: WindowOperation) -> str:
        """Return the sort of windows, whose sizes may change."""
        return sort_of_windows(operation.assigner)

    def _open_contents(self) -> WindowContents:
        name, *aliases = self.state_names(self.operation)
        table = self.backend.composite_table(name, StateKind.WINDOW, aliases)
        copy = self.context.codec.copy_mutable
        if self.operation.aggregator is None or self.operation.evictor is not None:
            return ListedContents(table, copy)
        return AggregatedContents(table, Aggregation.of(self.operation.aggregator), copy)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Add the records of a batch to their windows, and return the results of the windows."""
        self.iterator = iterator = iter(batch.rows())
        context, key_of = self.context, self._key_of
        add = self._add_merging if self._merges else self._add
        times = self._event_times(batch)
        for record, timestamp in zip(iterator, times):  # noqa: B905 - `times` may be endless
            context.key, context.timestamp = key_of(record), timestamp
            add(record, timestamp)
        return self._output.take()

    def on_timer(self, time: int, namespace: Any, *, is_event: bool) -> None:
        """Ask the trigger about a timer, and remove the window if its time is over."""
        window, key, context = window_of(namespace), self.context.key, self._trigger_context
        merging = self._windows_of(key) if self._merges else None
        state_window = window if merging is None else merging.state_window(window)
        if state_window is None:
            return  # the window was merged into another one
        part = part_of(state_window)
        context.enter(namespace)
        ask = self._trigger.on_event_time if is_event else self._trigger.on_processing_time
        is_over = is_event == self.is_event_time and time == self._cleanup_time(window)
        self._apply(ask(time, window, context), window, part, is_over=is_over)
        if is_over:
            self._contents.clear(key, part)
            context.enter(namespace)
            self._trigger.clear(window, context)
            self._caller.clear(window)
            if merging is not None:
                merging.retire(window)
                self._store_windows(key, merging)

    # ---- records

    def _add(self, record: Any, timestamp: int) -> None:
        key, windows = self.context.key, self._assign(record, timestamp)
        windows = [window for window in windows if not self._is_late(window)]
        for number, window in enumerate(windows, 1):
            part = part_of(window)
            own = self._to_store(record, timestamp, is_last=number == len(windows))
            self._contents.add(key, part, own)
            self._on_element(record, timestamp, window, part)
        if not windows:
            self._skip(record, timestamp)

    def _add_merging(self, record: Any, timestamp: int) -> None:
        key, is_taken = self.context.key, False
        merging, windows = self._windows_of(key), self._assign(record, timestamp)
        for number, assigned in enumerate(windows, 1):
            window = merging.add(assigned, self._merge)
            if self._is_late(window):
                merging.retire(window)
                continue
            part = part_of(merging.state_window(window))
            own = self._to_store(record, timestamp, is_last=number == len(windows))
            self._contents.add(key, part, own)
            is_taken = True
            self._on_element(record, timestamp, window, part)
        self._store_windows(key, merging)
        if not is_taken:
            self._skip(record, timestamp)

    def _assign(self, record: Any, timestamp: int) -> list[Any]:
        return list(self._assigner.assign_windows(record, timestamp, self._assigner_context))

    def _to_store(self, record: Any, timestamp: int, *, is_last: bool) -> Any:
        """Return the part of a record that a window keeps.

        A state holds a mutable object only once, and the functions of a window may change it. So
        all windows of a record but the last one keep copies.
        """
        if not is_last and can_change((record,)):
            record = self.context.codec.copy_mutable([record])[0]
        return record if self._evictor is None else (record, timestamp)

    def _on_element(self, record: Any, timestamp: int, window: Any, part: Any) -> None:
        """Ask the trigger about a record that was added to a window.

        Arguments:
            record: the record.
            timestamp: the event time of the record.
            window: the window.
            part: the part of a composite key that names the contents of the window.
        """
        namespace, context = part_of(window), self._trigger_context
        context.enter(namespace)
        self._apply(self._trigger.on_element(record, timestamp, window, context), window, part)
        time = self._cleanup_time(window)
        if time != MAX_WATERMARK:
            self.services.register(namespace, time, is_event=self.is_event_time)

    def _apply(
        self, result: TriggerResult, window: Any, part: Any, *, is_over: bool = False
    ) -> None:
        """Apply the decision of a trigger to a window.

        Arguments:
            result: the decision.
            window: the window.
            part: the part of a composite key that names the contents of the window.
            is_over: whether the window is removed afterwards.
        """
        key = self.context.key
        if result.is_fire():
            contents = self._contents.get(key, part)
            if contents is not MISSING:
                # The functions may change the contents. If a later firing needs these, the
                # functions get a copy.
                stays = not is_over and not result.is_purge()
                if self._evictor is None:
                    own = self._contents.copied([contents])[0] if stays else contents
                    self._emit(key, window, own)
                else:
                    self._emit_evicting(self._evictor, window, part, contents, stays=stays)
        if result.is_purge():
            self._contents.clear(key, part)

    def _emit_evicting(
        self, evictor: Evictor, window: Any, part: Any, contents: Any, *, stays: bool
    ) -> None:
        """Emit the results of a window, and remove records before and after that."""
        key, context = self.context.key, self._evictor_context
        elements = [TimestampedValue(*each) for each in contents]
        evictor.evict_before(elements, len(elements), window, context)
        records = [element.value for element in elements]
        if stays:
            [records] = self._contents.copied([records])
        results = self._caller.call_with_records(key, window, records)
        self._output.emit(results, self.context.timestamp)
        evictor.evict_after(elements, len(elements), window, context)
        self._contents.set(key, part, list(map(tuple, elements)))

    def _is_late(self, window: Any) -> bool:
        return self._has_passed(self._cleanup_time(window))

    # ---- windows that merge

    def _windows_of(self, key: Any) -> MergingWindowSet[Any]:
        pairs: Any = self._merging.get(key, ())
        windows = [(window_of(window), window_of(state)) for window, state in pairs]
        return MergingWindowSet(windows, self._merge_windows)

    def _store_windows(self, key: Any, merging: MergingWindowSet[Any]) -> None:
        pairs = tuple((part_of(window), part_of(state)) for window, state in merging.pairs)
        if pairs:
            self._merging.put(key, pairs)
        else:
            self._merging.delete(key)

    def _merge_windows(
        self, windows: list[Any], merged: Callable[[Iterable[Any], Any], None]
    ) -> None:
        self._assigner.merge_windows(windows, MergeCallback(merged))

    def _merge(self, result: Any, merged: list[Any], state: Any, others: list[Any]) -> None:
        """Merge the states and the timers of windows into those of the window `result`."""
        is_over = self._is_late(result)
        if not self.is_event_time:
            is_over = result.max_timestamp() <= self.services.processing_time()
        if is_over:
            raise JobError(
                f"windows were merged into {result!r}, which is over already: merge_windows must "
                f"return a window that covers the windows that it merges",
                operator=self.name,
            )
        context, parts = self._trigger_context, list(map(part_of, merged))
        context.enter(part_of(result), parts)
        assert self._trigger.on_merge is not None, "the program was refused otherwise"
        self._trigger.on_merge(result, context)
        for window, part in zip(merged, parts, strict=True):
            context.enter(part)
            self._trigger.clear(window, context)
            time = self._cleanup_time(window)
            if time != MAX_WATERMARK:
                self.services.delete(part, time, is_event=self.is_event_time)
        self._contents.merge(self.context.key, part_of(state), list(map(part_of, others)))

"""The operator that joins two streams in windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

from penstock.dataflow.windows import WindowOperation
from penstock.runtime.network.elements import TimeElement
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.joins.key_comparison import KeyComparison
from penstock.runtime.operators.two_inputs.operator import TwoInputOperator
from penstock.runtime.operators.windowing.base import BaseWindowOperator
from penstock.runtime.operators.windowing.choice import window_class
from penstock.runtime.serialization.record_batch import RecordBatch


class WindowJoinOperator(TwoInputOperator):
    """Groups the records of two streams by key and window.

    The records of both streams become pairs `(side, record)`. One window operator processes the
    pairs. (Flink: `CoGroupedStreams`.)

    Arguments:
        operation: the windows and their function.
        context: the operator's place in the job.
        first_key, second_key: return the key of a record of each stream.
    """

    has_windows = True
    schedules_timers = True

    def __init__(
        self,
        operation: WindowOperation,
        context: OperatorContext,
        first_key: Callable[[Any], Any],
        second_key: Callable[[Any], Any],
    ) -> None:
        def key_of(pair: tuple[int, Any]) -> Any:
            return second_key(pair[1]) if pair[0] else first_key(pair[1])

        self._windows = window_class(operation, context)(operation, context, key_of)
        keys = KeyComparison(context.name)
        super().__init__(
            operation,
            context,
            _WindowSide(self._windows, 0, first_key, keys),
            _WindowSide(self._windows, 1, second_key, keys),
        )
        self.emits = operation.window_function.method

    def open(self) -> None:
        """Open the functions of the windows, and get the tables and timers."""
        self._windows.open()

    def close(self) -> None:
        """Close the functions of the windows."""
        self._windows.close()


class _WindowSide(RunningOperator):
    """One input of an operator that joins streams in windows.

    Arguments:
        windows: the operator of the windows.
        side: 0 for the first input, 1 for the second.
        key_of: returns the key of a record.
        keys: compares the keys of both inputs.
    """

    def __init__(
        self,
        windows: BaseWindowOperator,
        side: int,
        key_of: Callable[[Any], Any],
        keys: KeyComparison,
    ) -> None:
        super().__init__(windows.function, windows.context)
        self._windows, self._side = windows, side
        self._key_of, self._keys = key_of, keys
        self.emits = windows.function.window_function.method
        self.side_outputs = windows.side_outputs

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Add the records of a batch to their windows, and return the results of the windows."""
        rows = batch.rows()
        pairs = RecordBatch(list(zip(repeat(self._side), rows)), None, batch.timestamps)
        try:
            out = self._windows.process(pairs)
        finally:
            self.iterator = self._windows.iterator
        if self._keys.are_unknown(self._side):
            self.iterator = None  # the message names both keys, and no record
            self._keys.compare(self._side, self._key_of, rows)
        return out

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire the event-time timers that are due."""
        return self._windows.advance_watermark(timestamp)

    def next_processing_time(self) -> int | None:
        """Return the time at which the first processing-time timer is due, or None."""
        return self._windows.next_processing_time()

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch | TimeElement]:
        """Fire the processing-time timers that are due."""
        return self._windows.advance_processing_time(now)

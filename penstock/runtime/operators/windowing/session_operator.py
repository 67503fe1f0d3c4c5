"""Sessions with their default trigger, an aggregator, and no allowed lateness."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.time import NO_TIMESTAMP
from penstock.dataflow.windows import WindowOperation
from penstock.dataflow.windows.time_windows import without_timestamp
from penstock.runtime.operators.windowing import session_loops as loops
from penstock.runtime.operators.windowing.base import BaseWindowOperator
from penstock.runtime.operators.windowing.window_aggregation import Aggregation
from penstock.runtime.operators.windowing.window_parts import time_of_windows
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.state_kind import StateKind


class SessionOperator(BaseWindowOperator):
    """Sessions that fire when their time is over, and are removed then.

    A session has a timer for the end that it had when it began, or when it was merged. If the
    session has grown since, its timer registers another one for its end.
    """

    #: The state with the sessions of each key; see `session_loops`.
    STATE = "window-sessions"

    def open(self) -> None:
        """Open the functions, and get the tables and timers, which are already restored."""
        super().open()
        assigner: Any = self.operation.assigner
        names = self.state_names(self.operation)
        self._table = self.backend.table(names[0], StateKind.VALUE, names[1:])
        self._gap: int = assigner.gap
        aggregation = self._aggregation = Aggregation.of(self.operation.aggregator)
        loop = aggregation.loop_of(loops.aggregate_into_sessions)
        self._set_loop(loop, key_of=self._key_of, add=aggregation.call)

    @classmethod
    def windows_of_state(cls, operation: WindowOperation) -> str:
        """Return by which time sessions end. Their gap may change."""
        return time_of_windows(operation.assigner)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Add the records of a batch to the sessions of their keys."""
        table, times = self._table, self._times_of(batch)
        self._run_loop(batch, times, table.dirty, table.lookup, self._gap, self._add_other)
        return self._output.take()

    def on_timer(self, time: int, namespace: Any, *, is_event: bool) -> None:
        """Emit the sessions of the current key that end at a time."""
        del namespace, is_event
        key = self.context.key
        sessions: Any = self._table.get(key, ())
        left = []
        for session in sessions:
            start, end, accumulator = session
            if end - 1 > time:
                left.append(session)
                # The timer may have been the one of this session, which has grown since.
                self._timers.register(key, None, end - 1)
            else:
                self._emit_span(key, start, end, accumulator)
        if not left:
            self._table.delete(key)
        elif len(left) < len(sessions):
            self._table.put(key, left)

    def _add_other(self, key: Any, record: Any, timestamp: int) -> None:
        """Add a record to a new session, and merge it with the sessions that it touches."""
        if timestamp == NO_TIMESTAMP:
            raise without_timestamp(self.operation.assigner)
        start, end = timestamp, timestamp + self._gap
        sessions: Any = self._table.get(key, ())
        touching = [each for each in sessions if each[0] <= end and each[1] >= start]
        if not touching and self._has_passed(end - 1):
            self._skip(record, timestamp)
            return
        aggregation = self._aggregation
        if touching:
            start, end = min(start, touching[0][0]), max(end, touching[-1][1])
            accumulator = touching[0][2]
            for other in touching[1:]:
                accumulator = aggregation.merge(accumulator, other[2])
            accumulator = aggregation.add(accumulator, record)
        else:
            accumulator = aggregation.first(record)
        others = [each for each in sessions if each[0] > end or each[1] < start]
        self._table.put(key, sorted([*others, [start, end, accumulator]], key=_start_of))
        self._timers.register(key, None, end - 1)


def _start_of(session: list[Any]) -> int:
    start: int = session[0]
    return start

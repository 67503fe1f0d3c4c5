"""Join each record with earlier records of its key (`KeyedStream.join_history`)."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from operator import itemgetter

from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import KeyedProcessFunction
from penstock.dataflow.metrics import LATE_RECORDS_DROPPED, LATE_RECORDS_TO_SIDE_OUTPUT
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.state import RuntimeContext, ValueStateDescriptor
from penstock.dataflow.time import MAX_WATERMARK
from penstock.dataflow.type_variables import UserValue

_time_of = itemgetter(0)


class HistoryJoin(KeyedProcessFunction):
    """Calls a function with each record and the earlier records of its key, and emits its results.

    A record waits until the watermark has reached its event time. So records are joined in the
    order of their event times, even if they arrive out of order.

    Arguments:
        past_ms: the length of the past, in milliseconds.
        function: a function `(record, earlier records)`.
        late_tag: the side output for late records; None to drop them.
    """

    def __init__(
        self,
        past_ms: int,
        function: Callable[[UserValue, list[UserValue]], UserValue],
        late_tag: OutputTag | None,
    ) -> None:
        self._past, self._function, self._late = past_ms, function, late_tag
        self._forgets = True

    def in_batch_mode(self) -> HistoryJoin:
        """Return the function for batch mode, in which the engine removes the state of a key."""
        function = copy.copy(self)
        function._forgets = False
        return function

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state: pairs (event time, record) of all records, sorted by time."""
        self._records = runtime_context.get_state(ValueStateDescriptor("records"))
        self._operator = runtime_context.get_task_name()
        name = LATE_RECORDS_DROPPED if self._late is None else LATE_RECORDS_TO_SIDE_OUTPUT
        self._late_records = runtime_context.get_metrics_group().counter(name)

    def process_element(
        self, value: UserValue, ctx: KeyedProcessFunction.Context
    ) -> Iterator[UserValue]:
        """Keep a record until the watermark reaches its time."""
        time, timers = ctx.timestamp(), ctx.timer_service()
        if time is None:
            raise JobError(
                f"operator {self._operator!r} got a record without event time: call "
                f"assign_timestamps_and_watermarks before join_history"
            )
        if time <= timers.current_watermark():
            self._late_records.inc()
            if self._late is not None:
                yield self._late, value
            return
        records = self._records.value() or []
        insort(records, (time, value), key=_time_of)
        self._records.update(records)
        timers.register_event_time_timer(time)

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[UserValue]:
        """Join the records of this time, and remove those that no later record is joined with."""
        records = self._records.value() or []
        del records[: bisect_left(records, timestamp - self._past, key=_time_of)]
        begin = bisect_left(records, timestamp, key=_time_of)
        end = bisect_right(records, timestamp, key=_time_of)
        joined = [
            self._function(records[index][1], [record for _, record in records[:index]])
            for index in range(begin, end)
        ]
        if records:
            self._records.update(records)
            if begin < end:
                # This timer removes the records of this time if the key gets no further record.
                forget = min(timestamp + self._past + 1, MAX_WATERMARK)
                if forget > timestamp and self._forgets:
                    ctx.timer_service().register_event_time_timer(forget)
        else:
            self._records.clear()
        yield from joined

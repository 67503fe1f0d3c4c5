"""The operator of an interval join."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import Function, ProcessJoinFunction, method_of
from penstock.dataflow.joins.operations import IntervalJoinOperation
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.operators.base import HOOK_BATCH, RecordLoopOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.joins.interval_buckets import Buckets
from penstock.runtime.operators.joins.key_comparison import KeyComparison
from penstock.runtime.operators.late_records import LateRecords
from penstock.runtime.operators.two_inputs.operator import TwoInputOperator
from penstock.runtime.operators.windowing.window_output import WindowOutput
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.snapshot.state import MISSING

KeyOf = Callable[[Any], Any]


class IntervalJoinOperator(TwoInputOperator):
    """Joins each record with the records of the other stream that are near it in event time.

    A record that is not late is joined with all matching records that arrived before it. It is kept
    for the records that arrive later. (Flink: `IntervalJoinOperator`.)

    Arguments:
        operation: the bounds and the function.
        context: the operator's place in the job.
        left_key: returns the key of a record of the left stream.
        right_key: returns the key of a record of the right stream.
    """

    def __init__(
        self,
        operation: IntervalJoinOperation,
        context: OperatorContext,
        left_key: KeyOf,
        right_key: KeyOf,
    ) -> None:
        keys = KeyComparison(context.name)
        left = _IntervalSide(operation, context, 0, left_key, keys)
        right = _IntervalSide(operation, context, 1, right_key, keys)
        super().__init__(operation.function, context, left, right)
        self._operation, self._sides = operation, (left, right)

    def open(self) -> None:
        """Open the function, and get the tables and timers, which are already restored."""
        context, operation = self.context, self._operation
        context.timers.restore()
        if isinstance(self.function, Function):
            self.function.open(context)
        bounds = operation.lower, operation.upper
        left, right = (
            Buckets(name, side, context, *bounds)
            for side, name in enumerate(("interval-join-left", "interval-join-right"))
        )
        self._buckets = left, right
        for mine, other, side in zip((left, right), (right, left), self._sides, strict=True):
            mine.open()
            side.prepare(mine, other)

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Remove the records that no later record can be joined with."""
        due = self.context.timers.due_by_watermark(timestamp)
        for fired, (key, time, side) in enumerate(due, 1):
            self._buckets[side].expire(key, time)
            if fired % HOOK_BATCH == 0:
                yield EMPTY


class _PairContext(ProcessJoinFunction.Context):
    """The timestamps of a pair."""

    def __init__(self) -> None:
        self.left = self.right = self.later = NO_TIMESTAMP

    def enter(self, left: int, right: int) -> int:
        """Set the timestamps of the pair, and return the later one."""
        self.left, self.right = left, right
        self.later = left if left > right else right
        return self.later

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return self.later


class _IntervalSide(RecordLoopOperator):
    """One input of an interval join.

    Arguments:
        operation: the bounds and the function.
        context: the operator's place in the job.
        side: 0 for the left stream, 1 for the right one.
        key_of: returns the key of a record.
        keys: compares the keys of both inputs.
    """

    def __init__(
        self,
        operation: IntervalJoinOperation,
        context: OperatorContext,
        side: int,
        key_of: KeyOf,
        keys: KeyComparison,
    ) -> None:
        super().__init__(operation.function, context)
        self._operation, self._side = operation, side
        self._late = LateRecords(operation.late_tags[side], context, self.side_outputs)
        self._key_of, self._keys = key_of, keys
        if isinstance(operation.function, ProcessJoinFunction):
            self.emits = "process_element"

    def prepare(self, mine: Buckets, other: Buckets) -> None:
        """Set the state of both sides, and set up the loop."""
        bounds = self._operation.lower, self._operation.upper
        lower, upper = (-bounds[1], -bounds[0]) if self._side else bounds
        probe = self.context.mutability_probe()
        self._output = WindowOutput(probe, self.side_outputs.divided)
        self._pair = _PairContext()
        self._call = method_of(self.function, "process_element")
        join = self._join
        if isinstance(self.function, ProcessJoinFunction):
            join = self._process
        self._arguments = (
            mine.width,
            lower,
            upper,
            mine.find,
            other.find,
            mine.add_first,
            self._add_late,
            join,
        )
        self._set_loop(join_intervals, key_of=self._key_of)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Join the records of a batch, and return the results."""
        context = self.context
        if batch.timestamps is None:
            raise self._without_timestamp()
        context.states.clean_up()
        least = max(context.watermark, NO_TIMESTAMP + 1)
        self._run_loop(batch, batch.timestamps, context, least, *self._arguments)
        if self._keys.are_unknown(self._side):
            self.iterator = None  # the message names both keys, and no record
            self._keys.compare(self._side, self._key_of, batch.rows())
        return self._output.take()

    def _add_late(self, record: Any, timestamp: int) -> None:
        """Handle a record whose time is not after the watermark."""
        if timestamp == NO_TIMESTAMP:
            raise self._without_timestamp()
        self._late.add(record, timestamp)

    def _without_timestamp(self) -> JobError:
        which = "right" if self._side else "left"
        return JobError(
            f"a record without a timestamp came to the {which} side of an interval join: call "
            f"assign_timestamps_and_watermarks(...) before the join, or give the source a "
            f"WatermarkStrategy with a timestamp assigner"
        )

    def _join(self, record: Any, timestamp: int, times: list[int], others: list[Any]) -> None:
        """Emit the result of a plain function for each pair."""
        call, append, is_right = self._call, self._output.append, self._side
        for other, time in zip(others, times, strict=True):
            later = timestamp if timestamp > time else time
            append(call(other, record) if is_right else call(record, other), later)

    def _process(self, record: Any, timestamp: int, times: list[int], others: list[Any]) -> None:
        """Emit the results of a `ProcessJoinFunction` for each pair."""
        call, emit, pair, context = self._call, self._output.emit, self._pair, self.context
        for other, time in zip(others, times, strict=True):
            if self._side:
                context.timestamp = later = pair.enter(time, timestamp)
                emit(call(other, record, pair), later)
            else:
                context.timestamp = later = pair.enter(timestamp, time)
                emit(call(record, other, pair), later)


# `penstock.runtime.codegen` compiles the loop again with the key selector inlined, as it does with
# those of `record_loops`.


def join_intervals(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    context: Any,
    least: int,
    width: int,
    lower: int,
    upper: int,
    find: Callable[[Any], Any],
    find_other: Callable[[Any], Any],
    add_first: Callable[[Any, int], None],
    add_late: Callable[[Any, int], None],
    join: Callable[[Any, int, list[int], list[Any]], None],
) -> None:
    """Add each record to a bucket of its side, and join it with the records of the other side.

    A bucket is `[lower, upper, times, records]`, sorted by time; see `Buckets`.

    Arguments:
        key_of: returns the key of a record.
        iterator: the records.
        timestamps: the event time of each record.
        context: the context of the operator, whose key is set.
        least: the smallest timestamp of a record that is not late.
        width: the length of a bucket, in milliseconds.
        lower: the smallest difference between a timestamp of the other side and that of a record.
        upper: the largest difference.
        find: returns a bucket of this side, or `MISSING`.
        find_other: returns a bucket of the other side, or `MISSING`.
        add_first: adds the first record of a bucket of the current key.
        add_late: handles a late record.
        join: emits the results of a record and its matches; the times of these are passed, too.
    """
    missing = MISSING
    for record, timestamp in zip(iterator, timestamps, strict=False):
        if timestamp < least:
            add_late(record, timestamp)
            continue
        context.key = key = key_of(record)
        bucket = find((key, timestamp // width))
        if bucket is missing:
            add_first(record, timestamp)
        else:
            times = bucket[2]
            if timestamp >= times[-1]:
                times.append(timestamp)
                bucket[3].append(record)
            else:
                place = bisect_right(times, timestamp)
                times.insert(place, timestamp)
                bucket[3].insert(place, record)
        first, last = timestamp + lower, timestamp + upper
        for number in range(first // width, last // width + 1):
            bucket = find_other((key, number))
            if bucket is not missing:
                times = bucket[2]
                begin, end = bisect_left(times, first), bisect_right(times, last)
                if begin < end:
                    join(record, timestamp, times[begin:end], bucket[3][begin:end])

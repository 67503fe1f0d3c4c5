"""The operator of an as-of join."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import Function, method_of
from penstock.dataflow.joins.operations import AsOfJoinOperation
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.operators.base import HOOK_BATCH, RecordLoopOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.joins.key_comparison import KeyComparison
from penstock.runtime.operators.late_records import LateRecords
from penstock.runtime.operators.two_inputs.operator import TwoInputOperator
from penstock.runtime.operators.windowing.window_output import WindowOutput
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import MISSING

KeyOf = Callable[[Any], Any]
#: The namespaces of two kinds of timers: for waiting records, and for versions that replace older
#: ones.
_RECORDS, _VERSIONS = 0, 1


class AsOfJoinOperator(TwoInputOperator):
    """Joins each record with the version of its key that is valid at the time of the record.

    A record waits until the watermark has reached its time. All versions up to that time have then
    arrived. The versions of a key are `[times, versions]`, sorted by time. When the watermark
    reaches a version, the older ones are removed. (Flink: `TemporalRowTimeJoinOperator`.)

    Arguments:
        operation: the function and its settings.
        context: the operator's place in the job.
        record_key: returns the key of a record of the first stream.
        version_key: returns the key of a version, which is a record of the second stream.
    """

    RECORDS = "as-of-join-records"
    VERSIONS = "as-of-join-versions"

    def __init__(
        self,
        operation: AsOfJoinOperation,
        context: OperatorContext,
        record_key: KeyOf,
        version_key: KeyOf,
    ) -> None:
        keys = KeyComparison(context.name)
        first = _AsOfSide(operation, context, 0, record_key, keys)
        second = _AsOfSide(operation, context, 1, version_key, keys)
        super().__init__(operation.function, context, first, second)
        self._operation, self._sides = operation, (first, second)
        assert context.backend is not None
        self._backend = context.backend

    def open(self) -> None:
        """Open the function, and get the tables and timers, which are already restored."""
        context = self.context
        context.timers.restore()
        if isinstance(self.function, Function):
            self.function.open(context)
        self._call = method_of(self.function, "join")
        self._output = WindowOutput(context.mutability_probe(), self.side_outputs.divided)
        self._records = self._backend.composite_table(self.RECORDS, StateKind.WINDOW)
        self._versions = self._backend.table(self.VERSIONS)
        first, second = self._sides
        first.prepare(hold_records, self._records.get, self._add_first, first.late.add)
        second.prepare(add_versions, self._add_version)

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Emit the results of the records that waited for this watermark."""
        output = self._output
        due = self.context.timers.due_by_watermark(timestamp)
        for fired, (key, time, side) in enumerate(due, 1):
            if side == _RECORDS:
                self._emit(key, time)
            else:
                self._remove_versions_before(key, time)
            if fired % HOOK_BATCH == 0 or len(output) >= HOOK_BATCH:
                yield output.take()
        if len(output):
            yield output.take()

    def _add_first(self, key: Any, timestamp: int, record: Any) -> None:
        self._records.dirty[key, timestamp] = [record]
        self.context.timers.event.register(key, _RECORDS, timestamp)

    def _add_version(self, key: Any, timestamp: int, version: Any) -> None:
        found: Any = self._versions.get(key)
        if found is MISSING:
            self._versions.dirty[key] = [[timestamp], [version]]
            return
        times, versions = found
        place = bisect_left(times, timestamp)
        if place < len(times) and times[place] == timestamp:
            versions[place] = version
            return
        times.insert(place, timestamp)
        versions.insert(place, version)
        # The later one of two neighbours replaces the earlier one.
        self.context.timers.event.register(key, _VERSIONS, times[max(place, 1)])
        if 0 < place < len(times) - 1:
            self.context.timers.event.register(key, _VERSIONS, times[place + 1])

    def _emit(self, key: Any, time: int) -> None:
        """Emit the results of the records of a key and time."""
        entry = key, time
        records: Any = self._records.get(entry)
        self._records.delete(entry)
        found: Any = self._versions.get(key)
        version = None
        place = 0 if found is MISSING else bisect_right(found[0], time)
        if place:
            version = found[1][place - 1]
        elif not self._operation.keep_unmatched:
            return
        self.context.key = key
        for record in records:
            self._output.append(self._call(record, version), time)

    def _remove_versions_before(self, key: Any, time: int) -> None:
        """Remove the versions that newer versions, up to this time, have replaced."""
        found: Any = self._versions.get(key)
        if found is not MISSING:
            times, versions = found
            count = bisect_right(times, time) - 1
            if count > 0:
                del times[:count]
                del versions[:count]


class _AsOfSide(RecordLoopOperator):
    """One input of an as-of join.

    Arguments:
        operation: the function and its settings.
        context: the operator's place in the job.
        side: 0 for the records, 1 for the versions.
        key_of: returns the key of a record.
        keys: compares the keys of both inputs.
    """

    def __init__(
        self,
        operation: AsOfJoinOperation,
        context: OperatorContext,
        side: int,
        key_of: KeyOf,
        keys: KeyComparison,
    ) -> None:
        super().__init__(operation.function, context)
        self._side = side
        self.late = LateRecords(operation.late_tag, context, self.side_outputs)
        self._key_of, self._keys = key_of, keys

    def prepare(self, loop: Callable[..., None], *arguments: Any) -> None:
        """Set the loop, and the arguments of the loop after the records and their times."""
        self._arguments = arguments
        self._set_loop(loop, key_of=self._key_of)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Add the records of a batch to the state. Watermarks trigger the results."""
        times = batch.timestamps
        if times is None or min(times) == NO_TIMESTAMP:
            raise self._without_timestamp()
        least = () if self._side else (max(self.context.watermark, NO_TIMESTAMP + 1),)
        self._run_loop(batch, times, *least, *self._arguments)
        if self._keys.are_unknown(self._side):
            self.iterator = None  # the message names both keys, and no record
            self._keys.compare(self._side, self._key_of, batch.rows())
        return EMPTY

    def _without_timestamp(self) -> JobError:
        which = "second" if self._side else "first"
        return JobError(
            f"a record without a timestamp came to the {which} stream of an as-of join: call "
            f"assign_timestamps_and_watermarks(...) before the join, or give the source a "
            f"WatermarkStrategy with a timestamp assigner"
        )


# `penstock.runtime.codegen` compiles the loops again with the key selector inlined, as it does with
# those of `record_loops`.


def hold_records(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    least: int,
    find: Callable[[Any], Any],
    add_first: Callable[[Any, int, Any], None],
    add_late: Callable[[Any, int], None],
) -> None:
    """Add each record to the list of its key and time, where it waits for the watermark.

    Arguments:
        key_of: returns the key of a record.
        iterator: the records.
        timestamps: the event time of each record.
        least: the smallest timestamp of a record that is not late.
        find: returns the list of a key and time, or `MISSING`.
        add_first: adds the first record of a key and time, and registers its timer.
        add_late: handles a late record.
    """
    missing = MISSING
    for record, timestamp in zip(iterator, timestamps, strict=False):
        if timestamp < least:
            add_late(record, timestamp)
            continue
        key = key_of(record)
        waiting = find((key, timestamp))
        if waiting is missing:
            add_first(key, timestamp, record)
        else:
            waiting.append(record)


def add_versions(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    timestamps: Iterable[int],
    add: Callable[[Any, int, Any], None],
) -> None:
    """Add each record to the versions of its key.

    Arguments:
        key_of: returns the key of a record.
        iterator: the records.
        timestamps: the event time of each record.
        add: adds a version, given its key and time.
    """
    for record, timestamp in zip(iterator, timestamps, strict=False):
        add(key_of(record), timestamp, record)

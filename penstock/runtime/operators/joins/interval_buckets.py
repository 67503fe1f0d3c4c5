"""The state of one side of an interval join."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from penstock.runtime.operators.context import OperatorContext
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import MISSING


class Buckets:
    """The records of one side of an interval join, in buckets of time.

    The bucket `n` of a key has its records from `n * width` to `(n + 1) * width`. The width is the
    length of the interval. So all matches of a record of the other side are in at most two buckets.
    A bucket is `[lower, upper, times, records]`, sorted by time. It is removed when the watermark
    is past the last record of the other side that can be joined with it.

    A program may change the bounds of a join and keep its state. So each bucket contains the bounds
    with which it was made. All buckets of a state have the same bounds.

    Arguments:
        name: the name of the state.
        side: 0 for the left stream, 1 for the right one; the namespace of the timers.
        context: the operator's place in the job.
        lower: the smallest difference between a right and a left timestamp, in milliseconds.
        upper: the largest difference.
    """

    def __init__(
        self, name: str, side: int, context: OperatorContext, lower: int, upper: int
    ) -> None:
        assert context.backend is not None
        self._context, self._side, self._name = context, side, name
        self._lower, self._upper = lower, upper
        self._backend = context.backend
        self._table = context.backend.composite_table(name, StateKind.WINDOW)
        self.width = upper - lower + 1
        #: The time from a record of this side to the last record of the other side that it matches.
        self._delay = max(0, -lower if side else upper)
        #: Returns the bucket under a composite key, or `MISSING`.
        self.find: Callable[[Any], Any] = self._table.get

    def open(self) -> None:
        """Rearrange the restored state, if the program has changed the bounds."""
        buckets: list[tuple[Any, Any]] = list(self._backend.scan(self._name))
        if not buckets or buckets[0][1][:2] == [self._lower, self._upper]:
            return
        for entry, (_, _, times, records) in buckets:
            self._table.delete(entry)
            self._context.key = entry[0]
            for timestamp, record in zip(times, records, strict=True):
                self._add(record, timestamp)

    def add_first(self, record: Any, timestamp: int) -> None:
        """Add the first record of a bucket of the current key, and register its timer."""
        number, key = timestamp // self.width, self._context.key
        self._table.dirty[key, number] = [self._lower, self._upper, [timestamp], [record]]
        time = (number + 1) * self.width + self._delay
        self._context.timers.event.register(key, self._side, time)

    def expire(self, key: Any, time: int) -> None:
        """Remove the bucket whose timer fires at a time.

        A timer may be older than a change of the bounds. It then belongs to no bucket, or to
        another bucket that has also expired.
        """
        number, rest = divmod(time - self._delay, self.width)
        entry = key, number - 1
        if not rest and self._table.get(entry) is not MISSING:
            self._table.delete(entry)

    def _add(self, record: Any, timestamp: int) -> None:
        bucket = self.find((self._context.key, timestamp // self.width))
        if bucket is MISSING:
            self.add_first(record, timestamp)
            return
        _, _, times, records = bucket
        place = bisect_right(times, timestamp)
        times.insert(place, timestamp)
        records.insert(place, record)

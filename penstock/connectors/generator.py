"""A source that computes record *i* from *i*, at full speed or at a steady rate.

It is like Flink's `DataGeneratorSource`. The reader never waits: it returns the records that are
due, and the seconds until the next one is due. The clock is an argument, so that a simulation can
pass a virtual one.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any

from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.errors import GraphError
from penstock.dataflow.object_reuse import Check, EmissionPolicy, copy_if_shared
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

__all__ = ["GeneratorSource"]

# After a pause, the records of this time are caught up with. The schedule forgets the others, so
# that a job that was held up does not flood the operators behind it.
_CATCH_UP_SECONDS = 1.0

# The shortest wait that a read asks for. At 1,000 records/s this is one record at a time. Above
# that rate, records come in batches, because a wake-up costs more than a record.
_SHORTEST_WAIT_SECONDS = 0.001

# A read that calls user code for longer than this would hold up barriers.
_SLICE_SECONDS = 0.01
_FIRST_SLICE = 256


class GeneratorSource(Source):
    """Make records with a function of their index.

    Split *i* of *n* has the indices *i*, *i + n*, *i + 2n* …, and its position is the next index.
    The function must always return the same record for the same index.

    Arguments:
        function: returns the record of an index.
        count: number of records of all readers together; None is without end.
        records_per_second: rate of all readers together, which share it equally; None is as fast
            as possible.
        clock: returns monotonic seconds.

    Raises:
        GraphError: if an argument is of the wrong kind or out of range.
    """

    def __init__(
        self,
        function: Callable[[int], Any],
        count: int | None = None,
        records_per_second: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not callable(function):
            raise GraphError(
                f"a generator source needs a function from index to record, not {function!r}"
            )
        if count is not None and (not isinstance(count, int) or count < 0):
            raise GraphError(
                f"the count of a generator source is a number of records or None, not {count!r}"
            )
        if records_per_second is not None and not 0 < records_per_second < math.inf:
            raise GraphError(
                f"records_per_second must be positive, not {records_per_second!r}; "
                f"leave it out for no limit"
            )
        self.function = function
        self.count = count
        self.records_per_second = records_per_second
        self.clock = clock
        self.bounded = count is not None

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of one split for each reader, with interleaved indices."""
        return SubtaskEnumerator([[i, parallelism] for i in range(parallelism)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that calls the function."""
        del context
        return _GeneratorReader(self)


class _GeneratorReader(SourceReader):
    """Make the records of one split."""

    def __init__(self, source: GeneratorSource) -> None:
        self._source = source
        self._next = 0
        self._step = 1
        self._slice = _FIRST_SLICE
        self._pace: _Pace | None = None
        self._policy = EmissionPolicy(source.function)

    def open(self, split: Split, position: Any) -> None:
        first, self._step = split.payload
        self._next = first if position is None else position
        rate = self._source.records_per_second
        if rate is not None:
            self._pace = _Pace(rate / self._step, self._source.clock)

    def read(self, max_records: int) -> Read:
        room = min(max_records, self._slice)
        if self._source.count is not None:
            room = min(room, max(0, -(-(self._source.count - self._next) // self._step)))
        if self._pace is not None:
            room = min(room, self._pace.due())
        records = self._make(room) if room else []
        self._next += room * self._step
        finished = self._source.count is not None and self._next >= self._source.count
        wait = 0.0 if finished or self._pace is None else self._pace.given(room)
        return Read(records, self._next, finished, wait)

    def _make(self, count: int) -> list[Any]:
        """Call the function `count` times, and adapt the number of calls of a slice."""
        clock = self._source.clock
        began = clock()
        indices = iter(range(self._next, self._next + count * self._step, self._step))
        try:
            made = map(self._source.function, indices)
            unchecked = self._policy.check is Check.NOTHING
            records = list(made if unchecked else map(copy_if_shared, made))
        except Exception as error:
            done = count - operator.length_hint(indices) - 1
            index = self._next + done * self._step
            error.add_note(f"raised by the function of a generator source for index {index}")
            raise
        took = clock() - began
        if took > _SLICE_SECONDS:
            self._slice = max(1, int(count * _SLICE_SECONDS / took))
        elif count == self._slice and took < _SLICE_SECONDS / 4:
            self._slice *= 2
        return self._policy.after_batch(records)


class _Pace:
    """Keep a steady schedule: record *k* is due `k / rate` seconds after the start.

    The schedule is absolute, so that late wake-ups do not lower the rate.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._start = clock()
        self._given = 0
        self._most = max(1, int(rate * _CATCH_UP_SECONDS))

    def due(self) -> int:
        """Return the number of records that are due now."""
        # Without the small term, a wake-up at exactly the due time could be rounded down.
        elapsed = (self._clock() - self._start) * self._rate + 1e-6
        due = int(elapsed) + 1 - self._given
        if due > self._most:
            self._start += (due - self._most) / self._rate
            due = self._most
        return due

    def given(self, count: int) -> float:
        """Count records that were returned, and return the seconds until the next is due."""
        self._given += count
        wait = self._start + self._given / self._rate - self._clock()
        return max(wait, _SHORTEST_WAIT_SECONDS) if wait > 0 else 0.0

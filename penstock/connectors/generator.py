"""A source that computes record *i* from *i*, at full speed or at a fixed rate.

It resembles Flink's `DataGeneratorSource`. The reader never waits. It returns the records that are
due, and the time until the next record is due. The clock is an argument, so that a simulation can
use a virtual clock.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any, Generic

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
from penstock.dataflow.type_variables import T

__all__ = ["GeneratorSource"]

# The maximal delay that a source with a fixed rate makes up for, in seconds. If the job was delayed
# for longer, the rest of the schedule moves to a later time. Otherwise the source would send too
# many records at once to the next operators.
_CATCH_UP_SECONDS = 1.0

# The shortest time between two reads at a fixed rate, in seconds. At rates above 1,000 records/s, a
# read therefore returns several records. A read for each record would cost more than the record.
_SHORTEST_WAIT_SECONDS = 0.001

# The target duration of the user's code in one read, in seconds. A longer read delays barriers.
_SLICE_SECONDS = 0.01
_FIRST_SLICE = 256


class GeneratorSource(Source[T], Generic[T]):
    """Creates records with a function of their index.

    Split *i* of *n* has the indices *i*, *i + n*, *i + 2n* and so on. The position is the next
    index. The function must always return the same record for the same index.

    Arguments:
        function: a function that gets the index of a record, and returns the record.
        count: the total number of records of all readers. If it is None, the source never ends.
        records_per_second: the total rate of all readers, in records per second. The readers share
            it equally. If it is None, the rate is not limited.
        clock: a function that returns a monotonic time, in seconds.

    Raises:
        GraphError: if an argument has the wrong type or is out of range.
    """

    def __init__(
        self,
        function: Callable[[int], T],
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

    @property
    def reads_in_turns(self) -> bool:
        """Return True, since the indices of all splits belong together."""
        return True

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns one split to each reader."""
        return SubtaskEnumerator([[i, parallelism] for i in range(parallelism)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that calls the function for each index of a split."""
        del context
        return _GeneratorReader(self)


class _GeneratorReader(SourceReader):
    """Creates the records of one split."""

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
        """Return the next `count` records.

        Adapt the number of calls in one read, so that a read takes about `_SLICE_SECONDS`.
        """
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
    """Computes when the records of one reader are due, at a fixed rate.

    Record *k* is due `k / rate` seconds after the start, even if earlier records were late. So a
    late read does not lower the rate.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._start = clock()
        self._given = 0
        self._most = max(1, int(rate * _CATCH_UP_SECONDS))

    def due(self) -> int:
        """Return the number of records that are due now."""
        # The small term corrects rounding, which could delay a record that is due exactly now.
        elapsed = (self._clock() - self._start) * self._rate + 1e-6
        due = int(elapsed) + 1 - self._given
        if due > self._most:
            self._start += (due - self._most) / self._rate
            due = self._most
        return due

    def given(self, count: int) -> float:
        """Count the returned records, and return the time until the next record is due.

        The time is in seconds. It is 0 if the next record is due already.
        """
        self._given += count
        wait = self._start + self._given / self._rate - self._clock()
        return max(wait, _SHORTEST_WAIT_SECONDS) if wait > 0 else 0.0

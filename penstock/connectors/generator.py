"""A source that computes record *i* from *i*, at full speed or at a fixed rate.

It resembles Flink's `DataGeneratorSource`. The reader never waits. It returns the records that are
due, and the time until the next record is due. The clock is an argument, so that a simulation can
use a virtual clock.

The schedule of a source with a rate begins when the job starts first, and each split has this time.
Restarts and resumes do not move it. Otherwise two sources of a job would drift apart, since each
loses another time at each restart, and a join would keep all records that lie between them.
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

# The delay that a source with a fixed rate makes up for at once, in seconds. If it was delayed for
# longer, it makes up for the rest at a multiple of its rate. Otherwise it would send too many
# records at once to the next operators.
_CATCH_UP_SECONDS = 1.0
_CATCH_UP_RATE = 2.0

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
            it equally. If it is None, the rate is not limited. Record *i* is due `i / rate` seconds
            after the first start of the job. A source that is late, for example after a restart,
            has at most twice this rate until it has caught up.
        clock: a function that returns a monotonic time, in seconds.

    Raises:
        GraphError: if an argument has the wrong type or is out of range.

    Examples:
        >>> results = env.from_source(GeneratorSource(lambda index: index**2, count=4))
        >>> list(results.execute_and_collect())
        [0, 1, 4, 9]
    """

    has_event_times = False

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
        if self.records_per_second is None:
            payloads: list[list[Any]] = [[i, parallelism] for i in range(parallelism)]
        else:
            began = self.wall_clock()
            payloads = [[i, parallelism, began] for i in range(parallelism)]
        return SubtaskEnumerator(payloads, parallelism)

    def wall_clock(self) -> float:
        """Return a time that all machines and processes share, in seconds."""
        return time.time() if self.clock is time.monotonic else self.clock()

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
        source = self._source
        # Snapshots of Penstock 0.1 have splits without a time.
        first, self._step, *began = split.payload
        self._next = first if position is None else position
        self._pace = None
        if source.records_per_second is not None:
            rate = source.records_per_second / self._step
            made = (self._next - first) // self._step
            elapsed = source.wall_clock() - began[0] if began else 0.0
            # If the clock of the machine was set back, the source does not wait until it is right.
            self._pace = _Pace(rate, source.clock, made, max(elapsed, made / rate))

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

    Arguments:
        rate: the rate, in records per second.
        clock: a function that returns a monotonic time, in seconds.
        given: the number of records that were returned before.
        elapsed: the time since the start, in seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float], given: int, elapsed: float) -> None:
        self._rate = rate
        self._clock = clock
        self._start = clock() - elapsed
        self._given = given
        #: The number of records that a late reader may return now, and the time of that number.
        self._allowed = self._most = max(1.0, rate * _CATCH_UP_SECONDS)
        self._allowed_at = clock()

    def due(self) -> int:
        """Return the number of records that are due now."""
        now = self._clock()
        passed, self._allowed_at = now - self._allowed_at, now
        self._allowed = min(self._allowed + passed * self._rate * _CATCH_UP_RATE, self._most)
        # The small term corrects rounding, which could delay a record that is due exactly now.
        due = int((now - self._start) * self._rate + 1e-6) + 1 - self._given
        return max(0, min(due, int(self._allowed + 1e-6)))

    def given(self, count: int) -> float:
        """Count the returned records, and return the time until the next record is due.

        The time is in seconds. It is 0 if the next record is due already.
        """
        self._given += count
        self._allowed -= count
        wait = self._start + self._given / self._rate - self._clock()
        wait = max(wait, (1 - self._allowed) / (self._rate * _CATCH_UP_RATE))
        return max(wait, _SHORTEST_WAIT_SECONDS) if wait > 0 else 0.0

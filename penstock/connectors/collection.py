"""Sources that read a list of records, or a range of numbers.

Both sources divide their input into index ranges, a few for each reader. The ranges are assigned in
order. With parallelism 1 there is only one range, so the order of the records is kept. The source
object contains all records of a collection. So use collections only for small inputs and tests,
and put large inputs into files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Generic

from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.dataflow.type_variables import T

# There are more ranges than readers, so that a slow reader gets fewer of them. But a range is not
# made very small, because requesting it would take more time than reading its records.
_RANGES_PER_READER = 4
_SMALLEST_EXTRA_RANGE = 65_536


class CollectionSource(Source[T], Generic[T]):
    """Reads the records of a collection.

    The position is the index of the next record. A job must be resumed with the same collection.

    Arguments:
        records: a finite iterable. The constructor copies its records into a list.

    Raises:
        GraphError: if `records` is not an iterable.

    Examples:
        >>> list(env.from_source(CollectionSource(["a", "b"])).execute_and_collect())
        ['a', 'b']
    """

    has_event_times = False

    def __init__(self, records: Iterable[T]) -> None:
        if not isinstance(records, Iterable):
            raise GraphError(
                f"a collection source needs an iterable of records, not {type(records).__name__}: "
                f"put a single record into a list"
            )
        self.records = list(records)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns index ranges of about equal length."""
        return ListEnumerator(_ranges(0, len(self.records), parallelism))

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads slices of the list."""
        del context
        return _RangeReader(self._slice, lambda: len(self.records))

    def _slice(self, start: int, stop: int) -> list[T]:
        return self.records[start:stop]


class SequenceSource(Source[int]):
    """Reads the whole numbers from `start` to `end`, including both.

    The position is the next number.

    Arguments:
        start: the first number.
        end: the last number, which must not be below `start`.

    Raises:
        GraphError: if `start` or `end` is not a whole number of 64 bits, or `end` is below `start`.

    Examples:
        >>> list(env.from_source(NumberSequenceSource(1, 3)).execute_and_collect())
        [1, 2, 3]
    """

    has_event_times = False

    def __init__(self, start: int, end: int) -> None:
        for number in (start, end):
            # The position after the last number is `end + 1`. It must also have at most 64 bits.
            if type(number) is not int or not -(2**63) <= number < 2**63 - 1:
                raise GraphError(
                    f"a number sequence needs whole numbers of 64 bits, not {number!r}"
                )
        if end < start:
            raise GraphError(f"a number sequence cannot end ({end}) before it starts ({start})")
        self.start = start
        self.end = end

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns ranges of numbers of about equal length."""
        return ListEnumerator(_ranges(self.start, self.end + 1, parallelism))

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that returns the numbers of a range."""
        del context
        return _RangeReader(lambda start, stop: list(range(start, stop)), None)


#: Flink's name of `SequenceSource`.
NumberSequenceSource = SequenceSource


class _RangeReader(SourceReader):
    """Reads the records of index ranges.

    Arguments:
        slice: a function of (start, stop) that returns the records `start <= index < stop`.
        length: a function that returns the number of records of the collection, or None. The reader
            raises an error if a resumed job has a shorter collection than before.
    """

    def __init__(
        self, slice: Callable[[int, int], list[Any]], length: Callable[[], int] | None
    ) -> None:
        self._slice = slice
        self._length = length
        self._next = self._stop = 0

    def open(self, split: Split, position: Any) -> None:
        start, self._stop = split.payload
        self._next = start if position is None else position
        if self._length is not None and self._stop > self._length():
            raise JobError(
                f"the collection has {self._length()} records, but the snapshot was taken of "
                f"{self._stop}: resume with the collection that the job was started with"
            )

    def read(self, max_records: int) -> Read:
        start = self._next
        self._next = min(start + max_records, self._stop)
        records = self._slice(start, self._next)
        return Read(records, self._next, finished=self._next >= self._stop)


def _ranges(start: int, stop: int, parallelism: int) -> list[Split]:
    """Divide the range `start <= number < stop` into splits of about equal length."""
    length = stop - start
    count = parallelism
    if parallelism > 1:
        extra = min(length // _SMALLEST_EXTRA_RANGE, _RANGES_PER_READER * parallelism)
        count = max(parallelism, extra)
    bounds = [start + length * index // count for index in range(count + 1)]
    return [Split(f"{first}-{end}", [first, end]) for first, end in pairwise(bounds) if first < end]

"""The loop of an interval join.

`penstock.runtime.codegen` compiles it again with the key selector inlined; see `record_loops`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.snapshot.state import MISSING

__all__ = ["join_intervals"]


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

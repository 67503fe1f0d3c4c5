"""Shapes whose records are Arrow batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock import (
    ColumnTimestamps,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.streams import DataStream
from tests.simulation.random_jobs.windows import STEP

__all__ = ["aggregated_windows", "expected_windows", "running_counts"]

#: The length of the windows, in milliseconds.
SIZE = 5 * STEP


def _columns(stream: DataStream, keys: int) -> DataStream:
    """Return the numbers as Arrow batches, which are sent to other tasks once more."""
    rows = stream.map(lambda i: {"key": i % keys, "at": i * STEP, "number": i}).uid("rows")
    return rows.map_batches(lambda batch: batch).uid("columns").rebalance()


def running_counts(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """Count the numbers of each key, over columns."""
    columns = _columns(stream, choices.keys)
    if choices.hook:
        columns = columns.map_batches(lambda batch: batch).uid("again").rebalance()
    counted = columns.group_by("key").agg(n=("*", "count"), most=("number", "max")).uid("running")
    return counted.map(lambda row: ("count", row["key"], row["n"])).uid("counted")


def aggregated_windows(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Any
) -> DataStream:
    """Emit the number and the sum of the rows of each key and window. No row is late.

    With repeated rows, a window has other sums: as a last count, which is called "end" in all jobs.
    """
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(1_000_000))
    strategy = strategy.with_timestamp_assigner(ColumnTimestamps("at"))
    timed = _columns(stream, choices.keys).assign_timestamps_and_watermarks(strategy).uid("timed")
    windows = timed.group_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(SIZE)))
    sums = windows.agg(n=("*", "count"), total=("number", "sum")).uid("windows")
    return sums.map(lambda row: ("end", row["key"], row["n"], row["total"])).uid("sums")


def expected_windows(inputs: Sequence[int], choices: Any, parallelism: int) -> Counter[Any]:
    """Return what `aggregated_windows` must emit."""
    counts, sums = Counter[Any](), Counter[Any]()
    for number in inputs:
        window = number % choices.keys, number * STEP // SIZE
        counts[window] += 1
        sums[window] += number
    return Counter(("end", window[0], counts[window], sums[window]) for window in counts)

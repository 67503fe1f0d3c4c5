"""Shapes whose records are Arrow batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock import (
    ColumnTimestamps,
    EventTimeSessionWindows,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.streams import DataStream
from tests.simulation.random_jobs.windows import STEP

__all__ = [
    "aggregated_sessions",
    "aggregated_windows",
    "expected_sessions",
    "expected_windows",
    "running_counts",
]

#: The length of the windows and the gap of the sessions, in milliseconds.
SIZE, GAP = 5 * STEP, 4 * STEP


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
    windows = _grouped(stream, choices).window(TumblingEventTimeWindows.of(Time.milliseconds(SIZE)))
    if choices.mutable:
        windows = windows.allowed_lateness(Time.milliseconds(SIZE))
    return _sums(windows)


def aggregated_sessions(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Any
) -> DataStream:
    """Emit the number and the sum of the rows of each session. No row is late."""
    sessions = EventTimeSessionWindows.with_gap(Time.milliseconds(GAP))
    windows = _grouped(stream, choices).window(sessions)
    return _sums(windows.allowed_lateness(Time.milliseconds(SIZE if choices.mutable else 0)))


def _grouped(stream: DataStream, choices: Any) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(1_000_000))
    strategy = strategy.with_timestamp_assigner(ColumnTimestamps("at"))
    timed = _columns(stream, choices.keys).assign_timestamps_and_watermarks(strategy).uid("timed")
    return timed.group_by("key")


def _sums(windows: Any) -> DataStream:
    sums = windows.agg(n=("*", "count"), total=("number", "sum")).uid("windows")
    emitted = sums.map(lambda row: ("end", row["key"], row["n"], row["total"]))
    made: DataStream = emitted.uid("sums")
    return made


def expected_windows(inputs: Sequence[int], choices: Any, parallelism: int) -> Counter[Any]:
    """Return what `aggregated_windows` must emit."""
    counts, sums = Counter[Any](), Counter[Any]()
    for number in inputs:
        window = number % choices.keys, number * STEP // SIZE
        counts[window] += 1
        sums[window] += number
    return Counter(("end", window[0], counts[window], sums[window]) for window in counts)


def expected_sessions(inputs: Sequence[int], choices: Any, parallelism: int) -> Counter[Any]:
    """Return what `aggregated_sessions` must emit."""
    expected = Counter[Any]()
    for key in range(choices.keys):
        session: list[int] = []
        for number in [*sorted(number for number in inputs if number % choices.keys == key), None]:
            if session and (number is None or (number - session[-1]) * STEP > GAP):
                expected["end", key, len(session), sum(session)] += 1
                session = []
            if number is not None:
                session.append(number)
    return expected

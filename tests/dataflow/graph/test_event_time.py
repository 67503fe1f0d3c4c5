"""Event-time windows whose records have no timestamps are refused before the job starts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    DataStream,
    EventTimeSessionWindows,
    GraphError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
)
from penstock.connectors import SequenceSource
from penstock.dataflow.graph.compile import compile_graph

PLAIN = WatermarkStrategy.for_monotonous_timestamps()
TIMED = PLAIN.with_timestamp_assigner(lambda value, _: value)
HOUR = TumblingEventTimeWindows.of(3_600_000)


class OwnSource(SequenceSource):
    """A source of the program, which may know timestamps."""


def compiled(stream: DataStream) -> Any:
    env = stream.get_execution_environment()
    stream.print()
    return compile_graph(env._program().graph, env.config)


def numbers(strategy: WatermarkStrategy | None = None) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_source(SequenceSource(1, 9), strategy)


@pytest.mark.parametrize("assigner", [HOUR, EventTimeSessionWindows.with_gap(5)])
def test_a_window_needs_timestamps(assigner: Any):
    for stream in (numbers(), numbers(PLAIN), numbers().assign_timestamps_and_watermarks(PLAIN)):
        with pytest.raises(GraphError, match="gives its records timestamps: call assign_time"):
            compiled(stream.map(lambda n: n).key_by(lambda n: n).window(assigner).sum(None))
        with pytest.raises(GraphError, match=r"'Window: .*' needs event time"):
            compiled(stream.window_all(assigner).sum(None))


def test_timestamps_come_from_many_places():
    keyed = numbers().key_by(lambda n: n)
    env = StreamExecutionEnvironment.get_execution_environment()
    own = env.from_source(OwnSource(1, 9))
    for stream in (
        numbers(TIMED),
        numbers().assign_timestamps_and_watermarks(TIMED).map(lambda n: n),
        keyed.window(TumblingProcessingTimeWindows.of(5)).sum(None),
        own,
    ):
        compiled(stream.key_by(lambda n: n).window(HOUR).sum(None))


def test_windows_by_count_give_no_timestamps_of_their_own():
    sums = numbers().key_by(lambda n: n).count_window(5).sum(None)
    with pytest.raises(GraphError, match="gives its records timestamps: call assign_time"):
        compiled(sums.key_by(lambda n: n).window(HOUR).sum(None))
    timed = numbers(TIMED).key_by(lambda n: n).count_window(5).sum(None)
    compiled(timed.key_by(lambda n: n).window(HOUR).sum(None))


def test_a_window_by_the_clock_needs_none():
    compiled(numbers().window_all(TumblingProcessingTimeWindows.of(5)).sum(None))

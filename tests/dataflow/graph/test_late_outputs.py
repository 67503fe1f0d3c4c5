"""A side output for late records that the program does not read is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    GraphError,
    OutputTag,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.graph.compile import compile_graph

LATE, RIGHT = OutputTag("late"), OutputTag("right")
TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)
HOUR = TumblingEventTimeWindows.of(3_600_000)


def keyed() -> Any:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection([1]).assign_timestamps_and_watermarks(TIMED).key_by(abs)


def two() -> Any:
    stream = keyed()
    return stream, stream.map(abs).key_by(abs)


def rows() -> Any:
    pytest.importorskip("pyarrow")
    return keyed().map(lambda n: {"n": n}).group_by("n").window(HOUR)


def interval() -> Any:
    left, right = two()
    joined = left.interval_join(right).between(-5, 5)
    return joined.side_output_left_late_data(LATE).side_output_right_late_data(RIGHT)


def as_of() -> Any:
    records, versions = two()
    return records.as_of_join(versions, late_tag=LATE)


STREAMS: dict[str, Any] = {
    "window": lambda: keyed().window(HOUR).side_output_late_data(LATE).sum(None),
    "columns": lambda: rows().side_output_late_data(LATE).agg(total=("n", "sum")),
    "history": lambda: keyed().join_history(5, late_tag=LATE),
    "as of": as_of,
    "intervals": lambda: interval().process(lambda a, b: (a, b)),
}


def compiled(stream: Any) -> None:
    env = stream.get_execution_environment()
    stream.print()
    compile_graph(env._program().graph, env.config)


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_a_side_output_for_late_records_must_be_read(make: Any):
    with pytest.raises(GraphError, match=r"the side output 'late', .*get_side_output\(OutputTag"):
        compiled(make())
    stream = make()
    stream.get_side_output(LATE)
    if make is STREAMS["intervals"]:
        with pytest.raises(GraphError, match="the side output 'right', "):
            compiled(stream)
        stream.get_side_output(RIGHT)
    compiled(stream)

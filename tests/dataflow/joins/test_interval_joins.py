"""Interval joins as programs write them, and wrong programs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    DataStream,
    GraphError,
    JobError,
    JoinFunction,
    OutputTag,
    ProcessJoinFunction,
    StreamExecutionEnvironment,
    Time,
    Types,
    WatermarkStrategy,
)

LEFT = [("a", 10), ("b", 20), ("a", 30)]
RIGHT = [("a", 5), ("a", 10), ("b", 24), ("a", 33), ("a", 40)]
LATE = OutputTag("late")


def timed(env: StreamExecutionEnvironment, records: list[Any]) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, _: record[1]
    )
    return env.from_collection(records).assign_timestamps_and_watermarks(strategy)


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def run(stream: DataStream) -> list[Any]:
    with stream.execute_and_collect(in_process=True) as found:
        return sorted(found)


def joined() -> Any:
    env = environment()
    left, right = (timed(env, records).key_by(lambda r: r[0]) for records in (LEFT, RIGHT))
    return left.interval_join(right)


def pairs(lower: int, upper: int) -> list[Any]:
    return sorted(
        (left, right)
        for left in LEFT
        for right in RIGHT
        if left[0] == right[0] and lower <= right[1] - left[1] <= upper
    )


@pytest.mark.parametrize(
    ("lower", "upper"), [(0, 10), (-5, 0), (Time.milliseconds(-5), timedelta(milliseconds=10))]
)
def test_records_are_joined_between_inclusive_bounds(lower: Any, upper: Any) -> None:
    bounds = {0: (0, 10), -5: (-5, 0)}.get(lower if isinstance(lower, int) else 1, (-5, 10))
    found = run(joined().between(lower, upper).process(lambda left, right: (left, right)))
    assert found == pairs(*bounds)


def test_bounds_can_be_exclusive() -> None:
    exclusive = joined().in_event_time().between(0, 10).lower_bound_exclusive()
    found = run(exclusive.upper_bound_exclusive().process(lambda left, right: (left, right)))
    assert found == pairs(1, 9)
    found = run(joined().between(0, 4).upper_bound_exclusive().process(lambda a, b: (a, b)))
    assert found == pairs(0, 3)


class Differences(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Any:
        if left[0] == "a":
            yield ctx.get_right_timestamp() - ctx.get_left_timestamp(), ctx.get_timestamp()


def test_a_process_join_function_sees_the_timestamps() -> None:
    assert run(joined().between(0, 5).process(Differences())) == [(0, 10), (3, 33)]


def test_late_records_go_to_side_outputs_of_their_streams() -> None:
    env = environment().set_parallelism(1)
    left, right = timed(env, LEFT), timed(env, [("z", 50), ("a", 1), ("a", 51)])
    after = right.filter(lambda record: True)
    keyed = left.key_by(lambda r: r[0]).interval_join(after.key_by(lambda r: r[0]))
    stream = (
        keyed.between(0, 30)
        .side_output_left_late_data(LATE)
        .side_output_right_late_data(LATE)
        .process(lambda a, b: (a, b))
    )
    found = run(stream.union(stream.get_side_output(LATE)))
    assert (("a", 30), ("a", 51)) in found


# ---- wrong programs


def test_both_streams_are_keyed_and_of_one_environment() -> None:
    env = environment()
    left, right = timed(env, LEFT), timed(env, RIGHT)
    keyed = left.key_by(lambda r: r[0])
    with pytest.raises(GraphError, match="no 'interval_join': call key_by first, on both"):
        left.interval_join(right)  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match=r"takes a keyed stream.*: call key_by on it"):
        keyed.interval_join(right)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"takes a keyed stream, not 3$"):
        keyed.interval_join(3)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="same environment"):
        keyed.interval_join(timed(environment(), RIGHT).key_by(lambda r: r[0]))


def test_declared_key_types_are_compared() -> None:
    env = environment()
    left, right = timed(env, LEFT), timed(env, RIGHT)
    keyed = left.key_by(lambda r: r[0], Types.STRING())
    with pytest.raises(GraphError, match="different types, STRING and LONG"):
        keyed.interval_join(right.key_by(lambda r: r[1], Types.LONG()))


def test_keys_are_compared_while_the_job_runs() -> None:
    env = environment()
    left, right = timed(env, LEFT), timed(env, RIGHT)
    pair = left.key_by(lambda r: r[0]).interval_join(right.key_by(lambda r: r[1]))
    with pytest.raises(JobError, match=r"keys of different types: '.' \(str\) in the first stre"):
        run(pair.between(0, 5).process(lambda a, b: (a, b)))


def test_bounds_are_checked() -> None:
    with pytest.raises(GraphError, match=r"wrong way round.*write between\(-5, 5\)"):
        joined().between(5, -5)
    with pytest.raises(GraphError, match="lower bound of an interval join is a number of milli"):
        joined().between("5 s", 10)
    with pytest.raises(GraphError, match="whole number of milliseconds"):
        joined().between(0, 2.5)
    with pytest.raises(GraphError, match="has a bound of more than"):
        joined().between(0, 2**61)
    exclusive = joined().between(3, 4).lower_bound_exclusive().upper_bound_exclusive()
    with pytest.raises(GraphError, match="has no results if its bounds are exclusive"):
        exclusive.process(lambda a, b: (a, b))


def test_calls_that_are_missing_are_named() -> None:
    with pytest.raises(GraphError, match="first needs its bounds: call between"):
        joined().process(lambda a, b: (a, b))
    with pytest.raises(GraphError, match="works by event time only"):
        joined().in_processing_time()
    with pytest.raises(GraphError, match=r"takes an OutputTag, not 'late': write OutputTag\('lat"):
        joined().between(0, 5).side_output_left_late_data("late")


class One(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return first


def generating(left: Any, right: Any) -> Any:
    yield left


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda record: record, "calls its function as"),
        (Differences, "an instance, not the class"),
        (One(), "takes a ProcessJoinFunction, or a function that returns one record"),
        (generating, "define a ProcessJoinFunction to emit any number"),
        (3, "takes a function"),
    ],
)
def test_process_takes_a_function_of_its_kind(function: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        joined().between(0, 5).process(function)


def test_both_streams_need_timestamps() -> None:
    env = environment()
    left = timed(env, LEFT).key_by(lambda r: r[0])
    right = env.from_collection(RIGHT).key_by(lambda r: r[0])
    with pytest.raises(GraphError, match=r"records of its second stream timestamps.*before it$"):
        run(left.interval_join(right).between(0, 5).process(lambda a, b: (a, b)))

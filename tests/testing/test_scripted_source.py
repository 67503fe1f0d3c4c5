"""Jobs whose source follows a script, and whose output is collected, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import (
    GraphError,
    JobError,
    KeyedProcessFunction,
    PenstockError,
    RestartStrategies,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.testing import (
    Barrier,
    CollectingSink,
    EndOfInput,
    Fail,
    TestSource,
    TimedRecord,
    Watermark,
)
from penstock.testing.fixtures import operator_harness, penstock_env, penstock_in_process

__all__ = ["operator_harness", "penstock_env", "penstock_in_process"]


SEEN: list[Any] = []


def see(value: Any) -> Any:
    SEEN.append(value)
    return value


def environment(parallelism: int = 1) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment().set_parallelism(parallelism).set_in_process()


def collected(script: list[Any], parallelism: int = 1) -> tuple[list[Any], Any]:
    env, sink = environment(parallelism), CollectingSink()
    env.from_source(TestSource(script)).sink_to(sink)
    return sink.values, env.execute()


def test_a_script_without_failures_emits_its_records_in_order():
    values, result = collected(["a", "b", Barrier, "c", EndOfInput])
    assert values == ["a", "b", "c"]
    assert not result.restarts
    assert [one["kind"] for one in result.snapshots] == ["checkpoint", "savepoint", "final"]


def test_the_job_restarts_from_the_snapshot_of_the_last_barrier():
    env, sink = environment(), CollectingSink()
    script = ["a", Barrier, "b", Fail, "c", Barrier, "d", Fail("again"), "e"]
    env.from_source(TestSource(script)).map(see).sink_to(sink)
    SEEN.clear()
    result = env.execute()
    assert SEEN == ["a", "b", "b", "c", "d", "d", "e"]
    assert sink.values == ["a", "b", "c", "d", "e"]
    assert ["again" in one["cause"] for one in result.restarts] == [False, True]


def test_without_a_barrier_the_job_begins_again_and_output_comes_once():
    values, result = collected(["a", "b", Fail, Fail, "c"], parallelism=2)
    assert values == ["a", "b", "c"]
    assert len(result.restarts) == 2
    assert all(one["snapshot"] is None for one in result.restarts)


def test_a_second_execution_fails_again():
    env, source = environment(), TestSource(["a", Fail])
    for _ in range(2):
        sink = CollectingSink()
        env.from_source(source).sink_to(sink)
        assert len(env.execute().restarts) == 1
        assert sink.values == ["a"]


def test_the_restart_strategy_of_the_program_holds():
    env = environment()
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.from_source(TestSource(["a", Fail("no more")])).sink_to(CollectingSink())
    with pytest.raises(JobError, match="no more"):
        env.execute()


def test_watermarks_of_the_script_fire_windows_also_after_a_restart():
    script = [
        TimedRecord(("a", 1), 1),
        TimedRecord(("a", 2), 12),
        Watermark(9),
        Barrier,
        TimedRecord(("a", 100), 5),  # late, before and after the restart
        TimedRecord(("a", 4), 13),
        Fail,
        Watermark(25),
        TimedRecord(("a", 8), 31),
    ]
    env = environment(2)
    sums = (
        env.from_source(TestSource(script))
        .key_by(lambda pair: pair[0])
        .window(TumblingEventTimeWindows.of(10))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    assert sorted(sums.execute_and_collect()) == [("a", 1), ("a", 6), ("a", 8)]


class Watermarks(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()


def test_records_without_event_time_may_stand_beside_watermarks():
    env = environment()
    source = TestSource(["a", Watermark(5), TimedRecord("b", 7)])
    stream = env.from_source(source).key_by(lambda value: value).process(Watermarks())
    (a, b) = stream.execute_and_collect()
    assert a[:2] == ("a", None) and b == ("b", 7, 5)


def test_a_watermark_strategy_of_the_program_is_used_too():
    env = environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    source = TestSource([TimedRecord("a", 10), Watermark(50), TimedRecord("b", 60)])
    env.config.auto_watermark_interval_seconds = 0
    stream = env.from_source(source, strategy).key_by(lambda value: value).process(Watermarks())
    assert [row[2] for row in stream.execute_and_collect()][1:] == [50]


def test_two_scripted_sources_run_in_one_job():
    env, sink = environment(2), CollectingSink()
    first = env.from_source(TestSource(["a", Barrier, "b", Fail, "c"]))
    second = env.from_source(TestSource(["x", Barrier, "y", Barrier, "z"]))
    first.union(second).key_by(lambda value: value).count().sink_to(sink)
    result = env.execute()
    assert sorted(sink) == [(value, 1) for value in "abcxyz"]
    assert len(sink) == 6 and len(result.restarts) == 1
    sink.clear()
    assert not sink.values


@pytest.mark.parametrize(
    ("script", "message"),
    [([EndOfInput, "a"], "behind the EndOfInput"), ([Watermark(2), Watermark(1)], "ascend")],
)
def test_a_script_that_makes_no_sense_is_refused(script: list[Any], message: str):
    with pytest.raises(GraphError, match=message):
        TestSource(script)


@pytest.mark.parametrize("part", ["source", "sink"])
def test_a_job_in_processes_of_its_own_is_refused(part: str):
    env = StreamExecutionEnvironment().set_parallelism(1)
    stream = env.from_source(TestSource(["a"])) if part == "source" else env.from_collection(["a"])
    stream.sink_to(CollectingSink())
    with pytest.raises(PenstockError, match="in the process of the test"):
        env.execute()


def test_the_fixtures_run_jobs_in_this_process_and_close_harnesses(penstock_env, operator_harness):
    stream = penstock_env.from_source(TestSource([1, 2, 3])).map(lambda number: -number)
    assert sorted(stream.execute_and_collect()) == [-3, -2, -1]
    harness = operator_harness(lambda numbers: numbers.map(abs))
    harness.process_element(-1)
    assert harness.extract_output_values() == [1]

"""Behind a slow function the records in flight take about 100 ms, so snapshots do not wait long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import DataStream, FileSource, StreamExecutionEnvironment
from penstock.connectors import GeneratorSource
from tests.runtime.network.flow import Flow, now, spend

#: A slow function takes so long for a record.
SLOW_SECONDS = 0.002
#: Two stages of 100 ms, and some turns of the processes.
MOST_SECONDS = 0.25


def slow(record: Any) -> Any:
    spend(SLOW_SECONDS)
    return record


def uneven(record: Any) -> Any:
    """Take 200 ms for one record of a hundred."""
    if record % 100 == 99:
        spend(100 * SLOW_SECONDS)
    return record


def slow_after_two_seconds(record: Any) -> Any:
    spend(1e-5 if now() < 2 else SLOW_SECONDS)
    return record


def same(record: Any) -> Any:
    return record


def ignore(record: Any) -> None:
    del record


#: For how long each record of `sleep` was on its way to `arrive`, in seconds.
LATE: list[float] = []


def sleep(record: Any) -> float:
    """Take 200 ms, and return the time at which the call ended."""
    spend(0.2)
    return now()


def arrive(emitted: float) -> None:
    LATE.append(now() - emitted)


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    return env


def generator(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    del folder
    return env.from_generator(same)


def sequence(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    del folder
    return env.from_sequence(0, 10**9)


def collection(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    del folder
    return env.from_collection(range(50_000))


def lines(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    for name in "ab":
        (folder / name).write_text("line\n" * 50_000)
    return env.from_source(FileSource([folder / "a", folder / "b"]))


def paced(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    """Make 20,000 records per second, which is more than is taken."""
    del folder
    source = GeneratorSource(same, records_per_second=20_000, clock=now)
    return env.from_source(source, None, "paced")


def durations(flow: Flow, count: int = 6, seconds: float = 0.5) -> list[float]:
    """Take so many snapshots, with so much time between them."""
    found = []
    for _ in range(count):
        flow.run(seconds)
        found.append(flow.snapshot())
    return found


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("source", [generator, sequence, collection, lines, paced])
def test_a_snapshot_behind_a_slow_function_is_quick_from_the_first(
    tmp_path: Path,
    source: Callable[[StreamExecutionEnvironment, Path], DataStream],
    between: bool,
) -> None:
    env = environment()
    stream = source(env, tmp_path)
    if between:
        stream = stream.rebalance().map(same).name("quick")
    stream.rebalance().map(slow).name("slow").add_sink(ignore)
    with Flow(env, tmp_path / "snapshots") as flow:
        assert max(durations(flow)) < MOST_SECONDS
        # And it is never left without work.
        assert flow.records("slow")[0] > 0.9 * 2 * flow.now / SLOW_SECONDS


def test_within_one_process_it_is_the_same(tmp_path: Path) -> None:
    env = environment(1)
    stream = paced(env, tmp_path).key_by(lambda record: record % 7)
    stream.map(slow).name("slow").add_sink(ignore)
    with Flow(env, tmp_path) as flow:
        flow.run(3)
        given, taken = flow.records("paced")[1], flow.records("slow")[0]
        assert given - taken <= 0.1 / SLOW_SECONDS
        assert flow.snapshot() < 0.1


def test_the_target_is_a_setting(tmp_path: Path) -> None:
    found = []
    for target in (20, 1000):
        env = environment().set_buffer_debloat_target(target)
        stream = env.from_sequence(0, 10**9).rebalance().map(same).rebalance()
        stream.map(slow).name("slow").add_sink(ignore)
        with Flow(env, tmp_path / str(target)) as flow:
            found.append(max(durations(flow)[1:]))
    assert found[0] < 0.05 < found[1] < 1


def test_records_of_uneven_cost_count_by_their_average(tmp_path: Path) -> None:
    env = environment()
    stream = env.from_sequence(0, 10**9).rebalance()
    stream.map(uneven).name("slow").add_sink(ignore)
    with Flow(env, tmp_path) as flow:
        # A single one takes 0.2 s, and each of the two may have one in hand and one in flight.
        assert max(durations(flow)[1:]) < 1


def test_a_function_that_becomes_slow_is_followed_soon(tmp_path: Path) -> None:
    env = environment()
    stream = env.from_sequence(0, 10**9).rebalance()
    stream.map(slow_after_two_seconds).name("slow").add_sink(ignore)
    with Flow(env, tmp_path) as flow:
        flow.run(2.5)
        assert flow.snapshot() < 5
        assert max(durations(flow, 3)) < MOST_SECONDS


def test_the_output_of_a_function_that_blocks_leaves_before_its_next_call(tmp_path: Path) -> None:
    LATE.clear()
    env = environment()
    slow = env.from_sequence(0, 10**9).rebalance().map(sleep).name("slow")
    slow.rebalance().map(same).rebalance().add_sink(arrive)
    with Flow(env, tmp_path) as flow:
        flow.run(20)
    # Each hop may end in the other process, whose own call must end first.
    assert len(LATE) > 100
    assert max(LATE[10:]) < 3 * 0.2 + 0.05


def test_a_slow_consumer_and_a_quick_one_of_the_same_stream(tmp_path: Path) -> None:
    env = environment()
    stream = env.from_sequence(0, 10**9).name("numbers")
    stream.rebalance().map(slow).name("slow").add_sink(ignore)
    stream.rebalance().map(same).name("quick").add_sink(ignore)
    with Flow(env, tmp_path) as flow:
        assert max(durations(flow)) < MOST_SECONDS


def test_many_senders_share_what_may_be_in_flight(tmp_path: Path) -> None:
    env = environment(6)
    numbers = env.from_sequence(0, 10**9)
    numbers.key_by(lambda record: 0).map(slow).name("slow").add_sink(ignore)
    with Flow(env, tmp_path) as flow:
        # Each has sent its first batches before any record was processed.
        first, *others = durations(flow, 3)
        assert first < 1
        assert max(others) < MOST_SECONDS


def test_what_is_held_back_is_blocked_and_what_is_paced_is_idle(tmp_path: Path) -> None:
    env = environment(1)
    stream = paced(env, tmp_path)
    stream.key_by(lambda record: record % 7).map(slow).name("slow").add_sink(ignore)
    with Flow(env, tmp_path / "a") as flow:
        flow.run(2)
        source = flow.tasks[0]
        assert source.outputs.blocked_seconds > 0.9 * flow.now
    env = environment(1)
    stream = paced(env, tmp_path)
    stream.key_by(lambda record: record % 7).map(same).name("quick").add_sink(ignore)
    with Flow(env, tmp_path / "b") as flow:
        flow.run(2)
        assert flow.tasks[0].outputs.blocked_seconds < 0.1 * flow.now


def test_a_task_that_is_blocked_for_long_reports_it_while_it_is(tmp_path: Path) -> None:
    env = environment(1)
    stream = env.from_sequence(0, 10**9).rebalance()
    stream.map(same).name("quick").key_by(same).map(ignore).add_sink(ignore)
    with Flow(env, tmp_path) as flow:
        source, runners = flow.tasks[0], flow.processes[0].runners
        flow.processes[0].runners = runners[:1]
        flow.run(5)
        flow.processes[0].runners = runners
        assert source.outputs.blocked_seconds > 4.9

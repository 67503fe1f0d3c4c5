"""A failed task restarts with all tasks upstream, if these send the others the same again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock import (
    BroadcastProcessFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.partial_restart import PartialRestarts, chains_to_log
from penstock.dataflow.time.watermark_generators import AscendingTimestampsWatermarks

Task = tuple[int, int]


def plan_of(
    build: Callable[[StreamExecutionEnvironment, DataStream], DataStream],
) -> ExecutionGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    build(env, env.from_sequence(1, 9)).print()
    return compile_graph(env._graph, env.config)


def keyed(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return stream.key_by(lambda n: n % 2).count()


def two_keyed(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return keyed(env, keyed(env, stream).map(lambda pair: pair[1]))


def timed(
    env: StreamExecutionEnvironment, stream: DataStream, strategy: WatermarkStrategy
) -> DataStream:
    """Give event times to records of two sources."""
    return stream.union(env.from_sequence(10, 19)).assign_timestamps_and_watermarks(strategy)


class Broadcast(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return []


class KeyedBroadcast(KeyedBroadcastProcessFunction):
    process_element = Broadcast.process_element
    process_broadcast_element = Broadcast.process_broadcast_element


def logging(plan: ExecutionGraph) -> ExecutionGraph:
    return replace(plan, isolated=True, logged=chains_to_log(plan))


def reason(plan: ExecutionGraph, failed: Task) -> str | None:
    restarts = PartialRestarts(plan)
    return restarts.why_not(restarts.with_upstream([failed]))


def test_a_source_restarts_alone():
    plan = plan_of(keyed)
    restarts = PartialRestarts(plan)
    assert restarts.with_upstream([(0, 1)]) == {(0, 1)}
    assert reason(plan, (0, 1)) is None
    assert restarts.sends_again({(0, 1)}) == {(0, 1)}


def test_a_keyed_task_restarts_with_all_sources():
    plan = plan_of(keyed)
    restarts = PartialRestarts(plan)
    tasks = restarts.with_upstream([(1, 1)])
    assert tasks == {(0, 0), (0, 1), (1, 1)}
    assert restarts.why_not(tasks) is None


def test_sources_whose_receivers_all_restart_need_not_send_the_same():
    restarts = PartialRestarts(plan_of(lambda env, stream: stream.disable_chaining().map(str)))
    tasks = restarts.with_upstream([(1, 0)])
    assert tasks == {(0, 0), (1, 0)}
    assert restarts.sends_again(tasks) == frozenset()


def test_tasks_with_several_inputs_may_send_in_another_order():
    plan = plan_of(two_keyed)
    assert reason(plan, (0, 0)) is None
    assert reason(plan, (1, 0)) == "the order of the records of Count may change"
    assert reason(plan, (2, 1)) == "the order of the records of Count may change"


def test_tasks_that_log_their_steps_send_in_the_same_order():
    plan = logging(plan_of(two_keyed))
    # The last tasks send nothing, so they have nothing to repeat.
    assert plan.logged == {1}
    assert reason(plan, (1, 0)) is None
    assert reason(plan, (2, 1)) is None


def test_tasks_behind_tasks_that_log_continue():
    plan = logging(plan_of(lambda env, stream: two_keyed(env, stream).key_by(lambda one: one[0])))
    assert plan.logged == {1, 2}
    assert reason(plan, (2, 0)) is None


@pytest.mark.parametrize("keyed", [False, True], ids=["without keys", "keyed"])
def test_tasks_with_broadcast_state_log_their_steps(keyed: bool):
    def build(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
        rules = env.from_sequence(1, 3).broadcast(MapStateDescriptor("rules"))
        if keyed:
            told = stream.key_by(lambda n: n % 2).connect(rules).process(KeyedBroadcast())
        else:
            told = stream.connect(rules).process(Broadcast())
        return told.key_by(lambda one: one).count()

    plan = logging(plan_of(build))
    (chain,) = plan.logged
    assert reason(plan, (chain, 0)) is None


def rows(stream: DataStream) -> DataStream:
    pytest.importorskip("pyarrow")
    return stream.map(lambda n: {"key": n % 2, "n": n})


def in_batches(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    both = rows(stream).union(rows(env.from_sequence(10, 19)))
    return both.filter(bool).map_batches(lambda batch: batch)


def in_windows(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    timed = rows(stream).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 1)
    )
    windows = timed.group_by("key").window(TumblingEventTimeWindows.of(10))
    return windows.agg(n=("n", "sum")).map_batches(lambda batch: batch)


@pytest.mark.parametrize("build", [in_batches, in_windows])
def test_tasks_with_columns_log_their_steps(build):
    plan = logging(plan_of(lambda env, stream: keyed(env, build(env, stream).map(str))))
    (chain,) = plan.logged
    assert reason(plan, (chain, 0)) is None


@pytest.mark.parametrize(
    "build",
    [
        lambda env, stream: stream.rebalance().assign_timestamps_and_watermarks(
            WatermarkStrategy.for_generator(lambda: AscendingTimestampsWatermarks())
        ),
        lambda env, stream: rows(stream).group_by("key").agg(n=("n", "sum")),
        lambda env, stream: rows(keyed(env, stream).map(len)).map_batches(lambda batch: batch),
    ],
    ids=["has a generator of its own", "has values of either type", "fires timers in pieces"],
)
def test_tasks_that_cannot_repeat_their_steps_do_not_log_them(build):
    plan = logging(plan_of(lambda env, stream: keyed(env, build(env, stream).map(str))))
    assert not plan.logged


@pytest.mark.parametrize(
    "strategy",
    [
        WatermarkStrategy.no_watermarks(),
        WatermarkStrategy.for_monotonous_timestamps().with_idleness(1000),
        WatermarkStrategy.for_bounded_out_of_orderness(50),
    ],
    ids=["none", "monotonous", "bounded"],
)
def test_tasks_that_make_watermarks_log_their_steps(strategy: WatermarkStrategy):
    plan = logging(plan_of(lambda env, stream: keyed(env, timed(env, stream, strategy))))
    assert plan.logged == {2}
    assert reason(plan, (2, 0)) is None


def test_a_generator_of_the_program_is_not_repeated():
    strategy = WatermarkStrategy.for_generator(lambda: AscendingTimestampsWatermarks())
    plan = logging(plan_of(lambda env, stream: keyed(env, timed(env, stream, strategy))))
    assert not plan.logged
    assert (
        reason(plan, (2, 0))
        == "the watermark generator of Timestamps/Watermarks has a state of its own"
    )


def test_tasks_that_only_need_their_records_do_not_log():
    plan = logging(plan_of(lambda env, stream: keyed(env, stream.disable_chaining().map(str))))
    assert not plan.logged


@pytest.mark.parametrize("partitioning", ["rebalance", "rescale", "shuffle"])
def test_records_go_to_the_same_tasks_again(partitioning: str):
    plan = plan_of(lambda env, stream: getattr(stream, partitioning)().map(str).set_parallelism(4))
    assert reason(plan, (0, 1)) is None


def test_if_all_tasks_restart_none_can_continue():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.from_sequence(1, 9).global_().print().set_parallelism(1)
    plan = compile_graph(env._graph, env.config)
    assert reason(plan, (1, 0)) == "each task sends records to the failed one"


def looping(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """Numbers that pass a keyed task until they are 0."""
    back = env.create_feedback("back")
    seen = stream.union(back).key_by(lambda n: n % 2).map(lambda n: n)
    back.close_with(seen.filter(lambda n: n > 0).map(lambda n: n - 1))
    return seen


def chain_of(plan: ExecutionGraph, name: str) -> int:
    (found,) = [chain.id for chain in plan.chains if name in chain.name]
    return found


def loops_of(plan: ExecutionGraph) -> set[Task]:
    return {task for task in plan.tasks() if plan.loop_of(task[0]) is not None}


def test_a_loop_continues_without_the_tasks_in_front_of_it():
    def built(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
        return looping(env, two_keyed(env, stream).map(lambda pair: pair[1]))

    plan = logging(plan_of(built))
    assert loops_of(plan) and not plan.logged & {chain for chain, _ in loops_of(plan)}
    assert plan.logged == {1, 2}  # those in front of the loop
    for failed in [(0, 0), (1, 0), (2, 1)]:
        assert reason(plan, failed) is None
        assert not PartialRestarts(plan).with_upstream([failed]) & loops_of(plan)


def test_tasks_behind_a_loop_restart_with_it():
    plan = logging(plan_of(lambda env, stream: keyed(env, looping(env, stream))))
    behind = chain_of(plan, "Count")
    inside = min(loops_of(plan))
    assert PartialRestarts(plan).with_upstream([inside]) >= loops_of(plan)
    for failed in (inside, (behind, 0)):
        text = reason(plan, failed)
        name = plan.chains[inside[0]].name
        assert text == f"{name} is in a loop, so the order of its records may change"


def test_the_reason_of_tasks_far_behind_a_loop_is_the_loop():
    plan = logging(plan_of(lambda env, stream: two_keyed(env, looping(env, stream))))
    text = reason(plan, (max(task[0] for task in plan.tasks()), 0))
    assert text is not None and "is in a loop" in text


def test_branches_that_no_loop_feeds_continue():
    def built(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
        looping(env, stream).print()
        return keyed(env, stream)

    plan = logging(plan_of(built))
    branch = chain_of(plan, "Count")
    restarts = PartialRestarts(plan)
    tasks = restarts.with_upstream([min(loops_of(plan))])
    assert tasks == loops_of(plan) | {(0, 0), (0, 1)}
    assert restarts.why_not(tasks) is None
    assert restarts.sends_again(tasks) == {(0, 0), (0, 1)}
    assert reason(plan, (branch, 1)) is None
    assert not restarts.with_upstream([(branch, 1)]) & loops_of(plan)


def test_a_loop_of_one_subtask_restarts_without_those_of_the_others():
    def built(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
        back = env.create_feedback("back")
        seen = stream.union(back).map(lambda n: n)
        back.close_with(seen.filter(lambda n: n > 0).map(lambda n: n - 1))
        return seen

    plan = plan_of(built)
    assert loops_of(plan) == {(1, 0), (1, 1)}
    assert PartialRestarts(plan).with_upstream([(1, 1)]) == {(0, 1), (1, 1)}
    assert reason(plan, (1, 1)) is None


@pytest.mark.parametrize("failed", [(0, 0), (1, 0)])
def test_a_chain_of_single_channels_keeps_its_order(failed: Task):
    plan = plan_of(lambda env, stream: keyed(env, stream.disable_chaining().map(lambda n: n)))
    assert len(plan.chains) == 3
    assert reason(plan, failed) is None


def test_slots_of_an_isolated_graph():
    plan = replace(plan_of(keyed), isolated=True)
    assert plan.slots == 4
    assert [plan.slot_of(*task) for task in plan.tasks()] == [0, 1, 2, 3]
    assert plan.tasks_of(3) == [(1, 1)]
    link = plan.links[0]
    assert {plan.ends(channel) for channel in plan.channels(link)} == {
        (0, 2),
        (0, 3),
        (1, 2),
        (1, 3),
    }
    shared = replace(plan, isolated=False)
    assert shared.slots == 2 and shared.tasks_of(1) == [(0, 1), (1, 1)]

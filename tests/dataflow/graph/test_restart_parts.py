"""How many workers a job needs, at its own parallelism and at others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.restart_parts import restart_parts, slot_counts, slots_at

HIGHEST = 9


def environment(scope: RestartScope) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.config.restart_scope = scope
    env.config.max_parallelism = HIGHEST
    return env.enable_checkpointing(100)


def two_regions(scope: RestartScope) -> StreamExecutionEnvironment:
    env = environment(scope).set_parallelism(2)
    for count in (3, 4):
        env.from_sequence(1, count).key_by(lambda n: n % 2).count().print()
    return env


@pytest.mark.parametrize(
    ("scope", "slots", "text"),
    [
        (RestartScope.JOB, 2, "workers: 2   key"),
        (RestartScope.REGION, 4, "workers: 4 in 2 regions   key"),
        (RestartScope.TASK, 8, "workers: 8, one for each task   key"),
    ],
)
def test_regions_and_single_tasks_share_no_workers(scope, slots, text):
    env = two_regions(scope)
    plan = compile_graph(env._graph, env.config)
    parts = restart_parts(env._graph, env.config, plan)
    assert (parts.slots, parts.scope) == (slots, scope)
    assert env.get_execution_plan("text").startswith(text)


def test_a_job_with_a_loop_has_a_worker_for_each_task():
    env = environment(RestartScope.TASK).set_parallelism(2)
    back = env.create_feedback("back")
    seen = env.from_sequence(1, 3).union(back).key_by(lambda n: n % 2).map(lambda n: n)
    back.close_with(seen.filter(lambda n: n > 0).rebalance().map(lambda n: n - 1))
    seen.key_by(lambda n: n % 2).count().print()
    plan = compile_graph(env._graph, env.config)
    assert plan.loops and len(plan.chains) == 4
    parts = restart_parts(env._graph, env.config, plan)
    assert (parts.slots, parts.scope, parts.note) == (8, RestartScope.TASK, None)
    assert slots_at(slot_counts(env._graph, env.config), 3) == 12


def test_without_snapshots_the_whole_job_shares_its_workers():
    env = two_regions(RestartScope.TASK)
    env.config.checkpoint_interval_seconds = None
    plan = compile_graph(env._graph, env.config)
    parts = restart_parts(env._graph, env.config, plan)
    assert (parts.slots, parts.scope) == (2, RestartScope.JOB)


def random_program(scope: RestartScope, choose: random.Random) -> StreamExecutionEnvironment:
    env = environment(scope)
    for _ in range(choose.randint(1, 3)):
        stream = env.from_sequence(1, 9)
        for _ in range(choose.randint(1, 4)):
            if choose.random() < 0.3:
                stream = stream.rebalance()
            stream = stream.map(str)
            if choose.random() < 0.6:
                stream = stream.set_parallelism(choose.randint(1, HIGHEST))
        if choose.random() < 0.3:
            turning = stream.rebalance().iterate()
            stream = turning.map(str)
            turning.close_with(stream.rebalance().filter(bool))
        stream.print()
    return env


@pytest.mark.parametrize("scope", RestartScope)
def test_the_workers_are_known_for_each_parallelism(scope):
    more = 0
    for seed in range(60):
        env = random_program(scope, random.Random(seed))
        counts = slot_counts(env._graph, env.config)
        for parallelism in range(1, HIGHEST + 1):
            config = replace(env.config, parallelism=parallelism)
            plan = compile_graph(env._graph, config)
            slots = restart_parts(env._graph, config, plan).slots
            assert slots_at(counts, parallelism) == slots, (seed, parallelism, counts)
            more += slots > plan.slots
    assert (more > 0) is (scope is not RestartScope.JOB)


def test_a_parallelism_with_which_the_program_cannot_run_has_no_row():
    env = environment(RestartScope.TASK).set_parallelism(4)
    numbers = env.from_sequence(1, 9).map(str).set_parallelism(4)
    numbers.forward().map(int).print()
    with pytest.raises(GraphError, match="needs equal parallelism"):
        compile_graph(env._graph, replace(env.config, parallelism=3))
    counts = slot_counts(env._graph, env.config)
    assert [first for first, _, _ in counts] == [4]
    assert slots_at(counts, 4) == compile_graph(env._graph, env.config).slots

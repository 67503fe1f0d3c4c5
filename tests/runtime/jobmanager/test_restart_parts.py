"""Which parts of a job restart alone, and what is said if none do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock import GeneratorSource, StreamExecutionEnvironment, WatermarkStrategy
from penstock.dataflow.config import CheckpointingMode, RuntimeExecutionMode
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.reporting.job_events import JobEvent, Note
from penstock.runtime.jobmanager.restart_parts import choose_regions
from penstock.runtime.system.system import real_system


def environment(parts: int, aligned: bool = False, scope: RestartScope = RestartScope.REGION):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.config.restart_scope = scope
    for part in range(parts):
        strategy = WatermarkStrategy.for_monotonous_timestamps()
        if aligned:
            strategy = strategy.with_watermark_alignment("group", 1_000)
        numbers = env.from_source(GeneratorSource(lambda i: i, 1), strategy, f"numbers {part}")
        numbers.key_by(lambda n: n % 3).reduce(lambda a, b: a + b).print()
    return env


def chosen(
    env: StreamExecutionEnvironment, keep: bool = True, together: bool = False
) -> tuple[list[list[int]], list[str]]:
    """The chains of each region, and the notes."""
    plan = compile_graph(env._graph, env.config)
    events: list[JobEvent] = []
    system = replace(real_system(), workers_start_together=together)
    code = JobCode(env._graph, env.config)
    regions: tuple[ExecutionGraph, ...] = choose_regions(code, plan, keep, system, events.append)
    notes = [event.text for event in events if isinstance(event, Note)]
    return [[chain.id for chain in region.running_chains] for region in regions], notes


def test_parts_without_a_path_between_them_are_regions():
    assert chosen(environment(3)) == ([[0, 1], [2, 3], [4, 5]], [])


def test_streams_that_meet_are_one_region():
    env = environment(0)
    left, right, other = (env.from_collection([n]) for n in range(3))
    left.union(right).rebalance().map(str).print()
    other.key_by(lambda n: n).map(str).print()
    assert len(chosen(env)[0]) == 2


def test_by_default_the_job_restarts_as_a_whole_and_nothing_is_said():
    assert chosen(environment(2, scope=RestartScope.JOB)) == ([[0, 1, 2, 3]], [])


@pytest.mark.parametrize(
    ("env", "options", "reason"),
    [
        (environment(1), {}, "all of its tasks are connected"),
        (environment(2, aligned=True), {}, "all of its tasks are connected"),
        (environment(2), {"keep": False}, "its snapshots hold no state"),
        (environment(2), {"together": True}, "Spark starts all workers together"),
    ],
)
def test_a_job_that_cannot_restart_by_regions_says_why(env, options, reason):
    regions, notes = chosen(env, **options)
    assert len(regions) == 1
    assert notes == [f"restart_scope is region, but the job restarts as a whole: {reason}"]


def test_tasks_that_restart_alone_have_slots_of_their_own():
    env = environment(2, scope=RestartScope.TASK).set_parallelism(2)
    assert chosen(env) == ([[0, 1], [2, 3]], [])
    plan = compile_graph(env._graph, env.config)
    code = JobCode(env._graph, env.config)
    regions = choose_regions(code, plan, True, real_system(), lambda _: None)
    assert [(region.isolated, region.slots) for region in regions] == [(True, 4), (True, 4)]


def _changed(env: StreamExecutionEnvironment, **settings: Any) -> StreamExecutionEnvironment:
    for name, value in settings.items():
        setattr(env.config, name, value)
    return env


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (
            _changed(environment(1), runtime_mode=RuntimeExecutionMode.BATCH),
            "it runs in batch mode",
        ),
        (
            _changed(environment(1), checkpointing_mode=CheckpointingMode.UNALIGNED),
            "the checkpointing mode is unaligned",
        ),
        (
            _changed(environment(1), restart_reactive=True),
            "restart_reactive changes the number of its workers",
        ),
        (environment(1, aligned=True), "its sources align their watermarks"),
    ],
)
def test_a_job_whose_tasks_cannot_restart_alone_says_why(env, reason):
    env.config.restart_scope = RestartScope.TASK
    regions, notes = chosen(env)
    assert len(regions) == 1
    assert notes == [f"restart_scope is task, but the job restarts as a whole: {reason}"]


def test_then_its_regions_restart_alone():
    env = _changed(environment(2, scope=RestartScope.TASK), restart_reactive=True)
    reason = "restart_reactive changes the number of its workers"
    assert chosen(env) == (
        [[0, 1], [2, 3]],
        [f"restart_scope is task, but regions restart as a whole: {reason}"],
    )


def test_the_tasks_of_a_region_are_those_of_its_chains():
    env = environment(2)
    env.set_parallelism(2)
    plan = compile_graph(env._graph, env.config)
    code = JobCode(env._graph, env.config)
    left, right = choose_regions(code, plan, True, real_system(), lambda _: None)
    assert set(left.tasks()) | set(right.tasks()) == set(plan.tasks())
    assert not set(left.tasks()) & set(right.tasks())
    assert not left.uids() & right.uids() and left.uids() | right.uids() == plan.uids()

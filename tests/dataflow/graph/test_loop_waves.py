"""How many waves a round has: enough for a probe from each task to each first task of its loop."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from penstock import DataStream, StreamExecutionEnvironment, WatermarkStrategy
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.loop_waves import LoopWaves


def _step(stream: DataStream, name: str) -> DataStream:
    return stream.map(lambda value: value).name(name).uid(name).disable_chaining()


def _hashed(stream: Any) -> Any:
    return stream.key_by(lambda value: value)


def _self_loop(env: StreamExecutionEnvironment, spread: Any) -> None:
    around = env.create_feedback("around")
    a = _step(env.from_sequence(1, 9).union(spread(around)), "a")
    around.close_with(a)


def _nested(env: StreamExecutionEnvironment, spread: Any) -> None:
    outer, inner = env.create_feedback("outer"), env.create_feedback("inner")
    a = _step(env.from_sequence(1, 9).union(spread(outer)), "a")
    b = _step(a.union(spread(inner)), "b")
    c = _step(b, "c")
    inner.close_with(c)
    outer.close_with(c)


def _ring(env: StreamExecutionEnvironment, spread: Any) -> None:
    first, second = env.create_feedback("first"), env.create_feedback("second")
    a = _step(env.from_sequence(1, 9).union(spread(first)), "a")
    b = _step(env.from_sequence(1, 9).union(spread(second)), "b")
    second.close_with(_step(a, "c"))
    first.close_with(_step(b, "d"))


def _needed(graph: ExecutionGraph) -> int:
    """The number of waves, from the channels of all tasks."""
    loop = set(graph.loops[0])
    links = [link for link in graph.links if {link.source, link.target} <= loop]
    first = LoopWaves.of(graph, 0).first
    edges = [
        ((link.source, c.source), (link.target, c.target), link.is_back_edge)
        for link in links
        for c in graph.channels(link)
    ]
    most = 1
    for start in (task for task in graph.tasks() if task[0] in loop):
        distances, todo = {start: 0}, deque([start])
        while todo:
            one = todo.popleft()
            for source, target, back in edges:
                if source == one and distances[one] + back < distances.get(target, 99):
                    distances[target] = distances[one] + back
                    todo.append(target)
        most = max(most, *(d for task, d in distances.items() if task[0] in first))
    return most


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("spread", [_hashed, lambda stream: stream], ids=["hash", "forward"])
@pytest.mark.parametrize("program", [_self_loop, _nested, _ring])
def test_a_round_has_the_waves_that_its_tasks_need(program: Any, spread: Any, parallelism: int):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    program(env, spread)
    graph = compile_graph(env._graph, env.config)
    assert LoopWaves.of(graph, 0).waves == _needed(graph)


def test_chains_behind_an_assigner_in_the_loop_have_its_event_time():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    around = env.create_feedback("around")
    a = _step(env.from_sequence(1, 9).union(_hashed(around)), "a")
    assigned = a.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps()
    ).disable_chaining()
    b = _step(assigned, "b")
    around.close_with(_step(b, "c"))
    graph = compile_graph(env._graph, env.config)
    names = {graph.chains[chain].name for chain in LoopWaves.of(graph, 0).own_time}
    assert names == {"b", "c"}

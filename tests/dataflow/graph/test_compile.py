"""Programs are compiled to chains, links and tasks; nothing is run here."""

import pytest

from penstock import GraphError, MapFunction, StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import Partitioning


def _environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def _compile(env: StreamExecutionEnvironment) -> ExecutionGraph:
    return compile_graph(env._graph, env.config)


def _chains(env: StreamExecutionEnvironment) -> list[str]:
    return [chain.name for chain in _compile(env).chains]


def test_operators_joined_by_forward_edges_are_fused():
    env = _environment()
    env.from_sequence(1, 9).map(str).filter(bool).print()
    assert _chains(env) == ["Source: Sequence → Map → Filter → Print to Std. Out"]


def test_a_key_by_begins_a_new_chain_and_its_reduce_is_chained_to_the_next_operators():
    env = _environment()
    env.from_sequence(1, 9).map(str).key_by(len).count().map(str).print()
    assert _chains(env) == ["Source: Sequence → Map", "Count → Map → Print to Std. Out"]
    [link] = _compile(env).links
    assert link.partitioning is Partitioning.HASH


def test_another_parallelism_begins_a_new_chain_and_rebalances():
    env = _environment()
    env.from_sequence(1, 9).map(str).set_parallelism(3).print().set_parallelism(3)
    assert _chains(env) == ["Source: Sequence", "Map → Print to Std. Out"]
    graph = _compile(env)
    assert graph.links[0].partitioning is Partitioning.REBALANCE
    assert len(graph.channels(graph.links[0])) == 6
    assert graph.slots == 3


def test_chaining_can_be_disabled_or_a_new_chain_begun():
    env = _environment()
    env.from_sequence(1, 9).map(str).disable_chaining().filter(bool).print()
    assert _chains(env) == ["Source: Sequence", "Map", "Filter → Print to Std. Out"]
    env = _environment()
    env.from_sequence(1, 9).map(str).start_new_chain().filter(bool).print()
    assert _chains(env) == ["Source: Sequence", "Map → Filter → Print to Std. Out"]


def test_a_union_is_not_fused_and_takes_all_inputs():
    env = _environment()
    env.from_sequence(1, 3).union(env.from_sequence(4, 6), env.from_collection([7])).map(str)
    graph = _compile(env)
    assert len(graph.chains) == 4
    assert len(graph.chains[-1].inputs) == 3


def test_a_fan_out_stays_in_one_chain():
    env = _environment()
    numbers = env.from_sequence(1, 3)
    numbers.map(str)
    numbers.filter(bool)
    [chain] = _compile(env).chains
    assert len(chain.root.children) == 2


@pytest.mark.parametrize(
    ("sources", "targets", "pairs"),
    [
        (2, 4, [(0, 0), (0, 1), (1, 2), (1, 3)]),
        (4, 2, [(0, 0), (1, 0), (2, 1), (3, 1)]),
        (2, 3, [(0, 0), (0, 1), (1, 2)]),
    ],
)
def test_rescale_connects_every_subtask_of_the_larger_side_once(sources, targets, pairs):
    env = _environment(sources)
    env.from_sequence(1, 9).rescale().map(str).set_parallelism(targets)
    graph = _compile(env)
    channels = graph.channels(graph.links[0])
    assert [(channel.source, channel.target) for channel in channels] == pairs


def test_forward_between_different_parallelisms_is_refused():
    env = _environment()
    env.from_sequence(1, 9).forward().map(str).set_parallelism(3)
    with pytest.raises(GraphError, match=r"needs equal parallelism; use rebalance\(\)"):
        _compile(env)


def test_a_program_without_a_source_is_refused():
    with pytest.raises(GraphError, match="no source"):
        _environment().execute()


@pytest.mark.parametrize("parallelism", [0, -1, True, 1.5, "2"])
def test_a_parallelism_that_is_no_positive_number_is_refused(parallelism):
    with pytest.raises(GraphError, match="parallelism"):
        _environment(parallelism)
    with pytest.raises(GraphError, match="parallelism"):
        _environment().from_sequence(1, 2).map(str).set_parallelism(parallelism)


def test_a_parallelism_above_the_maximum_is_refused():
    env = _environment(5).set_max_parallelism(4)
    env.from_sequence(1, 9).print()
    with pytest.raises(GraphError, match="5, above the max parallelism 4"):
        env.execute()
    env = _environment(1).set_max_parallelism(4)
    env.from_sequence(1, 9).map(str).set_parallelism(5)
    with pytest.raises(GraphError, match="operator 'Map' is 5, above the max parallelism 4"):
        env.execute()


def test_two_operators_with_one_uid_are_refused():
    env = _environment()
    env.from_sequence(1, 9).uid("a").map(str).uid("a")
    with pytest.raises(GraphError, match="two operators have the uid 'a'"):
        _compile(env)


def test_derived_uids_stay_when_an_unrelated_operator_is_added():
    def uids(extra: bool) -> set[str]:
        env = _environment()
        if extra:
            env.from_collection(["other"]).map(str.upper).print("other")
        env.from_sequence(1, 9).map(str).key_by(len).count().print()
        return {info.uid for info in _compile(env).operators}

    assert uids(extra=False) < uids(extra=True)


def test_the_fingerprint_is_stable_and_changes_with_the_graph():
    def fingerprint(number: int) -> str:
        env = _environment()
        stream = env.from_sequence(1, 9).map(str)
        if number:
            stream = stream.rebalance()
        stream.key_by(len).count().print()
        return _compile(env).fingerprint

    assert fingerprint(0) == fingerprint(0)
    env = _environment()
    env.from_sequence(1, 9).map(str).key_by(len).count().print()
    assert _compile(env).fingerprint == fingerprint(0)
    env.set_max_parallelism(64)
    assert _compile(env).fingerprint != fingerprint(0)


def test_a_plan_is_drawn_as_text_and_as_mermaid():
    env = _environment()
    env.from_sequence(1, 9).key_by(abs).count().uid("counts").print()
    text = env.get_execution_plan("text")
    assert "workers: 2   key groups: 128" in text
    assert "uid counts: Count" in text
    assert "hash → [1]" in text
    mermaid = env.get_execution_plan("mermaid")
    assert mermaid.startswith("flowchart LR")
    assert "c0 -->|hash| c1" in mermaid
    with pytest.raises(GraphError, match="'text' or 'mermaid'"):
        env.get_execution_plan("png")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda s: s.map(3), "map takes a function or a MapFunction"),
        (lambda s: s.map(MapFunction), "an instance, not the class"),
        (lambda s: s.process(str), "takes a ProcessFunction"),
        (lambda s: s.key_by(len).process(str), "takes a KeyedProcessFunction"),
        (lambda s: s.union(3), "union takes streams"),
        (lambda s: s.union(_environment().from_sequence(1, 2)), "of one environment"),
        (lambda s: s.sink_to(str), "sink_to takes a Sink"),
        (lambda s: s.key_by(len).name("x"), r"name\(...\) belongs right after the operator"),
        (lambda s: s.map(str).uid(""), "a uid is a non-empty string"),
        (lambda s: s.key_by(len).sum(1.5), "an aggregation needs a field position"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(wrong, message):
    with pytest.raises(GraphError, match=message):
        wrong(_environment().from_sequence(1, 9))


def test_an_async_function_is_refused():
    async def later(value):
        return value

    with pytest.raises(GraphError, match="async"):
        _environment().from_sequence(1, 9).map(later)


def test_a_socket_source_refuses_to_run_in_parallel():
    stream = _environment().socket_text_stream("localhost", 1)
    with pytest.raises(GraphError, match="a socket has one reader"):
        stream.set_parallelism(2)

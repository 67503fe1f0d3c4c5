"""Programs with loops are compiled: feedbacks resolved, back-edges and loops found, errors told."""

import random
import subprocess
import sys
from collections.abc import Callable

import networkx as nx
import pytest

from penstock import (
    DataStream,
    FeedbackStream,
    GraphError,
    IterativeStream,
    KeyedProcessFunction,
    ProcessFunction,
    ProtocolError,
    StreamExecutionEnvironment,
)
from penstock.dataflow.functions import has_end_input
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.cycles import back_edges, cyclic_components, has_cycle, unreached
from penstock.dataflow.graph.execution_graph import ExecutionGraph, Link
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.graph.uids import assign_uids


def _environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def _compile(env: StreamExecutionEnvironment) -> ExecutionGraph:
    return compile_graph(env._graph, env.config)


def _step(stream: DataStream, name: str) -> DataStream:
    """One operator with this name and uid; never fused, so that it is a vertex of its own."""
    return stream.map(lambda value: value).name(name).uid(name).disable_chaining()


def _source(env: StreamExecutionEnvironment, name: str = "source") -> DataStream:
    return env.from_sequence(1, 9).name(name).uid(name).disable_chaining()


def _edges(graph: ExecutionGraph, back: bool | None = None) -> list[str]:
    return sorted(
        f"{link.producer} → {link.consumer}"
        for link in graph.links
        if back in (None, link.is_back_edge)
    )


def _loops(graph: ExecutionGraph) -> list[list[str]]:
    return [[graph.chains[chain].name for chain in loop] for loop in graph.loops]


def _check(graph: ExecutionGraph) -> None:
    """What the snapshot algorithm needs of every graph."""
    regular = nx.MultiDiGraph()
    regular.add_nodes_from(chain.id for chain in graph.chains)
    regular.add_edges_from(
        (link.source, link.target) for link in graph.links if not link.is_back_edge
    )
    assert nx.is_directed_acyclic_graph(regular)
    for chain in graph.chains:
        entering = [graph.links[number] for number in chain.inputs]
        assert chain.is_source or any(not link.is_back_edge for link in entering), chain.name
    for link in graph.links:
        if link.is_back_edge:
            assert graph.loop_of(link.source) is not None
            assert graph.loop_of(link.source) == graph.loop_of(link.target)


# ---- shapes


def test_a_stream_that_is_iterated_over_has_one_back_edge_to_the_head_of_its_loop():
    env = _environment()
    iteration = _source(env).iterate()
    assert isinstance(iteration, IterativeStream)
    body = _step(iteration, "body")
    assert iteration.close_with(body.filter(bool).name("again").uid("again")) is not None
    body.filter(lambda value: not value).name("done").uid("done").print()
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["again → body"]
    assert _loops(graph) == [["body", "again"]]
    assert graph.loop_of(0) is None
    assert graph.loop_of(1) == 0


def test_a_whole_loop_is_one_chain_with_a_back_edge_to_its_own_head():
    env = _environment()
    feedback = env.create_feedback("again")
    # Created before what it reads; fused behind it all the same.
    second = feedback.map(str).name("second").uid("second")
    first = env.from_sequence(1, 9).union(second).map(str).name("first").uid("first")
    feedback.close_with(first)
    graph = _compile(env)
    _check(graph)
    assert [chain.name for chain in graph.chains] == ["Source: Sequence", "first → second"]
    [link] = [link for link in graph.links if link.is_back_edge]
    assert (link.producer, link.consumer) == ("second", "first")
    assert link.source == link.target == 1
    assert graph.loops == ((1,),)
    assert link.partitioning is Partitioning.FORWARD


def test_an_operator_behind_a_feedback_is_not_fused_where_chaining_is_off():
    env = _environment()
    feedback = env.create_feedback("again")
    second = feedback.map(str).name("second").uid("second").start_new_chain()
    first = env.from_sequence(1, 9).union(second).map(str).name("first").uid("first")
    feedback.close_with(first)
    graph = _compile(env)
    assert [chain.name for chain in graph.chains] == ["second", "Source: Sequence", "first"]
    assert _edges(graph, back=True) == ["second → first"]
    assert graph.loops == ((0, 2),)


def test_an_operator_can_feed_itself():
    env = _environment()
    feedback = env.create_feedback("self")
    feedback.close_with(_step(_source(env).union(feedback), "a"))
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["a → a"]
    assert _loops(graph) == [["a"]]


def test_nested_loops_are_one_component_with_two_back_edges():
    env = _environment()
    outer = _source(env).iterate()
    entry = _step(outer, "entry")
    inner = entry.iterate()
    body = _step(inner, "body")
    inner.close_with(body)
    outer.close_with(_step(body, "end"))
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["body → body", "end → entry"]
    assert _loops(graph) == [["entry", "body", "end"]]


def test_loops_that_share_operators_are_one_component():
    env = _environment()
    one, two = env.create_feedback("one"), env.create_feedback("two")
    shared = _step(_source(env).union(one, two), "shared")
    one.close_with(_step(shared, "left"))
    two.close_with(_step(shared, "right"))
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["left → shared", "right → shared"]
    assert _loops(graph) == [["shared", "left", "right"]]


def test_loops_one_behind_the_other_are_in_the_order_of_the_stream():
    env = _environment()
    feedbacks = [env.create_feedback(str(number)) for number in range(3)]
    stream = _source(env)
    # Names, and so uids, go against the stream.
    for feedback, name in zip(feedbacks, ("z", "m", "a"), strict=True):
        stream = _step(stream.union(feedback), name)
        feedback.close_with(stream)
        stream = _step(stream, f"after {name}")
    graph = _compile(env)
    _check(graph)
    assert _loops(graph) == [["z"], ["m"], ["a"]]
    assert graph.loop_of(graph.loops[2][0]) == 2


def test_a_loop_that_is_entered_in_two_places_has_one_back_edge():
    env = _environment()
    feedback = env.create_feedback("again")
    a = _step(_source(env, "source 1").union(feedback), "a")
    b = _step(_source(env, "source 2").union(a), "b")
    feedback.close_with(b)
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["b → a"]
    # Whichever source is searched first decides which edge it is.
    env._graph.operators[1].uid, env._graph.operators[3].uid = "source 2", "source 1"
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["a → b"]


def test_a_feedback_edge_is_the_only_way_to_an_operator_and_then_no_back_edge():
    env = _environment()
    feedback = env.create_feedback("later")
    _step(feedback, "reader")
    feedback.close_with(_step(_source(env), "writer"))
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == []
    assert "writer → reader" in _edges(graph)
    assert graph.loops == ()


def test_the_edge_that_the_program_calls_feedback_is_preferred_as_back_edge():
    env = _environment()
    one, two = env.create_feedback("one"), env.create_feedback("two")
    entry = _step(_source(env), "entry")
    # From "entry", the edge to "a" is a feedback and the one to "b" is not.
    a = _step(one.union(two), "a")
    b = _step(entry.union(a), "b")
    one.close_with(entry)
    two.close_with(b)
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["a → b"]
    rings = nx.DiGraph([("s", "a"), ("s", "b"), ("a", "b"), ("b", "a")])
    assert back_edges(rings, ["s"]) == {("b", "a")}
    assert back_edges(rings, ["s"], {("s", "a")}) == {("a", "b")}


# ---- resolution of feedbacks


def _link(env: StreamExecutionEnvironment, producer: str, consumer: str) -> Link:
    [link] = [
        link
        for link in _compile(env).links
        if (link.producer, link.consumer) == (producer, consumer)
    ]
    return link


SPREADS: list[tuple[Callable[[DataStream], DataStream], Partitioning]] = [
    (lambda stream: stream.key_by(abs), Partitioning.HASH),
    (lambda stream: stream.forward(), Partitioning.FORWARD),
    (lambda stream: stream.rebalance(), Partitioning.REBALANCE),
    (lambda stream: stream.rescale(), Partitioning.RESCALE),
    (lambda stream: stream.shuffle(), Partitioning.SHUFFLE),
    (lambda stream: stream.broadcast(), Partitioning.BROADCAST),
    (lambda stream: stream.global_(), Partitioning.GLOBAL),
    (lambda stream: stream.partition_custom(lambda key, n: key % n, abs), Partitioning.CUSTOM),
]


@pytest.mark.parametrize(("spread", "expected"), SPREADS, ids=[p.value for _, p in SPREADS])
def test_the_partitioning_of_a_feedback_is_the_readers_else_the_closing_streams(spread, expected):
    for before, after in ((spread, None), (None, spread), (lambda s: s.shuffle(), spread)):
        env = _environment()
        feedback = env.create_feedback("again")
        read = feedback if after is None else after(feedback)
        body = _step(DataStream.union(_source(env), read), "body")
        feedback.close_with(body if before is None else before(body))
        link = _link(env, "body", "body")
        assert link.is_back_edge
        assert link.partitioning is expected
        edge = env._graph.edges[link.edge]
        assert (edge.selector is abs) == (expected in (Partitioning.HASH, Partitioning.CUSTOM))
        assert (edge.partitioner is not None) == (expected is Partitioning.CUSTOM)


def test_a_feedback_can_be_partitioned_by_key_for_keyed_state():
    env = _environment()
    feedback = env.create_feedback("again")
    counts = _source(env).union(feedback).key_by(abs).count().uid("count")
    feedback.close_with(counts.map(lambda pair: pair[1]).uid("next"))
    graph = _compile(env)
    _check(graph)
    [link] = [link for link in graph.links if link.is_back_edge]
    assert (link.consumer, link.partitioning) == ("count", Partitioning.HASH)
    assert env._graph.edges[link.edge].selector is abs
    assert len(graph.channels(link)) == 4


def test_a_feedback_to_another_parallelism_rebalances():
    env = _environment()
    iteration = _source(env).iterate()
    wide = _step(iteration, "wide").set_parallelism(3)
    iteration.close_with(wide.map(str).set_parallelism(1).uid("narrow"))
    link = _link(env, "narrow", "wide")
    assert link.is_back_edge
    assert link.partitioning is Partitioning.REBALANCE


def test_an_iteration_feeds_back_like_its_input_unless_something_else_is_said():
    for closing, expected in (
        (lambda stream: stream, Partitioning.HASH),
        (lambda stream: stream.rebalance(), Partitioning.REBALANCE),
    ):
        env = _environment()
        iteration = _source(env).key_by(abs).iterate(5000)
        body = _step(iteration, "body")
        iteration.close_with(closing(body))
        link = _link(env, "body", "body")
        assert link.partitioning is expected
        assert env._graph.edges[link.edge].selector is (
            abs if expected is Partitioning.HASH else None
        )
    env = _environment()
    iteration = _source(env).key_by(abs).iterate()
    body = _step(iteration.global_(), "body")
    iteration.close_with(body.rebalance())
    assert _link(env, "body", "body").partitioning is Partitioning.GLOBAL


def test_a_feedback_closed_with_a_union_is_an_edge_from_each():
    env = _environment()
    feedback = env.create_feedback("again")
    entry = _step(_source(env).union(feedback), "entry")
    left, right = _step(entry, "left"), _step(entry, "right")
    feedback.close_with(left.union(right.shuffle()))
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["left → entry", "right → entry"]
    assert _link(env, "left", "entry").partitioning is Partitioning.FORWARD
    assert _link(env, "right", "entry").partitioning is Partitioning.SHUFFLE


def test_a_feedback_that_two_operators_read_is_an_edge_to_each():
    env = _environment()
    feedback = env.create_feedback("again")
    left = _step(_source(env).union(feedback.key_by(abs)), "left")
    right = _step(left.union(feedback), "right")
    feedback.close_with(right)
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["right → left", "right → right"]
    assert _link(env, "right", "left").partitioning is Partitioning.HASH
    assert _link(env, "right", "right").partitioning is Partitioning.FORWARD


def test_a_feedback_closed_with_another_feedback_is_resolved_through_both():
    env = _environment()
    near, far = env.create_feedback("near"), env.create_feedback("far")
    body = _step(_source(env).union(near), "body")
    near.close_with(far.key_by(abs))
    far.close_with(body.shuffle())
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["body → body"]
    link = _link(env, "body", "body")
    assert link.partitioning is Partitioning.HASH
    assert env._graph.edges[link.edge].selector is abs


def test_a_feedback_goes_wherever_a_stream_goes():
    env = _environment()
    feedback = env.create_feedback("again")
    assert isinstance(feedback, FeedbackStream)
    feedback.print()
    feedback.key_by(abs).count().name("count").uid("count")
    feedback.filter(bool).uid("filter")
    inner = feedback.iterate()
    inner.close_with(_step(inner, "inner"))
    body = _step(_source(env).union(feedback), "body")
    assert feedback.close_with(body) is body
    graph = _compile(env)
    _check(graph)
    assert _edges(graph, back=True) == ["body → body", "inner → inner"]
    assert _loops(graph) == [["body"], ["inner"]]
    readers = {link.consumer for link in graph.links if link.producer == "body"}
    assert {"count", "body", "inner"} < readers
    # What only reads the feedback is fused behind the operator it was closed with.
    assert "feedback" not in {info.spec.name for info in graph.operators}


# ---- stability


def test_unrelated_operators_move_neither_uids_nor_back_edges():
    def program(before: bool, after: bool) -> tuple[set[str], list[str]]:
        env = _environment()

        def unrelated(name: str) -> None:
            iteration = env.from_collection([name]).map(str.upper).name(name).iterate()
            iteration.close_with(iteration.map(str.lower).name(name))
            feedback = env.create_feedback(name)
            feedback.map(len).name(name)
            feedback.close_with(iteration)

        if before:
            unrelated("before")
        iteration = env.from_sequence(1, 9).iterate()
        body = iteration.map(str).disable_chaining()
        other = env.from_generator(str, 3).union(body).map(int).disable_chaining()
        iteration.close_with(other)
        if after:
            unrelated("after")
            other.filter(bool).print()
        graph = _compile(env)
        _check(graph)
        own = {info.uid for info in graph.operators if info.name in ("Map", "Source: Sequence")}
        return own, [edge for edge in _edges(graph, back=True) if set(edge.split(" → ")) <= own]

    plain = program(False, False)
    assert len(plain[1]) == 1
    for before, after in ((True, False), (False, True), (True, True)):
        assert program(before, after) == plain


def test_a_derived_uid_stays_when_an_operator_is_fed_back_into():
    def uids(loop: bool, first: bool) -> list[str]:
        env = _environment()
        feedback = env.create_feedback("again") if loop and first else None
        source = env.from_sequence(1, 9)
        if loop and not first:
            feedback = env.create_feedback("again")
        if feedback is None:
            body = source.map(str)
        else:
            body = (feedback.union(source) if first else source.union(feedback)).map(str)
            feedback.close_with(body)
        body.key_by(len).count().print()
        return [info.uid for info in _compile(env).operators]

    assert uids(True, True) == uids(True, False) == uids(False, False)


def test_operators_that_read_only_feedbacks_are_identified_by_the_feedbacks_names():
    def uid_of_second(with_first: bool) -> str:
        env = _environment()
        for name in ("first", "second") if with_first else ("second",):
            feedback = env.create_feedback(name)
            stream = feedback.map(str)
            feedback.close_with(_source(env, f"source {name}"))
        return assign_uids(env._graph)[stream._outputs[0].operator.id]

    assert uid_of_second(True) == uid_of_second(False)


def test_compiling_twice_gives_the_same_graph():
    env = _environment()
    iteration = _source(env).iterate()
    iteration.close_with(_step(iteration, "body"))
    assert _compile(env) == _compile(env)


# ---- hooks


class Ending(ProcessFunction):
    def process_element(self, value, ctx):
        return [value]

    def end_input(self, ctx):
        return ["end"]


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        return [value]


class KeyedEnding(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return [value]

    def end_input(self, ctx):
        return [ctx.get_current_key()]


def test_a_function_has_an_end_of_input_if_its_class_defines_one():
    class Inherited(Ending):
        pass

    assert has_end_input(Ending())
    assert has_end_input(KeyedEnding())
    assert has_end_input(Inherited())
    assert not has_end_input(Plain())
    assert not has_end_input(str)
    assert Plain().end_input(None) is None


def test_a_loop_knows_whether_a_function_of_it_has_an_end_of_input():
    for function, expected in ((Ending(), True), (Plain(), False)):
        env = _environment()
        iteration = _source(env).iterate()
        iteration.close_with(_step(iteration, "body").process(function).uid("process"))
        graph = _compile(env)
        assert graph.has_end_input(0) is expected
        assert {info.uid for info in graph.operators if info.has_end_input} == (
            {"process"} if expected else set()
        )


def test_an_operator_that_waits_for_the_end_of_a_loop_is_not_fused_into_it():
    def chains(function: ProcessFunction) -> list[str]:
        env = _environment()
        iteration = env.from_sequence(1, 9).iterate()
        body = iteration.process(Ending()).name("body")
        iteration.close_with(body.map(str).name("again"))
        body.filter(bool).name("out").process(function).name("tail").print().name("sink")
        graph = _compile(env)
        _check(graph)
        assert graph.has_end_input(0)
        return [chain.name for chain in graph.chains]

    assert chains(Plain()) == ["Source: Sequence", "body → again → out → tail → sink"]
    assert chains(Ending()) == ["Source: Sequence", "body → again → out", "tail → sink"]


# ---- errors


def _wrong(build: Callable[[StreamExecutionEnvironment, DataStream], object]) -> None:
    env = _environment()
    build(env, _source(env))
    _compile(env)


def _unclosed(env, source):
    _step(source.union(env.create_feedback("again")), "reader")


def _closed_twice(env, source):
    feedback = env.create_feedback("again")
    body = _step(source.union(feedback), "body")
    feedback.close_with(body)
    feedback.close_with(source)


def _closed_twice_by_iterate(env, source):
    iteration = source.iterate()
    body = _step(iteration, "body")
    iteration.close_with(body)
    iteration.close_with(body)


def _of_another_environment(env, source):
    source.union(feedback := env.create_feedback("again"))
    feedback.close_with(_source(_environment(), "stranger"))


def _closed_and_not_read(env, source):
    env.create_feedback("again").close_with(source)


def _only_feedbacks(env, source):
    one, two = env.create_feedback("one"), env.create_feedback("two")
    _step(one.union(source), "reader")
    one.close_with(two.union(source))
    two.close_with(one)


def _itself(env, source):
    feedback = env.create_feedback("again")
    feedback.close_with(feedback)


def _no_source(env, source):
    feedback = env.create_feedback("again")
    body = _step(feedback, "body")
    feedback.close_with(_step(body, "other"))
    body.union(source).print()


def _forward_differs(env, source):
    iteration = source.iterate()
    body = _step(iteration, "body")
    iteration.close_with(_step(body, "wide").set_parallelism(3).forward())


def _name_taken(env, source):
    env.create_feedback("again")
    env.create_feedback("again")


def _not_from_the_iteration(env, source):
    source.iterate().close_with(_step(source, "elsewhere"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_unclosed, r"feedback 'again' is never closed, though 'reader' reads it: call its close"),
        (lambda env, source: env.create_feedback("again"), "'again' is never closed: call"),
        (lambda env, source: source.iterate(), "feedback 'iteration 1' is never closed: call"),
        (_closed_twice, "'again' is closed already, with 'body'; .* with their union"),
        (_closed_twice_by_iterate, "'iteration 1' is closed already, with 'body'"),
        (_of_another_environment, "of its own environment, and 'stranger' belongs to another"),
        (_closed_and_not_read, "'again' is closed with 'source', but nothing reads it"),
        (_only_feedbacks, "no operator lies in the loop of feedback 'one' and 'two'"),
        (_itself, "no operator lies in the loop of feedback 'again'"),
        (_no_source, "no source reaches the loop of 'body', 'other', .*: unite what it reads"),
        (
            _forward_differs,
            r"forward\(\) from 'wide' \(parallelism 3\) to 'body' \(parallelism 2\)",
        ),
        (_name_taken, "there is a feedback 'again' already"),
        (
            _not_from_the_iteration,
            "with 'elsewhere', which does not come .*create_feedback",
        ),
        (lambda env, source: env.create_feedback(7), "name is a non-empty string, not 7"),
        (lambda env, source: env.create_feedback(""), "name is a non-empty string, not ''"),
        (lambda env, source: env.create_feedback("x").close_with(3), "with a stream, not with 3"),
        (lambda env, source: source.iterate().close_with(3), "with a stream, not with 3"),
        (lambda env, source: env.create_feedback("x").uid("y"), "feedback 'x' is none"),
        (lambda env, source: env.create_feedback("x").name("y"), "feedback 'x' is none"),
        (lambda env, source: env.create_feedback("x").forward().set_parallelism(2), "'x' is none"),
        (lambda env, source: source.iterate().uid("y"), "belongs right after the operator"),
    ],
)
def test_a_wrong_loop_is_refused_with_the_change_needed(build, message):
    with pytest.raises(GraphError, match=message):
        _wrong(build)


def test_a_program_of_loops_without_any_source_is_refused():
    env = _environment()
    feedback = env.create_feedback("again")
    feedback.close_with(_step(feedback, "body"))
    with pytest.raises(GraphError, match="no source"):
        env.execute()


# ---- plans


def test_a_plan_marks_back_edges_and_lists_loops():
    env = _environment()
    iteration = _source(env).iterate()
    body = _step(iteration, "body")
    iteration.close_with(_step(body, "again"))
    body.print().disable_chaining()
    text = env.get_execution_plan("text")
    assert "      forward ⇠ back-edge [1]" in text.splitlines()
    assert text.splitlines()[-1] == "loop 0: [1] [2]"
    mermaid = env.get_execution_plan("mermaid").splitlines()
    assert "  c2 -.->|forward| c1" in mermaid
    assert "  c0 -->|forward| c1" in mermaid
    start = mermaid.index('  subgraph loop0["loop 0"]')
    assert mermaid[start + 1 : start + 4] == ["    c1", "    c2", "  end"]


# ---- the algorithms


def test_back_edges_lead_to_the_stack_and_cross_edges_do_not():
    # A diamond s → a, b → t has a cross or forward edge into t; t → a closes a loop.
    graph = nx.DiGraph([("s", "a"), ("s", "b"), ("a", "t"), ("b", "t"), ("a", "b"), ("t", "a")])
    assert back_edges(graph, ["s"]) == {("t", "a")}
    graph.remove_edge("t", "a")
    assert back_edges(graph, ["s"]) == set()
    graph.add_edge("a", "a")
    assert back_edges(graph, ["s"]) == {("a", "a")}


def test_a_program_without_loops_is_compiled_without_networkx():
    program = (
        "import sys\n"
        "from penstock import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1]).key_by(lambda n: n).count().print()\n"
        "env.get_execution_plan()\n"
        "assert 'networkx' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_cycle_that_no_search_reaches_is_a_bug_of_ours():
    with pytest.raises(ProtocolError, match="a cycle is left"):
        back_edges(nx.DiGraph([("s", "a"), ("b", "c"), ("c", "b")]), ["s"])


def _search(graph: nx.DiGraph, sources: list[str], last: set[tuple[str, str]]) -> set:
    """The back-edges by a plain recursive search."""
    seen: set[str] = set()
    found: set[tuple[str, str]] = set()

    def visit(vertex: str, path: list[str]) -> None:
        seen.add(vertex)
        for target in sorted(graph[vertex], key=lambda one: ((vertex, one) in last, one)):
            if target in (*path, vertex):
                found.add((vertex, target))
            elif target not in seen:
                visit(target, [*path, vertex])

    for source in sorted(sources):
        if source not in seen:
            visit(source, [])
    return found


def test_back_edges_are_those_to_ancestors_and_without_them_any_graph_is_acyclic():
    for seed in range(300):
        rng = random.Random(seed)
        vertices = [f"v{number}" for number in range(rng.randint(1, 9))]
        pairs = [(a, b) for a in vertices for b in vertices]
        edges = [pair for pair in pairs if rng.random() < rng.choice([0.1, 0.25, 0.5])]
        # Every vertex is reached from one of two sources; edges come in any order.
        edges += [(rng.choice(["s0", "s1"]), vertex) for vertex in vertices]
        last = {pair for pair in edges if rng.random() < 0.3}
        rng.shuffle(edges)
        graph = nx.DiGraph(edges)
        sources = [vertex for vertex in ("s1", "s0") if vertex in graph]
        found = back_edges(graph, sources, last)
        assert found == _search(graph, sources, last), f"seed {seed}"
        assert has_cycle(edges) == bool(found) == has_cycle(reversed(edges)), f"seed {seed}"
        rest = nx.DiGraph(edges)
        rest.remove_edges_from(found)
        assert nx.is_directed_acyclic_graph(rest), f"seed {seed}"
        for vertex in vertices:
            assert rest.in_degree(vertex) > 0, f"seed {seed}"
        assert not unreached(rest, sources), f"seed {seed}"
        # Whatever is added beside it, and in whatever order: the same edges are found.
        rng.shuffle(edges)
        beside = nx.DiGraph([("a", "b"), ("b", "a"), *edges, ("z", "z"), ("zz", "z")])
        inside = back_edges(beside, ["zz", "a", *sources], last)
        assert {pair for pair in inside if pair[0] in graph} == found, f"seed {seed}"


def test_components_with_a_cycle_are_in_topological_order():
    for seed in range(200):
        rng = random.Random(seed)
        graph = nx.gnp_random_graph(10, 0.12, seed=seed, directed=True)
        graph.add_edges_from((n, n) for n in range(10) if rng.random() < 0.1)
        found = cyclic_components(graph)
        cyclic = {n for n in graph if any(n in nx.descendants(graph, m) | {m} for m in graph[n])}
        assert set().union(*found) == cyclic, f"seed {seed}"
        for i, earlier in enumerate(found):
            for later in found[i + 1 :]:
                assert not any(nx.has_path(graph, a, b) for a in later for b in earlier)
    assert cyclic_components(nx.DiGraph([(1, 2), (4, 4), (3, 3), (4, 3)])) == [{4}, {3}]


def _random_program(seed: int, extra: bool) -> StreamExecutionEnvironment:
    """Sources, operators that read one or two streams, and feedbacks closed with any."""
    rng = random.Random(seed)
    env = _environment()
    if extra:
        iteration = env.from_collection(["beside"]).iterate()
        iteration.close_with(iteration.map(str.upper))
    streams = [env.from_sequence(1, 9).uid(f"source {i}") for i in range(rng.randint(1, 2))]
    feedbacks = [env.create_feedback(str(number)) for number in range(rng.randint(1, 3))]
    streams += feedbacks
    operators = []
    for number in range(rng.randint(2, 7)):
        stream = rng.choice(streams)
        if rng.random() < 0.6:
            stream = stream.union(rng.choice(streams))
        stream = rng.choice([lambda s: s, lambda s: s, *(spread for spread, _ in SPREADS)])(stream)
        streams.append(stream.map(str).name(f"op {number}"))
        operators.append(streams[-1])
        if rng.random() < 0.2:
            streams[-1].set_parallelism(rng.randint(1, 3))
    for feedback in feedbacks:
        feedback.close_with(rng.choice([*operators, rng.choice(streams)]))
    if extra:
        rng.choice(streams).print()
        env.from_collection(["behind"]).print()
    return env


def test_random_programs_compile_to_graphs_that_snapshots_can_be_taken_of():
    compiled = 0
    for seed in range(400):
        try:
            graph = _compile(_random_program(seed, extra=False))
        except GraphError as error:
            refused = ("nothing reads it", "no operator lies", "no source reaches", "equal paral")
            assert any(text in str(error) for text in refused), f"seed {seed}: {error}"
            continue
        compiled += bool(graph.loops)
        try:
            _check(graph)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        more = _compile(_random_program(seed, extra=True))
        own = {info.uid for info in graph.operators}
        assert own <= {info.uid for info in more.operators}, f"seed {seed}"
        kept = [link for link in more.links if link.is_back_edge and link.producer in own]
        assert sorted((link.producer, link.consumer) for link in kept) == sorted(
            (link.producer, link.consumer) for link in graph.links if link.is_back_edge
        ), f"seed {seed}"
    assert compiled > 80


def test_workers_do_not_load_networkx_with_the_records_of_the_compiler():
    code = "import sys, penstock.dataflow.graph.compile; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

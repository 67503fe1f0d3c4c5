"""Side outputs: what a program says, the graph that it compiles to, and what a job emits."""

import pytest

from penstock import (
    GraphError,
    JobError,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from penstock.dataflow.graph.compile import compile_graph

ODD, LARGE = OutputTag("odd"), OutputTag("large")


class Split(ProcessFunction):
    def process_element(self, value, ctx):
        if value % 2:
            yield ODD, value
        else:
            yield value
        if value >= 8:
            yield LARGE, (value, value)


class SplitAtEnd(ProcessFunction):
    def process_element(self, value, ctx):
        return [(ODD, {"n": value}), value] if value % 2 else [value]

    def end_input(self, ctx):
        yield ODD, {"end": 1}


def _env(parallelism=2):
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.set_parallelism(parallelism).set_in_process()


def _split(env, function=None, numbers=10):
    stream = env.from_sequence(0, numbers - 1).process(function or Split())
    return stream, stream.get_side_output(ODD), stream.get_side_output(LARGE)


def _collect(stream):
    return sorted(stream.execute_and_collect(limit=1000))


def _compile(stream):
    env = stream.get_execution_environment()
    return compile_graph(env._graph, env.config)


def test_each_record_goes_to_the_output_that_the_function_chose():
    main, odd, large = _split(_env())
    assert _collect(main) == [0, 2, 4, 6, 8]
    assert _collect(odd) == [1, 3, 5, 7, 9]
    assert _collect(large) == [(8, 8), (9, 9)]


def test_side_outputs_are_chained_routed_by_key_and_united():
    main, odd, large = _split(_env())
    chained = odd.map(lambda n: n + 100)
    keyed = large.key_by(lambda pair: pair[0] % 2).process(SplitPairs())
    assert _collect(main.union(chained, keyed)) == [0, 2, 4, 6, 8, 8, 9, 101, 103, 105, 107, 109]


class SplitPairs(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value[0]


def test_two_consumers_of_a_side_output_do_not_share_mutable_records():
    env = _env(1)
    odd = env.from_collection([1, 3]).process(SplitAtEnd()).get_side_output(ODD)

    def spoil(record):
        record["n"] = record.pop("end", 0)
        return "spoilt"

    both = odd.map(spoil).union(odd.map(lambda record: repr(record)))
    assert _collect(both) == [
        *["spoilt"] * 3,
        "{'end': 1}",
        "{'n': 1}",
        "{'n': 3}",
    ]


def test_a_record_for_a_tag_that_nothing_reads_is_an_error():
    stream = _env(1).from_collection([8]).process(Split())
    odd = stream.get_side_output(ODD)
    with pytest.raises(JobError, match=r"side output 'large', which no stream .*reads 'odd'"):
        odd.execute_and_collect(limit=9)


def test_a_tag_without_exactly_one_value_is_an_error():
    class Wrong(ProcessFunction):
        def process_element(self, value, ctx):
            yield ODD, value, value

    class Alone(ProcessFunction):
        def process_element(self, value, ctx):
            yield ODD

    for function, number in (Wrong(), 2), (Alone(), 0):
        stream = _env(1).from_collection([1]).process(function)
        with pytest.raises(JobError, match=rf"OutputTag\('odd'\) was emitted with {number} values"):
            stream.execute_and_collect(limit=9)


def test_only_operators_with_side_outputs_have_them():
    env = _env()
    main, odd, _ = _split(env)
    wrong = {
        "a map": lambda: main.map(len).get_side_output(ODD),
        "a side output": lambda: odd.get_side_output(ODD),
        "union": lambda: main.union(main).get_side_output(ODD),
        "key_by": lambda: main.key_by(len).get_side_output(ODD),
        "OutputTag, not 'odd'": lambda: main.get_side_output("odd"),
        "before get_side_output": lambda: odd.uid("odd"),
    }
    for message, call in wrong.items():
        with pytest.raises(GraphError, match=message):
            call()
    with pytest.raises(TypeError, match="non-empty string"):
        OutputTag("")


def test_tags_are_equal_by_their_ids():
    assert OutputTag("a") == OutputTag("a", "type") != OutputTag("b")
    assert len({OutputTag("a"), OutputTag("a")}) == 1


def test_a_side_output_changes_only_the_uids_of_its_readers():
    def uids(with_side):
        stream = _env().from_collection([1]).process(Split())
        main = stream.map(abs)
        if with_side:
            stream.get_side_output(ODD).map(abs)
            stream.get_side_output(LARGE).map(abs)
        main.print()
        return [info.uid for info in _compile(main).operators]

    without, with_side = uids(False), uids(True)
    assert set(without) < set(with_side)
    assert len(set(with_side)) == len(without) + 2


def test_the_graph_knows_the_tag_of_each_edge():
    main, odd, large = _split(_env())
    odd.map(abs)
    large.key_by(len).count()
    main.union(odd).print()
    graph = _compile(main)
    assert [(link.tag, link.partitioning.value) for link in graph.links] == [
        ("large", "hash"),
        (None, "forward"),
        ("odd", "forward"),
    ]
    process = next(node for chain in graph.chains for node in chain.walk() if node.children)
    chained = [(child.operator.name, child.tag) for child in process.children[0].children]
    assert ("Map", "odd") in [*chained, *((c.operator.name, c.tag) for c in process.children)]


def test_a_loop_can_be_closed_with_a_side_output():
    class Halve(ProcessFunction):
        def process_element(self, value, ctx):
            if value > 1:
                yield LARGE, value // 2
            else:
                yield value

    env = _env()
    loop = env.from_collection([8, 20, 1]).iterate()
    body = loop.process(Halve())
    loop.close_with(body.get_side_output(LARGE))
    assert _collect(body) == [1, 1, 1]


def test_a_plan_shows_the_tags_of_links():
    main, _, large = _split(_env())
    large.key_by(len).count()
    env = main.get_execution_environment()
    assert "side output 'large': hash → [1]" in env.get_execution_plan("text")
    assert '-->|"large: hash"| c1' in env.get_execution_plan("mermaid")

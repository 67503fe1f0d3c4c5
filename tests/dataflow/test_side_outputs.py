"""Side outputs: what a program says, the graph that it compiles to, and what a job emits."""

from typing import Any, NamedTuple

import pytest

from penstock import (
    BroadcastProcessFunction,
    CoProcessFunction,
    GraphError,
    JobError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
)
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.metrics import SIDE_OUTPUT_RECORDS_DROPPED
from penstock.testing import OperatorHarness

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


def test_records_of_a_side_output_that_no_operator_reads_are_counted():
    main, odd, _ = _split(_env())
    odd.print()
    main.print()
    result = main.get_execution_environment().execute()
    assert result.metric(SIDE_OUTPUT_RECORDS_DROPPED) == 2  # those of `large`


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


# ---- wherever a function gets its tag, and whatever kind of function it is


class Own(OutputTag):
    """A tag of a class of the program."""


class Pair(NamedTuple):
    tag: Any
    value: Any


TAGS = {"odd": ODD}


def helper(value):
    yield ODD, value


def tagged(value):
    """All ways to emit a value with a tag, each with a value of its own."""
    from_helper = list(helper((value, "helper")))
    inner = OutputTag("odd")
    return [
        (ODD, (value, "global")),
        (TAGS["odd"], (value, "dict")),
        *from_helper,
        (OutputTag("odd"), (value, "made here")),
        ((lambda: inner)(), (value, "closure")),
        (Own("odd"), (value, "subclass")),
        Pair(ODD, (value, "named tuple")),
        (ODD, {value: ["mutable"]}),
    ]


def results(value):
    return ["first", *tagged(value), ("pair", 1), [value], (), [], "last"]


MAIN = ["first", ("pair", 1), [0], (), [], "last"]


def as_list(records):
    return list(records)


def as_generator(records):
    yield from records


def functions(emit):
    """Each kind of function with side outputs: how it is used, and what makes it emit once."""

    class Process(ProcessFunction):
        def process_element(self, value, ctx):
            return emit(0)

    class AtEnd(ProcessFunction):
        def process_element(self, value, ctx):
            return ()

        def end_input(self, ctx):
            return emit(0)

    class Keyed(KeyedProcessFunction):
        def process_element(self, value, ctx):
            return emit(0)

    class Timer(KeyedProcessFunction):
        def __init__(self, domain):
            self.domain = domain

        def process_element(self, value, ctx):
            getattr(ctx.timer_service(), f"register_{self.domain}_timer")(5)

        def on_timer(self, timestamp, ctx):
            return emit(0)

    class Co(CoProcessFunction):
        def process_element1(self, value, ctx):
            return ()

        def process_element2(self, value, ctx):
            return emit(0)

    class KeyedCo(KeyedCoProcessFunction):
        def process_element1(self, value, ctx):
            return emit(0)

        def process_element2(self, value, ctx):
            return ()

    class Broadcast(BroadcastProcessFunction):
        def process_element(self, value, ctx):
            return ()

        def process_broadcast_element(self, value, ctx):
            return emit(0)

    class KeyedBroadcast(KeyedBroadcastProcessFunction):
        def process_element(self, value, ctx):
            return emit(0)

        def process_broadcast_element(self, value, ctx):
            return ()

    class Window(ProcessWindowFunction):
        def process(self, key, context, elements):
            return emit(0)

    class Join(ProcessJoinFunction):
        def process_element(self, left, right, ctx):
            return emit(0)

    def window(stream):
        windows = stream.key_by(abs).window(TumblingEventTimeWindows.of(10))
        return windows.process(Window())

    def apply(stream):
        windows = stream.window_all(TumblingEventTimeWindows.of(10))
        return windows.apply(lambda window, values: emit(0))

    def join(first, second):
        pairs = first.key_by(abs).interval_join(second.key_by(abs))
        return pairs.between(Time.milliseconds(-5), Time.milliseconds(5)).process(Join())

    one, watermark = [(1, 0)], {"watermark": 20}
    return {
        "process": (Process(), None, {0: one}, {}),
        "timed process": (Process(), None, {0: [(1, 7)]}, {}),
        "end_input": (AtEnd(), None, {0: one}, {"end": True}),
        "keyed process": (Keyed(), abs, {0: one}, {}),
        "timed keyed process": (Keyed(), abs, {0: [(1, 7)]}, {}),
        "event-time timer": (Timer("event_time"), abs, {0: one}, watermark),
        "processing-time timer": (Timer("processing_time"), abs, {0: one}, {"time": 9}),
        "co-process": (Co(), None, {1: one}, {}),
        "keyed co-process": (KeyedCo(), abs, {0: one}, {}),
        "broadcast": (Broadcast(), None, {1: one}, {}),
        "keyed broadcast": (KeyedBroadcast(), abs, {0: one}, {}),
        "window": (window, None, {0: one}, watermark),
        "apply": (apply, None, {0: one}, watermark),
        "interval join": (join, None, {0: one, 1: one}, {}),
    }


def run(function, key, inputs, then, **options):
    two = isinstance(function, CoProcessFunction | KeyedCoProcessFunction)
    broadcast = isinstance(function, BroadcastProcessFunction | KeyedBroadcastProcessFunction)
    if two and key is not None:
        options["second_key_selector"] = key
    if broadcast:
        options["broadcast_states"] = [MapStateDescriptor("rules")]
    harness = OperatorHarness(function, key, **options)
    for number, records in inputs.items():
        harness.process_elements(records, input=number)
    if "watermark" in then:
        harness.process_watermark(then["watermark"])
    if "time" in then:
        harness.set_processing_time(then["time"])
    if "end" in then:
        harness.end_input()
    return harness


KINDS = list(functions(as_list))


@pytest.mark.parametrize("form", [as_list, as_generator])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tag_may_come_from_anywhere(kind, form):
    emit = functions(lambda value: form(results(value)))[kind]
    harness = run(*emit, side_outputs=[ODD])
    assert harness.extract_output_values() == MAIN
    assert harness.get_side_output(ODD) == [value for _, value in tagged(0)]


@pytest.mark.parametrize("form", [as_list, as_generator])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tag_that_nothing_reads_is_refused_wherever_it_comes_from(kind, form):
    for number in range(len(tagged(0))):
        emit = functions(lambda value, number=number: form([1, tagged(value)[number]]))[kind]
        with pytest.raises(JobError, match="side output 'odd', which no stream"):
            run(*emit)


@pytest.mark.parametrize("declared", [True, False])
def test_the_first_tag_of_a_process_may_be_made_while_a_record_is_processed(declared, monkeypatch):
    class Lazy(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield value
            yield OutputTag("odd"), value

    tags = [OutputTag("odd")] if declared else []
    harness = OperatorHarness(Lazy(), abs, side_outputs=tags)
    monkeypatch.setattr(OutputTag, "any_made", False)
    if declared:
        harness.process_element(1)
        assert harness.extract_output_values() == [1]
        assert harness.get_side_output(ODD) == [1]
    else:
        with pytest.raises(JobError, match="side output 'odd', which no stream"):
            harness.process_element(1)


def test_a_record_of_a_side_output_has_the_time_of_the_record_that_caused_it():
    class Late(ProcessFunction):
        def process_element(self, value, ctx):
            yield value
            yield ODD, (value, ctx.timestamp())

    harness = OperatorHarness(Late(), side_outputs=[ODD])
    harness.process_elements([(1, 10), (2, 20), (3, None)])
    records = harness._take("odd")
    assert [(record.value[0], record.timestamp) for record in records] == [
        (1, 10),
        (2, 20),
        (3, None),
    ]


def test_the_error_of_a_wrong_tag_shows_what_was_emitted():
    class Wrong(ProcessFunction):
        def process_element(self, value, ctx):
            yield [ODD, value]

    harness = OperatorHarness(Wrong(), side_outputs=[ODD])
    with pytest.raises(JobError, match="was emitted in a list: write `yield tag, value`") as error:
        harness.process_elements([(1, None), (2, None)])
    assert error.value.record == "[OutputTag('odd'), 1]"


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

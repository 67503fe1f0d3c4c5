"""Programs with connected streams: their chains, links, uids, state and errors."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    GraphError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapFunction,
    MapStateDescriptor,
    SinkFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph, OperatorInfo
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.operators import specs

RULES = MapStateDescriptor("rules")


class Both(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


class BothFlat(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Any:
        return []

    def flat_map2(self, value: Any) -> Any:
        return []


class Co(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return []

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return []


class KeyedCo(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return []

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return []

    def end_input(self, ctx: Any) -> Any:
        return []


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return []

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return []


class KeyedRules(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return []

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return []


class Counted(MapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        return value


class CountedSink(SinkFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        pass

    def invoke(self, value: Any) -> None:
        pass


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def streams(env: StreamExecutionEnvironment) -> tuple[DataStream, DataStream]:
    return env.from_sequence(1, 3).map(str), env.from_sequence(4, 6).map(str)


def compiled(env: StreamExecutionEnvironment) -> ExecutionGraph:
    return compile_graph(env._graph, env.config)


def named(graph: ExecutionGraph, name: str) -> OperatorInfo:
    return next(info for info in graph.operators if info.name == name)


def test_an_operator_with_two_inputs_begins_a_chain() -> None:
    env = environment()
    one, other = streams(env)
    one.connect(other).map(Both()).map(str).print()
    graph = compiled(env)
    assert [chain.name for chain in graph.chains] == [
        "Source: Sequence → Map",
        "Source: Sequence → Map",
        "Co-Map → Map → Print to Std. Out",
    ]
    assert [(link.source, link.input, link.partitioning) for link in graph.links] == [
        (0, 0, Partitioning.FORWARD),
        (1, 1, Partitioning.FORWARD),
    ]
    assert not named(graph, "Co-Map").stateful


def test_the_kind_says_whether_both_streams_are_keyed() -> None:
    env = environment()
    one, other = streams(env)
    keyed_one, keyed_other = one.key_by(len), other.key_by(len)
    connected = {
        specs.CO_MAP: one.connect(other).map(Both()),
        specs.CO_FLAT_MAP: keyed_one.connect(other).flat_map(BothFlat()),
        specs.CO_PROCESS: one.connect(keyed_other).process(Co()),
        specs.KEYED_CO_MAP: keyed_one.connect(keyed_other).map(Both()),
        specs.KEYED_CO_FLAT_MAP: one.connect(other).key_by(len, len).flat_map(BothFlat()),
        specs.KEYED_CO_PROCESS: keyed_one.connect(keyed_other).process(KeyedCo()),
        specs.BROADCAST_PROCESS: one.connect(other.broadcast(RULES)).process(Rules()),
        specs.KEYED_BROADCAST_PROCESS: keyed_one.connect(other.broadcast(RULES)).process(
            KeyedRules()
        ),
    }
    union, *others = connected.values()
    union.union(*others).print()
    graph = compiled(env)
    infos = {info.id: info for info in graph.operators}
    for kind, stream in connected.items():
        assert type(stream) is DataStream
        operator = stream._outputs[0].operator
        info = infos[operator.id]
        assert operator.spec is kind and info.spec == kind.without_code()
        assert kind.two_inputs
        assert kind.keyed == ("keyed" in kind.name)
        assert (operator.key_selector is not None) == kind.keyed
        co = kind.keyed and kind is not specs.KEYED_BROADCAST_PROCESS
        assert (operator.second_key_selector is not None) == co
        assert info.has_operator_state == ("broadcast" in kind.name)
        assert info.stateful == (kind.keyed or info.has_operator_state)
    assert not specs.KEYED_PROCESS.two_inputs


def test_a_broadcast_without_descriptors_is_an_ordinary_stream() -> None:
    env = environment()
    one, other = streams(env)
    one.connect(other.broadcast()).process(Co()).print()
    links = compiled(env).links
    assert [link.partitioning for link in links] == [Partitioning.FORWARD, Partitioning.BROADCAST]


def test_derived_uids_distinguish_the_inputs() -> None:
    uids = []
    for swapped in (False, True):
        env = environment()
        one, other = env.from_sequence(1, 3).uid("one"), env.from_sequence(1, 3).uid("other")
        first, second = (other, one) if swapped else (one, other)
        first.connect(second).map(Both()).print()
        uids.append(named(compiled(env), "Co-Map").uid)
    assert uids[0] != uids[1]


def test_functions_with_operator_state_make_their_operators_stateful() -> None:
    env = environment()
    one, _ = streams(env)
    one.map(Counted()).name("counted").add_sink(CountedSink()).name("sink")
    one.map(Both().map1).name("plain").print()
    graph = compiled(env)
    assert named(graph, "counted").stateful
    assert named(graph, "sink").stateful
    assert not named(graph, "plain").stateful


@pytest.mark.parametrize("input", [0, 1])
def test_a_loop_may_lead_through_either_input(input: int) -> None:
    env = environment()
    outside, numbers = streams(env)
    loop = numbers.iterate()
    pair = (loop, outside) if input == 0 else (outside, loop)
    body = pair[0].connect(pair[1]).map(Both())
    loop.close_with(body.filter(bool))
    body.print()
    graph = compiled(env)
    (back,) = [link for link in graph.links if link.is_back_edge]
    assert back.input == input
    assert len(graph.loops) == 1


def test_each_function_object_is_used_by_one_operator() -> None:
    env = environment()
    one, other = streams(env)
    function = Both()
    first, second = one.connect(other).map(function), other.connect(one).map(function)
    assert first._outputs[0].operator.function is not second._outputs[0].operator.function


def refused(build: Any, words: str) -> None:
    env = environment()
    one, other = streams(env)
    with pytest.raises(GraphError, match=words):
        build(one, other)


def test_wrong_functions_are_refused_with_a_hint() -> None:
    refused(lambda a, b: a.connect(b).map(len), "map on connected streams takes a CoMapFunction")
    refused(lambda a, b: a.connect(b).map(Both), "pass an instance, not the class")
    refused(lambda a, b: a.connect(b).flat_map(Both()), "takes a CoFlatMapFunction, and got")
    refused(lambda a, b: a.connect(b).process(Both()), "CoProcessFunction or a KeyedCoProcessF")
    refused(lambda a, b: a.connect(b).process(Rules()), r"call broadcast\(MapStateDescriptor")
    broadcast = lambda b: b.broadcast(RULES)  # noqa: E731
    refused(lambda a, b: a.connect(broadcast(b)).process(Co()), "takes a BroadcastProcessFunction")
    refused(lambda a, b: a.connect(broadcast(b)).process(KeyedRules()), "call key_by on the stream")
    refused(
        lambda a, b: a.key_by(len).connect(broadcast(b)).process(Rules()),
        "takes a KeyedBroadcastProcessFunction.*must not be keyed",
    )


def test_methods_with_other_arguments_are_refused() -> None:
    class NoContext(CoProcessFunction):
        def process_element1(self, value: Any, ctx: Any) -> Any:
            return []

        def process_element2(self, value: Any) -> Any:  # type: ignore[override]
            return []

    class TooMany(KeyedCo):
        def on_timer(self, timestamp: int, ctx: Any, out: Any) -> Any:  # type: ignore[override]
            return []

    class NoStateContext(Counted):
        def snapshot_state(self) -> None:  # type: ignore[override]
            pass

    class Flexible(Co):
        def process_element1(self, *arguments: Any, **further: Any) -> Any:
            return []

        def helper(self) -> None:
            pass

    refused(
        lambda a, b: a.connect(b).process(NoContext()),
        r"process_element2 calls its function as \(value, ctx\), and .* takes \(value",
    )
    refused(
        lambda a, b: a.connect(b).key_by(len, len).process(TooMany()),
        r"KeyedCoProcessFunction.on_timer calls its function as \(timestamp, ctx\)",
    )
    refused(lambda a, b: a.map(NoStateContext()), "CheckpointedFunction.snapshot_state calls its")
    one, other = streams(environment())
    one.connect(other).process(Flexible())


def test_a_keyed_function_needs_two_keyed_streams() -> None:
    keyed = "KeyedCo is a KeyedCoProcessFunction, which needs two keyed streams, and "
    refused(lambda a, b: a.connect(b).process(KeyedCo()), keyed + "the streams are not keyed")
    refused(
        lambda a, b: a.key_by(len).connect(b).process(KeyedCo()), keyed + "the second stream is not"
    )
    refused(
        lambda a, b: a.connect(b.key_by(len)).process(KeyedCo()), keyed + "the first stream is not"
    )


def test_wrong_arguments_are_refused() -> None:
    refused(lambda a, b: a.connect([1, 2]), r"connect takes a stream, not \[1, 2\]")
    refused(lambda a, b: a.connect(streams(environment())[0]), "stream of the same environment")
    refused(
        lambda a, b: a.connect(streams(environment())[0].broadcast(RULES)), "the same environment"
    )
    refused(lambda a, b: a.connect(b).key_by(len), "takes two functions")
    refused(lambda a, b: a.connect(b).key_by(0, 1.5), "key_by takes a function or a KeySelector")
    refused(lambda a, b: b.broadcast("rules"), "broadcast takes MapStateDescriptors, not 'rules'")
    refused(lambda a, b: b.broadcast(ValueStateDescriptor("v")), "takes MapStateDescriptors")
    refused(lambda a, b: b.broadcast(RULES, RULES), "two descriptors with the name 'rules'")

"""Rich functions on keyed streams: their kinds, their uids, and their state."""

import pytest

from penstock import (
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.dataflow.errors import JobError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.operators import specs


class _Counting:
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def count(self):
        self.seen.update((self.seen.value() or 0) + 1)
        return self.seen.value()


class Number(_Counting, MapFunction):
    def map(self, value):
        return value, self.count()


class Repeat(_Counting, FlatMapFunction):
    def flat_map(self, value):
        for _ in range(self.count()):
            yield value


class First(_Counting, FilterFunction):
    def filter(self, value):
        return self.count() == 1


class Plain(MapFunction):
    def map(self, value):
        return value


def _keyed(in_process=True):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    return env.set_in_process(in_process).from_collection([1, 2, 1, 1]).key_by(lambda n: n)


def _collect(stream):
    return sorted(stream.execute_and_collect(limit=100))


def test_rich_functions_have_state_of_the_current_key():
    assert _collect(_keyed().map(Number())) == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert _collect(_keyed().flat_map(Repeat())) == [1, 1, 1, 1, 1, 1, 2]
    assert _collect(_keyed().filter(First())) == [1, 2]


def test_only_functions_that_may_get_state_become_keyed_operators():
    kinds = {
        specs.KEYED_MAP: _keyed().map(Number()),
        specs.KEYED_FLAT_MAP: _keyed().flat_map(Repeat()),
        specs.KEYED_FILTER: _keyed().filter(First()),
        specs.MAP: _keyed().map(Plain()),
        specs.FILTER: _keyed().filter(lambda n: n > 1),
    }
    for kind, stream in kinds.items():
        assert stream._outputs[0].operator.spec is kind


def test_a_rich_function_keeps_the_uid_that_it_had_without_state():
    def uid(stream):
        env = stream.get_execution_environment()
        stream.print()
        return compile_graph(env._graph, env.config).operators[1].uid

    class Rich(Plain):
        def open(self, runtime_context):
            pass

    class Same(Plain):
        pass

    Same.__qualname__ = Rich.__qualname__
    assert uid(_keyed().map(Rich())) == uid(_keyed().map(Same()))


def test_state_without_keys_is_refused():
    stream = _keyed().map(lambda record: record).rebalance().map(Number())
    with pytest.raises(JobError, match="keyed state exists only on a keyed stream"):
        _collect(stream)

"""Which part of a program an execution runs, when one environment executes several times."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock import GraphError, JobExecutionResult, StreamExecutionEnvironment
from penstock.connectors import PrintSink
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.program import CloseableIterator, Program, RunOptions, run_options
from penstock.dataflow.streams import DataStream


@dataclass
class Recorder:
    """An executor that keeps the operators' names of each execution, and runs nothing."""

    executions: list[list[str]] = field(default_factory=list)

    def execute(self, program: Program) -> JobExecutionResult:
        compile_graph(program.graph, program.config)
        self.executions.append([operator.name for operator in program.graph.operators])
        return JobExecutionResult("", 0.0, [], [], [], "")

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        program.add_sink("Collect", outputs, PrintSink())
        self.execute(program)
        return CloseableIterator(iter([1, 2, 3]), lambda: None)


@pytest.fixture
def executor() -> Iterator[Recorder]:
    recorder = Recorder()
    with run_options(RunOptions(executor=recorder)):
        yield recorder


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def _source(env: StreamExecutionEnvironment, name: str) -> DataStream:
    return env.from_collection([1]).name(name)


def test_an_execution_has_the_operators_added_since_the_last_one(env, executor: Recorder):
    _source(env, "a").uid("source").print().name("first")
    env.execute()
    _source(env, "b").uid("source").print().name("second")
    assert "second" in env.get_execution_plan()
    assert "first" not in env.get_execution_plan()
    env.execute()
    assert executor.executions == [["a", "first"], ["b", "second"]]


def test_a_stream_of_an_earlier_execution_can_be_read_again(env, executor: Recorder):
    stream = _source(env, "a").map(str).name("text")
    stream.print().name("first")
    env.execute()
    stream.filter(bool).name("more").print().name("second")
    env.execute()
    assert executor.executions == [["a", "text", "first"], ["a", "text", "more", "second"]]


def test_a_loop_of_an_earlier_execution_comes_with_all_that_it_is_closed_with(env, executor):
    def add_loop(name: str) -> DataStream:
        back = env.create_feedback("again")
        body = _source(env, name).union(back).map(int).name("body")
        back.close_with(body.filter(bool).name("on"))
        return body

    body = add_loop("a")
    body.print().name("first")
    env.execute()
    body.print().name("second")
    env.execute()
    add_loop("b").print().name("third")
    env.execute()
    loop = ["again", "a", "body", "on"]
    assert executor.executions[:2] == [[*loop, "first"], [*loop, "second"]]
    assert executor.executions[2] == ["again", "b", "body", "on", "third"]


def test_a_stream_is_collected_as_often_as_is_asked_for(env, executor: Recorder):
    stream = _source(env, "a")
    assert list(stream.execute_and_collect()) == [1, 2, 3]
    assert stream.execute_and_collect(limit=2) == [1, 2]
    assert stream.execute_and_collect(limit=0) == []
    stream.print().name("printed")
    env.execute()
    assert executor.executions == [["a", "Collect"]] * 3 + [["a", "printed"]]


def test_an_execution_without_anything_new_is_refused(env, executor: Recorder):
    _source(env, "a").print()
    env.execute()
    with pytest.raises(GraphError, match="nothing was added to the program since its last"):
        env.execute()


def test_a_program_that_was_refused_is_not_part_of_the_next_one(env, executor: Recorder):
    _source(env, "a").uid("same").map(str).uid("same").print()
    with pytest.raises(GraphError, match="two operators have the uid 'same'"):
        env.execute()
    _source(env, "b").print().name("printed")
    env.execute()
    assert executor.executions == [["b", "printed"]]


def test_a_stream_that_no_operator_reads_is_warned_of(env, executor: Recorder, caplog: Any):
    stream = _source(env, "a")
    stream.map(str).name("forgotten")
    stream.print()
    with caplog.at_level(logging.WARNING, "penstock"):
        env.execute()
    (record,) = caplog.records
    assert "the stream of operator 'forgotten': its records are dropped" in record.getMessage()

"""Which part of a program an execution runs, when one environment executes several times."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    GraphError,
    JobExecutionResult,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from penstock.connectors import FileSink, PrintSink
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


class Tagging(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield OutputTag("late"), value


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


def test_collecting_runs_only_what_leads_to_the_stream(env, executor: Recorder, caplog: Any):
    stream = _source(env, "a").map(str).name("text")
    stream.print().name("pending")
    _source(env, "b").print().name("other")
    stream.filter(bool).name("unread")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert stream.take(2) == [1, 2]
        stream.show(1)
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "penstock"):
        assert list(stream.execute_and_collect()) == [1, 2, 3]
    assert "'pending', 'other' does not run now: env.execute()" in caplog.text
    assert executor.executions == [["a", "text", "Collect"]] * 3
    assert "other" in env.get_execution_plan()
    env.execute()
    assert executor.executions[3] == ["a", "text", "pending", "b", "other", "unread"]
    with pytest.raises(GraphError, match="nothing was added"):
        env.execute()


def test_what_was_collected_alone_is_not_executed_again(env, executor: Recorder):
    stream = _source(env, "a").map(str)
    stream.take(1)
    with pytest.raises(GraphError, match="nothing was added"):
        env.execute()
    _source(env, "b").print().name("printed")
    env.execute()
    assert executor.executions[1:] == [["b", "printed"]]


def test_collecting_a_loop_runs_all_of_the_loop_and_nothing_behind_it(env, executor: Recorder):
    numbers = _source(env, "a")
    again = env.create_feedback("again")
    body = numbers.union(again).map(int).name("body")
    on = body.filter(bool).name("on")
    body.print().name("behind")
    with pytest.raises(GraphError, match="never closed"):
        body.take(1)
    again.close_with(on)
    body.take(1)
    numbers.take(1)
    on.take(1)
    loop = ["a", "again", "body", "on"]
    assert executor.executions == [[*loop, "Collect"], ["a", "Collect"], [*loop, "Collect"]]
    with pytest.raises(GraphError, match="feedback 'again' already"):
        env.create_feedback("again")
    env.execute()
    assert executor.executions[3] == [*loop, "behind"]


def test_collecting_a_side_output_runs_the_operator_that_emits_it(env, executor: Recorder):
    tag = OutputTag("late")
    main = _source(env, "a").process(Tagging()).name("tagging")
    side = main.get_side_output(tag)
    main.print().name("main")
    side.take(1)
    assert executor.executions == [["a", "tagging", "Collect"]]


def test_peeking_does_not_publish_what_a_sink_would(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(20)
    numbers = env.from_sequence(1, 500).map(str)
    numbers.sink_to(FileSink(tmp_path / "out"))
    assert numbers.take(2) == ["1", "2"]
    assert not (tmp_path / "out").exists()
    env.execute()
    lines = [n for path in (tmp_path / "out").glob("part-*") for n in path.read_text().split()]
    assert sorted(map(int, lines)) == list(range(1, 501))


def test_a_cache_is_filled_when_its_stream_is_collected(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment()
    calls = tmp_path / "calls"

    def noted(number: int) -> int:
        with calls.open("a") as file:
            file.write("x")
        return number

    cached = env.from_sequence(1, 5).map(noted).cache()
    cached.sink_to(FileSink(tmp_path / "out"))
    assert sorted(cached.execute_and_collect()) == [1, 2, 3, 4, 5]
    assert sorted(cached.execute_and_collect()) == [1, 2, 3, 4, 5]
    assert calls.read_text() == "xxxxx"
    env.execute()
    assert calls.read_text() == "xxxxx"
    assert list((tmp_path / "out").glob("part-*"))

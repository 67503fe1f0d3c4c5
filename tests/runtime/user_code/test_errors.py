"""Errors of enumerators and committers name the operator and are left to the restart strategy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors import GeneratorSource
from penstock.dataflow.config import JobConfig, RestartStrategies
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.sink import Committer, Sink, SinkWriter, WriterContext
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import program, run_program


class Trip:
    """Fails one call of one method, once."""

    where, at, calls = "", 1, 0

    @classmethod
    def reach(cls, where: str) -> None:
        # Functions that were sent to the JobManager find this class by its module.
        if where == cls.where:
            cls.calls += 1
            if cls.calls == cls.at:
                raise OSError(5, "Input/output error")


class Reader(SourceReader):
    def open(self, split: Split, position: Any) -> None:
        self._next = position or 0

    def read(self, max_records: int) -> Read:
        self._next += 1
        return Read([self._next], self._next, self._next >= 30, 0.01)


class Enumerator(ListEnumerator):
    def next_split(self, subtask: int) -> Split | None:
        sys.modules[__name__].Trip.reach("next_split")
        return super().next_split(subtask)

    def snapshot(self) -> Any:
        sys.modules[__name__].Trip.reach("snapshot")
        return super().snapshot()

    def close(self) -> None:
        sys.modules[__name__].Trip.reach("close")


class SplitSource(Source):
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        sys.modules[__name__].Trip.reach("create_enumerator")
        return Enumerator([Split(str(i), i) for i in range(3)])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return Reader()


class TrippingCommitter(Committer):
    def __init__(self, inner: Committer) -> None:
        self._inner = inner

    def commit(self, committables: list[Any]) -> None:
        sys.modules[__name__].Trip.reach("commit")
        self._inner.commit(committables)

    def clean(self, lineage: str, uid: str, before_attempt: int) -> None:
        sys.modules[__name__].Trip.reach("clean")
        self._inner.clean(lineage, uid, before_attempt)

    def finish(self, lineage: str, uid: str) -> None:
        sys.modules[__name__].Trip.reach("finish")


class TrippingSink(Sink):
    exactly_once = True

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return LedgerSink(60).create_writer(context)

    def create_committer(self) -> Committer:
        sys.modules[__name__].Trip.reach("create_committer")
        return TrippingCommitter(LedgerSink(60).create_committer())


def build(env: StreamExecutionEnvironment) -> None:
    source = env.from_source(SplitSource(), None, "splits").uid("splits")
    source.sink_to(TrippingSink()).uid("ledger")


@pytest.mark.parametrize(
    ("where", "at", "operator"),
    [
        ("create_enumerator", 1, "splits"),
        ("next_split", 3, "splits"),
        ("snapshot", 3, "splits"),
        ("create_committer", 1, "Sink: TrippingSink"),
        ("clean", 1, "Sink: TrippingSink"),
        ("commit", 2, "Sink: TrippingSink"),
        ("finish", 1, "Sink: TrippingSink"),
    ],
)
def test_a_call_that_fails_once_is_survived_by_a_restart(
    where: str, at: int, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Trip, "where", where)
    monkeypatch.setattr(Trip, "at", at)
    monkeypatch.setattr(Trip, "calls", 0)
    LEDGERS[60] = Ledger()
    config = JobConfig(
        name="job",
        checkpoint_dir=str(tmp_path),
        checkpoint_interval_seconds=0.1,
        restart=RestartStrategies.fixed_delay_restart(3, 0),
    )
    ran = run_program(program(build, config))
    assert ran.crashes == []
    assert not isinstance(ran.outcome, Exception), ran.outcome
    [restart] = [event for event in ran.events if event["event"] == "restarting"]
    assert "Input/output error" in restart["cause"]
    assert f"operator: {operator}" in restart["cause"]
    assert sorted(LEDGERS[60].output().elements()) == sorted([*range(1, 31)] * 3)


def test_an_enumerator_that_cannot_be_closed_does_not_fail_a_finished_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(Trip, "where", "close")
    monkeypatch.setattr(Trip, "at", 1)
    monkeypatch.setattr(Trip, "calls", 0)
    LEDGERS[60] = Ledger()
    ran = run_program(program(build, JobConfig(name="job")))
    assert not isinstance(ran.outcome, Exception), ran.outcome
    assert "'splits' could not be closed" in caplog.text


def test_a_machine_that_starts_no_process_is_a_fault_of_the_environment(tmp_path: Path):
    async def script(job: Any, machine: Any, events: Any) -> None:
        launcher = job._system.launcher
        launcher.launch = failing(launcher.launch)

    def failing(launch: Any) -> Any:
        calls = []

        async def once(spec: Any) -> Any:
            calls.append(spec)
            if len(calls) == 1:
                raise OSError(11, "Resource temporarily unavailable")
            return await launch(spec)

        return once

    def numbers(env: StreamExecutionEnvironment) -> None:
        env.from_source(GeneratorSource(lambda i: i, 10), None, "numbers").print()

    config = JobConfig(
        name="job", checkpoint_dir=str(tmp_path / "job"), checkpoint_interval_seconds=0.1
    )
    ran = run_program(program(numbers, config), script=script)
    assert not isinstance(ran.outcome, Exception), ran.outcome
    [restart] = [event for event in ran.events if event["event"] == "restarting"]
    assert "the workers cannot be run here" in restart["cause"]

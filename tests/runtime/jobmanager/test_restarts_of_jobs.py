"""Failures of jobs on the simulated cluster: the failures that end a job, and its restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.connectors import FileSink, GeneratorSource, JsonLines
from penstock.connectors.file_sink import FileCommitter
from penstock.dataflow.config import JobConfig, RestartStrategies
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import JobError, StoreError
from penstock.dataflow.sink import Committable
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import Events, Ran, program, run_program


def numbers(env: StreamExecutionEnvironment, count: int = 200, rate: float = 200.0) -> Any:
    source = GeneratorSource(lambda i: i, count, rate, clock=trio.current_time)
    return env.from_source(source, None, "numbers")


def config(folder: Path, **settings: Any) -> JobConfig:
    return JobConfig(
        name="job",
        checkpoint_dir=str(folder / "snapshots"),
        checkpoint_interval_seconds=0.1,
        **settings,
    )


def told(ran: Ran, kind: str) -> Events:
    return [event for event in ran.events if event["event"] == kind]


def after_snapshots(count: int, do: Callable[[], None]) -> Any:
    """Return a script that calls a function when `count` snapshots are complete."""

    async def script(job: Any, machine: Any, events: Events) -> None:
        while sum(event["event"] == "snapshot" for event in events) < count:
            await trio.sleep(0.005)
        do()

    return script


def test_a_bug_at_the_same_record_ends_the_job_after_the_third_failure(tmp_path: Path):
    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env).map(lambda n: {"a": n}["b" if n == 70 else "a"]).name("look up").print()

    ran = run_program(program(build, config(tmp_path)))
    assert isinstance(ran.outcome, JobError), ran
    assert "KeyError in operator 'look up'" in ran.outcome.message
    assert len(told(ran, "restarting")) == 2
    assert "without progress" in told(ran, "giving_up")[0]["reason"]


class LateReader(SourceReader):
    """Waits for half a second before it returns its only record."""

    def open(self, split: Split, position: Any) -> None:
        self._waited = False

    def read(self, max_records: int) -> Read:
        if not self._waited:
            self._waited = True
            return Read([], None, False, 0.5)
        return Read([0], 1, True)


class LateSource(Source):
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return ListEnumerator([Split("0", 0)])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return LateReader()


def test_snapshots_without_new_input_do_not_keep_a_failing_job_alive(tmp_path: Path):
    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(LateSource(), None, "late").map(lambda n: 1 // n).print()

    ran = run_program(program(build, config(tmp_path)))
    assert isinstance(ran.outcome, JobError), ran
    assert len(told(ran, "restarting")) == 2
    kinds = [event["event"] for event in ran.events]
    assert "snapshot" in kinds[kinds.index("restarted") :]


def test_a_job_whose_lock_was_replaced_ends_at_once(tmp_path: Path):
    lock = tmp_path / "snapshots" / "lock"

    def replace_it() -> None:
        lock.unlink()
        lock.touch()

    strategy = RestartStrategies.fixed_delay_restart(1000, 0)
    ran = run_program(
        program(lambda env: numbers(env).print(), config(tmp_path, restart=strategy)),
        script=after_snapshots(2, replace_it),
    )
    assert isinstance(ran.outcome, StoreError), ran
    assert "the lock was removed or replaced" in str(ran.outcome)
    assert told(ran, "restarting") == []


def test_a_job_whose_checkpoint_folder_was_renamed_ends_at_once(tmp_path: Path):
    folder = tmp_path / "snapshots"
    ran = run_program(
        program(lambda env: numbers(env).print(), config(tmp_path)),
        script=after_snapshots(2, lambda: folder.rename(tmp_path / "elsewhere") and None),
    )
    assert isinstance(ran.outcome, StoreError), ran
    assert "the checkpoint folder was removed or moved" in str(ran.outcome)
    assert told(ran, "restarting") == []


def test_a_job_whose_staged_output_was_removed_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commit, calls = FileCommitter.commit, 0

    def commit_what_is_gone(self: FileCommitter, committables: list[Committable]) -> None:
        nonlocal calls
        calls += bool(committables)
        if calls == 2:
            for staged in (tmp_path / "out" / "_staging").iterdir():
                staged.unlink()
        commit(self, committables)

    monkeypatch.setattr(FileCommitter, "commit", commit_what_is_gone)

    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env).sink_to(FileSink(tmp_path / "out", JsonLines()))

    ran = run_program(program(build, config(tmp_path)))
    assert isinstance(ran.outcome, JobError), ran
    assert "was removed" in ran.outcome.message
    assert told(ran, "restarting") == []


def test_a_job_that_cannot_be_started_ends_with_its_cause(tmp_path: Path):
    class Unreachable(GeneratorSource):
        def create_enumerator(self, parallelism: int) -> Any:
            raise ConnectionRefusedError("no broker")

    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(Unreachable(lambda i: i, 10), None, "broker").print()

    ran = run_program(program(build, config(tmp_path)))
    assert isinstance(ran.outcome, JobError), ran
    assert "no broker" in str(ran.outcome)
    assert ran.outcome.operator == "broker"
    assert len(told(ran, "restarting")) == 2
    assert "could not be started" in told(ran, "giving_up")[0]["reason"]


def test_collected_results_come_once_though_the_job_is_restarted_without_checkpoints():
    LEDGERS[61] = Ledger()

    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env).sink_to(LedgerSink(61)).uid("ledger")

    async def script(job: Any, machine: Any, events: Events) -> None:
        # After some results were committed.
        while LEDGERS[61].output().total() < 50:
            await trio.sleep(0.01)
        next(p for p in machine.processes if p.name.startswith("worker")).kill()

    settings = JobConfig(name="job", restart=RestartStrategies.fixed_delay_restart(3, 0))
    ran = run_program(program(build, settings), options=JobSettings(collecting=True), script=script)
    assert isinstance(ran.outcome, JobOutcome), ran
    assert len(told(ran, "restarting")) == 1
    assert sorted(LEDGERS[61].output().elements()) == list(range(200))


def test_a_snapshot_that_was_altered_ends_the_job_at_its_restart(tmp_path: Path):
    async def script(job: Any, machine: Any, events: Events) -> None:
        await after_snapshots(2, lambda: None)(job, machine, events)
        for manifest in tmp_path.glob("snapshots/checkpoints/*/manifest"):
            manifest.write_bytes(manifest.read_bytes()[:-1] + b"?")
        next(p for p in machine.processes if p.name.startswith("worker")).kill()

    ran = run_program(program(lambda env: numbers(env).print(), config(tmp_path)), script=script)
    assert isinstance(ran.outcome, StoreError), ran
    assert "the manifest was altered" in str(ran.outcome)
    assert len(told(ran, "restarting")) == 1

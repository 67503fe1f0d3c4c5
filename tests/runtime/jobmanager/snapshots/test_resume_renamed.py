"""A job whose operators and states were renamed goes on, and loses and doubles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.connectors import FileSink, GeneratorSource
from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeyedProcessFunction
from penstock.dataflow.state import ValueStateDescriptor
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.testing.simulation.machine import Machine
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import (
    Build,
    Events,
    Ran,
    crash_at_commit,
    program,
    run_program,
)

NEWEST = JobSettings(resume="newest")
NUMBER, RECORDS = 4005, 400


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = LEDGERS[NUMBER] = Ledger()
    yield ledger
    del LEDGERS[NUMBER]


def config(tmp_path: Path, mode: CheckpointingMode) -> JobConfig:
    return JobConfig(
        name="j",
        parallelism=2,
        checkpoint_dir=str(tmp_path / "job"),
        checkpoint_interval_seconds=0.1,
        checkpointing_mode=mode,
    )


class Number(KeyedProcessFunction):
    """Numbers the records of a key."""

    def __init__(self, name: str, aliases: tuple[str, ...]) -> None:
        self.name, self.aliases = name, aliases

    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor(self.name, aliases=self.aliases)
        self.count = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value % 10, self.count.value()


def job(
    prefix: str, formerly: str | None = None, state: str = "n", aliases: tuple[str, ...] = ()
) -> Build:
    """Return a job whose uids begin with a prefix, and did with another one."""

    def uids(name: str) -> dict[str, Any]:
        former = {} if formerly is None else {"formerly": formerly + name}
        return {"uid": prefix + name, **former}

    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, RECORDS, 400.0, clock=trio.current_time)
        stream = env.from_source(source, None, "gen").uid(**uids("source"))
        # The uid of this operator is derived from that of the source.
        keyed = stream.map(lambda i: i).rebalance().map(lambda i: i).key_by(lambda i: i % 10)
        numbered = keyed.process(Number(state, aliases)).uid(**uids("numbers"))
        numbered.sink_to(LedgerSink(NUMBER)).uid(**uids("sink"))

    return build


def require_done(ran: Ran) -> None:
    assert isinstance(ran.outcome, JobOutcome), (ran.outcome, ran.crashes)


def require_exact(ledger: Ledger) -> None:
    expected = {(key, count): 1 for key in range(10) for count in range(1, RECORDS // 10 + 1)}
    assert dict(ledger.output()) == expected


@pytest.mark.parametrize(
    "mode", [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED], ids=lambda m: m.name
)
def test_renamed_operators_and_states_go_on_exactly_once(
    tmp_path: Path, ledger: Ledger, mode: CheckpointingMode
) -> None:
    settings = config(tmp_path, mode)
    ran = run_program(program(job("old "), settings), script=crash_at_commit(NUMBER, 3))
    assert ran.outcome is None and ledger.staged, "the crash left output unpublished"
    renamed = program(job("new ", "old ", "number", ("n",)), settings)
    ran = run_program(renamed, options=NEWEST, script=crash_at_commit(NUMBER, 3))
    assert ran.outcome is None
    # The snapshot has the new names now.
    newest = program(job("new ", None, "number"), settings)
    require_done(run_program(newest, options=NEWEST))
    require_exact(ledger)


def test_published_files_of_a_renamed_sink_are_not_published_again(tmp_path: Path) -> None:
    def to_files(**uid: Any) -> Build:
        def build(env: StreamExecutionEnvironment) -> None:
            source = GeneratorSource(lambda i: i, RECORDS, 400.0, clock=trio.current_time)
            stream = env.from_source(source, None, "gen").uid("source")
            stream.sink_to(FileSink(tmp_path / "out")).uid(**uid)

        return build

    async def stop_soon(job: JobManager, machine: Machine, events: Events) -> None:
        await trio.sleep(0.5)
        job.stop()

    settings = config(tmp_path, CheckpointingMode.EXACTLY_ONCE)
    require_done(run_program(program(to_files(uid="old"), settings), script=stop_soon))
    # As after a crash between the commit and its record.
    (tmp_path / "job" / "commits").unlink()
    renamed = program(to_files(uid="new", formerly="old"), settings)
    require_done(run_program(renamed, options=NEWEST))
    files = (tmp_path / "out").glob("part-*")
    lines = sorted(int(line) for path in files for line in path.read_text().split())
    assert lines == list(range(RECORDS))


def test_a_state_that_is_gone_ends_the_job_once_and_before_its_first_record(
    tmp_path: Path, ledger: Ledger
) -> None:
    settings = config(tmp_path, CheckpointingMode.EXACTLY_ONCE)
    run_program(program(job("a "), settings), script=crash_at_commit(NUMBER, 3))
    before = ledger.output()
    ran = run_program(program(job("a ", state="numbers"), settings), options=NEWEST)
    assert isinstance(ran.outcome, GraphError)
    assert "'n' is gone" in str(ran.outcome) and "aliases=['n']" in str(ran.outcome)
    assert "restarting" not in [event["event"] for event in ran.events]
    # What the snapshot held unpublished was published, and nothing else.
    assert before <= ledger.output()
    after = len(ledger.output())
    dropping = JobSettings(resume="newest", allow_dropped=True)
    require_done(run_program(program(job("a ", state="numbers"), settings), options=dropping))
    assert ledger.output()[0, 1] == 2, "the numbers begin again"
    assert ledger.output().total() == RECORDS and after < RECORDS

"""Outages of the systems that sources and sinks talk to, on the simulated cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock import BatchSink, PollingSource, SinkFunction, SplitPoller, TransactionalSink
from penstock.connectors import FunctionSink, GeneratorSource
from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import JobError, Recoverability
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from tests.simulation.run_program import Events, Ran, program, run_program

COUNT = 400
#: Virtual seconds for which the database is down.
OUTAGE_SECONDS = 60.0


class ClientError(Exception):
    """The error of a database's client: no `OSError`, as with psycopg."""


@dataclass
class Database:
    """A database outside of the cluster, with a table of rows and one of staged rows."""

    down: bool = False
    rows: list[Any] = field(default_factory=list)
    staged: dict[str, list[Any]] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)

    def call(self, what: str) -> None:
        """Raise the error of the client if the database is down."""
        if self.down:
            self.refused[what] += 1
            raise ClientError("connection to server failed: Connection refused")


#: Functions that were sent to a worker find their database here.
DATABASES: dict[str, Database] = {}


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Any:
    name = request.node.name
    DATABASES[name] = Database()
    yield name
    del DATABASES[name]


class Numbers(PollingSource):
    """Reads the numbers of a table, a few in each query."""

    def __init__(self, name: str) -> None:
        self.name = name

    def splits(self) -> list[str]:
        return ["a", "b"]

    def create_poller(self, split: Any) -> SplitPoller:
        return NumberPoller(self.name, split.id)


class NumberPoller(SplitPoller):
    def __init__(self, name: str, split: str) -> None:
        self.name, self.split, self.next = name, split, 0
        self.idle = False

    def seek(self, position: Any) -> None:
        self.next = position or 0

    def poll(self, max_records: int) -> list[Any] | None:
        DATABASES[self.name].call("poll")
        self.idle = not self.idle
        if self.idle:
            return []
        if self.next >= COUNT // 2:
            return None
        begin, self.next = self.next, self.next + 5
        return [(self.split, number) for number in range(begin, self.next)]

    def position(self) -> Any:
        return self.next


class Rows(TransactionalSink):
    """Publishes rows exactly once; each method may fail."""

    def __init__(self, name: str) -> None:
        self.name = name

    def flush(self, records: list[Any], batch: Any) -> None:
        DATABASES[self.name].call("flush")
        DATABASES[self.name].staged[batch.key] = list(records)

    def commit(self, batches: list[Any]) -> None:
        DATABASES[self.name].call("commit")
        for batch in batches:
            if batch.key not in DATABASES[self.name].published:
                DATABASES[self.name].published.add(batch.key)
                DATABASES[self.name].rows += DATABASES[self.name].staged.pop(batch.key)

    def discard(self, lineage: str, uid: str, before_attempt: int) -> int:
        DATABASES[self.name].call("discard")
        return 0


def config(folder: Path, **settings: Any) -> JobConfig:
    """The default settings, with snapshots."""
    return JobConfig(
        name="job",
        checkpoint_dir=str(folder / "snapshots"),
        checkpoint_interval_seconds=0.1,
        **settings,
    )


def told(ran: Ran, kind: str) -> Events:
    return [event for event in ran.events if event["event"] == kind]


def outage(name: str, begins: Callable[[Database], bool]) -> Any:
    """Return a script that stops the database for a minute when a condition holds."""

    async def script(job: Any, machine: Any, events: Events) -> None:
        while not begins(DATABASES[name]):
            await trio.sleep(0.001)
        DATABASES[name].down = True
        await trio.sleep(OUTAGE_SECONDS)
        DATABASES[name].down = False

    return script


def exact(name: str) -> bool:
    wanted = Counter((split, number) for split in "ab" for number in range(COUNT // 2))
    return Counter(DATABASES[name].rows) == wanted


@pytest.mark.parametrize("seed", range(6))
def test_a_job_with_default_settings_outlives_an_outage_of_a_minute(
    tmp_path: Path, database: str, seed: int
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(Numbers(database), None, "numbers").sink_to(Rows(database)).name("rows")

    ran = run_program(
        program(build, config(tmp_path)),
        script=outage(database, lambda found: len(found.rows) > 20),
        seed=seed,
        deadline=400.0,
    )
    assert isinstance(ran.outcome, JobOutcome), ran
    assert exact(database), f"seed {seed}"
    pauses = [event["delay_seconds"] for event in told(ran, "restarting")]
    assert len(pauses) > 3, "the outage was too short to show anything"
    assert pauses == sorted(pauses) and pauses[-1] > 8 * pauses[0]
    for event in told(ran, "restarting"):
        assert event["operator"] in ("numbers", "rows")
        first = event["message"].splitlines()[0]
        assert "ClientError" in first and "connection to server failed" in first


def test_a_job_that_is_resumed_during_an_outage_waits_for_its_end(
    tmp_path: Path, database: str
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(Numbers(database), None, "numbers").sink_to(Rows(database)).name("rows")

    async def stop(job: Any, machine: Any, events: Events) -> None:
        while not DATABASES[database].refused["commit"]:
            if DATABASES[database].staged:
                DATABASES[database].down = True
            await trio.sleep(0.001)
        job.stop()

    first = run_program(program(build, config(tmp_path)), script=stop)
    assert not exact(database), first
    DATABASES[database].refused.clear()
    # It is down still.
    ran = run_program(
        program(build, config(tmp_path)),
        options=JobSettings(resume="newest"),
        script=outage(database, lambda found: True),
        deadline=400.0,
    )
    assert DATABASES[database].refused["commit"] > 3, "no commit met the outage"
    assert isinstance(ran.outcome, JobOutcome), ran
    assert exact(database)


class Broken(Rows):
    """Has a programming error in `commit`."""

    def commit(self, batches: list[Any]) -> None:
        if DATABASES[self.name].staged:
            batches.publish()


class Refusing(Rows):
    """Says itself that no restart helps."""

    def commit(self, batches: list[Any]) -> None:
        if DATABASES[self.name].staged:
            raise JobError("no such table", recoverability=Recoverability.NON_RECOVERABLE)


@pytest.mark.parametrize(
    ("sink", "restarts", "message"), [(Broken, 2, "AttributeError"), (Refusing, 0, "no such table")]
)
def test_an_error_that_no_waiting_mends_ends_the_job(
    tmp_path: Path, database: str, sink: type[Rows], restarts: int, message: str
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(Numbers(database), None, "numbers").sink_to(sink(database)).name("rows")

    ran = run_program(program(build, config(tmp_path)))
    assert isinstance(ran.outcome, JobError), ran
    assert message in ran.outcome.message
    assert ran.outcome.operator == "rows"
    assert len(told(ran, "restarting")) == restarts


class Posts(SinkFunction):
    """Sends each record by itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def invoke(self, value: Any, context: Any = None) -> None:
        DATABASES[self.name].call("invoke")
        DATABASES[self.name].rows.append(value)


class Replaces(BatchSink):
    def __init__(self, name: str) -> None:
        self.name = name

    def flush(self, records: list[Any], batch: Any) -> None:
        DATABASES[self.name].call("flush")
        DATABASES[self.name].rows += records


@pytest.mark.parametrize("kind", [Posts, Replaces])
def test_a_sink_without_commits_outlives_an_outage(
    tmp_path: Path, database: str, kind: type
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, COUNT, 200.0, clock=trio.current_time)
        sink = FunctionSink(Posts(database)) if kind is Posts else Replaces(database)
        env.from_source(source, None, "numbers").sink_to(sink).name("posts")

    ran = run_program(
        program(build, config(tmp_path)),
        script=outage(database, lambda found: len(found.rows) > 20),
        deadline=400.0,
    )
    assert isinstance(ran.outcome, JobOutcome), ran
    assert len(told(ran, "restarting")) > 3
    assert set(DATABASES[database].rows) == set(range(COUNT))


def test_the_same_error_in_a_function_ends_the_job_after_the_third_failure(
    tmp_path: Path, database: str
) -> None:
    def ask(value: Any) -> Any:
        if value[1] == 50:
            raise ClientError("connection to server failed")
        return value

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = env.from_source(Numbers(database), None, "numbers")
        numbers.map(ask).name("ask").sink_to(Rows(database))

    ran = run_program(program(build, config(tmp_path)))
    assert isinstance(ran.outcome, JobError), ran
    assert ran.outcome.operator == "ask"
    assert len(told(ran, "restarting")) >= 2
    assert "without progress" in told(ran, "giving_up")[0]["reason"]


def test_the_traceback_of_a_committer_begins_in_the_connector(
    tmp_path: Path, database: str
) -> None:
    class Failing(Rows):
        def discard(self, lineage: str, uid: str, before_attempt: int) -> int:
            return len(None)

    for sink in (Failing, Broken):

        def build(env: StreamExecutionEnvironment, sink: type[Rows] = sink) -> None:
            env.from_source(Numbers(database), None, "numbers").sink_to(sink(database))

        ran = run_program(program(build, config(tmp_path / sink.__name__)))
        assert isinstance(ran.outcome, JobError), ran
        frames = [
            line for line in (ran.outcome.user_traceback or "").splitlines() if "  File " in line
        ]
        assert frames and all(__file__ in line for line in frames), ran.outcome.user_traceback

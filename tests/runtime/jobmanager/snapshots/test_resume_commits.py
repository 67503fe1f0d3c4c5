"""A resumed job publishes the output that its snapshot holds unpublished, and nothing twice.

Also a newest snapshot that is missing, savepoints, and stops. Jobs run on the simulated cluster.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from penstock.cli import main
from penstock.connectors import FileSink, GeneratorSource
from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import GraphError, JobError, PenstockError, StoreError
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.store import Store
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
NUMBER = 4004


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = LEDGERS[NUMBER] = Ledger()
    yield ledger
    del LEDGERS[NUMBER]


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    return JobConfig(
        name="j", checkpoint_dir=str(tmp_path / "job"), checkpoint_interval_seconds=0.2
    )


def to_ledger(uid: str = "s", count: int | None = None) -> Build:
    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, count, 300.0, clock=trio.current_time)
        env.from_source(source, None, "gen").uid("g").sink_to(LedgerSink(NUMBER)).uid(uid)

    return build


def to_files(folder: Path, count: int | None = None) -> Build:
    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, count, 300.0, clock=trio.current_time)
        env.from_source(source, None, "gen").uid("g").sink_to(FileSink(folder)).uid("s")

    return build


async def stop_soon(job: JobManager, machine: Machine, events: Events) -> None:
    await trio.sleep(0.7)
    job.stop()


def is_savepoint(event: dict[str, Any]) -> bool:
    """Return whether an event says that a savepoint is complete."""
    return event["event"] == "snapshot" and event["kind"] == "savepoint"


def outcome(ran: Ran) -> JobOutcome:
    assert isinstance(ran.outcome, JobOutcome), (ran.outcome, ran.crashes)
    return ran.outcome


def error(ran: Ran) -> PenstockError:
    assert isinstance(ran.outcome, PenstockError), ran
    return ran.outcome


def told(ran: Ran) -> str:
    return "\n".join(str(e["text"]) for e in ran.events if e["event"] == "note")


# ---- what is confirmed is not published again


def test_published_files_may_be_taken_away_before_the_job_is_resumed(
    tmp_path: Path, config: JobConfig
) -> None:
    out = tmp_path / "out"
    outcome(run_program(program(to_files(out), config), script=stop_soon))
    taken = sorted(out.glob("part-*"))
    lines = [line for path in taken for line in path.read_text().split()]
    for path in taken:
        path.unlink()
    outcome(run_program(program(to_files(out), config), options=NEWEST, script=stop_soon))
    lines += [line for path in sorted(out.glob("part-*")) for line in path.read_text().split()]
    assert sorted(map(int, lines)) == list(range(len(lines)))


@pytest.mark.parametrize("harm", ["deleted", "altered"])
def test_output_that_is_not_confirmed_must_be_there(
    tmp_path: Path, config: JobConfig, harm: str
) -> None:
    out = tmp_path / "out"
    outcome(run_program(program(to_files(out), config), script=stop_soon))
    last = sorted(out.glob("part-*"))[-1]
    # As after a crash between the commit and its record.
    (tmp_path / "job" / "commits").unlink()
    last.unlink() if harm == "deleted" else last.write_text("other")
    failed = error(run_program(program(to_files(out), config), options=NEWEST))
    assert isinstance(failed, JobError) and last.name in str(failed)


def test_a_sink_with_another_uid_goes_on_if_all_is_published(
    ledger: Ledger, config: JobConfig
) -> None:
    outcome(run_program(program(to_ledger("old"), config), script=stop_soon))
    outcome(run_program(program(to_ledger("new"), config), options=NEWEST, script=stop_soon))
    output = ledger.output()
    assert output.total() == len(output) == max(output) + 1 > 300


def test_a_resume_without_a_snapshot_tells_of_the_output_that_is_there(
    tmp_path: Path, config: JobConfig
) -> None:
    out = tmp_path / "out"
    ran = run_program(program(to_files(out, 20), config), options=NEWEST)
    outcome(ran)
    assert "has output already" not in told(ran)
    files = len(list(out.glob("part-*")))
    shutil.rmtree(str(config.checkpoint_dir))
    ran = run_program(program(to_files(out, 20), config), options=NEWEST)
    assert re.search(rf"has output already: {files} files? in {re.escape(str(out))}", told(ran))
    assert "its records will be there twice" in told(ran)


def test_a_fresh_start_tells_of_the_output_that_is_there(tmp_path: Path, config: JobConfig) -> None:
    out = tmp_path / "out"
    outcome(run_program(program(to_files(out, 20), config)))
    shutil.rmtree(str(config.checkpoint_dir))
    ran = run_program(program(to_files(out, 20), config))
    assert told(ran).startswith("sink 'Sink: FileSink' has output already: 1 file in ")


def test_output_without_a_sink_is_dropped_only_if_that_is_allowed(
    ledger: Ledger, config: JobConfig
) -> None:
    ran = run_program(program(to_ledger("old"), config), script=crash_at_commit(NUMBER, 3))
    assert ran.outcome is None and len(ledger.staged) == 1
    new = program(to_ledger("new"), config)
    failed = error(run_program(new, options=NEWEST))
    assert isinstance(failed, GraphError)
    assert "holds output of 'old' that was not published yet" in str(failed)
    assert "--allow-dropped" in str(failed)
    dropped = replace(NEWEST, allow_dropped=True)
    ran = run_program(new, options=dropped, script=stop_soon)
    outcome(ran)
    assert "output of 'old'" in told(ran) and "stays unpublished" in told(ran)
    (given_up,) = ledger.staged.values()
    assert not set(given_up.records) & set(ledger.output())


def test_a_damaged_record_of_commits_is_refused_and_may_be_removed(
    ledger: Ledger, config: JobConfig
) -> None:
    outcome(run_program(program(to_ledger(), config), script=stop_soon))
    record = Path(str(config.checkpoint_dir)) / "commits"
    for damage in ("{", '{"confirmed": [["l", 7]]}', '{"confirmed": 1}', "[" * 10**5):
        record.write_text(damage)
        failed = error(run_program(program(to_ledger(), config), options=NEWEST))
        assert isinstance(failed, StoreError) and str(record) in str(failed)
    record.unlink()
    outcome(run_program(program(to_ledger(), config), options=NEWEST, script=stop_soon))
    assert set(ledger.output().values()) == {1}


def test_a_record_of_commits_that_is_ahead_of_the_snapshots_is_refused(
    ledger: Ledger, config: JobConfig
) -> None:
    blob = program(to_ledger(), config)
    ran = run_program(blob, script=crash_at_commit(NUMBER, 3))
    assert ran.outcome is None and len(ledger.staged) == 1
    record = Path(str(config.checkpoint_dir)) / "commits"
    ((lineage, uid, number),) = json.loads(record.read_text())["confirmed"]
    # As in a file of Penstock 0.1, which has no checksum. The new run would have such numbers.
    for wrong in (number + 4, number + 90):
        record.write_text(json.dumps({"confirmed": [[lineage, uid, wrong]]}))
        shown = CliRunner().invoke(main, ["snapshots", "list", str(record.parent)])
        assert shown.exit_code == 1 and f"output of snapshot {wrong} is published" in shown.output
        failed = error(run_program(blob, options=NEWEST))
        assert isinstance(failed, StoreError) and f"output of snapshot {wrong}" in str(failed)
    record.unlink()
    shown = CliRunner().invoke(main, ["snapshots", "list", str(record.parent), "--verify"])
    assert shown.exit_code == 1 and "is missing; put it back" in shown.output
    outcome(run_program(blob, options=NEWEST, script=stop_soon))
    output = ledger.output()
    assert output.total() == len(output) == max(output) + 1 > 300
    shown = CliRunner().invoke(main, ["snapshots", "list", str(record.parent), "--verify"])
    assert shown.exit_code == 0


# ---- forks


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_fork_publishes_what_its_snapshot_holds_unpublished(
    ledger: Ledger, config: JobConfig, tmp_path: Path, elsewhere: bool
) -> None:
    count = 300
    ran = run_program(program(to_ledger(count=count), config), script=crash_at_commit(NUMBER, 3))
    assert ran.outcome is None and len(ledger.staged) == 1
    first = Path(str(config.checkpoint_dir))
    forked = replace(config, checkpoint_dir=str(tmp_path / "fork"))
    options = JobSettings(resume=str(first), fork=True)
    if not elsewhere:
        # An older snapshot, so that the newest one's output is produced again.
        store = Store(first)
        newest = store.newest()
        assert newest is not None
        before = max(i.number for i in store.list() if i.published and i.number < newest.number)
        forked, options = config, JobSettings(resume=int(before), fork=True)
    outcome(run_program(program(to_ledger(count=count), forked), options=options))
    assert ledger.output() == dict.fromkeys(range(count), 1)
    # The record of what the fork has published is its own, so this publishes nothing again.
    outcome(run_program(program(to_ledger(count=count), forked), options=NEWEST))
    assert ledger.output() == dict.fromkeys(range(count), 1)


def test_a_fork_outlives_the_snapshot_that_it_started_from(
    config: JobConfig, tmp_path: Path, ledger: Ledger
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, 300, 300.0, clock=trio.current_time)
        numbers = env.from_source(source, None, "gen").uid("g")
        numbers.key_by(lambda i: i % 7).count().uid("c").sink_to(LedgerSink(NUMBER)).uid("s")

    # State in files; no snapshot of its own before the fork has restarted.
    config = replace(config, inline_threshold=0)
    outcome(run_program(program(build, config), script=stop_soon))
    first = Path(str(config.checkpoint_dir))
    newest = Store(first).newest()
    assert newest is not None and any(handle.files for handle in newest.handles)
    parent = tmp_path / "fork" / "work" / "parent"
    kept = []

    async def lose_the_parent(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.005)
        shutil.rmtree(first / "checkpoints")
        kept.append(parent.exists())
        next(p for p in machine.processes if p.name.startswith("worker")).kill()
        while not any(event["event"] == "committed" for event in events):
            await trio.sleep(0.005)
        await trio.sleep(0.1)
        kept.append(parent.exists())

    forked = replace(config, checkpoint_dir=str(tmp_path / "fork"))
    options = JobSettings(resume=str(first), fork=True)
    ran = run_program(program(build, forked), options=options, script=lose_the_parent)
    assert outcome(ran).restarts and kept == [True, False]
    assert ledger.output() == {(k, n): 1 for k in range(7) for n in range(1, 43 + (k < 6))}


# ---- a newest snapshot that is gone


def lose(config: JobConfig, how: str) -> int:
    store = Store(Path(str(config.checkpoint_dir)))
    newest = store.newest()
    assert newest is not None
    if how == "manifest":
        store.paths.manifest(newest.number).unlink()
    else:
        shutil.rmtree(store.paths.snapshot(newest.number))
    return newest.number


@pytest.mark.parametrize("how", ["manifest", "folder"])
def test_a_newest_snapshot_that_is_gone_is_noticed(
    ledger: Ledger, config: JobConfig, how: str
) -> None:
    blob = program(to_ledger(), config)
    outcome(run_program(blob, script=stop_soon))
    lost = lose(config, how)
    store = Store(Path(str(config.checkpoint_dir)))
    before = max(info.number for info in store.list() if info.complete)
    for request in ("newest", before, None):
        failed = error(run_program(blob, options=JobSettings(resume=request)))
        assert f"{lost}" in str(failed), failed
    # Its files stay until somebody decides: the manifest may be put back.
    assert store.paths.snapshot(lost).exists() == (how == "manifest")
    for verify in ((), ("--verify",)):
        shown = CliRunner().invoke(main, ["snapshots", "list", str(store.paths.root), *verify])
        assert shown.exit_code == 1
        assert f"snapshot {lost}: snapshot {lost} was the newest, and its manifest is gone" in (
            shown.output
        )

    async def kill_a_worker(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.005)
        next(p for p in machine.processes if p.name.startswith("worker")).kill()
        await trio.sleep(1)
        job.stop()

    ran = run_program(blob, options=JobSettings(resume=before, fork=True), script=kill_a_worker)
    assert outcome(ran).restarts
    assert f"output of the later snapshots {lost} exists" in told(ran)
    newest = store.newest()
    assert newest is not None and newest.number > lost
    outcome(run_program(blob, options=NEWEST, script=stop_soon))


def test_a_snapshot_that_is_lost_while_the_job_runs_is_noticed_at_its_restart(
    ledger: Ledger, config: JobConfig
) -> None:
    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        await trio.sleep(0.5)
        lose(config, "manifest")
        next(p for p in machine.processes if p.name.startswith("worker")).kill()

    failed = error(run_program(program(to_ledger(), config), script=script))
    assert "its manifest is gone" in str(failed)


def test_a_folder_of_version_0_1_has_no_trace_and_raises_no_alarm(
    ledger: Ledger, config: JobConfig
) -> None:
    blob = program(to_ledger(), config)
    outcome(run_program(blob, script=stop_soon))
    store = Store(Path(str(config.checkpoint_dir)))
    record = json.loads(store.paths.numbers.read_text())
    store.paths.numbers.write_text(json.dumps({"next": record["next"]}))
    store.paths.commits.unlink()
    outcome(run_program(blob, options=NEWEST, script=stop_soon))
    assert json.loads(store.paths.numbers.read_text())["published"] > record["published"]
    assert set(ledger.output().values()) == {1}


def test_a_snapshot_of_another_job_is_not_adopted(ledger: Ledger, config: JobConfig) -> None:
    outcome(run_program(program(to_ledger(), config), script=stop_soon))
    other = replace(config, name="other")
    store = Store(Path(str(config.checkpoint_dir)))
    for identity in (None, {"layout": 1, "job": "other", "created_ms": 0}):
        store.paths.job.unlink()
        if identity is not None:
            store.paths.job.write_text(json.dumps(identity))
        failed = error(run_program(program(to_ledger(), other), options=NEWEST))
        assert isinstance(failed, StoreError) and "is of job 'j', not of 'other'" in str(failed)
        store.paths.job.touch()


def test_a_savepoint_that_is_requested_while_the_job_restarts_is_taken(
    ledger: Ledger, config: JobConfig
) -> None:
    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.005)
        next(p for p in machine.processes if p.name.startswith("worker")).kill()
        while not any(event["event"] == "restarting" for event in events):
            await trio.sleep(0.005)
        job.savepoint()
        while not any(map(is_savepoint, events)):
            await trio.sleep(0.005)
        job.stop()

    ran = run_program(program(to_ledger(), config), script=script)
    assert not ran.hung and outcome(ran).stopped


def test_a_savepoint_of_an_attempt_that_fails_is_taken_by_the_next_one(
    ledger: Ledger, config: JobConfig
) -> None:
    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.005)
        job.savepoint()
        next(p for p in machine.processes if p.name.startswith("worker")).kill()
        while not any(map(is_savepoint, events)):
            await trio.sleep(0.005)
        assert any(event["event"] == "restarted" for event in events)
        job.stop()

    ran = run_program(program(to_ledger(), config), script=script)
    assert not ran.hung and outcome(ran).stopped


def test_a_savepoint_that_is_aborted_is_taken_again(
    ledger: Ledger, config: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, failed = Store.publish, []

    def fail_once(store: Store, manifest: Manifest) -> Path:
        if manifest.kind is SnapshotKind.SAVEPOINT and not failed:
            failed.append(manifest.number)
            raise StoreError("the disk is full")
        return publish(store, manifest)

    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.005)
        job.savepoint()
        while not any(map(is_savepoint, events)):
            await trio.sleep(0.005)
        job.stop()

    monkeypatch.setattr(Store, "publish", fail_once)
    config = replace(config, tolerable_failures=1)
    ran = run_program(program(to_ledger(), config), script=script)
    assert not ran.hung and outcome(ran).stopped and not outcome(ran).restarts
    [savepoint] = [event for event in ran.events if is_savepoint(event)]
    assert [savepoint["number"]] > failed


def test_a_stop_while_a_worker_dies_is_carried_out_after_the_restart(
    ledger: Ledger, config: JobConfig
) -> None:
    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "snapshot" for event in events):
            await trio.sleep(0.005)
        job.stop()
        next(p for p in machine.processes if p.name.startswith("worker")).kill()

    ran = run_program(program(to_ledger(), config), script=script)
    assert not ran.hung and outcome(ran).stopped and len(outcome(ran).restarts) == 1
    assert outcome(ran).snapshots[-1]["kind"] == "final"


def test_a_job_that_is_being_stopped_is_restarted_once_at_most(
    ledger: Ledger, config: JobConfig
) -> None:
    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        while not any(event["event"] == "snapshot" for event in events):
            await trio.sleep(0.005)
        job.stop()
        for attempt in range(1, 4):
            while len([event for event in events if event["event"] == "running"]) < attempt:
                await trio.sleep(0.0005)
            [p for p in machine.processes if p.name.startswith("worker")][-1].kill()

    ran = run_program(program(to_ledger(), config), script=script)
    assert isinstance(error(ran), WorkerLost)
    assert len([event for event in ran.events if event["event"] == "restarting"]) == 1


def test_a_restart_removes_the_files_of_the_attempt_before(
    ledger: Ledger, config: JobConfig
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, None, 300.0, clock=trio.current_time)
        numbers = env.from_source(source, None, "gen").uid("g")
        numbers.key_by(lambda i: i % 7).count().uid("c").sink_to(LedgerSink(NUMBER)).uid("s")

    work, seen = Path(str(config.checkpoint_dir)) / "work", []

    async def script(job: JobManager, machine: Machine, events: Events) -> None:
        for told in ("committed", "restarted"):
            while not any(event["event"] == told for event in events):
                await trio.sleep(0.005)
            seen.append({path.name for path in work.iterdir()})
            if told == "committed":
                next(p for p in machine.processes if p.name.startswith("worker")).kill()
        job.stop()

    config = replace(config, inline_threshold=0)
    outcome(run_program(program(build, config), script=script))
    assert len(seen[0]) == len(seen[1]) == 1 and seen[0] != seen[1]
    assert not work.exists()

"""JobManagers that die in a given phase, of jobs whose supervisor starts another one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import FileSink, JsonLines, StreamExecutionEnvironment
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.program import RunOptions, run_options
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.store import Store
from tests.processes.aims import JOBMANAGER_PHASES, Aims, strikes
from tests.processes.harness import (
    PATIENCE,
    Settings,
    committed,
    counting_job,
    expected_words,
    gone,
    lost_and_doubled,
    run,
    wait_until,
)
from tests.processes.parts import let_all_go


class _AimedSink(FileSink):
    """A sink that brings kills into the processes of the job."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.output, JsonLines())
        self.aims = Aims(settings.folder, list(settings.aims), logs=False)


class _Watch:
    """Receives the events of a job, and lets all records come when all kills have struck."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if len(strikes(self.settings.folder)) >= len(self.settings.aims):
            let_all_go(self.settings.gate)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def deaths(self) -> list[str]:
        """The notes about JobManagers that have died."""
        return [e["text"] for e in self.of("note") if "another one goes on" in e["text"]]


def _check(settings: Settings) -> None:
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


@pytest.mark.parametrize("inline_threshold", [0, 64 * 1024])
def test_a_jobmanager_that_dies_in_any_phase_of_a_snapshot_is_replaced_without_loss(
    tmp_path: Path, inline_threshold: int
):
    # The first one needs records on their way, and the others come when all of the part is there.
    phases = sorted(JOBMANAGER_PHASES, key=lambda phase: phase != "committing")
    aims = tuple((phase, "jobmanager") for phase in phases)
    settings = Settings(
        tmp_path, 20_000, rate=2_000, inline_threshold=inline_threshold, parts=2, aims=aims
    )
    watch = _Watch(settings)
    result = run(counting_job(settings, _AimedSink(settings)), progress=watch, supervise=True)
    struck = strikes(tmp_path)
    assert [(strike["phase"], strike["target"]) for strike in struck] == list(aims)
    assert [event["pid"] for event in watch.of("started")][:-1] == [s["pid"] for s in struck]
    expected = [
        f"the JobManager (pid {strike['pid']}) was killed by signal 9: another one goes on"
        for strike in struck
    ]
    assert [text[: len(start)] for text, start in zip(watch.deaths, expected, strict=True)] == (
        expected
    )
    assert not result.stopped
    for event in watch.of("workers"):
        for pid in event["pids"]:
            wait_until(lambda pid=pid: gone(pid), f"worker {pid} ended")
    _check(settings)


def test_a_fork_whose_jobmanager_dies_goes_on_with_the_fork(tmp_path: Path):
    first = Settings(tmp_path, count=6_000, parts=2)
    env = counting_job(first)
    env.get_checkpoint_config().set_retained_checkpoints(1000)

    def let_go_after_two(event: dict[str, Any]) -> None:
        if event["event"] == "snapshot" and len(Store(first.job).list()) > 2:
            let_all_go(first.gate)

    lineage = run(env, progress=let_go_after_two).lineage
    oldest = int(Store(first.job).list()[0].number)
    shutil.rmtree(first.gate)
    later = Settings(tmp_path, count=6_000, parts=2, aims=(("publishing", "jobmanager"),) * 2)
    watch = _Watch(later)
    forked = counting_job(later, _AimedSink(later))
    forked.get_checkpoint_config().set_retained_checkpoints(1000)
    result = run(forked, resume=oldest, fork=True, progress=watch, supervise=True)
    assert len(strikes(tmp_path)) == len(watch.deaths) == 2
    [begun, *later_ones] = watch.of("resumed")
    assert begun["number"] == oldest and begun["lineage"] == lineage
    # The next ones have either taken its workers over, or resumed from snapshots of the fork.
    assert begun["continues"] == result.lineage != lineage
    assert {event["lineage"] for event in later_ones} <= {result.lineage}
    newest = Store(later.job).newest()
    assert newest is not None and newest.lineage == result.lineage


def test_a_job_that_fails_is_not_started_again(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    env.from_collection([4, 0]).map(lambda i: 8 // i).print()
    events: list[dict[str, Any]] = []
    with pytest.raises(JobError, match="ZeroDivisionError"):
        run(env, progress=events.append, supervise=True)
    assert [event["event"] for event in events].count("started") == 1


def test_a_job_without_a_checkpoint_folder_cannot_be_supervised():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([4, 0]).print()
    with pytest.raises(GraphError, match="give --supervise a folder with --checkpoint-dir"):
        run(env, supervise=True)


def test_a_jobmanager_that_is_killed_by_its_own_client_is_not_replaced(tmp_path: Path):
    settings = Settings(tmp_path, count=20_000, parts=2)
    env = counting_job(settings)
    with run_options(RunOptions(supervise=True)):
        client = env.execute_async("counting")
    wait_until(lambda: Store(settings.job).newest(), "a snapshot")
    client.cancel()
    with pytest.raises(JobError, match="the job was cancelled"):
        client.get_job_execution_result().result(PATIENCE)


_JOB = """
import sys
from pathlib import Path
from tests.processes.harness import Settings, counting_job

counting_job(Settings(Path(sys.argv[1]), count=20_000, parts=2)).execute("counting")
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_supervisor_stops_the_job_of_the_second_jobmanager(
    tmp_path: Path, number: int, code: int
):
    settings = Settings(tmp_path, count=20_000, parts=2)
    script = tmp_path / "job.py"
    script.write_text(_JOB)
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", str(script), "--supervise", "--", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    lines: list[str] = []
    assert supervisor.stderr is not None
    reader = threading.Thread(target=lines.extend, args=(iter(supervisor.stderr),))
    reader.start()

    def pids() -> list[int]:
        return [int(line.split()[-1]) for line in lines if line.startswith("started: JobManager")]

    wait_until(lambda: any(line.startswith("snapshot") for line in lines), "a snapshot")
    os.kill(pids()[0], signal.SIGKILL)
    wait_until(lambda: len(pids()) == 2, "a second JobManager")
    supervisor.send_signal(number)
    assert supervisor.wait(PATIENCE) == code, lines
    reader.join(PATIENCE)
    supervisor.stderr.close()
    assert any("was killed by signal 9: another one goes on with the job" in x for x in lines)
    assert any(f"resume with: penstock run {script} --supervise --resume" in x for x in lines)
    newest = Store(settings.job).newest()
    assert newest is not None and newest.kind is SnapshotKind.FINAL
    let_all_go(settings.gate)
    run(counting_job(settings), resume="newest")
    _check(settings)

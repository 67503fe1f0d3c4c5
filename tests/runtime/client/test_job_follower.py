"""`JobClient`: a job in the background, controlled through its connection."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import GraphError, JobClient, JobError, JobStatus, StreamExecutionEnvironment
from penstock.dataflow.config import JobConfig
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.job_client import end_job, unseen_error
from penstock.dataflow.program import Program, RunOptions
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.client.job_follower import JobFollower
from penstock.runtime.client.job_report import JobMonitor

FINISHED = {
    "event": "finished",
    "restarts": [],
    "snapshots": [],
    "operators": [],
    "lineage": "0123",
    "stopped": False,
    "loops": [],
    "totals": {},
    "metrics": [],
}
PROGRAM = Program(JobGraph(), JobConfig(name="job"))
FAILED = {"event": "failed", "family": "JobError", "message": "boom"}


class FakeJob(JobConnection):
    """A job whose events the test puts into a queue."""

    def __init__(self) -> None:
        self.reported: queue.Queue[Any] = queue.Queue()
        self.orders: list[str] = []

    def events(self) -> Iterator[dict[str, Any]]:
        while (event := self.reported.get()) is not None:
            yield event

    def stop(self) -> None:
        self.orders.append("stop")

    def savepoint(self) -> None:
        self.orders.append("savepoint")

    def query(self, query: Any) -> None:
        self.orders.append("query")

    def profile(self) -> None:
        pass

    def drain(self) -> None:
        """Do nothing."""

    @property
    def running(self) -> bool:
        return True

    def kill(self) -> None:
        self.reported.put(None)

    def wait(self) -> str:
        return "was killed by signal 9"

    def report(self, *events: Any) -> None:
        for event in events:
            self.reported.put(event)


@pytest.fixture
def job() -> Iterator[FakeJob]:
    fake = FakeJob()
    yield fake
    fake.report(FINISHED, None)


def client(job: FakeJob, folder: Path | None = None) -> JobClient:
    monitor = JobMonitor(PROGRAM, RunOptions(), 0.0)
    path = None if folder is None else str(folder)
    return JobClient(JobFollower("abc", job, monitor, path, ExitStack()))


def test_a_job_that_finishes_has_a_result(job: FakeJob):
    running = client(job)
    assert running.get_job_id() == "abc" and str(running.get_job_id()) == "abc"
    assert running.get_job_status().result() is JobStatus.INITIALIZING
    assert not running.get_job_execution_result().done()
    job.report({"event": "workers", "pids": [1]}, FINISHED, None)
    assert running.get_job_execution_result().result(60).lineage == "0123"
    status = running.get_job_status().result()
    assert status is JobStatus.FINISHED and status.is_globally_terminal_state()
    assert status.is_terminal_state() and not JobStatus.RUNNING.is_terminal_state()


def test_a_job_that_fails_gives_its_error(job: FakeJob):
    running = client(job)
    job.report(FAILED, None)
    with pytest.raises(JobError, match="boom"):
        running.get_job_execution_result().result(60)
    assert running.get_job_status().result() is JobStatus.FAILED


def test_a_job_that_is_cancelled_is_canceled(job: FakeJob):
    running = client(job)
    running.cancel().result(60)
    with pytest.raises(JobError, match="the job was cancelled"):
        running.get_job_execution_result().result(60)
    assert running.get_job_status().result() is JobStatus.CANCELED


def test_a_job_whose_jobmanager_was_stopped_by_a_signal_has_no_result(job: FakeJob):
    running = client(job)
    job.report({**FINISHED, "stopped": True, "signal": signal.SIGTERM}, None)
    with pytest.raises(JobError, match="the JobManager received SIGTERM, and stopped the job"):
        running.get_job_execution_result().result(60)


def test_requested_snapshots_have_their_paths(job: FakeJob, tmp_path: Path):
    running = client(job, tmp_path)
    savepoint = running.trigger_savepoint()
    job.report({"event": "snapshot", "kind": "checkpoint", "number": 6})
    job.report({"event": "snapshot", "kind": "savepoint", "number": 7})
    assert Path(savepoint.result(60)).name == "000007"
    final = running.stop_with_savepoint(False, None)
    assert job.orders == ["savepoint", "stop"] and not final.done()
    job.report({"event": "snapshot", "kind": "final", "number": 8}, FINISHED, None)
    assert Path(final.result(60)).name == "000008"
    running.get_job_execution_result().result(60)
    with pytest.raises(JobError, match="takes no more snapshots"):
        running.trigger_savepoint().result(60)


def test_a_snapshot_that_a_job_does_not_take_is_an_error(job: FakeJob, tmp_path: Path):
    running = client(job, tmp_path)
    savepoint = running.trigger_savepoint()
    job.report(FINISHED, None)
    with pytest.raises(JobError, match="the job ended before it took the snapshot"):
        savepoint.result(60)


def test_what_a_client_cannot_do_is_refused(job: FakeJob):
    running: Any = client(job)
    with pytest.raises(Exception, match="the job has no checkpoint folder"):
        running.trigger_savepoint().result(60)
    with pytest.raises(GraphError, match="cannot advance to the end of event time"):
        running.stop_with_savepoint(True)
    with pytest.raises(GraphError, match="trigger_savepoint takes no folder"):
        running.trigger_savepoint("/tmp/elsewhere")
    with pytest.raises(GraphError, match="jobs have no accumulators"):
        running.get_accumulators()


def test_a_job_in_this_process_cannot_run_in_the_background():
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process()
    env.from_collection([1]).print()
    with pytest.raises(GraphError, match="a job in this process runs only while the program waits"):
        env.execute_async()


def test_an_error_that_nobody_has_asked_for_is_reported_at_the_end(
    job: FakeJob, capsys: pytest.CaptureFixture[str]
):
    ignored = JobFollower("abc", job, JobMonitor(PROGRAM, RunOptions(), 0.0), None, ExitStack())
    job.report(FAILED, None)
    error = unseen_error(JobClient(ignored))
    assert isinstance(error, JobError) and "boom" in str(error)
    # The command line has asked now, so the end of the process reports nothing.
    ignored._report_unseen_error()
    assert capsys.readouterr().err == ""
    ignored.result.seen = False
    ignored._report_unseen_error()
    assert "a job of execute_async has failed: boom" in capsys.readouterr().err


def test_an_error_that_the_program_has_handled_is_not_reported(job: FakeJob):
    running = client(job)
    job.report(FAILED, None)
    assert isinstance(running.get_job_execution_result().exception(60), JobError)
    assert unseen_error(running) is None


def test_a_job_that_finishes_or_is_cancelled_has_no_unseen_error(job: FakeJob):
    running = client(job)
    end_job(running)
    assert job.orders == ["stop"]
    job.report(FINISHED, None)
    assert unseen_error(running) is None
    other = FakeJob()
    cancelled = client(other)
    cancelled.cancel().result(60)
    assert unseen_error(cancelled) is None

"""`penstock submit --detach` returns when the job has begun, and fails if it does not begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import JobError, StoreError, StreamExecutionEnvironment
from penstock.cli import submit_executor
from penstock.dataflow.program import Program, RunOptions
from penstock.runtime.client.job_report import JobMonitor


class Connection:
    """A connection to a job manager that sends these events, and then nothing more.

    It stays open, or is closed then.
    """

    def __init__(self, *events: dict[str, Any], open: bool) -> None:
        self._events = events
        self._open = open
        self.timeout = 0.0

    def set_timeout(self, seconds: float) -> None:
        self.timeout = seconds

    def events(self) -> Iterator[dict[str, Any]]:
        yield from self._events
        if self._open:
            raise TimeoutError


def wait_until_running(*events: dict[str, Any], open: bool = True) -> tuple[str | None, JobMonitor]:
    env = StreamExecutionEnvironment.get_execution_environment()
    monitor = JobMonitor(Program(env._graph, env.config, []), RunOptions(), 0.0)
    connection: Any = Connection(*events, open=open)
    ended = submit_executor._wait_until_running(connection, monitor, "3")
    assert connection.timeout == submit_executor.BEGIN_SECONDS
    return ended, monitor


def test_a_job_that_runs_is_left_to_itself():
    ended, _ = wait_until_running(
        {"event": "workers", "pids": [1]}, {"event": "running", "attempt": 0}
    )
    assert ended is None


def test_a_job_that_fails_before_it_runs_fails_the_command():
    failed = {"event": "failed", "family": "JobError", "message": "the folder is in use"}
    ended, monitor = wait_until_running(failed, {"event": "ended", "how": "exited with code 1"})
    assert ended == "exited with code 1"
    with pytest.raises(JobError, match="the folder is in use"):
        monitor.result(ended)


def test_a_job_that_takes_long_to_begin_is_left_to_itself(capsys: pytest.CaptureFixture[str]):
    ended, _ = wait_until_running({"event": "workers", "pids": [1]})
    assert ended is None
    assert "job 3 has not begun within 10 s; see: penstock list" in capsys.readouterr().err


def test_a_job_manager_that_ends_before_the_job_runs_fails_the_command():
    ended, monitor = wait_until_running({"event": "workers", "pids": [1]}, open=False)
    assert ended is not None
    with pytest.raises(StoreError, match="the job manager is gone"):
        monitor.result(ended)

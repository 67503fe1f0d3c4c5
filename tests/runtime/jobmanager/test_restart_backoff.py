"""Decisions about failures: restarts of a job, their delays, and its end."""

from __future__ import annotations

import errno
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from penstock.dataflow.config import RestartStrategies, RestartStrategy
from penstock.dataflow.errors import (
    GraphError,
    JobError,
    PenstockError,
    ProtocolError,
    Recoverability,
    StoreError,
    recoverability_of,
)
from penstock.runtime.control import messages as m
from penstock.runtime.control.failures import failure_message, failure_of
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerConnection, WorkerLost
from penstock.runtime.jobmanager.restart_backoff import (
    DEFAULT,
    MAX_FAILURES_AT_START,
    MAX_REPEATS,
    RestartBackoff,
)
from penstock.runtime.system.launcher import EXIT_JOBMANAGER_LOST, ProcessHandle

RECOVERABLE, ENVIRONMENT, NON_RECOVERABLE = Recoverability

# ---- recoverability


def raised_from(error: PenstockError, cause: BaseException) -> PenstockError:
    try:
        raise error from cause
    except PenstockError as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JobError("a bug"), RECOVERABLE),
        (ProtocolError("a bug of ours"), RECOVERABLE),
        (StoreError("damaged", "f"), RECOVERABLE),
        (GraphError("wrong program"), NON_RECOVERABLE),
        (WorkerLost("worker 0 was killed by signal 9"), ENVIRONMENT),
        (StoreError("lost the lock", recoverability=NON_RECOVERABLE), NON_RECOVERABLE),
        (raised_from(JobError("full"), OSError(errno.ENOSPC, "full")), ENVIRONMENT),
        (raised_from(StoreError("too large"), OSError(errno.EFBIG, "large")), NON_RECOVERABLE),
        (raised_from(JobError("gone"), FileNotFoundError(errno.ENOENT, "gone")), RECOVERABLE),
        (raised_from(JobError("refused"), ConnectionRefusedError()), ENVIRONMENT),
        (raised_from(JobError("user"), KeyError("b")), RECOVERABLE),
        (raised_from(JobError("outer"), StoreError("x", recoverability=ENVIRONMENT)), ENVIRONMENT),
        (ZeroDivisionError(), RECOVERABLE),
    ],
)
def test_an_error_knows_whether_a_restart_may_mend_it(
    error: BaseException, expected: Recoverability
):
    assert recoverability_of(error) is expected


def test_an_error_that_is_raised_from_itself_has_the_recoverability_of_its_class():
    error = JobError("again")
    assert raised_from(error, error).recoverability is RECOVERABLE


def test_recoverability_crosses_the_wire_from_a_worker():
    error = JobError("staged file is gone", recoverability=NON_RECOVERABLE)
    received = m.decode(m.encode(failure_message(0, 0, error)))
    assert isinstance(received, m.Failed)
    assert failure_of(received).recoverability is NON_RECOVERABLE


# ---- decisions


def failures(
    strategy: RestartStrategy | None,
    error: PenstockError,
    *,
    started: bool = True,
    progress: bool = False,
    most: int = 20,
) -> tuple[int, str | None]:
    """Return the number of failures until a job ends, at most `most`, and the reason."""
    restarts = RestartBackoff(strategy)
    for number in range(1, most + 1):
        decision = restarts.failed(
            number * 1000.0, error, started=started, progress=number if progress else None
        )
        if decision.delay_seconds is None:
            return number, decision.reason
    return most, "it goes on"


def test_a_failure_that_no_restart_mends_ends_the_job_at_once():
    error = StoreError("the lock was replaced", recoverability=NON_RECOVERABLE)
    for strategy in (DEFAULT, RestartStrategies.fixed_delay_restart(1000, 0)):
        count, reason = failures(strategy, error)
        assert (count, reason) == (1, "no restart can mend this")


def test_the_same_failure_without_progress_ends_the_job_at_the_third_time():
    for strategy in (DEFAULT, RestartStrategies.failure_rate_restart(5, 1000, 10)):
        count, reason = failures(strategy, JobError("KeyError in operator 'm'", operator="m"))
        assert count == MAX_REPEATS
        assert "without progress" in (reason or "")


def test_failures_that_differ_in_numbers_only_are_the_same():
    restarts = RestartBackoff(DEFAULT)
    texts = [f"<Foo object at 0x7f{n}> in snapshot {n}" for n in range(MAX_REPEATS)]
    decisions = [
        restarts.failed(n, JobError(text), started=True, progress=None)
        for n, text in enumerate(texts)
    ]
    assert [d.delay_seconds is None for d in decisions] == [False, False, True]


def test_two_failures_that_take_turns_do_not_hide_each_other():
    restarts = RestartBackoff(DEFAULT)
    errors = [JobError("a"), JobError("b")] * MAX_REPEATS
    decisions = [restarts.failed(0, error, started=True, progress=None) for error in errors]
    assert [d.delay_seconds for d in decisions].index(None) == 2 * MAX_REPEATS - 2


def test_progress_between_failures_lets_the_job_go_on():
    assert failures(DEFAULT, JobError("flaky"), progress=True) == (20, "it goes on")


def failures_of_an_idle_job(seconds: float, *, snapshots: bool) -> int:
    """Return the number of failures until a job ends that runs for a time after each restart."""
    restarts, now = RestartBackoff(DEFAULT), 0.0
    for number in range(1, 11):
        decision = restarts.failed(
            now,
            JobError("the server did not answer"),
            started=True,
            progress="the same positions",
            snapshot=number if snapshots else None,
        )
        if decision.delay_seconds is None:
            return number
        now += decision.delay_seconds + seconds
    return 10


def test_failures_that_lie_far_apart_do_not_end_a_job_without_input():
    assert failures_of_an_idle_job(DEFAULT.reset_seconds, snapshots=True) == 10


def test_the_delay_before_a_restart_is_no_time_in_which_the_job_ran():
    assert failures_of_an_idle_job(DEFAULT.reset_seconds - 1, snapshots=True) == MAX_REPEATS


def test_a_record_that_fails_late_ends_a_job_that_completes_no_snapshot():
    assert failures_of_an_idle_job(10 * DEFAULT.reset_seconds, snapshots=False) == MAX_REPEATS


def test_a_fault_of_the_environment_is_left_to_the_strategy():
    assert failures(DEFAULT, StoreError("disk full", recoverability=ENVIRONMENT)) == (
        20,
        "it goes on",
    )


def test_a_job_that_cannot_be_started_ends_with_its_cause():
    error = StoreError("disk full", recoverability=ENVIRONMENT)
    count, reason = failures(DEFAULT, error, started=False)
    assert count == MAX_FAILURES_AT_START
    assert "could not be started" in (reason or "")


@pytest.mark.parametrize("started", [False, True])
def test_a_strategy_with_a_number_of_attempts_decides_by_that_number(started: bool):
    strategies = RestartStrategies
    for strategy in (
        strategies.fixed_delay_restart(7, 0),
        strategies.exponential_delay_restart(attempts=7),
    ):
        assert failures(strategy, JobError("down"), started=started) == (8, None)


def test_without_a_strategy_the_first_failure_ends_the_job():
    assert failures(None, WorkerLost("killed")) == (1, None)


@pytest.mark.parametrize(
    ("code", "crashed"),
    [
        (1, True),
        (-signal.SIGSEGV, True),
        (-signal.SIGKILL, False),
        (0, False),
        (EXIT_JOBMANAGER_LOST, False),
    ],
)
def test_a_worker_that_ends_by_itself_may_do_so_again(code: int, crashed: bool):
    class Ended:
        pid, returncode = 7, code

        async def wait(self) -> int:
            return code

    process: Any = Ended()
    spec: Any = SimpleNamespace(worker=0)
    lost = trio.run(WorkerConnection(ProcessHandle(process), spec, 0.0).died)
    assert lost.recoverability is (RECOVERABLE if crashed else ENVIRONMENT)

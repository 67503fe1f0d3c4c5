"""Which failure an attempt is put down to, when a worker's death makes others fail too."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from penstock.dataflow.errors import JobError, PenstockError
from penstock.runtime.control.failures import ConnectionLost
from penstock.runtime.jobmanager.attempt.execution_attempt import ExecutionAttempt
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost

BROKEN = ConnectionLost("a data connection was closed by the other end")
LOST = WorkerLost("worker 1 (pid 7) lost its connection")
OTHER_LOST = WorkerLost("worker 0 (pid 6) lost its connection")
KILLED = WorkerLost("worker 1 (pid 7) was killed by signal 9")


def explained(first: PenstockError, *later: PenstockError) -> PenstockError:
    """What an attempt fails with that fails with the first, when others come soon after it."""
    attempt = ExecutionAttempt.__new__(ExecutionAttempt)
    attempt._send_event, attempt._events = trio.open_memory_channel(float("inf"))
    attempt._failure, attempt._finished = None, trio.Event()
    for error in later:
        attempt.post(lambda error=error: attempt._fail(error))
    return trio.run(attempt._explained, first, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([BROKEN], BROKEN),
        ([BROKEN, LOST, KILLED], KILLED),
        ([LOST, BROKEN, KILLED], KILLED),
        # Where nobody tells how it died, as on a Spark cluster.
        ([BROKEN, LOST], LOST),
        ([LOST, OTHER_LOST, BROKEN], LOST),
        ([JobError("division by zero"), KILLED], None),
    ],
)
def test_a_failure_is_put_down_to_the_death_that_is_behind_it(
    errors: list[PenstockError], told: PenstockError | None
):
    assert explained(*errors) is (told or errors[0])

"""The failure that an attempt reports, when the death of a worker makes others fail too."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from penstock.dataflow.errors import JobError, PenstockError
from penstock.runtime.control.failures import ConnectionLost
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost

BROKEN = ConnectionLost("a data connection was closed by the other end")
LOST = WorkerLost("worker 1 (pid 7) lost its connection", disconnected=True)
OTHER_LOST = WorkerLost("worker 0 (pid 6) lost its connection", disconnected=True)
KILLED = WorkerLost("worker 1 (pid 7) was killed by signal 9")


def reported(*failures: PenstockError) -> PenstockError:
    """Return what an attempt fails with when these failures come one soon after the other."""
    loop = AttemptLoop()
    for failure in failures:
        loop.post_failure(failure)
    with pytest.raises(PenstockError) as raised:
        trio.run(loop.run, clock=trio.testing.MockClock(autojump_threshold=0))
    return raised.value


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([BROKEN], BROKEN),
        ([BROKEN, LOST, KILLED], KILLED),
        ([LOST, BROKEN, KILLED], KILLED),
        # No death is reported in time, as on a Spark cluster.
        ([BROKEN, LOST], LOST),
        ([LOST, OTHER_LOST, BROKEN], LOST),
        ([JobError("division by zero"), KILLED], None),
    ],
)
def test_a_failure_is_attributed_to_the_death_that_caused_it(
    failures: list[PenstockError], cause: PenstockError | None
):
    assert reported(*failures) is (cause or failures[0])

"""Attribute a failure of an attempt to the death of a worker.

When a worker dies, other processes notice it first: their data connections break, or the control
connection ends before the exit code of the process is known. The death itself is reported a little
later. That report is more useful, since it names the signal or the exit code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.failures import ConnectionLost
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost

__all__ = ["root_cause"]

#: The time after a failure, in seconds, within which a reported death of a worker counts as its
#: cause.
ATTRIBUTION_SECONDS = 2.0


async def root_cause(
    failure: PenstockError, next_failure: Callable[[], Awaitable[PenstockError | None]]
) -> PenstockError:
    """Return the death of a worker that caused a failure, or else the failure itself.

    Arguments:
        failure: the first failure of the attempt.
        next_failure: waits for the next event, and returns the failure that it caused, or None.
    """
    if not _is_broken_connection(failure):
        return failure
    cause = failure
    with trio.move_on_after(ATTRIBUTION_SECONDS):
        while True:
            later = await next_failure()
            if isinstance(later, WorkerLost):
                if not _is_broken_connection(later):
                    return later
                # This failure does not say how the worker ended, but names the worker.
                cause = cause if isinstance(cause, WorkerLost) else later
    return cause


def _is_broken_connection(failure: PenstockError) -> bool:
    if isinstance(failure, WorkerLost):
        return failure.disconnected
    return isinstance(failure, ConnectionLost)

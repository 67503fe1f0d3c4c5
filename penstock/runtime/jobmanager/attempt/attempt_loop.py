"""The event loop of one attempt, which handles its events one by one.

Each event is posted as a handler: a worker's message or death, a tick of the clock, or the end of
work on files. So no two handlers run at the same time, and the first failure ends the loop.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.failures import ConnectionLost, pinned
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost

Handler = Callable[[], None]

#: The time after a failure, in seconds, within which a reported death of a worker counts as its
#: cause.
ATTRIBUTION_SECONDS = 2.0


class AttemptLoop:
    """Runs the handlers of one attempt one by one, and background work concurrently."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._send, self._handlers = trio.open_memory_channel[Handler](math.inf)
        self._failure: PenstockError | None = None
        self._finished = trio.Event()
        #: Whether the loop is over, and background work must not begin any more.
        self.closed = False

    def open(self, nursery: trio.Nursery) -> None:
        """Use a nursery for background work. The caller cancels it when the attempt ends."""
        self._nursery = nursery

    def close(self) -> None:
        """Record that the loop is over. Call this before the nursery is cancelled."""
        self.closed = True

    def spawn(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Start background work. The function must post its failures and never raise them."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *arguments)

    def post(self, handler: Handler) -> None:
        """Queue a handler to run in the loop, after all handlers that were posted before."""
        self._send.send_nowait(handler)

    def fail(self, error: PenstockError) -> None:
        """End the loop with a failure, unless it has failed or finished already.

        Only a handler may call this method.
        """
        if self._failure is None and not self._finished.is_set():
            self._failure = pinned(error)

    def post_failure(self, error: PenstockError) -> None:
        """Post a handler that ends the loop with a failure. Background work calls this."""
        self.post(partial(self.fail, error))

    def finish(self) -> None:
        """End the loop without a failure, after the handler that runs now."""
        self._finished.set()

    async def run(self) -> None:
        """Run handlers until the loop is finished. If it fails, raise the cause."""
        while not self._finished.is_set():
            failure = await self._run_next()
            if failure is not None:
                raise await root_cause(failure, self._next_failure)

    async def _run_next(self) -> PenstockError | None:
        """Run one handler, and return the failure of the loop, or None."""
        handler = await self._handlers.receive()
        try:
            handler()
        except PenstockError as error:
            self.fail(error)
        return self._failure

    async def _next_failure(self) -> PenstockError | None:
        """Run one more handler after a failure, and return its own failure, or None."""
        self._failure = None
        return await self._run_next()


async def root_cause(
    failure: PenstockError, next_failure: Callable[[], Awaitable[PenstockError | None]]
) -> PenstockError:
    """Return the death of a worker that caused a failure, or else the failure itself.

    When a worker dies, other processes notice it first: their data connections break, or the
    control connection ends before the exit code of the process is known. The death itself is
    reported a little later. That report is more useful, since it names the signal or the exit code.

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

"""The event loop of one attempt, which handles its events one by one.

Messages of workers, their deaths, ticks of the clock and finished file work are all posted as
handlers. So no two handlers run at the same time, and the first failure ends the loop.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.failures import pinned
from penstock.runtime.jobmanager.attempt.failure_attribution import root_cause

__all__ = ["AttemptLoop"]

Handler = Callable[[], None]


class AttemptLoop:
    """Runs the handlers of one attempt, and its background work beside them."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._send, self._handlers = trio.open_memory_channel[Handler](math.inf)
        self._failure: PenstockError | None = None
        self._finished = trio.Event()

    def open(self, nursery: trio.Nursery) -> None:
        """Let background work run in a nursery, which ends with the attempt."""
        self._nursery = nursery

    def spawn(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Start background work, which posts its results and failures and never raises."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *arguments)

    def post(self, handler: Handler) -> None:
        """Have a handler run in the loop, after those that were posted before."""
        self._send.send_nowait(handler)

    def fail(self, error: PenstockError) -> None:
        """End the loop with a failure, unless it has failed or finished before."""
        if self._failure is None and not self._finished.is_set():
            self._failure = pinned(error)

    def post_failure(self, error: PenstockError) -> None:
        """End the loop with a failure, from background work."""
        self.post(partial(self.fail, error))

    def finish(self) -> None:
        """End the loop in order."""
        self._finished.set()

    async def run(self) -> None:
        """Run handlers until the loop is finished. Raises the cause of a failure."""
        while not self._finished.is_set():
            failure = await self._run_next()
            if failure is not None:
                raise await root_cause(failure, self._next_failure)

    async def _run_next(self) -> PenstockError | None:
        """Run one handler; return the failure of the loop, if there is one."""
        handler = await self._handlers.receive()
        try:
            handler()
        except PenstockError as error:
            self.fail(error)
        return self._failure

    async def _next_failure(self) -> PenstockError | None:
        """Run one more handler after a failure; return what it failed with, if it did."""
        self._failure = None
        return await self._run_next()

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
from penstock.runtime.control.failures import pinned
from penstock.runtime.jobmanager.attempt.failure_attribution import root_cause

__all__ = ["AttemptLoop"]

Handler = Callable[[], None]


class AttemptLoop:
    """Runs the handlers of one attempt one by one, and background work concurrently."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._send, self._handlers = trio.open_memory_channel[Handler](math.inf)
        self._failure: PenstockError | None = None
        self._finished = trio.Event()

    def open(self, nursery: trio.Nursery) -> None:
        """Use a nursery for background work. The caller cancels it when the attempt ends."""
        self._nursery = nursery

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

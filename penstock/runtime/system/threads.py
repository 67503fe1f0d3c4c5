"""Run blocking functions in threads, so that the event loop never blocks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

#: A function that runs a blocking function outside of the event loop, and returns its result.
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


def unlimited_threads() -> Offload:
    """Return an `Offload` that runs each call in a thread, without a limit of threads.

    If a call is cancelled, it returns at once, although its thread is still running. A reader of an
    unbounded split may block its thread until the job ends. With trio's limit of 40 threads, 40
    such splits would leave no thread for snapshots and commits.
    """
    limiter = trio.CapacityLimiter(math.inf)

    async def offload(function: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)

    return offload

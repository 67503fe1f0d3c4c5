"""Threads for blocking functions, so that the event loop never blocks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

__all__ = ["Offload", "unlimited_threads"]

#: Runs a blocking function off the event loop, and returns its result.
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


def unlimited_threads() -> Offload:
    """Return an `Offload` with a thread for each call; cancelled calls abandon it.

    A reader of an unbounded split may block its thread until the job ends. With trio's limit of 40
    threads, a few tens of such splits would leave none for snapshots and commits.
    """
    limiter = trio.CapacityLimiter(math.inf)

    async def offload(function: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)

    return offload

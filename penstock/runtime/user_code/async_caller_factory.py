"""Create the callers of asynchronous functions that the operators of a worker share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from penstock.dataflow.async_io import RunIn
from penstock.runtime.system.threads import Offload
from penstock.runtime.user_code.async_caller import AsyncCaller
from penstock.runtime.user_code.thread_caller import OneThreadCaller
from penstock.runtime.user_code.trio_caller import ThreadCaller, TrioCaller

if TYPE_CHECKING:
    from penstock.runtime.user_code.asyncio_caller import AsyncioCaller


class CallerFactory:
    """Creates the callers of one worker. A job without asynchronous functions has none.

    Arguments:
        nursery: the nursery of the worker.
        offload: runs a blocking function in a thread, without a limit of threads.
    """

    def __init__(self, nursery: trio.Nursery, offload: Offload) -> None:
        self._nursery, self._offload = nursery, offload
        self._asyncio: AsyncioCaller | None = None
        self._thread: OneThreadCaller | None = None

    def create(self, run_in: RunIn) -> AsyncCaller:
        """Return a caller that calls functions in asyncio, in trio, or in one or many threads."""
        if run_in == "trio":
            return TrioCaller(self._nursery)
        if run_in == "threads":
            return ThreadCaller(self._nursery, self._offload)
        if run_in == "thread":
            if self._thread is None:
                self._thread = OneThreadCaller()
            return self._thread
        if self._asyncio is None:
            # Only here, because most workers need no asyncio.
            from penstock.runtime.user_code.asyncio_caller import AsyncioCaller

            self._asyncio = AsyncioCaller()
        return self._asyncio

    def close(self) -> None:
        """End the threads of the callers."""
        for caller in (self._asyncio, self._thread):
            if caller is not None:
                caller.close()

"""A handle to a worker that is not a child of this process: `AdoptedProcess`."""

from __future__ import annotations

import contextlib
import os
import signal

import trio

from penstock.runtime.system.launcher import ChildHandle


class AdoptedProcess(ChildHandle):
    """A handle to a worker that the JobManager before this one has started.

    The worker's own parent, the fork server of that JobManager, asks for its exit status. So this
    handle only knows that the process has ended.

    Arguments:
        pid: the process id of the worker.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = -1
        self._waiting = trio.Lock()
        with contextlib.suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(pid)

    async def wait(self) -> str:
        """Wait until the process has ended, and return a text that says so."""
        async with self._waiting:
            if self._descriptor >= 0:
                await trio.lowlevel.wait_readable(self._descriptor)
        return "has ended"

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

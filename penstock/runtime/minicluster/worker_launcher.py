"""Launch workers inside the event loop of this process."""

from __future__ import annotations

import os
import threading
import traceback
from typing import Any

import trio

from penstock.runtime import codegen
from penstock.runtime.system.launcher import WorkerHandle, WorkerSpec
from penstock.runtime.system.memory_connection import MemoryNetwork, MemoryTransport
from penstock.runtime.system.system import System
from penstock.runtime.system.threads import unlimited_threads
from penstock.runtime.taskmanager.taskmanager import TaskManager
from penstock.runtime.user_code.process_logging import LogAttributes


class InProcessLauncher:
    """A `Launcher` of workers in this process.

    Arguments:
        nursery: the nursery in which the workers run.
        logs: the log attributes of the process.
    """

    def __init__(self, nursery: trio.Nursery, logs: LogAttributes) -> None:
        self._network = MemoryNetwork()
        self._logs = logs
        self._nursery = nursery
        self._running = 0
        self._idle = threading.Event()
        self._idle.set()

    def create_system(self) -> System:
        """Create the `System` of the JobManager or of a worker.

        Before a restart, the JobManager calls `revive` of the `System`. The call waits until the
        workers of the old attempt have ended.
        """
        return System(
            trio.current_time,
            MemoryTransport(self._network),
            self,
            _offload,
            read=unlimited_threads(),
            revive=self._idle.wait,
        )

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker in the nursery, and return its handle."""
        handle = _InProcessWorker()
        self._running += 1
        self._idle.clear()
        self._nursery.start_soon(self._run, handle, spec)
        await trio.lowlevel.checkpoint()
        return handle

    async def _run(self, worker: _InProcessWorker, spec: WorkerSpec) -> None:
        system = self.create_system()
        # Without code generation, a debugger and coverage see each call of a user function.
        codegen.set_enabled(False)
        try:
            await worker.run(TaskManager(spec, system, logs=self._logs))
        finally:
            system.transport.close()
            self._running -= 1
            if not self._running:
                self._idle.set()


class _InProcessWorker:
    """A `WorkerHandle` for a worker that runs in this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._outcome = "has ended"

    async def run(self, taskmanager: TaskManager) -> None:
        """Run the TaskManager of the worker until it ends."""
        try:
            with self._scope:
                await taskmanager.run()
            if self._scope.cancelled_caught:
                self._outcome = "was ended"
        except Exception:
            traceback.print_exc()
            self._outcome = "ended with an error"
        finally:
            self._ended.set()

    async def wait(self) -> str:
        """Wait until the worker has ended, and return a text that says how it ended."""
        await self._ended.wait()
        return self._outcome

    def kill(self) -> None:
        """Cancel the worker's tasks."""
        self._scope.cancel()


async def _offload(function: Any) -> Any:
    # If the worker is cancelled, trio waits for the thread (`abandon_on_cancel` is off). Otherwise
    # the thread would continue to write files after its worker has ended.
    return await trio.to_thread.run_sync(function)

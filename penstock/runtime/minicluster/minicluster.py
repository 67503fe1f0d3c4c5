"""Runs a job inside the process of the program: for debuggers, coverage and fast tests.

It is the same engine as in several processes. Each worker is a group of tasks of one event loop
instead of a process, and its connections are memory instead of sockets. The code still goes through
cloudpickle, so that each worker has functions of its own.

The event loop takes turns with the program, in the program's own thread (trio's guest mode), so
that debuggers and profilers see the functions of the job. It turns only while the program waits in
`execute` or for the next record. Where the program is called from an event loop of its own, the
turns are taken in another thread.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import trio

from penstock.dataflow.program import Program
from penstock.runtime import codegen
from penstock.runtime.client import stop_signals
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.control import packing
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import unpack_event
from penstock.runtime.jobmanager.process import JobServer
from penstock.runtime.system.launcher import WorkerHandle, WorkerSpec
from penstock.runtime.system.memory_connection import MemoryNetwork, MemoryTransport, memory_streams
from penstock.runtime.system.system import System
from penstock.runtime.system.threads import unlimited_threads
from penstock.runtime.taskmanager.taskmanager import TaskManager
from penstock.runtime.user_code.process_logging import LogAttributes

__all__ = ["InProcessJob", "in_process_program"]

_PENSTOCK = str(Path(__file__).parents[2])
_TRIO = str(Path(trio.__file__).parent)


def in_process_program(program: Program) -> Program:
    """Return the program with the settings that hold where it runs in one process.

    A function that stands at a breakpoint must not look like a lost worker or a failed snapshot,
    so there is no time limit for either.
    """
    config = replace(
        program.config,
        heartbeat_timeout_seconds=math.inf,
        checkpoint_timeout_seconds=math.inf,
        stop_timeout_seconds=math.inf,
    )
    return replace(program, config=config)


class InProcessJob(JobConnection):
    """A job in this process, and the client's connection to its JobManager.

    Arguments:
        request: from `job_request`.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._turns: SimpleQueue[Any] = SimpleQueue()
        #: None is the end.
        self._events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._orders: list[bytes] = []
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._client: Frames | None = None
        self._nursery: trio.Nursery | None = None
        self._in_thread = False
        self._begun = self._ended = False
        self._how = "ended"

    # ---- for the client

    def events(self) -> Iterator[dict[str, Any]]:
        """Run the job, and return what its JobManager reports until it ends."""
        try:
            while (event := self._next()) is not None:
                yield event
        finally:
            # If the client follows it no further, nothing else would let it go on.
            if self.running:
                self.stop()
                self.drain()

    def stop(self) -> None:
        """Ask the JobManager to stop the job in order; do nothing if it has ended."""
        self._orders.append(packing.pack({"do": "stop"}))
        if self._token is not None and not self._ended:
            self._token.run_sync_soon(self._send_orders)

    def drain(self) -> None:
        """Run the job to its end."""
        while self.running and self._next() is not None:
            pass

    @property
    def running(self) -> bool:
        """Whether the job was begun and has not ended."""
        return self._begun and not self._ended

    def kill(self) -> None:
        """End the job without a last snapshot; a function that computes is interrupted."""
        self._how = "was killed"
        if self._token is not None and not self._ended:
            self._token.run_sync_soon(self._scope.cancel)
        if _is_in_a_function():
            raise KeyboardInterrupt

    def wait(self) -> str:
        """Run the job to its end, and return how it ended."""
        self.drain()
        return self._how

    # ---- turns

    def _next(self) -> dict[str, Any] | None:
        if self._ended and self._events.empty():
            return None
        if not self._begun:
            self._begin()
        if self._in_thread:
            return self._events.get()
        with self._interrupted_between_turns():
            while self._events.empty():
                self._turns.get()()
        return self._events.get()

    def _begin(self) -> None:
        self._begun = True
        self._in_thread = _is_in_event_loop()
        if self._in_thread:
            threading.Thread(target=self._run_all, daemon=True, name="penstock").start()
        else:
            self._start()

    def _run_all(self) -> None:
        self._start()
        while not self._ended:
            self._turns.get()()

    def _start(self) -> None:
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._turns.put,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _done(self, outcome: Any) -> None:
        try:
            outcome.unwrap()
        except BaseException as error:
            # A bug, or a Ctrl-C in the middle of the engine: all that is known of it.
            if self._how == "ended":
                self._how = "".join(["failed\n", *traceback.format_exception(error)]).rstrip()
        self._ended = True
        self._events.put(None)

    @contextmanager
    def _interrupted_between_turns(self) -> Iterator[None]:
        """Let a Ctrl-C end the waiting, and not a step in the middle of the event loop."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield
            return
        received = 0

        def interrupt() -> None:
            raise KeyboardInterrupt

        def handle(*_: object) -> None:
            nonlocal received
            received += 1
            self._turns.put(interrupt)
            if received > 1 and _is_in_a_function():
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    # ---- in the event loop

    async def _main(self) -> None:
        ours, theirs = memory_streams()
        client = self._client = Frames(ours)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            await client.send(self._request)
            self._send_orders()

            async def serve() -> None:
                try:
                    with LogAttributes() as logs, self._scope:
                        async with trio.open_nursery() as workers:
                            system = _Systems(MemoryNetwork(), workers, logs).make()
                            server = JobServer(Frames(theirs), lambda _: system, False, logs)
                            await server.run()
                finally:
                    theirs.close()

            nursery.start_soon(serve)
            while (frame := await client.receive()) is not None:
                self._events.put(unpack_event(frame))
            nursery.cancel_scope.cancel()

    def _send_orders(self) -> None:
        assert self._client is not None and self._nursery is not None
        orders, self._orders = self._orders, []
        for order in orders:
            self._nursery.start_soon(self._client.send, order)


class _Systems:
    """Makes the systems of a JobManager and of its workers, and launches these.

    Arguments:
        network: of the job.
        nursery: for the workers.
        logs: the logging of the process.
    """

    def __init__(self, network: MemoryNetwork, nursery: trio.Nursery, logs: LogAttributes) -> None:
        self._network = network
        self._logs = logs
        self._nursery = nursery
        self._living = 0
        self._idle = threading.Event()
        self._idle.set()

    def make(self) -> System:
        """Return the JobManager's system, or a worker's."""
        transport = MemoryTransport(self._network)
        return System(
            trio.current_time,
            transport,
            self,
            _offload,
            read=unlimited_threads(),
            revive=self._idle.wait,
        )

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker."""
        handle = _Handle()
        self._living += 1
        self._idle.clear()
        self._nursery.start_soon(self._run, handle, spec)
        await trio.lowlevel.checkpoint()
        return handle

    async def _run(self, handle: _Handle, spec: WorkerSpec) -> None:
        system = self.make()
        # A debugger and coverage see each call of a user's function.
        codegen.set_enabled(False)
        try:
            with handle.scope:
                await TaskManager(spec, system, logs=self._logs).run()
            if handle.scope.cancelled_caught:
                handle.how = "was ended"
        except Exception:
            traceback.print_exc()
            handle.how = "ended with an error"
        finally:
            system.transport.close()
            handle.ended.set()
            self._living -= 1
            if not self._living:
                self._idle.set()


class _Handle:
    """A worker in this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.how = "has ended"

    async def wait(self) -> str:
        """Wait for its end; returns how it ended."""
        await self.ended.wait()
        return self.how

    def kill(self) -> None:
        """Cancel its tasks."""
        self.scope.cancel()


async def _offload(function: Any) -> Any:
    # What works on files must not go on when the worker that has begun it is gone.
    return await trio.to_thread.run_sync(function)


def _is_in_event_loop() -> bool:
    """Return whether the caller runs inside an event loop."""
    asyncio = sys.modules.get("asyncio")
    in_asyncio = asyncio is not None and asyncio._get_running_loop() is not None
    return in_asyncio or trio.lowlevel.in_trio_run()


def _is_in_a_function() -> bool:
    """Return whether a signal has interrupted a function that the engine calls.

    An exception may be raised there. In a step of the event loop itself it would break the loop.
    """
    # The signal's handler is in one of these two modules.
    handlers = (__file__, stop_signals.__file__)
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename in handlers:
        frame = frame.f_back
    called_by_engine = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TRIO):
            return called_by_engine
        called_by_engine = called_by_engine or name.startswith(_PENSTOCK)
        frame = frame.f_back
    return False

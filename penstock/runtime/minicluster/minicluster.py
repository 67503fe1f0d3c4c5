"""Run a job in this process, and connect the client to its JobManager.

The event loop runs in the program's own thread, in trio's guest mode. So debuggers and profilers
see the functions of the job. The loop runs only while the program waits in `execute` or for the
next record. If the program itself runs inside an event loop, the job runs in another thread.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

import trio

from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import unpack_event
from penstock.runtime.control.requests import Order, encode_order
from penstock.runtime.control.state_queries import LiveQuery
from penstock.runtime.jobmanager.process import JobServer
from penstock.runtime.minicluster.interrupts import (
    in_called_function,
    in_event_loop,
    interrupted_between_steps,
)
from penstock.runtime.minicluster.worker_launcher import InProcessLauncher
from penstock.runtime.system.memory_connection import memory_streams
from penstock.runtime.user_code.process_logging import LogAttributes

#: The job in whose tasks this code runs; None outside of jobs that run in this process.
running_job: ContextVar[InProcessJob | None] = ContextVar("running_job", default=None)


class InProcessJob(JobConnection):
    """Runs a job in this process, and connects the client to its JobManager.

    Arguments:
        request: the frame that `job_request` returned.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        #: The queue of functions that the job's thread must call. Each is a step of the event loop.
        self._steps: SimpleQueue[Any] = SimpleQueue()
        #: The queue of events from the JobManager. None means that no more events follow.
        self._events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._requests: list[bytes] = []
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._client: Frames | None = None
        self._nursery: trio.Nursery | None = None
        self._in_thread = False
        self._begun = self._ended = False
        self._outcome = "ended"
        self._snapshots = 0

    # ---- for the client

    def events(self) -> Iterator[dict[str, Any]]:
        """Run the job, and yield the events that its JobManager reports."""
        try:
            while (event := self._next()) is not None:
                yield event
        finally:
            # The event loop runs only while the client waits for events. If the client stops
            # reading events, the job must be run to its end here.
            if self.running:
                self.stop()
                self.drain()

    def stop(self) -> None:
        """Request the JobManager to stop the job with a final snapshot.

        The call does nothing if the JobManager has ended.
        """
        self._request_soon(Order.STOP)

    def query(self, query: LiveQuery) -> None:
        """Request entries of keyed state. The answer is an event.

        The call does nothing if the JobManager has ended.
        """
        self._request_soon(query)

    def _request_soon(self, order: Order | LiveQuery) -> None:
        self._requests.append(encode_order(order))
        if self._token is not None and not self._ended:
            self._token.run_sync_soon(self._send_requests)

    def savepoint(self) -> None:
        """Request the JobManager to take a savepoint."""
        self.request_snapshot()

    def request_snapshot(self) -> Callable[[], bool]:
        """Request a snapshot now.

        Returns:
            A function that returns whether a snapshot has been completed since this call.
        """
        before = self._snapshots
        self._request_soon(Order.SAVEPOINT)
        return lambda: self._snapshots > before

    def profile(self) -> None:
        """Request the call stacks of the workers, which come as events."""
        self._request_soon(Order.PROFILE)

    def drain(self) -> None:
        """Run the job to its end, and discard its events."""
        while self.running and self._next() is not None:
            pass

    @property
    def running(self) -> bool:
        """Whether the job has started and has not ended."""
        return self._begun and not self._ended

    def kill(self) -> None:
        """End the job without a final snapshot.

        Raises `KeyboardInterrupt` if a signal has interrupted a function of the program.
        """
        self._outcome = "was killed"
        if self._token is not None and not self._ended:
            self._token.run_sync_soon(self._scope.cancel)
        if in_called_function():
            raise KeyboardInterrupt

    def wait(self) -> str:
        """Run the job to its end, and return a text that says how it ended."""
        self.drain()
        return self._outcome

    # ---- the thread of the job

    def _next(self) -> dict[str, Any] | None:
        """Run the job until it reports an event, and return the event.

        Return None if the job has ended.
        """
        if self._ended and self._events.empty():
            return None
        if not self._begun:
            self._begin()
        if self._in_thread:
            return self._events.get()
        with interrupted_between_steps(self._steps.put):
            while self._events.empty():
                self._steps.get()()
        return self._events.get()

    def _begin(self) -> None:
        self._begun = True
        self._in_thread = in_event_loop()
        if self._in_thread:
            threading.Thread(target=self._run_in_thread, daemon=True, name="penstock").start()
        else:
            self._start()

    def _run_in_thread(self) -> None:
        self._start()
        while not self._ended:
            self._steps.get()()

    def _start(self) -> None:
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._steps.put,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _done(self, outcome: Any) -> None:
        try:
            outcome.unwrap()
        except BaseException as error:
            # The cause is a bug of the engine, or a Ctrl-C during a step of the event loop.
            if self._outcome == "ended":
                self._outcome = "".join(["failed\n", *traceback.format_exception(error)]).rstrip()
        self._ended = True
        self._events.put(None)

    # ---- in the event loop

    async def _main(self) -> None:
        running_job.set(self)
        ours, theirs = memory_streams()
        client = self._client = Frames(ours)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            await client.send(self._request)
            self._send_requests()

            async def serve() -> None:
                try:
                    with LogAttributes() as logs, self._scope:
                        async with trio.open_nursery() as workers:
                            system = InProcessLauncher(workers, logs).create_system()
                            server = JobServer(Frames(theirs), lambda _: system, False, logs)
                            await server.run()
                finally:
                    theirs.close()

            nursery.start_soon(serve)
            while (frame := await client.receive()) is not None:
                event = unpack_event(frame)
                self._snapshots += event["event"] == "snapshot"
                self._events.put(event)
            nursery.cancel_scope.cancel()

    def _send_requests(self) -> None:
        assert self._client is not None and self._nursery is not None
        requests, self._requests = self._requests, []
        for request in requests:
            self._nursery.start_soon(self._client.send, request)

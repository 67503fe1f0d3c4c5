"""Start the JobManager of a job again when it dies: `penstock run --supervise`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from penstock.runtime.client.job_connection import JobConnection, JobProcess
from penstock.runtime.control.requests import Order
from penstock.runtime.control.state_queries import LiveQuery
from penstock.runtime.control.supervision import NextJobManager, Supervision
from penstock.runtime.system.rendezvous import Rendezvous


class SupervisedJob(JobConnection):
    """Follows a job through several JobManager processes.

    If a JobManager dies while the client reads its events, another one is started. The client
    receives the events of all JobManagers one after the other, and a note between them.

    Arguments:
        request: the frame that `job_request` returned.
    """

    def __init__(self, request: bytes) -> None:
        #: Where the workers of a JobManager that has died wait for the next one.
        self._rendezvous = rendezvous = Rendezvous()
        self._supervision = Supervision(
            request, time.monotonic(), rendezvous.address, rendezvous.token
        )
        self._process = JobProcess(self._supervision.request, rendezvous=rendezvous)
        self._over = False
        #: A lock that is held while the JobManager is replaced, and while an order is given.
        self._changing = threading.Lock()
        #: The event that ends the pause before a start.
        self._hurry = threading.Event()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of all JobManagers until the job has ended."""
        try:
            yield from self._events()
        finally:
            # Workers that wait for another JobManager end now.
            self._rendezvous.close()

    def _events(self) -> Iterator[dict[str, Any]]:
        while True:
            for event in self._process.events():
                self._supervision.handle(event)
                yield event
            how = self._process.wait()
            with self._changing:
                following = self._supervision.died(f"(pid {self._pid}) {how}", time.monotonic())
                self._over = not isinstance(following, NextJobManager)
            if following.note is not None:
                yield {"event": "note", "text": following.note}
            if not isinstance(following, NextJobManager):
                return
            self._hurry.wait(following.delay_seconds)
            if self._supervision.over:
                return
            self._start(following.request)

    def stop(self) -> None:
        """Request a stop with a final snapshot, from this JobManager or from the next one."""
        self._order(Order.STOP)

    def savepoint(self) -> None:
        """Request a savepoint, from this JobManager or from the next one."""
        self._order(Order.SAVEPOINT)

    def query(self, query: LiveQuery) -> None:
        """Request entries of keyed state from the JobManager that runs now."""
        with self._changing:
            self._process.query(query)

    def profile(self) -> None:
        """Request the call stacks of the workers."""
        self._order(Order.PROFILE)

    def _order(self, order: Order) -> None:
        with self._changing:
            self._supervision.ordered(order)
            self._process.send(order)
        self._hurry.set()

    def drain(self) -> None:
        """Discard all data from the JobManager until it has ended. No other one is started."""
        self._process.drain()

    @property
    def running(self) -> bool:
        """Whether a JobManager is running, or will be started."""
        return not self._over

    def kill(self) -> None:
        """Kill the JobManager process, which ends the job."""
        # This takes no lock, since the handler of a signal calls it.
        self._supervision.kill()
        self._hurry.set()
        self._process.kill()

    def wait(self) -> str:
        """Wait until the last JobManager has ended, and return how it ended."""
        self._over = True
        how = self._process.wait()
        self._rendezvous.close()
        return how

    @property
    def _pid(self) -> int:
        return self._process.process.pid

    def _start(self, request: bytes) -> None:
        with self._changing:
            self._process = JobProcess(request, rendezvous=self._rendezvous)
            for order in self._supervision.started(time.monotonic()):
                self._process.send(order)
        if self._supervision.over:
            # A signal has killed the job while this process started.
            self._process.kill()

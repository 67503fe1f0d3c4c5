"""The client's connection to a JobManager in another process or thread."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.runtime.control.framing import receive_blocking, send_blocking
from penstock.runtime.control.packing import unpack_event
from penstock.runtime.control.requests import Order, encode_order
from penstock.runtime.control.state_queries import LiveQuery
from penstock.runtime.system.jobmanager_start import JobManagerStart, jobmanager_starter
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.system.rendezvous import Rendezvous


class JobConnection(ABC):
    """Follows and controls one job."""

    @abstractmethod
    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that the JobManager reports until it has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Request the JobManager to stop the job with a final snapshot.

        The call does nothing if the JobManager has ended.
        """

    @abstractmethod
    def savepoint(self) -> None:
        """Request the JobManager to take a savepoint.

        The call does nothing if the JobManager has ended.
        """

    @abstractmethod
    def query(self, query: LiveQuery) -> None:
        """Request entries of keyed state. The answer is an event.

        The call does nothing if the JobManager has ended.
        """

    @abstractmethod
    def profile(self) -> None:
        """Request the call stacks of the workers, which come as events.

        The call does nothing if the JobManager has ended.
        """

    @abstractmethod
    def drain(self) -> None:
        """Discard all data from the JobManager until it has ended.

        The data is not decoded, since a Ctrl-C may have interrupted the reading of an event.
        """

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the JobManager is still running."""

    @abstractmethod
    def kill(self) -> None:
        """End the JobManager at once, without a final snapshot."""

    @abstractmethod
    def wait(self) -> str:
        """Wait until the JobManager has ended, and return a text that says how it ended."""


class SocketConnection(JobConnection):
    """A connection to a JobManager in another process or thread.

    Arguments:
        connected: one socket of a pair. The JobManager has the other one.
        request: the frame that `job_request` returned. The constructor sends it.
    """

    def __init__(self, connected: socket.socket, request: bytes) -> None:
        self._socket = connected
        self._sending = threading.Lock()
        # If the JobManager has died already, the end of its events reports this.
        with suppress(ConnectionError):
            send_blocking(connected, request)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that the JobManager reports until it has ended."""
        while True:
            frame = receive_blocking(self._socket)
            if frame is None:
                return
            yield unpack_event(frame)

    def stop(self) -> None:
        """Request the JobManager to stop the job with a final snapshot.

        The call does nothing if the JobManager has ended.
        """
        self.send(Order.STOP)

    def savepoint(self) -> None:
        """Request the JobManager to take a savepoint.

        The call does nothing if the JobManager has ended.
        """
        self.send(Order.SAVEPOINT)

    def query(self, query: LiveQuery) -> None:
        """Request entries of keyed state. The answer is an event.

        The call does nothing if the JobManager has ended.
        """
        self.send(query)

    def profile(self) -> None:
        """Request the call stacks of the workers, which come as events."""
        self.send(Order.PROFILE)

    def send(self, order: Order | LiveQuery) -> None:
        """Send an order or a query to the JobManager, or do nothing if the JobManager has ended."""
        try:
            with self._sending:
                send_blocking(self._socket, encode_order(order))
        except OSError:
            return

    def drain(self) -> None:
        """Discard all data from the JobManager until it has ended."""
        with suppress(OSError):
            while self._socket.recv(1 << 16):
                pass


class JobProcess(SocketConnection):
    """A JobManager process and the connection to it.

    Arguments:
        request: the frame that `job_request` returned.
        output: the file for the standard output and error of the JobManager. If it is None, the
            JobManager writes to the standard output and error of this process.
        rendezvous: the socket of the supervisor, which the JobManager inherits; None if the job is
            not supervised.
        folder: the working directory of the JobManager; None for that of this process.
    """

    def __init__(
        self,
        request: bytes,
        output: Any = None,
        rendezvous: Rendezvous | None = None,
        folder: str | None = None,
    ) -> None:
        # The job's processes inherit the limit of open files from this process. A limit that is too
        # low is reported here, since a process that has reached its limit cannot report it.
        require_open_files(PROCESS_FILES)
        ours, theirs = socket.socketpair()
        others = [] if rendezvous is None else [rendezvous.fileno()]
        start = JobManagerStart([], [theirs.fileno(), *others], output, folder)
        with theirs:
            try:
                self.process = jobmanager_starter.start(start)
            except BaseException:
                ours.close()
                raise
        super().__init__(ours, request)

    @property
    def running(self) -> bool:
        """Whether the JobManager process is still running."""
        return self.process.running()

    def kill(self) -> None:
        """Kill the JobManager process."""
        self.process.kill()

    def wait(self) -> str:
        """Wait until the process has ended, and return its exit code or signal as text."""
        _, how = self.process.end()
        self._socket.close()
        return how

"""A worker of an attempt: its process, its connection, and its signs of life."""

from __future__ import annotations

from penstock.dataflow.errors import PenstockError, Recoverability
from penstock.runtime.control import messages as m
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.outbox import Outbox
from penstock.runtime.system.launcher import ProcessHandle, WorkerHandle, WorkerSpec

__all__ = ["WorkerConnection", "WorkerLost"]


class WorkerLost(PenstockError):
    """A worker died, lost its connection, or has been silent for too long.

    Arguments:
        message: which worker, and how it was lost.
        disconnected: only its connection has ended; its process may have died.
    """

    _of_class = Recoverability.ENVIRONMENT

    def __init__(self, message: str, *, disconnected: bool = False) -> None:
        super().__init__(message)
        self.disconnected = disconnected


class WorkerConnection:
    """A worker of one attempt.

    Arguments:
        handle, spec: its process, and the specification that the process was started with.
        now: the time at which it was started, in seconds.
    """

    def __init__(self, handle: WorkerHandle, spec: WorkerSpec, now: float) -> None:
        self.handle = handle
        self.spec = spec
        #: Where its data channels listen, once it has connected.
        self.address: str | None = None
        #: All of its tasks are open.
        self.ready = False
        self._outbox = Outbox()
        #: When it sent a message or a heartbeat last, and when its task loop reported last.
        self._last_contact = now
        self._last_report: float | None = None

    def connected(self, address: str) -> None:
        """Note where its data channels listen."""
        self.address = address

    def opened(self) -> None:
        """Note that all of its tasks are open."""
        self.ready = True

    def contacted(self, now: float) -> None:
        """Note that it has sent a message or a heartbeat."""
        self._last_contact = now

    def reported(self, now: float) -> None:
        """Note that its task loop has reported."""
        self._last_report = now

    def excuse(self, seconds: float, now: float) -> None:
        """Leave out a time in which the JobManager itself could receive nothing."""
        self._last_contact = min(now, self._last_contact + seconds)

    def silent_for(self, now: float) -> float:
        """Return the seconds since its last message or heartbeat."""
        return now - self._last_contact

    def busy_for(self, now: float) -> float:
        """Return the seconds since its task loop reported; 0 before the first report."""
        return 0.0 if self._last_report is None else now - self._last_report

    def send(self, message: m.Message) -> None:
        """Send a message as soon as there is a connection."""
        self._outbox.put(m.encode(message))

    async def write(self, frames: Frames) -> None:
        """Write the messages that are sent to a connection, until the worker is gone."""
        await self._outbox.write(frames)

    def lost(self, how: str, *, disconnected: bool = False) -> WorkerLost:
        """Return the error for a worker that was lost, and how."""
        text = f"worker {self.spec.worker} (pid {self.handle.pid}) {how}"
        return WorkerLost(text, disconnected=disconnected)

    async def died(self) -> WorkerLost:
        """Wait for the end of the process, and return the error for it."""
        lost = self.lost(await self.handle.wait())
        if isinstance(self.handle, ProcessHandle) and self.handle.crashed:
            # A record, or the code of a function, may well crash it again.
            lost.recoverability = Recoverability.RECOVERABLE
        return lost

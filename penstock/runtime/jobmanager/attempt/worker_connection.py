"""A worker of an attempt: its process, its connection and its heartbeats."""

from __future__ import annotations

from penstock.dataflow.errors import PenstockError, Recoverability
from penstock.runtime.control import messages as m
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.outbox import Outbox
from penstock.runtime.system.launcher import ChildHandle, WorkerHandle, WorkerSpec


class WorkerLost(PenstockError):
    """A worker has died, lost its connection, or sent no heartbeat for too long.

    Arguments:
        message: a text that names the worker and says how it was lost.
        disconnected: whether only the end of its connection is known. Its process may have died.
    """

    _of_class = Recoverability.ENVIRONMENT

    def __init__(self, message: str, *, disconnected: bool = False) -> None:
        super().__init__(message)
        self.disconnected = disconnected


class WorkerConnection:
    """The connection to one worker of an attempt, and the times of its last messages.

    Arguments:
        handle: the process of the worker.
        spec: the specification with which the process was started.
        now: the time at which the process was started, in seconds.
    """

    def __init__(self, handle: WorkerHandle, spec: WorkerSpec, now: float) -> None:
        self.handle = handle
        self.spec = spec
        #: The address at which the worker's data channels listen; None until it has connected.
        self.address: str | None = None
        #: Whether all tasks of the worker are open.
        self.ready = False
        #: Whether another worker takes its place, so that its end is no failure.
        self.retired = False
        self._outbox = Outbox()
        #: The time of the worker's last message or heartbeat, and the time of the last report of
        #: its task loop, in seconds.
        self._last_contact = now
        self._last_report: float | None = None

    def connected(self, address: str) -> None:
        """Set the address at which the worker's data channels listen."""
        self.address = address

    def opened(self) -> None:
        """Record that all tasks of the worker are open."""
        self.ready = True

    def contacted(self, now: float) -> None:
        """Record that the worker has sent a message or a heartbeat."""
        self._last_contact = now

    def reported(self, now: float) -> None:
        """Record that the task loop of the worker has reported."""
        self._last_report = now

    def excuse(self, seconds: float, now: float) -> None:
        """Give the worker `seconds` more to report, since the JobManager did not receive."""
        self._last_contact = min(now, self._last_contact + seconds)

    def silent_for(self, now: float) -> float:
        """Return the seconds since the last message or heartbeat of the worker."""
        return now - self._last_contact

    def busy_for(self, now: float) -> float:
        """Return the seconds since the last report of the task loop; 0 before the first."""
        return 0.0 if self._last_report is None else now - self._last_report

    def send(self, message: m.Message) -> None:
        """Queue a message for the worker. It is sent when the worker has connected."""
        self._outbox.put(m.encode(message))

    async def write(self, frames: Frames) -> None:
        """Write the queued messages to a connection, until the connection has ended."""
        await self._outbox.write(frames)

    def lost(self, how: str, *, disconnected: bool = False) -> WorkerLost:
        """Return an error that says how the worker was lost."""
        text = f"worker {self.spec.worker} (pid {self.handle.pid}) {how}"
        return WorkerLost(text, disconnected=disconnected)

    async def died(self) -> WorkerLost:
        """Wait until the process has ended, and return an error that says how it ended."""
        lost = self.lost(await self.handle.wait())
        if isinstance(self.handle, ChildHandle) and self.handle.crashed:
            # A record or a function may have crashed the worker, and may crash it again.
            lost.recoverability = Recoverability.RECOVERABLE
        return lost

"""A worker as its attempt sees it: its process, its connection, and the messages that wait."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass
class WorkerConnection:
    """A worker of one attempt.

    Arguments:
        handle, spec: its process, and what that was started with.
        address: where its data channels listen, once it has called home.
        frames: its control connection.
        ready: all of its tasks are open.
        heard: when a message or a heartbeat of it came last.
        reported: when its loop reported metrics last.
    """

    handle: WorkerHandle
    spec: WorkerSpec
    address: str | None = None
    frames: Frames | None = None
    ready: bool = False
    heard: float = 0.0
    reported: float = 0.0
    _outbox: Outbox = field(default_factory=Outbox)

    def send(self, message: m.Message) -> None:
        """Send a message as soon as there is a connection."""
        self._outbox.put(m.encode(message))

    async def write(self) -> None:
        """Write the messages that were sent, until the worker is gone."""
        assert self.frames is not None
        await self._outbox.write(self.frames)

    def lost(self, how: str, *, disconnected: bool = False) -> WorkerLost:
        """Return the error for a worker that was lost, and how."""
        text = f"worker {self.spec.worker} (pid {self.handle.pid}) {how}"
        return WorkerLost(text, disconnected=disconnected)

    async def died(self) -> WorkerLost:
        """Wait for the end of the process, and return the error for it."""
        lost = self.lost(await self.handle.wait())
        if isinstance(self.handle, ProcessHandle) and self.handle.crashed:
            # A record, or the code of a function, may well bring it about again.
            lost.recoverability = Recoverability.RECOVERABLE
        return lost

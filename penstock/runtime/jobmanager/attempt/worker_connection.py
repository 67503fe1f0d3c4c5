"""A worker as its attempt sees it: its process, its connection, and the messages that wait."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import trio

from penstock.dataflow.errors import PenstockError, Recoverability
from penstock.runtime.control import messages as m
from penstock.runtime.control.framing import Frames
from penstock.runtime.system.launcher import ProcessHandle, WorkerHandle, WorkerSpec
from penstock.runtime.system.signal import Signal

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
    _outbox: list[bytes] = field(default_factory=list)
    _signal: Signal = field(default_factory=Signal)

    def send(self, message: m.Message) -> None:
        """Send a message as soon as there is a connection."""
        self._outbox.append(m.encode(message))
        self._signal.set()

    async def write(self) -> None:
        """Write what is to be sent, until the worker is gone."""
        assert self.frames is not None
        # Closed by the reader of the attempt when the worker is gone.
        gone = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
        with contextlib.suppress(*gone):
            while True:
                while self._outbox:
                    queue, self._outbox = self._outbox, []
                    for frame in queue:
                        await self.frames.send(frame)
                await self._signal.wait()

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

"""Frames that wait to be written to one connection."""

from __future__ import annotations

from collections import deque

import trio

from penstock.runtime.control.framing import Frames
from penstock.runtime.system.signal import Signal

__all__ = ["Outbox"]


class Outbox:
    """Queues frames without waiting; `write` sends them in order.

    Frames may be put before there is a connection. When the connection is gone they are dropped:
    the reader of the connection notices its end, too, and decides what follows from it.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._signal = Signal()
        self._flushed = trio.Event()
        #: Set when the connection is gone.
        self.closed = False

    def __len__(self) -> int:
        """Return the number of frames that are not completely written."""
        return len(self._waiting)

    def put(self, frame: bytes) -> None:
        """Queue a frame."""
        if not self.closed:
            self._waiting.append(frame)
            self._signal.set()

    async def write(self, connection: Frames) -> None:
        """Write frames until cancelled, or until the connection is gone."""
        try:
            while True:
                while self._waiting:
                    await connection.send(self._waiting[0])
                    self._waiting.popleft()
                self._flushed.set()
                await self._signal.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self.closed = True
            self._waiting.clear()
            self._flushed.set()

    async def flush(self) -> None:
        """Wait until all frames are written, or the connection is gone."""
        while self._waiting:
            self._flushed = trio.Event()
            await self._flushed.wait()

"""Queue frames that wait to be written to one connection."""

from __future__ import annotations

from collections import deque

import trio

from penstock.runtime.control.framing import Frames
from penstock.runtime.system.signal import Signal


class Outbox:
    """Queues frames without waiting, and writes them to a connection in order.

    Frames may be queued before there is a connection. When the connection has ended, the outbox
    drops its frames and reports nothing: the reader of the connection handles the end.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._signal = Signal()
        self._flushed = trio.Event()
        #: Whether the connection has ended.
        self.closed = False

    def __len__(self) -> int:
        """Return the number of frames that are not completely written yet."""
        return len(self._waiting)

    def put(self, frame: bytes) -> None:
        """Queue a frame, or drop it if the connection has ended."""
        if not self.closed:
            self._waiting.append(frame)
            self._signal.set()

    async def write(self, connection: Frames) -> None:
        """Write queued frames until the connection has ended, or the caller is cancelled."""
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
        """Wait until all frames are written, or the connection has ended."""
        while self._waiting:
            self._flushed = trio.Event()
            await self._flushed.wait()

"""Queue frames that wait to be written to one connection."""

from __future__ import annotations

from collections import deque

import trio

from penstock.runtime.control.framing import Frames
from penstock.runtime.system.signal import Signal


class Outbox:
    """Queues frames without waiting, and writes them to a connection in order.

    Frames may be queued before there is a connection. A frame is written at once if none waits and
    the kernel takes it: a task that has just answered would otherwise keep the writer waiting until
    its slice of work ends. When the connection has ended, the outbox drops its frames and reports
    nothing: the reader of the connection handles the end.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        #: The part of a frame that the kernel did not take; it comes before those that wait.
        self._rest: bytes | None = None
        #: The connection, while nothing waits.
        self._free: Frames | None = None
        self._signal = Signal()
        self._flushed = trio.Event()
        #: Whether the connection has ended.
        self.closed = False

    def __len__(self) -> int:
        """Return the number of frames that are not completely written yet."""
        return len(self._waiting) + (self._rest is not None)

    def put(self, frame: bytes) -> None:
        """Write or queue a frame, or drop it if the connection has ended."""
        if self.closed:
            return
        if self._free is None:
            self._waiting.append(frame)
        else:
            try:
                self._rest = self._free.send_now(frame)
            except OSError:
                self._end()
            if self._rest is None and not self.closed:
                return
            self._free = None
        self._signal.set()

    async def write(self, connection: Frames) -> None:
        """Write queued frames until the connection has ended, or the caller is cancelled."""
        try:
            while not self.closed:
                if self._rest is not None:
                    await connection.send_rest(self._rest)
                    self._rest = None
                while self._waiting:
                    await connection.send(self._waiting[0])
                    self._waiting.popleft()
                self._flushed.set()
                self._free = connection
                await self._signal.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self._end()
        finally:
            self._free = None

    def _end(self) -> None:
        self.closed = True
        self._waiting.clear()
        self._rest = None
        self._flushed.set()

    async def flush(self) -> None:
        """Wait until all frames are written, or the connection has ended."""
        while len(self):
            self._flushed = trio.Event()
            await self._flushed.wait()

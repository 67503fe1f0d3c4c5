"""Connect parts of a job that share one event loop, without sockets.

These connections are for jobs in one process and for simulated clusters. A stream holds all bytes
that were sent and not received yet. The credits of the channels limit the number of these bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from penstock.runtime.system.signal import Signal
from penstock.runtime.system.transport import ConnectionHandler


class MemoryStream(trio.abc.Stream):
    """One end of a connection in memory. `memory_streams` creates both ends."""

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._changed = Signal()
        self._closed = False
        self._peer = self

    @property
    def peer(self) -> MemoryStream:
        """Return the other end of the connection."""
        return self._peer

    @property
    def is_closed(self) -> bool:
        """Return whether this end was closed."""
        return self._closed

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the other end."""
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError("this end of the connection was closed")
        if self._peer._closed:
            raise trio.BrokenResourceError("the other end of the connection was closed")
        if data:
            self._peer._arrived += data
            self._peer._changed.set()

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once, because sending never has to wait."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait until bytes have arrived, and return at most `max_bytes` of them.

        Return no bytes if the other end is closed and all bytes were received.
        """
        await trio.lowlevel.checkpoint()
        while not (self._arrived or self._closed or self._peer._closed):
            await self._changed.wait()
        if self._closed:
            raise trio.ClosedResourceError("this end of the connection was closed")
        received = bytes(self._arrived[:max_bytes])
        del self._arrived[:max_bytes]
        return received

    async def aclose(self) -> None:
        """Close this end of the connection."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close this end at once. The other end still receives all bytes that were sent."""
        self._closed = True
        self._changed.set()
        self._peer._changed.set()


def memory_streams() -> tuple[MemoryStream, MemoryStream]:
    """Return the two ends of a new connection."""
    one, other = MemoryStream(), MemoryStream()
    one._peer, other._peer = other, one
    return one, other


Serve = Callable[[MemoryStream], Awaitable[None]]


class MemoryNetwork:
    """Connects the parts of a job, which listen at addresses in memory."""

    def __init__(self) -> None:
        self._listening: dict[str, tuple[Serve, trio.Nursery]] = {}

    def listen(self, address: str, handler: Serve, nursery: trio.Nursery) -> None:
        """Call `handler` for each connection to `address`, until the nursery is cancelled."""
        self._listening[address] = (handler, nursery)
        nursery.start_soon(self._forget, address)

    async def _forget(self, address: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            del self._listening[address]

    def connect(self, address: str) -> MemoryStream:
        """Return the caller's end of a new connection to an address.

        Raise `ConnectionRefusedError` if no part of the job listens there.
        """
        if address not in self._listening:
            raise ConnectionRefusedError(f"nothing listens at {address}")
        handler, nursery = self._listening[address]
        ours, theirs = memory_streams()
        nursery.start_soon(_serve, handler, theirs)
        return ours


async def _serve(handler: Serve, stream: MemoryStream) -> None:
    try:
        await handler(stream)
    finally:
        stream.close()


class MemoryTransport:
    """A `Transport` that connects one worker or JobManager through memory.

    Arguments:
        network: the network that all parts of the job share.
    """

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._streams: list[MemoryStream] = []

    async def listen(self, name: str, handler: ConnectionHandler, nursery: trio.Nursery) -> str:
        """Call `handler` for each connection, in `nursery`, and return the address."""
        address = f"memory:{name}"
        self._network.listen(address, handler, nursery)
        await trio.lowlevel.checkpoint()
        return address

    async def connect(self, address: str) -> trio.abc.Stream:
        """Open a connection to an address that `listen` returned."""
        await trio.lowlevel.checkpoint()
        stream = self._network.connect(address)
        self._streams.append(stream)
        return stream

    def forget(self, attempt: int) -> None:
        """Do nothing: an ended attempt leaves nothing."""

    def close(self) -> None:
        """Close all connections that `connect` has opened, as the end of a process would."""
        for stream in self._streams:
            stream.close()
        self._streams.clear()

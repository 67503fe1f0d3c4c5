"""Send and receive frames on a stream: `length (4 bytes, big-endian) · payload`.

Every connection begins with a handshake, which is in `handshake.py`.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

import trio

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.control.packing import MAX_FRAME

_LENGTH = struct.Struct(">I")


class Frames:
    """Sends and receives frames over a trio stream.

    Arguments:
        stream: an open stream. This object owns it, and `aclose` closes it.
    """

    CHUNK = 256 * 1024

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = bytearray()
        self._start = 0
        # Only a socket has a file descriptor. To another stream, such as a simulated one,
        # `send_now` writes nothing.
        self._fileno: Callable[[], int] | None = None
        if isinstance(stream, trio.SocketStream):
            self._fileno = stream.socket.fileno

    async def send(self, payload: bytes) -> None:
        """Send one frame."""
        await self.stream.send_all(_LENGTH.pack(len(payload)) + payload)

    def send_now(self, *parts: bytes) -> bytes | None:
        """Write one frame made of `parts`, without waiting.

        The kernel may accept only a part of the frame. No other trio task may be sending on the
        stream. Raise `OSError` if the stream is closed or broken.

        Returns:
            The bytes that the kernel did not accept, or None if it accepted the whole frame. The
            caller must send them with `send_rest` before any other frame.
        """
        size = sum(map(len, parts))
        frame = [_LENGTH.pack(size), *parts]
        written = 0
        if self._fileno is not None:
            try:
                # Ask the socket for its descriptor at each call: after the socket is closed, the
                # kernel may give the same number to another file.
                written = os.writev(self._fileno(), frame)
            except BlockingIOError:
                written = 0
            if written == _LENGTH.size + size:
                return None
        return b"".join(frame)[written:]

    async def send_rest(self, rest: bytes) -> None:
        """Send the part of a frame that `send_now` could not write."""
        await self.stream.send_all(rest)

    async def receive(self) -> bytes | None:
        """Return the next frame, or None if the peer has closed the stream between two frames.

        Raises:
            trio.BrokenResourceError: if the connection ends within a frame, for example because
                the other process was killed.
            ProtocolError: if the length of the frame is above `MAX_FRAME`.
        """
        if not await self._fill(_LENGTH.size):
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if length > MAX_FRAME:
            raise ProtocolError(f"a frame of {length} bytes, which is above {MAX_FRAME}")
        if not await self._fill(_LENGTH.size + length):
            raise trio.BrokenResourceError("the connection ended within a frame")
        begin = self._start + _LENGTH.size
        self._start = begin + length
        with memoryview(self._buffer) as view:
            return bytes(view[begin : self._start])

    async def receive_exactly(self, count: int) -> bytes | None:
        """Return the next `count` bytes of the stream, or None at its end.

        The bytes are sent without a frame around them, as in the handshake.
        """
        if not await self._fill(count):
            return None
        begin, self._start = self._start, self._start + count
        return bytes(self._buffer[begin : self._start])

    async def aclose(self) -> None:
        """Close the stream."""
        await self.stream.aclose()

    async def _fill(self, count: int) -> bool:
        """Read until the buffer has `count` bytes. Return False if the stream ends before."""
        while len(self._buffer) - self._start < count:
            if self._start:
                del self._buffer[: self._start]
                self._start = 0
            chunk = await self.stream.receive_some(self.CHUNK)
            if not chunk:
                if self._buffer:
                    raise trio.BrokenResourceError("the connection ended within a frame")
                return False
            self._buffer += chunk
        return True


def send_blocking(connection: socket.socket, payload: bytes) -> None:
    """Send one frame on a blocking socket."""
    connection.sendall(_LENGTH.pack(len(payload)) + payload)


def receive_blocking(connection: socket.socket) -> bytes | None:
    """Return the next frame of a blocking socket, or None if the connection has ended."""
    try:
        header = receive_exactly_blocking(connection, _LENGTH.size)
        return header and receive_exactly_blocking(connection, *_LENGTH.unpack(header))
    except ConnectionError:
        return None


def receive_exactly_blocking(connection: socket.socket, count: int) -> bytes | None:
    """Return the next `count` bytes of a blocking socket, or None if its stream ends before."""
    received = bytearray()
    while len(received) < count:
        chunk = connection.recv(min(count - len(received), 1 << 20))
        if not chunk:
            return None
        received += chunk
    return bytes(received)

"""Frames on a stream, and how both ends prove that they know the job's token.

A frame is `length (4 bytes, big-endian) · payload`. Every connection begins with a mutual HMAC
challenge; nothing else is read before it has succeeded, and no frame of it is decoded: all three
are of fixed length. An unauthenticated peer can therefore cause no work but one comparison.

    server → client   nonce a (32 bytes)
    client → server   nonce b (32 bytes) · HMAC(token, "client" · a · b)
    server → client   HMAC(token, "server" · a · b)
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable

import trio

from penstock.dataflow.errors import PenstockError, ProtocolError

__all__ = [
    "AuthenticationError",
    "Frames",
    "client_handshake",
    "client_handshake_blocking",
    "server_handshake",
]

NONCE = 32
DIGEST = 32
#: A control message or a batch beyond this is a bug or an attack.
MAX_FRAME = 1 << 30
_LENGTH = struct.Struct(">I")


class AuthenticationError(PenstockError):
    """The other end does not know the token of this job."""


def proof(token: bytes, role: bytes, a: bytes, b: bytes) -> bytes:
    """What shows that a role knows the token."""
    return hmac.digest(token, role + a + b, hashlib.sha256)


class Frames:
    """Frames over a trio stream.

    Arguments:
        stream: an open stream; owned by this object from now on.
    """

    CHUNK = 256 * 1024

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = bytearray()
        self._start = 0
        # Streams that are no sockets (in a simulation) are written to by awaiting only.
        self._fileno: Callable[[], int] | None = None
        if isinstance(stream, trio.SocketStream):
            self._fileno = stream.socket.fileno

    async def send(self, payload: bytes) -> None:
        """Send one frame."""
        await self.stream.send_all(_LENGTH.pack(len(payload)) + payload)

    def send_now(self, *parts: bytes) -> bytes | None:
        """Write one frame made of `parts` without waiting, as far as the kernel takes it.

        Returns what is left to be sent with `send_rest`, before anything else is; None if nothing
        is. Only where nobody else is sending. Raises `OSError` if the stream is closed or broken.
        """
        size = sum(map(len, parts))
        frame = [_LENGTH.pack(size), *parts]
        written = 0
        if self._fileno is not None:
            try:
                # Ask each time: once the socket is closed, its number may be another file's.
                written = os.writev(self._fileno(), frame)
            except BlockingIOError:
                written = 0
            if written == _LENGTH.size + size:
                return None
        return b"".join(frame)[written:]

    async def send_rest(self, rest: bytes) -> None:
        """Send what `send_now` left."""
        await self.stream.send_all(rest)

    async def receive(self) -> bytes | None:
        """The next frame, or None if the other end has closed between two frames.

        Raises `trio.BrokenResourceError` if it closed within one, as who is killed does, and
        `ProtocolError` for an impossible length.
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

    async def exactly(self, count: int) -> bytes:
        """The next `count` bytes, unframed. `AuthenticationError` if they do not come."""
        if not await self._fill(count):
            raise AuthenticationError("the other end closed before it had proved itself")
        begin, self._start = self._start, self._start + count
        return bytes(self._buffer[begin : self._start])

    async def aclose(self) -> None:
        """Close the stream."""
        await self.stream.aclose()

    async def _fill(self, count: int) -> bool:
        """Read until `count` bytes wait; False if the stream ends first and nothing waits."""
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


async def server_handshake(stream: trio.abc.Stream, token: bytes) -> Frames:
    """The server's part of the challenge. Raises `AuthenticationError`."""
    frames = Frames(stream)
    a = secrets.token_bytes(NONCE)
    await stream.send_all(a)
    answer = await frames.exactly(NONCE + DIGEST)
    b, shown = answer[:NONCE], answer[NONCE:]
    if not hmac.compare_digest(shown, proof(token, b"client", a, b)):
        raise AuthenticationError("a connection was refused: it does not know the job's token")
    await stream.send_all(proof(token, b"server", a, b))
    return frames


async def client_handshake(stream: trio.abc.Stream, token: bytes) -> Frames:
    """The client's part of the challenge. Raises `AuthenticationError`."""
    frames = Frames(stream)
    a = await frames.exactly(NONCE)
    b = secrets.token_bytes(NONCE)
    await stream.send_all(b + proof(token, b"client", a, b))
    if not hmac.compare_digest(await frames.exactly(DIGEST), proof(token, b"server", a, b)):
        raise AuthenticationError("the server does not know the job's token")
    return frames


def client_handshake_blocking(connection: socket.socket, token: bytes) -> None:
    """The client's part on a blocking socket, for threads. Raises `AuthenticationError`."""
    a = _exactly(connection, NONCE)
    b = secrets.token_bytes(NONCE)
    connection.sendall(b + proof(token, b"client", a, b))
    if not hmac.compare_digest(_exactly(connection, DIGEST), proof(token, b"server", a, b)):
        raise AuthenticationError("the server does not know the job's token")


def send_blocking(connection: socket.socket, payload: bytes) -> None:
    """Send one frame on a blocking socket."""
    connection.sendall(_LENGTH.pack(len(payload)) + payload)


def receive_blocking(connection: socket.socket) -> bytes | None:
    """The next frame of a blocking socket, or None if the other end has closed."""
    try:
        (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
        return _exactly(connection, length)
    except (AuthenticationError, ConnectionError):
        return None


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = connection.recv(min(count - len(received), 1 << 20))
        if not chunk:
            raise AuthenticationError("the other end closed the connection")
        received += chunk
    return bytes(received)

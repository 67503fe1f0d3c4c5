"""Let both ends of a connection prove that they know the job's token.

Every connection begins with this handshake:

    server → client   nonce a (32 bytes)
    client → server   nonce b (32 bytes) · HMAC(token, "client" · a · b)
    server → client   HMAC(token, "server" · a · b)

The server reads nothing else before the handshake has succeeded. The messages of the handshake have
a fixed length and are not decoded. So a peer without the token costs the server one comparison.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.framing import Frames, receive_exactly_blocking

NONCE = 32
DIGEST = 32


class AuthenticationError(PenstockError):
    """The other end of a connection does not know the token of this job."""


async def server_handshake(stream: trio.abc.Stream, token: bytes) -> Frames:
    """Do the server's part of the handshake. Raise `AuthenticationError` if it fails."""
    frames = Frames(stream)
    a = secrets.token_bytes(NONCE)
    await stream.send_all(a)
    answer = _required(await frames.receive_exactly(NONCE + DIGEST))
    b, digest = answer[:NONCE], answer[NONCE:]
    if not hmac.compare_digest(digest, _proof(token, b"client", a, b)):
        raise AuthenticationError("a connection was refused: it does not know the job's token")
    await stream.send_all(_proof(token, b"server", a, b))
    return frames


async def client_handshake(stream: trio.abc.Stream, token: bytes) -> Frames:
    """Do the client's part of the handshake. Raise `AuthenticationError` if it fails."""
    frames = Frames(stream)
    a = _required(await frames.receive_exactly(NONCE))
    b = secrets.token_bytes(NONCE)
    await stream.send_all(b + _proof(token, b"client", a, b))
    _check_server(token, a, b, _required(await frames.receive_exactly(DIGEST)))
    return frames


def client_handshake_blocking(connection: socket.socket, token: bytes) -> None:
    """Do the client's part of the handshake on a blocking socket.

    Raise `AuthenticationError` if it fails.
    """
    a = _required(receive_exactly_blocking(connection, NONCE))
    b = secrets.token_bytes(NONCE)
    connection.sendall(b + _proof(token, b"client", a, b))
    _check_server(token, a, b, _required(receive_exactly_blocking(connection, DIGEST)))


def _proof(token: bytes, role: bytes, a: bytes, b: bytes) -> bytes:
    """Return the digest that proves that a client or a server knows the token."""
    return hmac.digest(token, role + a + b, hashlib.sha256)


def _check_server(token: bytes, a: bytes, b: bytes, digest: bytes) -> None:
    if not hmac.compare_digest(digest, _proof(token, b"server", a, b)):
        raise AuthenticationError("the server does not know the job's token")


def _required(received: bytes | None) -> bytes:
    if received is None:
        raise AuthenticationError("the other end closed the connection before it had proved itself")
    return received

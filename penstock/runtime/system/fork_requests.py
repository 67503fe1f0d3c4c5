"""Send requests and open files to a process that forks others, and receive them there."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

from penstock.runtime.control.framing import receive_exactly_blocking
from penstock.runtime.control.packing import pack, unpack

#: The length of a request, and an answer, which is a number.
_NUMBER = struct.Struct(">q")
_MAX_FILES = 8


def ask(connection: socket.socket, request: list[Any], files: Sequence[int] = ()) -> int:
    """Send a request, and return the answer.

    Arguments:
        connection: the connection to the process.
        request: plain values.
        files: file descriptors, of which the process gets copies.

    Raises:
        OSError: if the process is gone, or a descriptor is not open.
    """
    data = pack(request)
    socket.send_fds(connection, [_NUMBER.pack(len(data))], files)
    connection.sendall(data)
    answer = receive_exactly_blocking(connection, _NUMBER.size)
    if answer is None:
        raise ConnectionError("the process that forks others is gone")
    return int(_NUMBER.unpack(answer)[0])


def receive_request(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """Return the next request and its files; None if the other process has ended."""
    header, files, _, _ = socket.recv_fds(connection, _NUMBER.size, _MAX_FILES)
    data = header and receive_exactly_blocking(connection, *_NUMBER.unpack(header))
    return (unpack(data), files) if data else None


def answer(connection: socket.socket, number: int) -> None:
    """Answer a request with a number."""
    connection.sendall(_NUMBER.pack(number))

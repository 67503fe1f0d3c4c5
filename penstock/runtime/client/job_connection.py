"""The client's end of the connection to a JobManager, wherever that runs."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.runtime.control import packing
from penstock.runtime.control.framing import receive_blocking, send_blocking
from penstock.runtime.control.packing import unpack_event

__all__ = ["JobConnection", "SocketConnection"]


class JobConnection(ABC):
    """Follows and controls one job."""

    @abstractmethod
    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that the JobManager reports, until it ends."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the JobManager to stop the job in order; do nothing if it has ended."""

    @abstractmethod
    def drain(self) -> None:
        """Discard what the JobManager reports until it ends.

        A Ctrl-C may have interrupted the reading of an event, so none is decoded here.
        """

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the JobManager has not ended yet."""

    @abstractmethod
    def kill(self) -> None:
        """End the JobManager without a last snapshot."""

    @abstractmethod
    def wait(self) -> str:
        """Wait until the JobManager has ended, and return how."""


class SocketConnection(JobConnection):
    """A connection to a JobManager in another process or thread.

    Arguments:
        connected: one end of a socket pair; the JobManager has the other.
        request: from `job_request`; sent at once.
    """

    def __init__(self, connected: socket.socket, request: bytes) -> None:
        self._socket = connected
        self._sending = threading.Lock()
        send_blocking(connected, request)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that the JobManager reports, until it ends."""
        while True:
            frame = receive_blocking(self._socket)
            if frame is None:
                return
            yield unpack_event(frame)

    def stop(self) -> None:
        """Ask the JobManager to stop the job in order; do nothing if it has ended."""
        try:
            with self._sending:
                send_blocking(self._socket, packing.pack({"do": "stop"}))
        except OSError:
            return

    def drain(self) -> None:
        """Discard what the JobManager reports until it ends."""
        with suppress(OSError):
            while self._socket.recv(1 << 16):
                pass

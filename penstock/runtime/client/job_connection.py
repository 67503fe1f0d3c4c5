"""The client's connection to a JobManager in another process or thread."""

from __future__ import annotations

import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.runtime.control.framing import receive_blocking, send_blocking
from penstock.runtime.control.packing import unpack_event
from penstock.runtime.control.requests import Order, encode_order
from penstock.runtime.system.children import child_command
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files

__all__ = ["JobConnection", "JobProcess", "SocketConnection"]


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
        connected: one socket of a pair; the JobManager has the other.
        request: made by `job_request`; sent in the constructor.
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
                send_blocking(self._socket, encode_order(Order.STOP))
        except OSError:
            return

    def drain(self) -> None:
        """Discard what the JobManager reports until it ends."""
        with suppress(OSError):
            while self._socket.recv(1 << 16):
                pass


class JobProcess(SocketConnection):
    """A JobManager process and the connection to it.

    Arguments:
        request: made by `job_request`.
        output: file for its standard output and error; None shares those of this process.
    """

    def __init__(self, request: bytes, output: Any = None) -> None:
        # The job's processes inherit the limits of this one. Too low a limit is reported here,
        # since a process that has reached it cannot report much.
        require_open_files(PROCESS_FILES)
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                child_command("penstock.runtime.jobmanager.process", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C at the terminal must reach only this process, which stops the job.
                start_new_session=True,
            )
        super().__init__(ours, request)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()

    def wait(self) -> str:
        """Wait until the process has ended, and return how."""
        code = self.process.wait()
        self._socket.close()
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

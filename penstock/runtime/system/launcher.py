"""How workers are started: as child processes, with their specification on standard input."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

import trio

from penstock.runtime.control.packing import malformed, pack, unpack
from penstock.runtime.system.children import child_command

__all__ = [
    "EXIT_JOBMANAGER_LOST",
    "Launcher",
    "ProcessHandle",
    "ProcessLauncher",
    "WorkerHandle",
    "WorkerSpec",
]

#: The exit code of a worker that has lost its connection to the JobManager.
EXIT_JOBMANAGER_LOST = 3
#: Signals by which a process ends because of an error of its own.
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True)
class WorkerSpec:
    """All that a new worker needs to connect to the JobManager.

    Arguments:
        address: of the JobManager.
        token: the job's secret.
        worker: the index of the worker, which is its slot.
        attempt: the execution attempt that it is started for.
        heartbeat_seconds: the interval of its heartbeats.
        search_path: `sys.path` of the program.
        folder: the program's working directory.
        host: the address to listen on with TCP; None uses Unix sockets.
    """

    address: str
    token: bytes
    worker: int
    attempt: int
    heartbeat_seconds: float
    search_path: tuple[str, ...] = ()
    folder: str | None = None
    host: str | None = None

    def to_wire(self) -> bytes:
        """Return the specification as bytes, for the worker's standard input."""
        values = [getattr(self, field.name) for field in fields(self)]
        return pack([[*value] if isinstance(value, tuple) else value for value in values])

    @classmethod
    def from_wire(cls, data: bytes) -> WorkerSpec:
        """Return the specification in `data`. Raise `ProtocolError` if it is malformed."""
        with malformed("worker specification"):
            address, token, worker, attempt, heartbeat, search_path, folder, host = unpack(data)
        return cls(address, token, worker, attempt, heartbeat, tuple(search_path), folder, host)


class WorkerHandle(Protocol):
    """A started worker."""

    pid: int

    async def wait(self) -> str:
        """Wait until it has ended; return how it ended."""

    def kill(self) -> None:
        """End it at once."""


class Launcher(Protocol):
    """Starts workers."""

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker."""


class ProcessHandle:
    """A worker that is a child process."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> str:
        """Wait until it has ended; return how it ended."""
        code = await self._process.wait()
        if code < 0:
            return f"was killed by signal {-code}"
        return f"exited with code {code}"

    @property
    def crashed(self) -> bool:
        """Return whether it ended by an error of its own, such as an uncaught exception.

        A signal from outside and a lost connection to the JobManager are faults of its environment.
        """
        code = self._process.returncode
        if code is None or code == EXIT_JOBMANAGER_LOST:
            return False
        return code > 0 or -code in _FAULTS

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


class ProcessLauncher:
    """Starts workers as processes on this machine."""

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start `penstock.runtime.taskmanager.process`.

        The specification is written to its standard input, since a command line is visible to
        other users of the machine and the token must not be.
        """
        process = await trio.lowlevel.open_process(
            child_command("penstock.runtime.taskmanager.process"),
            stdin=subprocess.PIPE,
            # A Ctrl-C at the terminal is for the client, which stops the job in order.
            start_new_session=True,
            cwd=spec.folder if spec.folder and Path(spec.folder).is_dir() else None,
        )
        assert process.stdin is not None
        await process.stdin.send_all(spec.to_wire())
        await process.stdin.aclose()
        return ProcessHandle(process)

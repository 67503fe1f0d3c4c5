"""Start workers as new processes, with their specification on standard input."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

import trio

from penstock.runtime.control.packing import malformed, pack, unpack
from penstock.runtime.system.children import child_command
from penstock.runtime.system.limits import FAULTS, how_ended

#: The exit code of a worker that has lost its connection to the JobManager.
EXIT_JOBMANAGER_LOST = 3
#: The time after which a worker connects again to the place where it waits for the next JobManager,
#: in seconds. It does so if a JobManager has died while it accepted the worker.
REJOIN_PAUSE_SECONDS = 0.05

#: Settings of the C library's allocator in workers; the environment of the job overrides them. By
#: default, glibc returns the memory of a large array to the kernel when the array is freed. The
#: next array of the same size then needs a page fault for each page. For Arrow batches of some
#: 100 KB, this took as long as the computation.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}


@dataclass(frozen=True)
class WorkerSpec:
    """The data that a new worker needs to connect to the JobManager.

    Arguments:
        address: the address of the JobManager.
        token: the job's secret.
        worker: the index of the worker, which is its slot.
        attempt: the number of the execution attempt for which the worker is started.
        heartbeat_seconds: the interval of the worker's heartbeats, in seconds.
        search_path: the `sys.path` of the program.
        folder: the program's working directory.
        host: the address to listen on with TCP; None uses Unix sockets.
        python: the interpreter to run the worker; None stands for the JobManager's own. The
            worker's own packages then come before those of the program.
        fork: whether the worker may be a fork of the fork server.
        rejoin_address: the address at which the worker offers its tasks to the next JobManager if
            its own one dies; None if the worker then ends. See `rendezvous.py`.
        rejoin_token: the secret of the connections to that address.
        rejoin_seconds: the time that the next JobManager has, in seconds.
    """

    address: str
    token: bytes
    worker: int
    attempt: int
    heartbeat_seconds: float
    search_path: tuple[str, ...] = ()
    folder: str | None = None
    host: str | None = None
    python: str | None = None
    fork: bool = True
    rejoin_address: str | None = None
    rejoin_token: bytes = b""
    rejoin_seconds: float = 0.0

    def to_wire(self) -> bytes:
        """Return the specification as bytes, for the worker's standard input."""
        values = [getattr(self, field.name) for field in fields(self)]
        return pack([[*value] if isinstance(value, tuple) else value for value in values])

    @classmethod
    def from_wire(cls, data: bytes) -> WorkerSpec:
        """Return the specification in `data`. Raise `ProtocolError` if it is malformed."""
        with malformed("worker specification"):
            address, token, worker, attempt, heartbeat, search_path, *rest = unpack(data)
        return cls(address, token, worker, attempt, heartbeat, tuple(search_path), *rest)


class WorkerHandle(Protocol):
    """A handle to a worker that was started."""

    pid: int

    async def wait(self) -> str:
        """Wait until the worker has ended, and return a text that says how it ended."""

    def kill(self) -> None:
        """End the worker at once."""


class Launcher(Protocol):
    """Starts the workers of a job."""

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker, and return a handle to it."""


class ChildHandle:
    """A handle to a worker that is a process of its own on this machine."""

    pid: int
    #: The exit code, or the negative number of the signal that ended the process; None as long as
    #: it is unknown.
    returncode: int | None = None

    @property
    def crashed(self) -> bool:
        """Return whether the process has ended by an error of its own code.

        An uncaught exception is such an error. A signal from another process, such as SIGKILL, or a
        lost connection to the JobManager is not.
        """
        code = self.returncode
        if code is None or code == EXIT_JOBMANAGER_LOST:
            return False
        return code > 0 or -code in FAULTS


class ProcessHandle(ChildHandle):
    """A handle to a worker that is a child process."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> str:
        """Wait until the process has ended, and return its exit code or signal as text."""
        self.returncode = await self._process.wait()
        return how_ended(self.returncode)

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self._process.kill()


class ProcessLauncher:
    """Starts workers as new processes on this machine."""

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker process, which runs `penstock.runtime.taskmanager.process`.

        The launcher writes the specification to the standard input of the process. It contains the
        token, which must not be on a command line: other users of the machine could read it there.
        """
        process = await trio.lowlevel.open_process(
            child_command("penstock.runtime.taskmanager.process", python=spec.python),
            stdin=subprocess.PIPE,
            # In a session of its own, the worker receives no Ctrl-C from the terminal. Only the
            # client receives it, and stops the job with a last snapshot.
            start_new_session=True,
            cwd=spec.folder if spec.folder and Path(spec.folder).is_dir() else None,
            env={**ALLOCATOR, **os.environ},
        )
        assert process.stdin is not None
        await process.stdin.send_all(spec.to_wire())
        await process.stdin.aclose()
        return ProcessHandle(process)

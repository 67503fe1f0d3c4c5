"""Start workers by forking a process that has imported the runtime already.

A new interpreter needs about half a second of processor time to import the runtime. So the process
of a JobManager forks a *fork server* before it does anything else. The server imports the modules
of workers, and then forks itself for each worker. A fork takes some milliseconds.

The server has one thread, no event loop, and connections only to the JobManager and to *standby*
processes. Such a process is forked in advance, loads the code of the job, and waits until it
becomes a worker. The server itself runs no code of the user: a worker loads this after the fork. So
a worker begins in the same state as in a new interpreter. Each attempt gets new workers (decision
002), and the server is never used again for anything but forks.

The JobManager sends requests over a pair of sockets, one at a time, and gets an answer to each. The
server ends when the JobManager has closed its end, also by its death, and all workers have ended.
`docs/inside/decisions/049-workers-by-fork.md` has figures.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import trio

from penstock.runtime.control.packing import pack, unpack
from penstock.runtime.system.launcher import (
    ALLOCATOR,
    ChildHandle,
    ProcessLauncher,
    WorkerHandle,
    WorkerSpec,
)
from penstock.runtime.system.limits import how_ended
from penstock.runtime.system.surroundings import enter, surroundings

logger = logging.getLogger("penstock.jobmanager")

_LENGTH = struct.Struct(">I")
#: The numbers of the parameters of `mallopt`, by the names of the environment variables.
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}


class ForkServer:
    """Starts workers as forks of a server process, as a `Launcher`.

    A worker on another interpreter, or of a job with the start method `spawn`, is started as a new
    process. So is each worker if the server has died.

    Arguments:
        connection: the connection to the server.
        pid: the process id of the server.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._stream: trio.SocketStream | None = None
        self._one_at_a_time = trio.Lock()
        self._spawning = ProcessLauncher()
        self._lost = False

    @classmethod
    def start(cls, module: str, *, without: Sequence[int]) -> ForkServer:
        """Fork the server from this process, which must have one thread only.

        Arguments:
            module: the full name of the module whose `run_worker` a worker calls. A standby
                process calls its `load_code` before.
            without: the file descriptors that the server closes.
        """
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            ends_here(lambda: _serve(module, theirs, (ours.fileno(), *without)))
        theirs.close()
        return cls(ours, pid)

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker, and return a handle to it."""
        if not spec.fork or spec.python is not None or self._lost:
            return await self._spawning.launch(spec)
        pid = await self._ask(["fork", spec.to_wire(), surroundings()])
        if not pid:
            # The server is gone, or the system has refused a fork. Then it refuses a new process,
            # too, and says why.
            return await self._spawning.launch(spec)
        return _ForkedHandle(pid, self._ask)

    async def stand_by(self, count: int, spec: WorkerSpec, code: bytes) -> None:
        """Let processes wait that later calls of `launch` use first.

        Arguments:
            count: how many wait then. Those that wait already count.
            spec: the specification of any worker of the job. All have the same environment.
            code: the code of the job, which the processes load; empty for none.
        """
        if not self._lost:
            await self._ask(["stand by", spec.to_wire(), surroundings(), code, count])

    def close(self) -> None:
        """End the server. Called when no event loop runs any more."""
        self._connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    async def _ask(self, request: list[Any]) -> int | None:
        """Send a request, and return the answer; None if the server is gone."""
        data = pack(request)
        with trio.CancelScope(shield=True):
            async with self._one_at_a_time:
                if self._stream is None:
                    stream = trio.socket.from_stdlib_socket(self._connection)
                    self._stream = trio.SocketStream(stream)
                try:
                    await self._stream.send_all(_LENGTH.pack(len(data)) + data)
                    answer = b""
                    while len(answer) < _LENGTH.size:
                        part = await self._stream.receive_some(_LENGTH.size - len(answer))
                        if not part:
                            break
                        answer += part
                except (trio.BrokenResourceError, OSError):
                    answer = b""
        if len(answer) < _LENGTH.size:
            if not self._lost:
                logger.warning("the fork server is gone; workers are new processes from now on")
            self._lost = True
            return None
        return int(_LENGTH.unpack(answer)[0])


class _ForkedHandle(ChildHandle):
    """A handle to a worker that the fork server has forked.

    The server does not ask for the exit status of a worker before the JobManager does. Until then
    the kernel keeps the process id, so that a signal never reaches another process.
    """

    def __init__(self, pid: int, ask: Callable[[list[Any]], Any]) -> None:
        self.pid = pid
        self._ask = ask
        self._descriptor = os.pidfd_open(pid)
        self._waiting = trio.Lock()

    async def wait(self) -> str:
        """Wait until the process has ended, and return its exit code or signal as text."""
        async with self._waiting:
            if self._descriptor >= 0:
                await trio.lowlevel.wait_readable(self._descriptor)
                status = await self._ask(["status", self.pid])
                os.close(self._descriptor)
                self._descriptor = -1
                self.returncode = None if status is None else os.waitstatus_to_exitcode(status)
        return "has ended" if self.returncode is None else how_ended(self.returncode)

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


# ---- in the server


def _serve(module: str, connection: socket.socket, others: tuple[int, ...]) -> None:
    """Answer requests until the JobManager has ended."""
    for descriptor in others:
        os.close(descriptor)
    # A Ctrl-C on the terminal must not reach the server. The worker reads no input.
    os.setsid()
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    _tune_allocator()
    gc.disable()  # nothing that a module creates is garbage
    worker = import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()
    waiting: list[_Standby] = []
    while (request := _receive(connection)) is not None:
        match unpack(request):
            case ["fork", spec, around]:
                answer = _use_standby(waiting, spec)
                if answer is None:
                    answer = _fork()
                    if answer == 0:
                        _close_all(connection, waiting)
                        ends_here(lambda: _run(worker, spec, around))
                answer = answer or 0
            case ["stand by", spec, around, code, count]:
                while len(waiting) < count:
                    ours, theirs = socket.socketpair()
                    pid = _fork()
                    if pid == 0:
                        ours.close()
                        _close_all(connection, waiting)
                        end = partial(_stand_by, worker, spec, around, code, theirs)
                        ends_here(end)
                    theirs.close()
                    if pid is None:
                        ours.close()
                        break
                    waiting.append(_Standby(pid, ours))
                answer = len(waiting)
            case ["status", pid]:
                _, answer = os.waitpid(pid, 0)
        connection.sendall(_LENGTH.pack(answer))
    for standby in waiting:
        standby.connection.close()  # which ends it
    # Workers of a supervised job outlive their JobManager, and must not remain as zombies.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _fork() -> int | None:
    """Fork this process as `os.fork` does; return None if the system refuses it."""
    try:
        return os.fork()
    except OSError:
        return None


@dataclass(frozen=True)
class _Standby:
    """A process that waits for the specification of a worker.

    Arguments:
        pid: its process id.
        connection: the connection over which it gets the specification.
    """

    pid: int
    connection: socket.socket


def _use_standby(waiting: list[_Standby], spec: bytes) -> int | None:
    """Let a standby process become a worker, and return its process id; None if there is none."""
    while waiting:
        standby = waiting.pop(0)
        with standby.connection, contextlib.suppress(OSError):
            standby.connection.sendall(_LENGTH.pack(len(spec)) + spec)
            return standby.pid
        os.waitpid(standby.pid, 0)  # it has died while it waited
    return None


def _close_all(connection: socket.socket, waiting: list[_Standby]) -> None:
    """Close the server's connections in a forked child."""
    for one in (connection, *(standby.connection for standby in waiting)):
        one.close()


def _stand_by(
    worker: ModuleType,
    wire: bytes,
    around: list[Any],
    code: bytes,
    connection: socket.socket,
) -> None:
    """Load the code of the job, and become a worker when its specification comes."""
    _enter(WorkerSpec.from_wire(wire), around)
    if code:
        worker.load_code(WorkerSpec.from_wire(wire), code)
    with connection:
        mine = _receive(connection)
    if mine is not None:  # else the server has ended
        worker.run_worker(WorkerSpec.from_wire(mine))


def _run(worker: ModuleType, wire: bytes, around: list[Any]) -> None:
    """Become the worker of a specification."""
    spec = WorkerSpec.from_wire(wire)
    _enter(spec, around)
    worker.run_worker(spec)


def _enter(spec: WorkerSpec, around: list[Any]) -> None:
    """Take over the surroundings of the JobManager and the folder of the job."""
    os.setsid()
    enter(around, defaults=ALLOCATOR)
    if spec.folder and Path(spec.folder).is_dir():
        os.chdir(spec.folder)
    sys.argv[:] = sys.argv[:1]


def _receive(connection: socket.socket) -> bytes | None:
    """Return the next request, or None if the connection has ended."""
    head = _receive_exactly(connection, _LENGTH.size)
    return None if head is None else _receive_exactly(connection, _LENGTH.unpack(head)[0])


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        try:
            part = connection.recv(size)
        except ConnectionResetError:
            return None
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _tune_allocator() -> None:
    """Set what the environment of a new process would set; see `ALLOCATOR`."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in ALLOCATOR.items():
            mallopt(_MALLOPT[name], int(os.environ.get(name, value)))


def ends_here(function: Callable[[], None]) -> NoReturn:
    """Call a function in a forked child, and end the process, whatever happens."""
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

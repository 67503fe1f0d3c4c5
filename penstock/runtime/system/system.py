"""What the runtime needs from outside, as parameters: clock, connections, processes, threads.

`real_system` is the operating system's; a simulation passes its own, and then a whole cluster
runs inside one trio run under a virtual clock. Everything that leaves the event loop (RocksDB,
files, source threads) goes through `offload`.
"""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import trio

from penstock.dataflow.errors import GraphError, Recoverability
from penstock.runtime.system.children import child_command
from penstock.runtime.system.unix_sockets import UnixSockets, socket_name

__all__ = [
    "Launcher",
    "Signal",
    "Transport",
    "WorkerHandle",
    "WorkerSpec",
    "System",
    "any_number_of_threads",
    "real_system",
    "seed_scheduler",
]

Handler = Callable[[trio.abc.Stream], Awaitable[None]]
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]


class Transport(Protocol):
    """Makes connections."""

    async def listen(self, name: str, handler: Handler, nursery: trio.Nursery) -> str:
        """Serve connections in `nursery`; returns the address to connect to."""

    async def connect(self, address: str) -> trio.abc.Stream:
        """Open a connection. Raises `OSError`."""

    def close(self) -> None:
        """Remove what listening left behind."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a new worker must know to call home.

    Arguments:
        address: of the JobManager.
        token: the job's secret.
        worker: its index, which is its slot.
        attempt: the execution attempt it is started for.
        heartbeat_seconds: how often its thread says that it lives.
        search_path: `sys.path` of the program.
        folder: the program's working directory.
        host: address to listen on with TCP; None for Unix sockets.
    """

    address: str
    token: bytes
    worker: int
    attempt: int
    heartbeat_seconds: float
    search_path: tuple[str, ...] = ()
    folder: str | None = None
    host: str | None = None


class WorkerHandle(Protocol):
    """A started worker."""

    pid: int

    async def wait(self) -> str:
        """Wait for its end; says how it ended."""

    def kill(self) -> None:
        """End it at once."""


class Launcher(Protocol):
    """Starts workers."""

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start one."""


def _runnable() -> int:
    return trio.lowlevel.current_statistics().tasks_runnable


@dataclass
class System:
    """All that the runtime takes from outside.

    Arguments:
        clock: seconds on trio's clock, which is virtual in a simulation.
        transport: connections.
        launcher: processes.
        offload: runs a blocking function off the event loop.
        read: the same for reads of sources, which may block for as long as they like; None takes
            `offload`.
        pid: of this process.
        rng: for random partitioning.
        timer: seconds, for how long work takes; a simulation makes them up.
        heart: starts the thread that says that a worker lives; None if it needs none.
        revive: makes good again, before a restart, what commits and workers need of this process
            and a failure may have taken; blocks. None if there is no such thing.
        runnable: how many other tasks of the event loop could run now.
    """

    clock: Callable[[], float]
    transport: Transport
    launcher: Launcher
    offload: Offload
    read: Offload | None = None
    pid: int = field(default_factory=os.getpid)
    rng: random.Random = field(default_factory=random.Random)
    timer: Callable[[], float] = time.perf_counter
    heart: Callable[[WorkerSpec], None] | None = None
    revive: Callable[[], object] | None = None
    runnable: Callable[[], int] = _runnable


class Signal:
    """Wakes the one trio task that waits for it; remembered if none does."""

    def __init__(self) -> None:
        self._set = False
        self._waiter: trio.lowlevel.Task | None = None

    @property
    def pending(self) -> bool:
        """Whether it was set since the last wait ended."""
        return self._set

    def set(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        self._set = True
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(waiter)

    async def wait(self, until: float | None = None) -> None:
        """Wait until it was set since the last wait, or until a time on trio's clock."""
        if until is None:
            await self._wait()
        else:
            with trio.move_on_at(until):
                await self._wait()

    async def wait_for(self, condition: Callable[[], bool], until: float | None = None) -> None:
        """Wait until a condition holds whose changes are signalled, or until a time."""
        while not condition():
            await self.wait(until)
            if until is not None and trio.current_time() >= until:
                return

    async def _wait(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._set:

            def abort(_: Any) -> trio.lowlevel.Abort:
                self._waiter = None
                return trio.lowlevel.Abort.SUCCEEDED

            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)
        self._set = False


class SocketTransport:
    """Unix sockets in a short private folder, or TCP.

    Arguments:
        host: an address to listen on with TCP; None uses Unix sockets.
        bind: the address of this machine behind `host`, if that is another one.
        beside: an address that another process of the job listens at; Unix sockets go there.
    """

    def __init__(
        self, host: str | None = None, bind: str | None = None, beside: str | None = None
    ) -> None:
        self._host = host
        self._bind = bind or host
        kind, _, path = (beside or "").partition(":")
        self._sockets = UnixSockets(beside=path if kind == "unix" else None)

    async def listen(self, name: str, handler: Handler, nursery: trio.Nursery) -> str:
        """Serve connections in `nursery`; `unix:PATH` or `tcp:HOST:PORT`."""
        if self._host is not None:
            try:
                listeners = await trio.open_tcp_listeners(0, host=self._bind)
            except OSError as error:
                later = error.errno in (errno.EMFILE, errno.ENFILE, socket.EAI_AGAIN)
                raise GraphError(
                    f"the processes of the job cannot listen at {self._bind!r}, which `host` in "
                    f"its settings says: {error.strerror or error}; it must be an address of "
                    f"this machine",
                    recoverability=None if later else Recoverability.NON_RECOVERABLE,
                ) from error
            port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(_serve, handler, listeners)
            return f"tcp:{self._host}:{port}"
        bound, path = self._sockets.bind(name)
        bound.listen(256)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        nursery.start_soon(_serve, handler, [listener])
        return f"unix:{path}"

    async def connect(self, address: str) -> trio.abc.Stream:
        """Open a connection to an address that `listen` returned."""
        kind, _, rest = address.partition(":")
        if kind == "unix":
            return await trio.open_unix_socket(socket_name(rest))
        host, _, port = rest.rpartition(":")
        return await trio.open_tcp_stream(host, int(port))

    def close(self) -> None:
        """Remove the folder of the sockets."""
        self._sockets.close()


async def _serve(handler: Handler, listeners: list[Any]) -> None:
    async def safely(stream: trio.abc.Stream) -> None:
        try:
            await handler(stream)
        finally:
            with trio.move_on_after(1) as scope:
                scope.shield = True
                await trio.aclose_forcefully(stream)

    await trio.serve_listeners(safely, listeners)


#: Signals by which a process ends that did something wrong itself.
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class ProcessHandle:
    """A worker as a child process."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> str:
        """Wait for its end; says how it ended."""
        code = await self._process.wait()
        if code < 0:
            return f"was killed by signal {-code}"
        return f"exited with code {code}"

    @property
    def crashed(self) -> bool:
        """Return whether it ended by a fault of its own, and not by a signal from outside."""
        code = self._process.returncode
        return code is not None and (code > 0 or -code in _FAULTS)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


class ProcessLauncher:
    """Starts workers on this machine by our own command line."""

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start `penstock.runtime.taskmanager.taskmanager`; the token goes over its input."""
        from penstock.runtime.control.packing import pack

        process = await trio.lowlevel.open_process(
            child_command("penstock.runtime.taskmanager.taskmanager"),
            stdin=subprocess.PIPE,
            # A Ctrl-C at the terminal is for the client, which stops the job in order.
            start_new_session=True,
            cwd=spec.folder if spec.folder and Path(spec.folder).is_dir() else None,
        )
        assert process.stdin is not None
        await process.stdin.send_all(
            pack(
                [
                    spec.address,
                    spec.token,
                    spec.worker,
                    spec.attempt,
                    spec.heartbeat_seconds,
                    list(spec.search_path),
                    spec.folder,
                    spec.host,
                ]
            )
        )
        await process.stdin.aclose()
        return ProcessHandle(process)


def any_number_of_threads() -> Offload:
    """Return an `offload` that starts as many threads as there are calls, and abandons them.

    A reader of an endless split may block its thread until the job ends. With trio's limit of 40
    threads, some tens of such splits would leave none for snapshots and commits.
    """
    limiter = trio.CapacityLimiter(math.inf)

    async def offload(function: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)

    return offload


def real_system(host: str | None = None, beside: str | None = None) -> System:
    """The operating system's clock, sockets, processes and threads.

    Arguments:
        host: address to listen on with TCP; None for Unix sockets.
        beside: an address of the JobManager, in a worker: its sockets go to the same folder.
    """
    transport = SocketTransport(host, beside=beside)
    return System(trio.current_time, transport, ProcessLauncher(), any_number_of_threads())


def seed_scheduler(seed: int) -> None:
    """Let trio schedule the same way for the same seed; for simulations.

    The one place that touches trio's private random generator, which is why the version of
    trio is bounded in `pyproject.toml`; `tests/simulation/test_simulation.py` shows that it works.
    """
    from trio._core import _run

    _run._r.seed(seed)
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]

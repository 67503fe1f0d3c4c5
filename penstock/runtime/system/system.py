"""The operating system as a parameter: clock, connections, processes, threads.

`real_system` is the system that a job runs on. A simulation passes its own, and then a whole
cluster runs inside one trio run under a virtual clock. All work outside of the event loop (RocksDB,
files, source threads) goes through `offload`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from penstock.runtime.system.launcher import Launcher, ProcessLauncher, WorkerSpec
from penstock.runtime.system.threads import Offload, unlimited_threads
from penstock.runtime.system.transport import SocketTransport, Transport

__all__ = ["System", "real_system"]


def _runnable_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_runnable


@dataclass
class System:
    """All that the runtime uses of the operating system.

    Arguments:
        clock: returns seconds on trio's clock, which is virtual in a simulation.
        transport: opens connections.
        launcher: starts workers.
        offload: runs a blocking function off the event loop.
        read: the same for reads of sources, which may block without a limit; None takes `offload`.
        pid: of this process.
        rng: for random partitioning.
        timer: returns seconds, to measure work; a simulation makes them up.
        start_heartbeat: starts the thread that sends a worker's heartbeats; None if it needs none.
        revive: restores, before a restart, what commits and workers need of this process and a
            failure may have destroyed, such as a Spark session; blocks. None if there is nothing.
        runnable: returns the number of other trio tasks that could run now.
    """

    clock: Callable[[], float]
    transport: Transport
    launcher: Launcher
    offload: Offload
    read: Offload | None = None
    pid: int = field(default_factory=os.getpid)
    rng: random.Random = field(default_factory=random.Random)
    timer: Callable[[], float] = time.perf_counter
    start_heartbeat: Callable[[WorkerSpec], None] | None = None
    revive: Callable[[], object] | None = None
    runnable: Callable[[], int] = _runnable_tasks


def real_system(host: str | None = None, beside: str | None = None) -> System:
    """Return the clock, sockets, processes and threads of the operating system.

    Arguments:
        host: the address to listen on with TCP; None uses Unix sockets.
        beside: an address of the JobManager, for a worker: its sockets are in the same folder.
    """
    transport = SocketTransport(host, beside=beside)
    return System(trio.current_time, transport, ProcessLauncher(), unlimited_threads())

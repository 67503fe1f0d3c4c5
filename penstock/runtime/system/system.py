"""The operating system as a parameter: clock, connections, processes, threads.

A real job uses `real_system`. A simulation passes a `System` of its own, and runs a whole cluster
inside one trio run under a virtual clock. All blocking work, such as RocksDB, files and the threads
of sources, runs outside of the event loop through `offload`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from penstock.runtime.system.launcher import Launcher, ProcessLauncher, WorkerSpec
from penstock.runtime.system.processor import Processor, ThreadProcessor
from penstock.runtime.system.threads import Offload, unlimited_threads
from penstock.runtime.system.transport import SocketTransport, Transport
from penstock.runtime.system.wall_clock import wall_clock_of_machine


def _runnable_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_runnable


@dataclass
class System:
    """The services of the operating system that the runtime uses.

    Arguments:
        clock: returns the time on trio's clock, in seconds. The clock of a simulation is virtual.
        transport: opens connections, and listens for them.
        launcher: starts workers.
        offload: runs a blocking function outside of the event loop.
        read: runs a function that reads from a source, outside of the event loop. Such a function
            may block without a limit. None means `offload`.
        pid: the process id of this process.
        rng: the random numbers for random partitioning.
        timer: returns a time in seconds, to measure work. A simulation returns invented times.
        processor: measures the processor time of the thread that runs the tasks.
        start_heartbeat: starts the thread that sends a worker's heartbeats; None if the worker
            needs no heartbeats.
        revive: is called before a restart, and may block. It restores parts of this process that
            commits and workers need and a failure may have destroyed, such as a Spark session.
            None if there are no such parts.
        process_figures: returns what `ProcessMeter.figures` does; None if the process of a worker
            is not its own.
        stand_by: lets processes wait that become workers later, as `ForkServer.stand_by` does;
            None if there are no such processes.
        workers_start_together: whether no worker can be started while others run.
        runnable: returns the number of other trio tasks that could run now.
        wall_clock: returns the time of day, in milliseconds since the epoch. It is virtual in a
            simulation.
        run: identifies the run of a job, for the random numbers of its functions. It is the same
            for all runs of a simulation, whose output is compared. With "", the lineage of the
            run's snapshots identifies it.
    """

    clock: Callable[[], float]
    transport: Transport
    launcher: Launcher
    offload: Offload
    read: Offload | None = None
    pid: int = field(default_factory=os.getpid)
    rng: random.Random = field(default_factory=random.Random)
    timer: Callable[[], float] = time.perf_counter
    processor: Processor = field(default_factory=ThreadProcessor)
    start_heartbeat: Callable[[WorkerSpec], None] | None = None
    revive: Callable[[], object] | None = None
    process_figures: Callable[[], list[float]] | None = None
    stand_by: Callable[[int, WorkerSpec, bytes], Awaitable[None]] | None = None
    workers_start_together: bool = False
    runnable: Callable[[], int] = _runnable_tasks
    wall_clock: Callable[[], int] = wall_clock_of_machine
    run: str = ""


def real_system(
    host: str | None = None, beside: str | None = None, launcher: Launcher | None = None
) -> System:
    """Return the clock, sockets, processes and threads of the operating system.

    Arguments:
        host: the address to listen on with TCP; None uses Unix sockets.
        beside: the address of the JobManager, for a worker. The Unix sockets of the worker are in
            the same folder as that of the JobManager.
        launcher: starts workers; None starts each as a new process.
    """
    transport = SocketTransport(host, beside=beside)
    return System(trio.current_time, transport, launcher or ProcessLauncher(), unlimited_threads())

"""Run a TaskManager inside a Spark task, one of the tasks of a barrier stage.

This module runs on the executors. The event loop runs in a Python process of Spark, after the task
has read its input and before it returns its only row. Spark may reuse the process, so the worker
restores all settings of the process that it has changed.

The task ends in one of these cases:

* Its JobManager shuts it down or has ended.
* The parent process has ended, which is a daemon of Spark. The daemon ends with its executor.
* Spark ends the stage, and kills the process with SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.runtime.control.framing import receive_blocking, send_blocking
from penstock.runtime.control.handshake import AuthenticationError, client_handshake_blocking
from penstock.runtime.control.packing import pack
from penstock.runtime.system.launcher import EXIT_JOBMANAGER_LOST, WorkerSpec

#: The schema of the one row that each task returns.
ROW = "slot int, outcome string"
#: The interval at which a worker checks that its parent process is running, in seconds.
PARENT_SECONDS = 0.5
#: The time in which a worker that has ended must send its remaining output, in seconds.
FLUSH_SECONDS = 5.0
#: The maximum length of a line of output, in bytes. A longer line is sent in several parts.
LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class StagePlan:
    """The data that the tasks of a stage need to run their workers.

    Arguments:
        address: the address to which the tasks connect, in the form `tcp:HOST:PORT`.
        token: the secret that authenticates the connections of the tasks.
        specs: the specifications of the workers, one for each partition of the stage.
    """

    address: str
    token: bytes
    specs: tuple[WorkerSpec, ...]


def worker_function(plan: StagePlan) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow` that runs a worker in each task of a stage."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        # This function is pickled by value. It imports the module from the executor's Penstock,
        # or from the copy that the driver has sent.
        from penstock.runtime.spark.stage_worker import run_stage_worker

        return run_stage_worker(plan, batches)

    return run


def run_stage_worker(plan: StagePlan, batches: Iterable[Any]) -> Iterator[Any]:
    """Run one worker of the stage until it ends, and yield a batch with one row."""
    import pyarrow
    from pyspark import BarrierTaskContext

    for _ in batches:
        pass  # If a task does not read its input, Spark considers the task failed.
    context = BarrierTaskContext.get()
    slot = context.partitionId()
    outcome = "not started: Spark does not retry a stage of workers"
    if context.attemptNumber() == 0:
        host = context.getTaskInfos()[slot].address.rpartition(":")[0].strip("[]")
        outcome = _work(plan, slot, host)
    yield pyarrow.RecordBatch.from_pydict(
        {"slot": pyarrow.array([slot], pyarrow.int32()), "outcome": [outcome]}
    )


def _work(plan: StagePlan, slot: int, host: str) -> str:
    spec = plan.specs[slot]
    try:
        driver = _register(plan, slot, host)
    except OSError:
        # The driver has cancelled the stage before this task started.
        return "not started: the driver does not wait for it"
    over = threading.Event()
    with driver, _output_to(driver), _as_a_worker(spec):
        _watch_parent(over)
        try:
            _run(spec, host, over)
        finally:
            over.set()
    return "ended"


def _run(spec: WorkerSpec, host: str, over: threading.Event) -> None:
    import trio

    from penstock.dataflow.nested_jobs import running_as
    from penstock.runtime.system.system import real_system
    from penstock.runtime.taskmanager.gc_tuning import GcTuning
    from penstock.runtime.taskmanager.heartbeat import start_heartbeat
    from penstock.runtime.taskmanager.taskmanager import TaskManager
    from penstock.runtime.user_code.breakpoints import refuse_breakpoints
    from penstock.runtime.user_code.forks import watch_forks
    from penstock.runtime.user_code.process_logging import ProcessLogging

    system = replace(real_system(host), start_heartbeat=lambda spec: start_heartbeat(spec, over))
    watch_forks()
    refuse_breakpoints()
    logs = ProcessLogging(f"worker {spec.worker}", spec.worker)
    with running_as("a worker"), logs, GcTuning() as gc_tuning:
        trio.run(TaskManager(spec, system, gc_tuning.collect_if_grown, logs).run)


def _register(plan: StagePlan, slot: int, host: str) -> socket.socket:
    """Connect to the driver, register this task, and return the connection.

    Raises `OSError` if the driver cannot be reached, or if it does not accept the task.
    """
    name, _, port = plan.address.removeprefix("tcp:").rpartition(":")
    connection = socket.create_connection((name, int(port)))
    try:
        client_handshake_blocking(connection, plan.token)
        send_blocking(connection, pack([slot, os.getpid(), host]))
        if receive_blocking(connection) is None:
            raise ConnectionError("the driver has this worker already, or its stage is over")
    except AuthenticationError as error:
        connection.close()
        raise ConnectionError(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _watch_parent(over: threading.Event) -> None:
    parent = os.getppid()

    def watch() -> None:
        while not over.wait(PARENT_SECONDS):
            if os.getppid() != parent:
                os._exit(EXIT_JOBMANAGER_LOST)

    threading.Thread(target=watch, daemon=True, name="parent").start()


@contextmanager
def _as_a_worker(spec: WorkerSpec) -> Iterator[None]:
    """Apply a worker's settings to the process, and restore them after the block."""
    path, folder = list(sys.path), Path.cwd()
    interval = sys.getswitchinterval()
    # The executor's packages come first, since they may differ from the driver's packages.
    sys.path += [entry for entry in spec.search_path if entry not in path]
    if spec.folder is not None:
        with contextlib.suppress(OSError):
            os.chdir(spec.folder)
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        os.chdir(folder)
        sys.path[:] = path


@contextmanager
def _output_to(driver: socket.socket) -> Iterator[None]:
    """Send the standard output and the standard error of the process to the driver.

    The file descriptors are redirected instead of `sys.stdout`. So the output of libraries and of
    child processes is sent, too. If the connection is lost, the output goes to Spark's log files.
    """
    kept = {number: os.dup(number) for number in (1, 2)}
    reading = selectors.DefaultSelector()
    sys.stdout.flush()
    sys.stderr.flush()
    for number in kept:
        source, target = os.pipe()
        os.dup2(target, number)
        os.close(target)
        reading.register(source, selectors.EVENT_READ, number)

    def forward() -> None:
        lost = False
        begun = dict.fromkeys(kept, b"")
        while reading.get_map():
            for key, _ in reading.select():
                data = os.read(key.fd, 1 << 16)
                whole, rest = begun[key.data] + data, b""
                if not data:
                    reading.unregister(key.fd)
                    os.close(key.fd)
                elif len(whole) < LINE_BYTES:
                    # Send whole lines, so that the lines of several workers do not mix.
                    whole, newline, rest = whole.rpartition(b"\n")
                    whole += newline
                begun[key.data] = rest
                if not whole:
                    continue
                try:
                    if not lost:
                        send_blocking(driver, pack([key.data, whole]))
                except OSError:
                    lost = True
                if lost:
                    os.write(kept[key.data], whole)

    thread = threading.Thread(target=forward, daemon=True, name="output")
    thread.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in kept.items():
            os.dup2(original, number)  # This closes the pipe's writing end, so the thread ends.
        thread.join(FLUSH_SECONDS)
        # If a child process of user code keeps the pipe open, the thread continues to run, and
        # may still write to the original file descriptors.
        if not thread.is_alive():
            for original in kept.values():
                os.close(original)

"""The executor's side of a stage: a Spark task that becomes a TaskManager.

The event loop runs inside Spark's Python worker, between the first batch of the task's input and
its only row of output. When the task is over, the worker is left as it was found, since Spark may
use it again. Nobody has to end it: it ends when its JobManager says so or is gone, when the
process that started it is gone (Spark's daemon, which ends with its executor), or by SIGKILL when
Spark ends the stage.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.runtime.control.framing import (
    AuthenticationError,
    client_handshake_blocking,
    receive_blocking,
    send_blocking,
)
from penstock.runtime.control.packing import pack
from penstock.runtime.system.system import WorkerSpec

__all__ = ["ROW", "StagePlan", "worker_function"]

#: The schema of the one row that each task ends with.
ROW = "slot int, outcome string"
#: How often a worker looks whether the process that started it is still there.
PARENT_SECONDS = 0.5
#: How long what a worker has printed may take to its driver once it has ended.
FLUSH_SECONDS = 5.0
#: Longer lines than this are cut.
LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class StagePlan:
    """What every task of a stage must know.

    Arguments:
        address: where the driver listens for what tasks print, as the transport has it.
        token: of that connection.
        specs: the worker that each task becomes, by the number of its partition. The address of
            each is found out by the task itself.
    """

    address: str
    token: bytes
    specs: tuple[WorkerSpec, ...]


def worker_function(plan: StagePlan) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow` that turns each task into a worker."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        # Shipped by value; this module is found by its name, in the executor's own package or in
        # the one that was sent along.
        from penstock.runtime.spark.stage_worker import run_stage_worker

        return run_stage_worker(plan, batches)

    return run


def run_stage_worker(plan: StagePlan, batches: Iterable[Any]) -> Iterator[Any]:
    """Be one worker of the stage; yields one batch with one row when that has ended."""
    import pyarrow
    from pyspark import BarrierTaskContext

    for _ in batches:
        pass  # input that is left unread makes Spark think that the task has failed
    context = BarrierTaskContext.get()
    slot = context.partitionId()
    outcome = "not started: a stage is never retried by Spark"
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
        # The stage was given up before this task came to run.
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

    from penstock.dataflow.job_process import running_as
    from penstock.runtime.system.system import real_system
    from penstock.runtime.taskmanager.gc_tuning import Collector
    from penstock.runtime.taskmanager.taskmanager import TaskManager, beat
    from penstock.runtime.user_code.breakpoints import refuse_breakpoints
    from penstock.runtime.user_code.forks import watch_forks
    from penstock.runtime.user_code.process_logging import ProcessLogging

    system = real_system(host)
    system.heart = lambda spec: beat(spec, over)
    watch_forks()
    refuse_breakpoints()
    logs = ProcessLogging(f"worker {spec.worker}", spec.worker)
    with running_as("a worker"), logs, Collector() as collector:
        trio.run(TaskManager(spec, system, collector.look, logs).run)


def _register(plan: StagePlan, slot: int, host: str) -> socket.socket:
    """Connect to the driver, and say who this is. Raises `OSError`."""
    name, _, port = plan.address.removeprefix("tcp:").rpartition(":")
    connection = socket.create_connection((name, int(port)))
    try:
        client_handshake_blocking(connection, plan.token)
        send_blocking(connection, pack([slot, os.getpid(), host]))
        if receive_blocking(connection) is None:
            raise ConnectionError("the driver has this worker already, or none any more")
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
                os._exit(3)

    threading.Thread(target=watch, daemon=True, name="parent").start()


@contextmanager
def _as_a_worker(spec: WorkerSpec) -> Iterator[None]:
    """Set the process up as `taskmanager.main` does, and back again."""
    path, folder = list(sys.path), Path.cwd()
    interval = sys.getswitchinterval()
    # Behind the executor's own packages, which need not be those of the driver's machine.
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
    """Send all that the process writes to its standard output and error to the driver.

    By descriptor and not by `sys.stdout`, so that what libraries and children write comes too.
    Without the driver it goes where Spark had it.
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
                    # Lines of several workers must not end up in each other.
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
            os.dup2(original, number)  # closes the pipe's end, which ends the thread
        thread.join(FLUSH_SECONDS)
        # A child of user code may keep the pipe open. The thread then goes on writing to these.
        if not thread.is_alive():
            for original in kept.values():
                os.close(original)

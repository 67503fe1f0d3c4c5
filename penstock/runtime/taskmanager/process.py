"""The process of a worker, which `ProcessLauncher` or a `ForkServer` starts."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import trio

from penstock.dataflow.nested_jobs import running_as
from penstock.runtime.control.job_code import unpack
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.system.process_meter import ProcessMeter
from penstock.runtime.system.system import real_system
from penstock.runtime.taskmanager.gc_tuning import GcTuning
from penstock.runtime.taskmanager.heartbeat import start_heartbeat
from penstock.runtime.taskmanager.taskmanager import TaskManager
from penstock.runtime.user_code.breakpoints import refuse_breakpoints
from penstock.runtime.user_code.forks import watch_forks
from penstock.runtime.user_code.process_logging import ProcessLogging


def main() -> None:
    """Read a `WorkerSpec` from standard input, run the worker, and end the process."""
    run_worker(WorkerSpec.from_wire(sys.stdin.buffer.read()))


def load_code(spec: WorkerSpec, code: bytes) -> None:
    """Import the modules of the job's code, so that a worker need not do so later.

    Nothing is raised: if the code cannot be loaded, the worker reports that.
    """
    _prepare(spec)
    with running_as("a worker"), suppress(Exception):
        unpack(code)


def run_worker(spec: WorkerSpec) -> NoReturn:
    """Run a worker, and end the process."""
    _prepare(spec)
    meter = ProcessMeter()
    system = replace(
        real_system(spec.host, beside=spec.address),
        start_heartbeat=start_heartbeat,
        process_figures=meter.figures,
    )
    # Threads run the blocking calls. With Python's default switch interval, a thread and the event
    # loop would each wait up to 5 ms for the other one.
    sys.setswitchinterval(0.0005)
    code = 0
    try:
        watch_forks()
        refuse_breakpoints()
        logs = ProcessLogging(f"worker {spec.worker}", spec.worker)
        with running_as("a worker"), logs, meter, GcTuning() as gc_tuning:
            trio.run(TaskManager(spec, system, gc_tuning.collect_if_grown, logs).run)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that is blocked in a read must not delay the end of the process.
    os._exit(code)


def _prepare(spec: WorkerSpec) -> None:
    """Set the search path and the signals of a worker. A second call changes nothing."""
    # The terminal sends a Ctrl-C to the workers, too. Only the JobManager may end its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = spec.search_path
    if spec.python is None:
        sys.path[:] = [*given, *(path for path in sys.path if path not in given)]
    else:
        sys.path += [path for path in given if path not in sys.path]

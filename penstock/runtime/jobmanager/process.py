"""The process of a JobManager, and its connection to the client that started it.

A program starts the process with `child_command`. The only argument is a file descriptor: one end
of a socket pair, whose other end the program has. No other process can connect to it.

Both ends send frames of msgpack. The client sends the job, and then orders such as
`{"do": "stop"}`. The JobManager sends events. When a program closes the connection, the JobManager
stops the job with a last snapshot, from which the job can be resumed.

The job service starts the process with the argument "service". The JobManager then reads the job
from a file, and listens on a socket, to which the service connects. If the service ends, the job
goes on, and the next service connects to the same socket (`job_clients.py`).
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.errors import JobError, PenstockError, ProtocolError
from penstock.dataflow.nested_jobs import running_as
from penstock.runtime.control.event_journal import EventJournal
from penstock.runtime.control.failures import describe, describe_unexpected
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import build_from_map
from penstock.runtime.control.requests import JobRequest, Order, decode_job
from penstock.runtime.control.state_queries import RecordQuery, StateQuery
from penstock.runtime.jobmanager.job_clients import AttachedClient, JobManagerClient, ServiceClients
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.jobmanager.reporting.job_description import describe_config, describe_graph
from penstock.runtime.jobmanager.reporting.job_events import (
    Committed,
    JobEvent,
    JobFailed,
    JobFinished,
    JobSnapshotAborted,
    JobSnapshotBegan,
    JobSnapshotCompleted,
    JobStarted,
    Note,
    WorkersStarted,
)
from penstock.runtime.jobmanager.reporting.job_log import JobLog
from penstock.runtime.jobmanager.takeover.rejoin_server import RejoinServer
from penstock.runtime.shadow.shadow_code import shadow_code
from penstock.runtime.system.fork_server import ForkServer
from penstock.runtime.system.limits import offer_to_kernel
from penstock.runtime.system.rendezvous import inherited_listener, serve_listener
from penstock.runtime.system.system import System, real_system
from penstock.runtime.user_code.breakpoints import refuse_breakpoints
from penstock.runtime.user_code.errors import is_user_error
from penstock.runtime.user_code.forks import watch_forks
from penstock.runtime.user_code.process_logging import LogAttributes, ProcessLogging
from penstock.runtime.user_code.python_environment import PythonEnvironment

#: The time between two status reports, in seconds.
STATUS_SECONDS = 0.5
#: The time that the client has at the end of the job to receive all events, in seconds.
FLUSH_SECONDS = 60.0
#: The time that the client has to receive all events if a stop is requested after the end of the
#: job, in seconds.
FLUSH_AFTER_STOP_SECONDS = 5.0
#: The time between the end of the client's connection and the message that names the processes of
#: the job, in seconds.
ORPHAN_SECONDS = 3.0
#: The number of events that may wait for the client before events about snapshots are dropped.
#: Later events of the same kind make up for the dropped events.
MAX_BEHIND = 10_000
#: The module whose `run_worker` a worker calls.
WORKER_MODULE = "penstock.runtime.taskmanager.process"
_SUPERSEDED = (JobSnapshotBegan, JobSnapshotCompleted, Committed, JobSnapshotAborted)


class JobServer:
    """Serves one client and runs one job.

    Arguments:
        client: the client, or the connection to a program.
        make_system: returns the job's `System`, given the TCP address to listen on or None.
        signals: whether SIGTERM and SIGINT stop the job. It is False in a process that does not
            belong to the job alone, such as a Spark driver.
        logs: the logging of the process; None does not configure it.
        make_job: returns the JobManager, given the arguments of `JobManager`.
        own_python: whether workers run on the Python of this process, or on the interpreter that
            the job names. It is False if another program starts them, such as Spark.
        rendezvous: the socket on which the workers of an earlier JobManager offer their tasks; None
            if the job is not supervised.
    """

    def __init__(
        self,
        client: JobManagerClient | Frames,
        make_system: Callable[[str | None], System] = real_system,
        signals: bool = True,
        logs: LogAttributes | None = None,
        make_job: Callable[..., JobManager] = JobManager,
        own_python: bool = True,
        rendezvous: socket.socket | None = None,
    ) -> None:
        self._client = AttachedClient(client) if isinstance(client, Frames) else client
        self._make_system = make_system
        self._signals = signals
        self._logs = logs
        self._make_job = make_job
        self._own_python = own_python
        self._rendezvous = rendezvous
        self._log: JobLog | None = None
        self._job: JobManager | None = None
        #: The Python files of the job; None if it has none.
        self._environment: PythonEnvironment | None = None
        self._ended = False
        #: The first signal that has stopped the job.
        self._signal: int | None = None
        self._worker_pids: list[int] = []
        self._stop_scope = trio.CancelScope()
        self._flushing = trio.CancelScope()

    def observe(self, event: JobEvent) -> None:
        """Log an event, and queue it for the client."""
        if self._log is not None:
            self._log.record(event)
        if isinstance(event, WorkersStarted):
            self._worker_pids = event.pids
        if self._client.behind >= MAX_BEHIND and isinstance(event, _SUPERSEDED):
            return
        self._client.send(event.to_wire())
        self._ended = self._ended or isinstance(event, JobFinished | JobFailed)

    async def run(self) -> int:
        """Run the job that the client sends, and return the exit code of the process."""
        frame = await self._client.receive_job()
        if frame is None:
            return 2
        try:
            request = decode_job(frame)
            # A service of an earlier version may have kept a job without later settings.
            settings = build_from_map(JobSettings, {**vars(JobSettings()), **request.options})
        except ProtocolError as error:
            return await self._refuse(error)
        search_path = request.search_path
        sys.path[:] = search_path + [p for p in sys.path if p not in search_path]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._client.serve, settings.rejoin_token)
                code = await self._run_job(request, settings, nursery)
                await self._flush()
                nursery.cancel_scope.cancel()
        finally:
            if self._environment is not None:
                self._environment.leave(worker=False)
        return code

    async def _refuse(self, error: ProtocolError) -> int:
        """Report that the job cannot be read, and return the exit code."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._client.serve, b"")
            self._client.send(JobFailed(describe(error)).to_wire())
            await self._flush()
            nursery.cancel_scope.cancel()
        return 2

    async def _run_job(
        self, request: JobRequest, settings: JobSettings, nursery: trio.Nursery
    ) -> int:
        """Run the job, report its end to the client, and return the exit code."""
        try:
            system = self._make_system(request.host)
            if settings.python_files:
                # Before the code is unpickled, since it refers to the modules in these files.
                settings = await self._with_python_files(settings, system)
            code, shadow = request.code, settings.shadow
            if shadow:
                code = shadow_code(code, Path(shadow))
            job = self._make_job(code, system, settings, self.observe)
            self._job = job
            if self._rendezvous is not None:
                gathers = settings.successor and system.revive is None
                server = RejoinServer(settings.rejoin_token, gathers)
                nursery.start_soon(serve_listener, self._rendezvous, server.serve)
                job.take_workers_from(server)
            if self._logs is not None:
                self._logs.configure(job.code.logging)
            self._log = JobLog(job.config.name, settings.shown)
            operators = [list(pair) for pair in job.plan.shown_names.items()]
            config = describe_config(job.config, job.code.folder)
            self.observe(JobStarted(os.getpid(), operators, describe_graph(job.plan), config))
            nursery.start_soon(self._listen, job, nursery)
            if self._signals:
                nursery.start_soon(self._watch_signals, job, nursery)
            nursery.start_soon(self._report_status, job)
            with self._stop_scope:
                outcome = await job.run()
                self.observe(JobFinished(outcome, self._signal))
                return 0
            raise JobError(
                f"the job was stopped, but its last snapshot was not done within "
                f"{job.config.stop_timeout_seconds:g} s; it can be resumed from the one before"
            )
        except PenstockError as error:
            self.observe(JobFailed(describe(error), self._report()))
        except BaseException as error:
            if not is_user_error(error):
                raise
            self.observe(JobFailed(describe_unexpected(error), self._report()))
        return 1

    async def _with_python_files(self, settings: JobSettings, system: System) -> JobSettings:
        """Enter the Python environment of the job; return settings with its interpreter."""
        own, packed = self._own_python, settings.python_files
        enter = partial(PythonEnvironment.enter, packed, worker=False, check=own)
        # If the job is cancelled meanwhile, the environment must still be left.
        with trio.CancelScope(shield=True):
            self._environment = environment = await system.offload(enter)
        if not own:
            return settings
        return replace(settings, python=await system.offload(environment.interpreter))

    def _report(self) -> dict[str, Any]:
        return vars(self._job.outcome()) if self._job is not None else {}

    async def _flush(self) -> None:
        """Wait until all events are sent to the client, at most for `FLUSH_SECONDS`."""
        self._flushing.deadline = trio.current_time() + FLUSH_SECONDS
        with self._flushing:
            await self._client.flush()

    async def _listen(self, job: JobManager, nursery: trio.Nursery) -> None:
        """Execute the orders of the client, and stop the job when its connection ends."""
        while True:
            order = await self._client.next_order()
            if isinstance(order, StateQuery | RecordQuery):
                job.queries.ask(order)
                continue
            if order is Order.SAVEPOINT:
                job.savepoint()
            elif order is Order.PROFILE:
                job.profile()
            else:
                self._stop(job, nursery)
            if order is None:
                nursery.start_soon(self._report_orphan, job)
                return

    async def _report_orphan(self, job: JobManager) -> None:
        """Print the processes of a job that still runs after its client is gone."""
        await trio.sleep(ORPHAN_SECONDS)
        if not self._ended:
            text = (
                f"the program of job {job.config.name!r} is gone, and the job ends within "
                f"{job.config.stop_timeout_seconds:g} s; it is in the JobManager "
                f"(pid {os.getpid()}) and in the workers "
                f"(pids {', '.join(map(str, self._worker_pids))})"
            )
            print(text, file=sys.stderr, flush=True)

    async def _watch_signals(self, job: JobManager, nursery: trio.Nursery) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._signal is None:
                    self._signal = number
                    name = signal.Signals(number).name
                    self.observe(Note(f"the JobManager received {name}: stopping the job"))
                self._stop(job, nursery)

    def _stop(self, job: JobManager, nursery: trio.Nursery) -> None:
        job.stop()
        if self._ended:
            # The job has ended, and this process only waits until the client has read all events.
            # The client may never read them.
            limit = trio.current_time() + FLUSH_AFTER_STOP_SECONDS
            self._flushing.deadline = min(self._flushing.deadline, limit)
        nursery.start_soon(self._stop_in_time, job.config.stop_timeout_seconds)

    async def _stop_in_time(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._stop_scope.cancel()

    async def _report_status(self, job: JobManager) -> None:
        while True:
            await trio.sleep(STATUS_SECONDS)
            if self._ended:
                # No status may follow the event that reports the end of the job.
                return
            # If the client reads slowly, status events must not pile up before the last event.
            if not self._client.behind:
                self.observe(job.current_figures())


async def _serve(
    make_client: Callable[[], JobManagerClient],
    launcher: ForkServer,
    rendezvous: socket.socket | None = None,
) -> int:
    with ProcessLogging("JobManager") as logs:

        def make_system(host: str | None) -> System:
            return replace(real_system(host, launcher=launcher), stand_by=launcher.stand_by)

        return await JobServer(make_client(), make_system, logs=logs, rendezvous=rendezvous).run()


def main() -> None:
    """Run the JobManager process for the client that has started it.

    For a program, the first argument is the file descriptor of a connected socket. For the job
    service, the arguments are "service", the path of the file with the job, the path of the journal
    of its events, and the file descriptor of a listening socket. For a supervised job, the file
    descriptor of the supervisor's `Rendezvous` follows.
    """
    # After this, full garbage collections do not scan the imported modules.
    gc.freeze()
    arguments = sys.argv[1:]
    files = []
    if arguments[0] == "service":
        files = [Path(path) for path in arguments[1:3]]
        arguments = arguments[3:]
        offer_to_kernel()
    descriptor, *listeners = map(int, arguments)
    # The fork comes first, because the server must have nothing of this job.
    fork_server = ForkServer.start(WORKER_MODULE, without=[descriptor, *listeners])
    rendezvous = inherited_listener(listeners[0]) if listeners else None

    def make_client() -> JobManagerClient:
        if files:
            request, events = files
            listening, journal = inherited_listener(descriptor), EventJournal(events)
            return ServiceClients(listening, rendezvous, request, journal, os.getpid())
        connection = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))
        return AttachedClient(Frames(trio.SocketStream(connection)))

    watch_forks()
    refuse_breakpoints()
    with running_as("a JobManager"):
        code = trio.run(_serve, make_client, fork_server, rendezvous)
    fork_server.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

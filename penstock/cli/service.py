"""The job service from the command line: start it, hand it jobs, list and cancel them.

What happens in it is `penstock.runtime.dispatcher.dispatcher`; this is its client, and blocking
code, since a job file that is submitted may have an event loop of its own.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import (
    JobCommand,
    JobOptions,
    job_options,
    log_level_option,
    reporting_errors,
    say,
    service_option,
)
from penstock.cli.progress import duration_text
from penstock.dataflow.errors import GraphError, PenstockError

if TYPE_CHECKING:
    from penstock.dataflow.graph.job_graph import OperatorOutput
    from penstock.dataflow.program import CloseableIterator, JobExecutionResult, Program
    from penstock.runtime.client.job_report import JobMonitor
    from penstock.runtime.control.requests import Request

__all__ = ["cancel", "jobmanager", "list_jobs", "submit"]

#: How long the job manager may take to answer a connection.
CONNECT_SECONDS = 10.0
#: How long a detached submit waits for the job to begin.
BEGIN_SECONDS = 10.0
#: How a job has ended whose job manager closed the connection before.
_GONE = "is out of sight: the job manager is gone, and its jobs stop with it"


@click.command(short_help="Run a service that takes jobs.")
@service_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Listen on this TCP port, 0 for any free one, instead of a Unix socket.",
)
@click.option(
    "--host",
    metavar="H",
    help="With --port: the address to listen on.  [default: 127.0.0.1]",
)
@log_level_option("Log level of jobs that set none.  [default: INFO]")
@reporting_errors
def jobmanager(
    directory: Path | None, port: int | None, host: str | None, log_level: str | None
) -> None:
    """Run a service on this machine that takes jobs from "penstock submit".

    Each job gets a JobManager process of its own. Ctrl-C or SIGTERM stops all jobs in order, with
    a last snapshot, and then the service.
    """
    if host is not None and port is None:
        raise click.UsageError("--host goes together with --port.")
    import trio

    from penstock.runtime.dispatcher.dispatcher import Dispatcher
    from penstock.runtime.dispatcher.state_folder import StateFolder

    level = log_level or "INFO"
    dispatcher = Dispatcher(StateFolder(directory), port, host or "127.0.0.1", say, level)
    trio.run(dispatcher.run)


@click.command(cls=JobCommand, short_help="Hand a job to the running service.")
@job_options
@click.option(
    "--wait/--detach",
    default=True,
    help="Follow the job to its end and exit with its exit code, or return when it has begun.  "
    "[default: --wait]",
)
@service_option
def submit(options: JobOptions, wait: bool, directory: Path | None) -> None:
    """Hand a job to the running "penstock jobmanager".

    JOB.py is run here up to env.execute(), which sends the program. What the job itself prints
    goes to its log. Ctrl-C ends the waiting, not the job.
    """
    if options.report is not None and not wait:
        raise click.UsageError("--report is written at the end of the job, so not with --detach.")
    from penstock.cli.script import run_job

    extra: tuple[str, ...] = () if wait else ("--detach",)
    if directory is not None:
        extra += ("--dir", str(directory))
    raise SystemExit(run_job(replace(options, extra=extra), _SubmitExecutor(directory, wait)))


@click.command("list", short_help="List the jobs of the service.")
@service_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@reporting_errors
def list_jobs(directory: Path | None, as_json: bool) -> None:
    """List the jobs of the running "penstock jobmanager", oldest first."""
    from penstock.runtime.control.requests import ListJobs

    with _Connection(directory) as connection:
        jobs = connection.ask(ListJobs())["jobs"]
    if as_json:
        click.echo(json.dumps(jobs, indent=2))
    elif not jobs:
        click.echo("no jobs")
    else:
        _print_jobs(jobs)


def _print_jobs(jobs: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from penstock.cli.snapshots import print_table

    table = Table(box=None, pad_edge=False)
    headings = ("id", "name", "state", "started", "pid", "workers", "restarts", "snapshot", "error")
    for heading in headings:
        table.add_column(heading)
    now = time.time()
    for job in jobs:
        running = job["state"] == "running"
        number = job["last_snapshot"]
        cells = (
            job["id"],
            job["name"],
            job["state"],
            f"{duration_text(max(0.0, now - job['started']))} ago",
            str(job["pid"]) if running else "",
            " ".join(map(str, job["worker_pids"])),
            str(job["restarts"]),
            "" if number is None else str(number),
            (job["error"] or "").strip().split("\n")[-1],
        )
        table.add_row(*map(Text, cells))
    print_table(table)


@click.command(short_help="Stop a job of the service.")
@click.argument("job_id", metavar="ID")
@service_option
@click.option("--now", is_flag=True, help="Kill the job instead; its last snapshot stays.")
@reporting_errors
def cancel(job_id: str, directory: Path | None, now: bool) -> None:
    """Stop the job ID of the running "penstock jobmanager", with a last snapshot.

    Returns when the job has ended.
    """
    from penstock.runtime.control.requests import Cancel

    with _Connection(directory) as connection:
        job = connection.ask(Cancel(job_id, now))
    number = job["last_snapshot"]
    kept = "" if number is None else f"; its last snapshot is {number}"
    say(f"job {job_id} is {job['state']}{kept}")
    if job["state"] == "failed":
        raise PenstockError(f"the job failed while it was stopped: {job['error']}")


class _Connection:
    """A connection to the running job manager; a context manager.

    Arguments:
        directory: its state folder, or None for the default.
    """

    def __init__(self, directory: Path | None) -> None:
        from penstock.runtime.dispatcher.state_folder import StateFolder

        folder = StateFolder(directory)
        contact = folder.contact()
        where = "" if directory is None else f" --dir {directory}"
        self._absent = (
            f"no job manager runs with the state folder {folder.root}; start one with: "
            f"penstock jobmanager{where}"
        )
        if contact is None:
            raise PenstockError(self._absent)
        self._deadline: float | None = None
        self._socket = self._connect(*contact)

    def _connect(self, address: str, token: bytes) -> socket.socket:
        from penstock.runtime.control.handshake import (
            AuthenticationError,
            client_handshake_blocking,
        )
        from penstock.runtime.system.unix_sockets import socket_name

        kind, _, rest = address.partition(":")
        host, _, port = rest.rpartition(":")
        family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
        if ":" in host:
            family = socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(socket_name(rest) if kind == "unix" else (host, int(port)))
            client_handshake_blocking(connection, token)
        except (ConnectionRefusedError, FileNotFoundError):
            connection.close()
            # It was killed, so its address is still there.
            raise PenstockError(self._absent) from None
        except (AuthenticationError, OSError) as error:
            connection.close()
            raise PenstockError(
                f"the job manager at {address} does not answer as it should: {error}"
            ) from None
        connection.settimeout(None)
        return connection

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: Request) -> dict[str, Any]:
        """Send a request and return its answer. Raises `PenstockError` if it is refused."""
        from penstock.runtime.control.framing import send_blocking
        from penstock.runtime.control.requests import encode_request

        gone = "the job manager ended before it answered"
        try:
            send_blocking(self._socket, encode_request(request))
        except OSError:
            raise PenstockError(gone) from None
        for answer in self.events():
            if answer["event"] == "refused":
                raise PenstockError(answer["reason"])
            return answer
        raise PenstockError(gone)

    def give_up_after(self, seconds: float) -> None:
        """Let `events` raise `TimeoutError` after this time."""
        self._deadline = time.monotonic() + seconds

    def events(self) -> Iterator[dict[str, Any]]:
        """What the job manager says, until it closes the connection."""
        from penstock.runtime.control.framing import receive_blocking
        from penstock.runtime.control.packing import unpack_event

        while True:
            if self._deadline is not None:
                # A timeout of 0 would mean that nothing is waited for.
                self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
            frame = receive_blocking(self._socket)
            if frame is None:
                return
            yield unpack_event(frame)


def _await_begin(connection: _Connection, monitor: JobMonitor, id: str) -> str | None:
    """Follow a job until it processes records, for a while; return how it ended, if it has."""
    connection.give_up_after(BEGIN_SECONDS)
    try:
        for event in connection.events():
            monitor.handle(event)
            if event["event"] == "ended":
                return str(event["how"])
            if event["event"] == "running":
                return None
    except TimeoutError:
        say(f"job {id} has not begun within {BEGIN_SECONDS:g} s; see: penstock list")
        return None
    return _GONE


class _SubmitExecutor:
    """Hands programs to the job manager.

    Arguments:
        directory: its state folder, or None for the default.
        wait: follow each job to its end.
    """

    def __init__(self, directory: Path | None, wait: bool) -> None:
        self._directory = directory
        self._wait = wait

    def execute(self, program: Program) -> JobExecutionResult:
        """Submit a program, and follow it to its end if that is wanted."""
        from penstock.cli.script import Left
        from penstock.dataflow.program import JobExecutionResult, current_options
        from penstock.runtime.client.executor import job_request
        from penstock.runtime.client.job_report import JobMonitor
        from penstock.runtime.client.source_preparation import prepared_sources
        from penstock.runtime.control.requests import Submit

        options, name = current_options(), program.config.name
        monitor = JobMonitor(program, options, time.perf_counter())
        with prepared_sources(program, options, attached=False):
            job = job_request(program, options)
        # A detached job is followed as well, until it has begun.
        request = Submit(name, str(Path.cwd()), job, True)
        with _Connection(self._directory) as connection:
            submitted = connection.ask(request)
            monitor.handle(submitted)
            if not self._wait:
                # For scripts; the line about it goes to standard error.
                click.echo(submitted["id"])
                ended = _await_begin(connection, monitor, submitted["id"])
                if ended is not None:
                    return monitor.result(ended)
                return JobExecutionResult(name, 0.0, [], [], [], "")
            ended = _GONE
            try:
                for event in connection.events():
                    if event["event"] == "ended":
                        ended = event["how"]
                    monitor.handle(event)
            except (KeyboardInterrupt, SystemExit) as signal:
                where = "" if self._directory is None else f" --dir {self._directory}"
                say(
                    f"job {submitted['id']} goes on; stop it with: "
                    f"penstock cancel {submitted['id']}{where}"
                )
                raise Left(130 if isinstance(signal, KeyboardInterrupt) else 143) from None
        result = monitor.result(ended)
        if result.stopped:
            # Somebody cancelled it: what the job file does next counts on a job that is done.
            raise SystemExit(143)
        return result

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Refused: records do not come back from the job manager."""
        del program, outputs
        raise GraphError(
            "execute_and_collect() brings records to this program, which a submitted job cannot: "
            "write them to a sink and call env.execute(), or use penstock run"
        )

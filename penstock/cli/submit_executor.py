"""Submit the programs of a job file to the running job service: `SubmitExecutor`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from penstock.cli.options import print_message
from penstock.cli.script import Detached
from penstock.cli.service_connection import ServiceConnection
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.program import (
    CloseableIterator,
    JobExecutionResult,
    Program,
    current_options,
)
from penstock.runtime.client.executor import job_request
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.client.source_preparation import prepared_sources
from penstock.runtime.control.requests import Submit

#: The longest time that `submit --detach` waits until the job processes records, in seconds.
BEGIN_SECONDS = 10.0
#: The text that is reported if the service closes the connection before the job has ended.
SERVICE_GONE = "is out of sight: the job manager is gone, and its jobs stop with it"


def _wait_until_running(connection: ServiceConnection, monitor: JobMonitor, id: str) -> str | None:
    """Wait until a job processes records or has ended, but at most `BEGIN_SECONDS`.

    Returns a text that says how the job ended, or None if the job continues to run.
    """
    connection.set_timeout(BEGIN_SECONDS)
    try:
        for event in connection.events():
            monitor.handle(event)
            if event["event"] == "ended":
                return str(event["how"])
            if event["event"] == "running":
                return None
    except TimeoutError:
        print_message(f"job {id} has not begun within {BEGIN_SECONDS:g} s; see: penstock list")
        return None
    return SERVICE_GONE


class SubmitExecutor:
    """Submits programs to the running job service.

    Arguments:
        directory: the state folder of the service. With None, the default folder is used.
        wait: whether `execute` waits until the job has ended.
    """

    def __init__(self, directory: Path | None, wait: bool) -> None:
        self._directory = directory
        self._wait = wait

    def execute(self, program: Program) -> JobExecutionResult:
        """Submit a program, and wait until its job has ended.

        With `wait` off, it prints the job's id, and waits only until the job processes records.
        Raises `SystemExit` if the job was cancelled.
        """
        options, name = current_options(), program.config.name
        monitor = JobMonitor(program, options, time.perf_counter())
        with prepared_sources(program, options, attached=False):
            job = job_request(program, options)
        folder = program.config.checkpoint_dir
        checkpoint_dir = "" if folder is None else str(Path(folder).absolute())
        request = Submit(name, str(Path.cwd()), job, checkpoint_dir)
        with ServiceConnection(self._directory) as connection:
            submitted = connection.ask(request)
            monitor.handle(submitted)
            if not self._wait:
                # Scripts read the id, so nothing else is printed on standard output.
                click.echo(submitted["id"])
                ended = _wait_until_running(connection, monitor, submitted["id"])
                if ended is not None:
                    return monitor.result(ended)
                return JobExecutionResult(name, 0.0, [], [], [], "")
            ended = self._follow(connection, monitor, submitted["id"])
        result = monitor.result(ended)
        if result.stopped:
            # The job was cancelled. The rest of the job file may need the output of a finished job.
            raise SystemExit(143)
        return result

    def _follow(self, connection: ServiceConnection, monitor: JobMonitor, id: str) -> str:
        """Wait until a job has ended, and return a text that says how it ended.

        Raises `Detached` if a signal interrupts the wait. The job then continues to run.
        """
        ended = SERVICE_GONE
        try:
            for event in connection.events():
                if event["event"] == "ended":
                    ended = event["how"]
                monitor.handle(event)
        except (KeyboardInterrupt, SystemExit) as signal:
            where = "" if self._directory is None else f" --dir {self._directory}"
            print_message(f"job {id} goes on; stop it with: penstock cancel {id}{where}")
            raise Detached(130 if isinstance(signal, KeyboardInterrupt) else 143) from None
        return ended

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Raise `GraphError`, because the service does not send records to the client."""
        del program, outputs
        raise GraphError(
            "execute_and_collect() brings records to this program, which a submitted job cannot: "
            "write them to a sink and call env.execute(), or use penstock run"
        )

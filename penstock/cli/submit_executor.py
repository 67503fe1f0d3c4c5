"""`SubmitExecutor`: hands the programs of a job file to the running service."""

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

__all__ = ["SubmitExecutor"]

#: The longest time that a detached submit waits until the job processes records, in seconds.
BEGIN_SECONDS = 10.0
#: The outcome that is reported if the service closes the connection before the job has ended.
SERVICE_GONE = "is out of sight: the job manager is gone, and its jobs stop with it"


def _wait_until_running(connection: ServiceConnection, monitor: JobMonitor, id: str) -> str | None:
    """Follow a job until it processes records, or for `BEGIN_SECONDS`.

    Returns how the job ended, or None if it runs on.
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
    """Submits programs to the running service.

    Arguments:
        directory: state folder of the service; None is the default one.
        wait: follow each job to its end.
    """

    def __init__(self, directory: Path | None, wait: bool) -> None:
        self._directory = directory
        self._wait = wait

    def execute(self, program: Program) -> JobExecutionResult:
        """Submit a program, and follow it to its end, or until it processes records."""
        options, name = current_options(), program.config.name
        monitor = JobMonitor(program, options, time.perf_counter())
        with prepared_sources(program, options, attached=False):
            job = job_request(program, options)
        # A detached job is followed, too, until it processes records.
        request = Submit(name, str(Path.cwd()), job)
        with ServiceConnection(self._directory) as connection:
            submitted = connection.ask(request)
            monitor.handle(submitted)
            if not self._wait:
                # Alone on standard output, for scripts.
                click.echo(submitted["id"])
                ended = _wait_until_running(connection, monitor, submitted["id"])
                if ended is not None:
                    return monitor.result(ended)
                return JobExecutionResult(name, 0.0, [], [], [], "")
            ended = self._follow(connection, monitor, submitted["id"])
        result = monitor.result(ended)
        if result.stopped:
            # It was cancelled. The rest of the job file relies on a job that has finished.
            raise SystemExit(143)
        return result

    def _follow(self, connection: ServiceConnection, monitor: JobMonitor, id: str) -> str:
        """Follow a job to its end, and return a text that says how it ended.

        Raises `Detached` if a signal interrupts the wait. The job then continues.
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
        """Raise `GraphError`: the service sends no records back."""
        del program, outputs
        raise GraphError(
            "execute_and_collect() brings records to this program, which a submitted job cannot: "
            "write them to a sink and call env.execute(), or use penstock run"
        )

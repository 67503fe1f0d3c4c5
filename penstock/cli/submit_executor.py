"""Submit the programs of a job file to the running job service: `SubmitExecutor`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from penstock.cli.options import print_message
from penstock.cli.service_address import ServiceAddress
from penstock.cli.service_connection import LocalConnection
from penstock.cli.submitted_job import SERVICE_GONE, SubmittedJob
from penstock.dataflow.errors import GraphError, PenstockError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.program import (
    CloseableIterator,
    JobExecutionResult,
    Program,
    current_options,
)
from penstock.runtime.client.executor import job_form, job_request
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.client.source_preparation import prepared_sources
from penstock.runtime.control.requests import SUBMISSION_VARIABLE, Show, Submit

#: The longest time that `submit --detach` waits until the job processes records, in seconds.
BEGIN_SECONDS = 10.0


def _wait_until_running(connection: LocalConnection, monitor: JobMonitor, id: str) -> str | None:
    """Wait until a job processes records, is queued or has ended, at most `BEGIN_SECONDS`.

    Returns a text that says how the job ended, or None if the job continues to run.
    """
    connection.set_timeout(BEGIN_SECONDS)
    try:
        for event in connection.events():
            monitor.handle(event)
            if event["event"] == "ended":
                return str(event["how"])
            if event["event"] in ("running", "queued"):
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
        memory_bytes: the memory that the service keeps free for the job; 0 for its default.
        as_json: whether the job is printed as JSON when `execute` returns.
    """

    def __init__(
        self,
        directory: Path | None,
        wait: bool,
        memory_bytes: int = 0,
        as_json: bool = False,
    ) -> None:
        self._directory = directory
        self._wait = wait
        self._memory_bytes = memory_bytes
        self._as_json = as_json

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
        request = Submit(
            job=job,
            checkpoint_dir=checkpoint_dir,
            **job_form(program),
            memory_bytes=self._memory_bytes,
            submission=os.environ.get(SUBMISSION_VARIABLE, ""),
        )
        with LocalConnection(self._directory) as connection:
            submitted = connection.ask(request)
            monitor.handle(submitted)
            if not self._wait:
                # Scripts read the id, so nothing else is printed on standard output.
                if not self._as_json:
                    click.echo(submitted["id"])
                ended = _wait_until_running(connection, monitor, submitted["id"])
                self._print_job(submitted["id"])
                if ended is not None:
                    return monitor.result(ended)
                return JobExecutionResult(name, 0.0, [], [], [], "")
            job_followed = SubmittedJob(ServiceAddress(self._directory), submitted["id"], monitor)
            ended = job_followed.follow(connection.events())
        self._print_job(submitted["id"])
        result = monitor.result(ended)
        if result.stopped:
            # The job was cancelled. The rest of the job file may need the output of a finished job.
            raise SystemExit(143)
        return result

    def _print_job(self, id: str) -> None:
        if self._as_json:
            with suppress(PenstockError), LocalConnection(self._directory) as connection:
                click.echo(json.dumps(connection.ask(Show(id))["job"], indent=2))

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Raise `GraphError`, because the service does not send records to the client."""
        del program, outputs
        raise GraphError(
            "execute_and_collect() brings records to this program, which a submitted job cannot: "
            "write them to a sink and call env.execute(), or use penstock run"
        )

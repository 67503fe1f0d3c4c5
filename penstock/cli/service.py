"""Run and use the job service: `penstock jobmanager`, `submit`, `list`, `cancel`.

`penstock.runtime.dispatcher` implements the service, and `service_connection.py` is its client.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import (
    JobCommand,
    JobOptions,
    job_options,
    log_level_option,
    print_message,
    reporting_errors,
    service_option,
)
from penstock.cli.service_connection import NoServiceError, ServiceConnection
from penstock.cli.text_format import duration_text
from penstock.dataflow.errors import PenstockError, StoreError

if TYPE_CHECKING:
    pass


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
    a final snapshot, and then the service.
    """
    if host is not None and port is None:
        raise click.UsageError("--host goes together with --port.")
    import trio

    from penstock.runtime.dispatcher.dispatcher import Dispatcher
    from penstock.runtime.dispatcher.state_folder import StateFolder

    level = log_level or "INFO"
    dispatcher = Dispatcher(StateFolder(directory), port, host or "127.0.0.1", print_message, level)
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

    JOB.py is run here up to env.execute(), which sends the program. The job's own output goes to
    its log. Ctrl-C ends the waiting, not the job.
    """
    if options.report is not None and not wait:
        raise click.UsageError("--report is written at the end of the job, so not with --detach.")
    from penstock.cli.script import run_job
    from penstock.cli.submit_executor import SubmitExecutor

    extra: tuple[str, ...] = () if wait else ("--detach",)
    if directory is not None:
        extra += ("--dir", str(directory))
    raise SystemExit(run_job(replace(options, extra=extra), SubmitExecutor(directory, wait)))


@click.command("list", short_help="List the jobs of the service.")
@service_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@reporting_errors
def list_jobs(directory: Path | None, as_json: bool) -> None:
    """List the jobs of "penstock jobmanager", oldest first.

    If no service runs, the command reads the records that the last one has left.
    """
    jobs = _jobs(directory)
    if as_json:
        click.echo(json.dumps(jobs, indent=2))
    elif not jobs:
        click.echo("no jobs")
    else:
        _print_jobs(jobs)


def _jobs(directory: Path | None) -> list[dict[str, Any]]:
    from penstock.runtime.control.requests import ListJobs
    from penstock.runtime.dispatcher.job_registry import JobRegistry
    from penstock.runtime.dispatcher.state_folder import StateFolder

    try:
        with ServiceConnection(directory) as connection:
            jobs: list[dict[str, Any]] = connection.ask(ListJobs())["jobs"]
            return jobs
    except NoServiceError as error:
        folder = StateFolder(directory)
        if not folder.jobs.is_dir():
            raise
        print_message(f"{error}. These are the records of the last one")
    registry = JobRegistry(folder.jobs)
    try:
        registry.load(write=False)
    except OSError as error:
        raise StoreError(f"cannot read the records: {error.strerror}", folder.jobs) from error
    registry.examine_lost()
    return [asdict(record) for record in registry.records]


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
    """Stop the job ID of the running "penstock jobmanager", with a final snapshot.

    The command returns when the job has ended.
    """
    from penstock.runtime.control.requests import Cancel

    with ServiceConnection(directory) as connection:
        job = connection.ask(Cancel(job_id, now))
    number = job["last_snapshot"]
    kept = "" if number is None else f"; its last snapshot is {number}"
    print_message(f"job {job_id} is {job['state']}{kept}")
    if job["state"] == "failed":
        raise PenstockError(f"the job failed while it was stopped: {job['error']}")

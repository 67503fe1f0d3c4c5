"""Run the job service, and hand jobs to it: `penstock jobmanager`, `submit`, `list`.

`penstock.runtime.dispatcher` implements the service, and `service_connection.py` is its client.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from penstock.cli.api_options import ApiOptions, api_options, prepare_service
from penstock.cli.options import (
    JobCommand,
    JobOptions,
    job_options,
    log_level_option,
    memory_size,
    print_message,
    reporting_errors,
    service_options,
    state_folder_option,
)
from penstock.cli.service_address import ServiceAddress
from penstock.cli.service_connection import NoServiceError
from penstock.cli.telemetry_options import Telemetry, telemetry_options
from penstock.cli.text_format import duration_text
from penstock.dataflow.errors import StoreError


@click.command(short_help="Run a service that takes jobs.")
@state_folder_option
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
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Slots of all running jobs together; other jobs wait.  [default: no limit]",
)
@click.option(
    "--memory",
    callback=memory_size,
    metavar="SIZE",
    help="Memory that is kept free for all running jobs together, such as 16GB; other jobs wait.  "
    "[default: no limit]",
)
@click.option(
    "--memory-per-slot",
    callback=memory_size,
    default="512MB",
    show_default=True,
    metavar="SIZE",
    help="With --memory: what is kept free for each slot of a job that does not say it itself.",
)
@api_options
@telemetry_options
@reporting_errors
def jobmanager(
    directory: Path | None,
    port: int | None,
    host: str | None,
    log_level: str | None,
    slots: int | None,
    memory: int | None,
    memory_per_slot: int,
    api: ApiOptions | None,
    telemetry: Telemetry,
) -> None:
    """Run a service on this machine that takes jobs from "penstock submit".

    Each job gets a JobManager process of its own, which outlives the service. A service that is
    started again finds the running jobs, and starts those that have ended with the machine. SIGTERM
    ends the service alone. Ctrl-C stops all jobs in order, with a final snapshot, before.

    \b
    Example:
      penstock jobmanager --slots 8 --memory 16GB
    """
    if host is not None and port is None:
        raise click.UsageError("--host goes together with --port.")
    import trio

    from penstock.runtime.dispatcher.dispatcher import Dispatcher
    from penstock.runtime.dispatcher.job_queue import Limits
    from penstock.runtime.dispatcher.state_folder import StateFolder

    level = log_level or "INFO"
    limits = Limits(slots, memory, memory_per_slot)
    folder, address = StateFolder(directory), host or "127.0.0.1"
    beside = None
    observers = telemetry.observers()
    if api is not None or observers:
        message, beside = prepare_service(api, observers, folder.root, slots)
        if message:
            print_message(message)
    dispatcher = Dispatcher(folder, port, address, print_message, level, limits, beside)
    trio.run(dispatcher.run)


@click.command(cls=JobCommand, short_help="Hand a job to the running service.")
@job_options
@click.option(
    "--wait/--detach",
    default=True,
    help="Follow the job to its end and exit with its exit code, or return when it has begun.  "
    "[default: --wait]",
)
@service_options
@click.option(
    "--memory",
    callback=memory_size,
    metavar="SIZE",
    help="Memory that the service keeps free for the job, such as 2GB.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
@reporting_errors
def submit(
    options: JobOptions, wait: bool, service: ServiceAddress, memory: int | None, as_json: bool
) -> None:
    """Hand a job to the running "penstock jobmanager".

    JOB.py is run here up to env.execute(), which sends the program. With --service, JOB.py, the
    modules beside it and --py-files are sent, and JOB.py is run there. The job's own output goes
    to its log. Ctrl-C ends the waiting, not the job.

    \b
    Examples:
      penstock submit job.py --checkpoint-dir snapshots
      penstock submit job.py --py-files lib --detach -- --topic clicks
      penstock submit job.py --service https://jobs.example.org:8081 --token-file token
    """
    if options.report is not None and not wait:
        raise click.UsageError("--report is written at the end of the job, so not with --detach.")
    if service.url is not None:
        from penstock.cli.remote_submit import submit_remotely

        size = None if memory is None else str(memory)
        raise SystemExit(submit_remotely(options, service, wait, size, as_json))
    from penstock.cli.script import run_job
    from penstock.cli.submit_executor import SubmitExecutor

    extra = (*(() if wait else ("--detach",)), *service.words())
    executor = SubmitExecutor(service.directory, wait, memory or 0, as_json)
    raise SystemExit(run_job(replace(options, extra=extra), executor))


@click.command("list", short_help="List the jobs of the service.")
@service_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@reporting_errors
def list_jobs(service: ServiceAddress, as_json: bool) -> None:
    """List the jobs of "penstock jobmanager", oldest first.

    If no service runs, the command reads the records that the last one has left.

    \b
    Example:
      penstock list --json | jq -r '.[] | select(.state == "failed") | .id'
    """
    jobs = _jobs(service)
    if as_json:
        click.echo(json.dumps(jobs, indent=2))
    elif not jobs:
        click.echo("no jobs")
    else:
        _print_jobs(jobs)


def _jobs(service: ServiceAddress) -> list[dict[str, Any]]:
    from penstock.runtime.control.requests import ListJobs
    from penstock.runtime.dispatcher.job_registry import JobRegistry
    from penstock.runtime.dispatcher.state_folder import StateFolder

    try:
        with service.connect() as connection:
            jobs: list[dict[str, Any]] = connection.ask(ListJobs())["jobs"]
            return jobs
    except NoServiceError as error:
        folder = StateFolder(service.directory)
        if not folder.jobs.is_dir():
            raise
        print_message(f"{error}. These are the records of the last one")
    registry = JobRegistry(folder.jobs)
    try:
        registry.load()
    except OSError as error:
        raise StoreError(f"cannot read the records: {error.strerror}", folder.jobs) from error
    return [asdict(record) for record in registry.records]


_JOB_HEADINGS = (
    *("id", "name", "state", "started", "slots", "pid", "workers", "restarts", "snapshot"),
    "error",
)


def _print_jobs(jobs: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from penstock.cli.snapshots import print_table

    table = Table(box=None, pad_edge=False)
    for heading in _JOB_HEADINGS:
        table.add_column(heading)
    now = time.time()
    for job in jobs:
        running = job["state"] == "running"
        number = job["last_snapshot"]
        cells = (
            job["id"],
            job["name"],
            job["state"],
            f"{duration_text(max(0.0, now - (job['started'] or job['submitted'])))} ago",
            str(job["slots"]),
            str(job["pid"]) if running else "",
            " ".join(map(str, job["worker_pids"])),
            str(job["restarts"]),
            "" if number is None else str(number),
            job["waiting"] or (job["error"] or "").strip().split("\n")[-1],
        )
        table.add_row(*map(Text, cells))
    print_table(table)

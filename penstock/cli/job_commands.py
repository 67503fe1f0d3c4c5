"""Look at and control the jobs of the service: `penstock show`, `logs`, `cancel`, `rescale`, …"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.completion import complete_job
from penstock.cli.options import duration, print_message, reporting_errors, service_options
from penstock.cli.service_address import ServiceAddress
from penstock.cli.service_connection import NoServiceError
from penstock.cli.text_format import duration_text, size_text
from penstock.dataflow.errors import PenstockError

if TYPE_CHECKING:
    from penstock.runtime.control.requests import Request


def job_command(command: Any) -> Any:
    """Add the argument ID and the options `--dir` and `--json` to a command about one job."""
    decorate: list[Callable[[Any], Any]] = [
        click.argument("job_id", metavar="ID", shell_complete=complete_job),
        service_options,
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        reporting_errors,
    ]
    decorated = command
    for one in reversed(decorate):
        decorated = one(decorated)
    return decorated


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    click.echo(json.dumps(value, indent=2, default=str))


def _ask(service: ServiceAddress, request: Request) -> dict[str, Any]:
    with service.connect() as connection:
        answer = connection.ask(request)
    del answer["event"]
    return answer


@click.command(short_help="Show one job of the service.")
@job_command
def show(job_id: str, service: ServiceAddress, as_json: bool) -> None:
    """Show the job ID: its state, its operators, its last snapshots and failures.

    Without a running service, the command shows what the last one has recorded.

    \b
    Examples:
      penstock show 3
      penstock show 3 --json | jq .job.state
    """
    details = job_details(job_id, service)
    if as_json:
        print_json(details)
    else:
        _print_details(details)


def job_details(id: str, service: ServiceAddress) -> dict[str, Any]:
    """Return all facts about a job: those of the service, or else what the last one has left."""
    from penstock.runtime.control.requests import Show

    try:
        return _ask(service, Show(id))
    except NoServiceError as error:
        from dataclasses import asdict

        from penstock.runtime.dispatcher.job_details import recorded_details
        from penstock.runtime.dispatcher.state_folder import StateFolder

        folder = StateFolder(service.directory)
        if not folder.jobs.is_dir():
            raise
        print_message(f"{error}. This is the record of the last one")
        return asdict(recorded_details(folder, id))


def _print_details(details: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from penstock.cli.snapshots import print_table

    job, figures = details["job"], details["figures"]
    facts = {
        "job": f"{job['id']} ({job['name']})",
        "state": job["state"] + (f": {job['waiting']}" if job["waiting"] else ""),
        "submitted": _ago(job["submitted"]),
        "started": _ago(job["started"]),
        "ended": _ago(job["ended"]),
        "parallelism": f"{job['parallelism']} (at most {job['max_parallelism']})",
        "slots": str(job["slots"]),
        "JobManager": f"pid {job['pid']}" if job["state"] == "running" else "",
        "workers": " ".join(map(str, job["worker_pids"])),
        "restarts": str(job["restarts"]),
        "snapshot": "" if job["last_snapshot"] is None else str(job["last_snapshot"]),
        "snapshots in": job["checkpoint_dir"],
        "log": job["log"],
        "error": (job["error"] or "").strip(),
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in facts.items():
        if value:
            table.add_row(name, Text(value))
    print_table(table)
    if figures.get("operators"):
        table = Table(box=None, pad_edge=False)
        # The parallelism is lower than that of the job while slots are lost.
        for heading in ("operator", "parallelism", "in", "out"):
            table.add_column(heading, justify="left" if heading == "operator" else "right")
        for row in figures["operators"]:
            numbers = row["parallelism"], row["records_in"], row["records_out"]
            counts = (f"{number:,}" for number in numbers)
            table.add_row(*map(Text, (row["name"], *counts)))
        click.echo()
        print_table(table)
    if details["snapshots"]:
        table = Table(box=None, pad_edge=False)
        for heading in ("snapshot", "kind", "ms", "size", "taken"):
            table.add_column(heading)
        for one in details["snapshots"][-5:]:
            size, milliseconds = size_text(one["bytes_total"]), f"{one['duration_ms']:.0f}"
            cells = (str(one["number"]), one["kind"], milliseconds, size, _ago(one["time"]))
            table.add_row(*map(Text, cells))
        click.echo()
        print_table(table)
    for failure in details["failures"][-3:]:
        click.echo(f"\n{failure['event']} {_ago(failure['time'])}:")
        click.echo((failure.get("user_traceback") or failure.get("message") or "").rstrip())


def _ago(when: float | None) -> str:
    return f"{duration_text(max(0.0, time.time() - when))} ago" if when else ""


@click.command(short_help="Print the log of a job.")
@click.argument("job_id", metavar="ID", shell_complete=complete_job)
@service_options
@click.option("--follow", "-f", is_flag=True, help="Wait for more until the job has ended.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=1), metavar="N", help="Begin with the last N lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON string.")
@reporting_errors
def logs(
    job_id: str, service: ServiceAddress, follow: bool, lines: int | None, as_json: bool
) -> None:
    """Print the log of the job ID: the output of its processes, its restarts and its end.

    \b
    Example:
      penstock logs 3 --lines 50 -f
    """
    from penstock.runtime.control.requests import Logs

    rest = b""
    with service.connect() as connection:
        for answer in connection.answers(Logs(job_id, -(lines or 0), follow)):
            whole, newline, rest = (rest + answer["part"]).rpartition(b"\n")
            _print_lines(whole + newline, as_json)
    _print_lines(rest, as_json)


def _print_lines(data: bytes, as_json: bool) -> None:
    if as_json:
        for line in data.splitlines():
            click.echo(json.dumps(line.decode(errors="backslashreplace")))
    elif data:
        click.echo(data, nl=False)


@click.command(short_help="Stop a job of the service.")
@job_command
@click.option("--now", is_flag=True, help="Kill the job instead; its last snapshot stays.")
def cancel(job_id: str, service: ServiceAddress, as_json: bool, now: bool) -> None:
    """Stop the job ID of the running "penstock jobmanager", with a final snapshot.

    The command returns when the job has ended. The service does not start it again.

    \b
    Example:
      penstock cancel 3
    """
    from penstock.runtime.control.requests import Cancel

    job = _ask(service, Cancel(job_id, now))
    number = job["last_snapshot"]
    kept = "" if number is None else f"; its last snapshot is {number}"
    if as_json:
        print_json(job)
    print_message(f"job {job_id} is {job['state']}{kept}")
    if job["state"] == "failed":
        raise PenstockError(f"the job failed while it was stopped: {job['error']}")


_target_option = click.option(
    "--target",
    metavar="PLACE",
    help="Copy the savepoint to this new folder, or to this URL of an object store, and print the "
    "path of the copy.",
)


def _checked_target(service: ServiceAddress, target: str) -> str:
    """Return the absolute path or the URL of a target to which a snapshot can be copied.

    Raise `PenstockError` if it cannot be used.
    """
    from penstock.dataflow.config.snapshot_stores import is_store_url
    from penstock.saved.savepoint_target import require_target

    if service.url is not None:
        raise PenstockError(
            f"--target goes with a service on this machine: copy the savepoint there, or POST its "
            f"directory to {service.url}/v1/jobs/ID/savepoints. Nothing was done"
        )
    place = target if is_store_url(target) else str(Path(target).absolute())
    try:
        require_target(place)
    except PenstockError as error:
        raise PenstockError(f"{error}. Nothing was done, and the job goes on") from error
    return place


@click.command(short_help="Stop a job, and name the savepoint.")
@job_command
@click.option(
    "--savepoint", is_flag=True, help="Say that a savepoint is taken, which is the default."
)
@_target_option
def stop(
    job_id: str, service: ServiceAddress, as_json: bool, savepoint: bool, target: str | None
) -> None:
    """Stop the job ID with a savepoint, and print the path of the savepoint.

    The output up to the savepoint is committed, and no record after it is read. The exit code is 1
    if the job ended otherwise, for example because it failed or had read all of its input.

    \b
    Examples:
      penstock submit job.py --resume "$(penstock stop 3 --savepoint)"
      penstock stop 3 --savepoint --target /backup/orders
    """
    del savepoint  # the command does nothing else
    from penstock.runtime.control.requests import Stop

    _take_snapshot(service, Stop(job_id), as_json, f"job {job_id} is stopped", target)


@click.command(short_help="Take a savepoint of a job.")
@job_command
@click.option(
    "--timeout",
    callback=duration,
    default="10m",
    show_default=True,
    metavar="T",
    help="How long to wait for the savepoint.",
)
@_target_option
def savepoint(
    job_id: str, service: ServiceAddress, as_json: bool, timeout: float, target: str | None
) -> None:
    """Take a savepoint of the job ID, which goes on, and print the path of the savepoint.

    \b
    Examples:
      penstock savepoint 3 --timeout 1m
      penstock savepoint 3 --target /backup/orders
    """
    from penstock.runtime.control.requests import Savepoint

    _take_snapshot(service, Savepoint(job_id, timeout), as_json, f"job {job_id} goes on", target)


def _take_snapshot(
    service: ServiceAddress, request: Request, as_json: bool, text: str, target: str | None
) -> None:
    """Take a snapshot, copy it to the target if there is one, and print where it is."""
    place = None if target is None else _checked_target(service, target)
    taken = _ask(service, request)
    if place is not None:
        from penstock.saved.savepoint_target import copy_savepoint

        try:
            taken["path"] = copy_savepoint(taken["path"], place)
        except PenstockError as error:
            raise PenstockError(
                f"{text}, and its snapshot is {taken['path']}. It could not be copied to {place}: "
                f"{error}"
            ) from error
    if as_json:
        print_json(taken)
    else:
        # Scripts read the path, so nothing else is printed on standard output.
        click.echo(taken["path"])
        print_message(f"{text}; snapshot {taken['number']}")


@click.command(short_help="Run a job with another parallelism.")
@job_command
@click.option(
    "--parallelism",
    "-p",
    type=click.IntRange(min=1),
    metavar="N",
    required=True,
    help="Number of subtasks of operators for which the program sets none.",
)
def rescale(job_id: str, service: ServiceAddress, as_json: bool, parallelism: int) -> None:
    """Stop the job ID with a savepoint, and start it from there with another parallelism.

    The job keeps its id. The command returns when the job processes records again. If the job
    fails to start with the new parallelism, it is started with the old one, and the exit code is 1.

    \b
    Example:
      penstock rescale 3 --parallelism 4
    """
    from penstock.runtime.control.requests import Rescale

    job = _ask(service, Rescale(job_id, parallelism))
    if as_json:
        print_json(job)
    workers = "1 worker" if job["slots"] == 1 else f"{job['slots']} workers"
    print_message(f"job {job_id} runs with parallelism {job['parallelism']} ({workers})")


@click.command(short_help="Start a job from its newest snapshot.")
@job_command
def restart(job_id: str, service: ServiceAddress, as_json: bool) -> None:
    """Start the job ID from its newest snapshot.

    A job that runs is stopped with a snapshot before. A job that has ended, for example because it
    was cancelled or has failed, starts again with the program that was submitted.

    \b
    Example:
      penstock restart 3
    """
    from penstock.runtime.control.requests import Restart

    job = _ask(service, Restart(job_id))
    if as_json:
        print_json(job)
    reason = f": {job['waiting']}" if job["waiting"] else ""
    print_message(f"job {job_id} is {job['state']}{reason}")
    if job["state"] not in ("running", "queued", "finished"):
        sys.exit(1)

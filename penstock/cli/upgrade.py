"""Replace the program of a running job: `penstock upgrade`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from penstock.cli.completion import complete_job
from penstock.cli.options import (
    JobCommand,
    JobOptions,
    print_message,
    py_files_option,
    reporting_errors,
    service_options,
)
from penstock.cli.service_address import ServiceAddress
from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    from penstock.dataflow.graph.job_graph import OperatorOutput
    from penstock.dataflow.program import Program


@click.command(cls=JobCommand, short_help="Replace the program of a running job.")
@click.argument("job_id", metavar="ID", shell_complete=complete_job)
@click.argument("job", metavar="JOB.py")
@click.argument("args", metavar="[-- JOB ARGS]", nargs=-1, type=click.UNPROCESSED)
@service_options
@click.option(
    "--parallelism",
    "-p",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of subtasks of operators for which the program sets none; by default as before.",
)
@py_files_option
@click.option("--allow-dropped", is_flag=True, help="Accept that state is dropped.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reporting_errors
def upgrade(
    job_id: str,
    job: str,
    args: tuple[str, ...],
    service: ServiceAddress,
    parallelism: int | None,
    py_files: str | None,
    allow_dropped: bool,
    as_json: bool,
) -> None:
    """Replace the program of the running job ID by that of JOB.py, and keep its state.

    The program is checked against the newest snapshot. Then the job is stopped with a savepoint,
    and started from it with the new program. The command returns after the first snapshot of the
    new program. If it fails before, the old program goes on from the savepoint, and the exit code
    is 1.

    \b
    Example:
      penstock upgrade 3 job.py
    """
    from penstock.runtime.control.requests import Show

    with service.connect() as connection:
        record = connection.ask(Show(job_id))["job"]
    if record["state"] != "running" or not record["checkpoint_dir"]:
        why = f"it is {record['state']}" if record["checkpoint_dir"] else "it has no snapshots"
        raise GraphError(f"job {job_id} cannot be upgraded: {why}")
    options = JobOptions(
        "submit",
        job,
        args,
        name=record["name"],
        parallelism=parallelism or record["parallelism"],
        py_files=py_files,
        checkpoint_dir=record["checkpoint_dir"],
        resume="newest",
        allow_dropped=allow_dropped,
        progress="none",
    )
    if service.url is None:
        from penstock.cli.script import run_job

        raise SystemExit(run_job(options, _UpgradeExecutor(service, job_id, as_json)))
    from penstock.cli.remote_submit import upgrade_remotely

    _print_upgraded(upgrade_remotely(options, service, job_id), as_json)


def _print_upgraded(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(record, indent=2))
    number = record["last_snapshot"]
    print_message(f"job {record['id']} runs the new program; its newest snapshot is {number}")


class _UpgradeExecutor:
    """An executor that gives its program to a running job.

    Arguments:
        service: where the service is.
        job_id: the id of the job.
        as_json: whether the job is printed as JSON.
    """

    def __init__(self, service: ServiceAddress, job_id: str, as_json: bool) -> None:
        self._service, self._job_id, self._as_json = service, job_id, as_json

    def execute(self, program: Program) -> NoReturn:
        """Upgrade the job, and end the job file by raising `SystemExit`."""
        from penstock.dataflow.program import current_options
        from penstock.runtime.client.executor import job_request
        from penstock.runtime.client.source_preparation import prepared_sources
        from penstock.runtime.control.requests import Upgrade

        self._require_fit(program)
        options, config = current_options(), program.config
        with prepared_sources(program, options, attached=False):
            packed = job_request(program, options)
        own = (operator.parallelism or 0 for operator in program.graph.operators)
        request = Upgrade(
            self._job_id,
            config.name,
            str(Path.cwd()),
            packed,
            config.parallelism,
            config.max_parallelism,
            max(own, default=0),
            config.checkpoint_interval_seconds is not None,
        )
        with self._service.connect() as connection:
            record = connection.ask(request)
        del record["event"]
        _print_upgraded(record, self._as_json)
        raise SystemExit(0)

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> NoReturn:
        """Raise `GraphError`, because the service does not send records to the client."""
        del program, outputs
        raise GraphError(
            "execute_and_collect() brings records to this program, which a submitted job cannot: "
            "write them to a sink and call env.execute()"
        )

    @staticmethod
    def _require_fit(program: Program) -> None:
        """Check the program against the newest snapshot of the job, which goes on meanwhile."""
        from penstock.cli.snapshot_check import check_against, print_checked
        from penstock.dataflow.program import current_options
        from penstock.saved.snapshot import open_snapshot

        folder: Any = program.config.checkpoint_dir
        with open_snapshot(folder) as snapshot:
            found = check_against(program, snapshot)
            number = snapshot.number
        if not found.fits(allow_dropped=current_options().allow_dropped):
            print_checked(found.operators)
            raise GraphError(
                f"the program cannot go on from snapshot {number} of the job, which runs as before"
            )

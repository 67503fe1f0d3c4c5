"""Replace the program of a running job: `penstock upgrade`."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    from penstock.saved.snapshot import SavedSnapshot


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
@click.option(
    "--shadow",
    is_flag=True,
    help="Compare the output of both programs over the same input, with captured sinks.",
)
@click.option(
    "--snapshots",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="K",
    help="Number of snapshots that a shadow run takes.",
)
@click.option(
    "--promote", is_flag=True, help="Upgrade the job if the shadow run finds no difference."
)
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
    shadow: bool,
    snapshots: int,
    promote: bool,
    as_json: bool,
) -> None:
    """Replace the program of the running job ID by that of JOB.py, and keep its state.

    The program is checked against the newest snapshot. Then the job is stopped with a savepoint,
    and started from it with the new program. The command returns after the first snapshot of the
    new program. If it fails before, the old program goes on from the savepoint, and the exit code
    is 1.

    With --shadow, the job goes on as it is. The old and the new program start from its newest
    snapshot, one after the other, with the same input and with captured sinks. The exit code is 0
    if their output is equal, and 1 otherwise. The job is then upgraded only with --promote.

    \b
    Examples:
      penstock upgrade 3 job.py
      penstock upgrade 3 job.py --shadow --snapshots 5 --promote
    """
    from penstock.runtime.control.requests import Show

    if promote and not shadow:
        raise GraphError("--promote belongs to a shadow run: give --shadow, too")
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

        comparison = (snapshots, promote) if shadow else None
        raise SystemExit(run_job(options, _UpgradeExecutor(service, record, as_json, comparison)))
    from penstock.cli.remote_submit import upgrade_remotely

    words = ["--shadow", "--snapshots", str(snapshots)] if shadow else []
    words += [word for word, given in (("--promote", promote), ("--json", as_json)) if given]
    upgraded, output = upgrade_remotely(options, service, job_id, words)
    if shadow:
        click.echo(output)
        if promote:
            _print_upgraded(upgraded, False)
    else:
        _print_upgraded(upgraded, as_json)


def _print_upgraded(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(record, indent=2))
    number = record["last_snapshot"]
    print_message(f"job {record['id']} runs the new program; its newest snapshot is {number}")


class _UpgradeExecutor:
    """An executor that gives its program to a running job.

    Arguments:
        service: where the service is.
        record: the record of the job.
        as_json: whether the job, or the result of a shadow run, is printed as JSON.
        shadow: the number of snapshots of a shadow run, and whether the job is upgraded if it finds
            no difference; None upgrades the job without one.
    """

    def __init__(
        self,
        service: ServiceAddress,
        record: dict[str, Any],
        as_json: bool,
        shadow: tuple[int, bool] | None,
    ) -> None:
        self._service, self._record, self._as_json = service, record, as_json
        self._shadow = shadow

    def execute(self, program: Program) -> NoReturn:
        """Upgrade the job, and end the job file by raising `SystemExit`."""
        from penstock.saved.snapshot import open_snapshot

        folder: Any = program.config.checkpoint_dir
        with open_snapshot(folder) as snapshot:
            self._require_fit(program, snapshot)
            packed = self._pack(program)
            if self._shadow is not None:
                self._compare(program, packed, snapshot, *self._shadow)
        self._upgrade(program, packed)
        raise SystemExit(0)

    @staticmethod
    def _pack(program: Program) -> bytes:
        from penstock.dataflow.program import current_options
        from penstock.runtime.client.executor import job_request
        from penstock.runtime.client.source_preparation import prepared_sources

        options = current_options()
        with prepared_sources(program, options, attached=False):
            return job_request(program, options)

    def _compare(
        self,
        program: Program,
        packed: bytes,
        snapshot: SavedSnapshot,
        snapshots: int,
        promote: bool,
    ) -> None:
        """Raise `SystemExit` unless both programs have equal output and the job is upgraded."""
        from penstock.cli.shadow import compare_programs, print_report
        from penstock.dataflow.graph.compile import compile_graph
        from penstock.runtime.control.requests import ShadowSlots

        slots = compile_graph(program.graph, program.config).slots
        # The service keeps the slots until this connection is closed.
        with self._service.connect() as connection:
            connection.ask(ShadowSlots(self._record["id"], slots))
            report = compare_programs(
                self._service.directory, self._record, packed, snapshot, snapshots
            )
        print_report(report, as_json=self._as_json)
        if not (report.equal and promote):
            raise SystemExit(0 if report.equal else 1)

    def _upgrade(self, program: Program, packed: bytes) -> None:
        from penstock.runtime.client.executor import job_form
        from penstock.runtime.control.requests import Upgrade

        request = Upgrade(
            self._record["id"],
            job=packed,
            **job_form(program),
            has_checkpoints=program.config.checkpoint_interval_seconds is not None,
        )
        with self._service.connect() as connection:
            record = connection.ask(request)
        del record["event"]
        _print_upgraded(record, self._as_json and self._shadow is None)

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> NoReturn:
        """Raise `GraphError`, because the service does not send records to the client."""
        del program, outputs
        raise GraphError(
            "execute_and_collect() brings records to this program, which a submitted job cannot: "
            "write them to a sink and call env.execute()"
        )

    @staticmethod
    def _require_fit(program: Program, snapshot: SavedSnapshot) -> None:
        """Check the program against the newest snapshot of the job, which goes on meanwhile."""
        from penstock.cli.snapshot_check import check_against, print_checked
        from penstock.dataflow.program import current_options

        found = check_against(program, snapshot)
        if not found.fits(allow_dropped=current_options().allow_dropped):
            print_checked(found.operators)
            raise GraphError(
                f"the program cannot go on from snapshot {snapshot.number} of the job, which runs "
                f"as before"
            )

"""Check a program against a snapshot: `penstock snapshots check`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from penstock.cli.options import (
    JobCommand,
    JobOptions,
    parallelism_option,
    print_message,
    reporting_errors,
)
from penstock.cli.snapshots import SnapshotPath, print_table, snapshots

if TYPE_CHECKING:
    from penstock.dataflow.graph.job_graph import OperatorOutput
    from penstock.dataflow.program import Program
    from penstock.runtime.client.program_check import CheckedOperator, ProgramCheck
    from penstock.saved.snapshot import SavedSnapshot


@snapshots.command("check", cls=JobCommand, short_help="Check whether a program fits a snapshot.")
@click.argument("job", metavar="JOB.py")
@click.argument("snapshot", metavar="SNAPSHOT", type=SnapshotPath())
@click.argument("args", metavar="[-- JOB ARGS]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--number", "-n", type=click.IntRange(min=0), help="The number of the snapshot in a folder."
)
@parallelism_option
@click.option("--allow-dropped", is_flag=True, help="Accept that state is dropped.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@reporting_errors
def check(
    job: str,
    snapshot: Path,
    args: tuple[str, ...],
    number: int | None,
    parallelism: int | None,
    **asked: Any,
) -> None:
    """Say what becomes of each state if the program JOB.py goes on from SNAPSHOT.

    JOB.py is run up to its first env.execute() or execute_and_collect(). Its functions with state
    are opened, but no source and no sink, and no record is processed. SNAPSHOT is a checkpoint
    folder, of which the newest snapshot counts, or the folder of a snapshot.

    The exit code is 0 if the job can be resumed, and 1 if it would be refused.

    \b
    Example:
      penstock snapshots check job.py jobs/words
    """
    from penstock.cli.script import run_job
    from penstock.saved.snapshot import open_snapshot

    open_snapshot(snapshot, number).close()  # report a wrong path before the program runs
    options = JobOptions("graph", job, args, parallelism=parallelism, progress="none")
    raise SystemExit(run_job(options, _CheckingExecutor(snapshot, number, asked)))


class _CheckingExecutor:
    """An executor that checks a program instead of running it.

    Arguments:
        snapshot, number: the snapshot.
        asked: the options of the check.
    """

    def __init__(self, snapshot: Path, number: int | None, asked: dict[str, Any]) -> None:
        self._snapshot, self._number, self._asked = snapshot, number, asked

    def execute(self, program: Program) -> NoReturn:
        """Check the program, print the result, and end the job file by raising `SystemExit`."""
        from penstock.saved.snapshot import open_snapshot

        with open_snapshot(self._snapshot, self._number) as snapshot:
            found = check_against(program, snapshot)
            fits = found.fits(allow_dropped=self._asked["allow_dropped"])
            if self._asked["as_json"]:
                operators = [_as_dict(one) for one in found.operators]
                result = {"snapshot": snapshot.number, "fits": fits, "operators": operators}
                click.echo(json.dumps(result, indent=2))
            else:
                print_checked(found.operators)
                click.echo(f"snapshot {snapshot.number} of job {snapshot.job}")
        if not fits:
            print_message("Error: the program cannot go on from this snapshot")
        raise SystemExit(0 if fits else 1)

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> NoReturn:
        """Check the program with the sink that would collect records; end the job file."""
        from penstock.runtime.operators.collect_sink import CollectSink

        program.add_sink("Collect", outputs, CollectSink(""))
        self.execute(program)


def check_against(program: Program, snapshot: SavedSnapshot) -> ProgramCheck:
    """Check whether a program can go on from a snapshot."""
    from penstock.dataflow.graph.batch_mode import in_runtime_mode
    from penstock.runtime.client.program_check import check_program
    from penstock.runtime.control.job_code import JobCode
    from penstock.runtime.control.record_class_search import record_classes

    graph, config = in_runtime_mode(program.graph, program.config)
    code = JobCode(graph, config, types=record_classes(graph, program.types))

    def keys(uid: str) -> Iterator[tuple[str, Any]]:
        for state in snapshot.states:
            # Two keys may have the same timer. Operator state has no keys.
            if state.operator == uid and state.kind != "timer":
                found = snapshot.entries(uid, state.name)
                yield from ((state.name, one.key) for one in found if one.group is not None)

    return check_program(code, snapshot.manifest, snapshot.path, snapshot.holds, keys)


def _as_dict(one: CheckedOperator) -> dict[str, Any]:
    return {
        "uid": one.uid,
        "name": one.name,
        "outcome": one.outcome.value,
        "reasons": list(one.reasons),
    }


def print_checked(operators: Sequence[CheckedOperator]) -> None:
    """Print the results of a check as a table."""
    from rich.table import Table
    from rich.text import Text

    if not operators:
        click.echo("neither the program nor the snapshot has state")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("uid", "name", "state", "reason"):
        table.add_column(heading)
    for one in operators:
        first, *more = one.reasons or ("",)
        table.add_row(*map(Text, (one.uid, one.name, one.outcome.value, first)))
        for reason in more:
            table.add_row("", "", "", Text(reason))
    print_table(table)

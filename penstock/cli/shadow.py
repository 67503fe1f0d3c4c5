"""Compare a new program with that of a running job before an upgrade: `compare_programs`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import print_message
from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    from penstock.runtime.client.shadow_run import ShadowReport
    from penstock.runtime.shadow.comparison import SinkComparison
    from penstock.saved.snapshot import SavedSnapshot

#: The longest text of a differing record in a report, in characters.
RECORD_LENGTH = 200


def compare_programs(
    directory: Path | None,
    record: dict[str, Any],
    new: bytes,
    snapshot: SavedSnapshot,
    snapshots: int,
) -> ShadowReport:
    """Run the program of a job and a new one with captured sinks, and compare their output.

    Arguments:
        directory: the state folder of the service; None for the default folder.
        record: the record of the job, which goes on meanwhile.
        new: the first frame for a JobManager of the new program.
        snapshot: the snapshot from which both start.
        snapshots: the number of snapshots that the run takes.
    """
    from penstock.runtime.client.shadow_run import ShadowProgram, ShadowRun

    old = ShadowProgram("the old program", _old_request(directory, record), record["folder"])
    run = ShadowRun(
        Path(snapshot.path), snapshot.number, Path(record["checkpoint_dir"]), print_message
    )
    return run.run(old, ShadowProgram("the new program", new, str(Path.cwd())), snapshots)


def _old_request(directory: Path | None, record: dict[str, Any]) -> bytes:
    from penstock.runtime.dispatcher.job_registry import JobRegistry
    from penstock.runtime.dispatcher.state_folder import StateFolder
    from penstock.runtime.system.private_files import read_private

    path = JobRegistry(StateFolder(directory).jobs).request(record["id"])
    try:
        return read_private(path)
    except OSError as error:
        raise GraphError(f"the program of job {record['id']} cannot be read: {error}") from error


def print_report(report: ShadowReport, *, as_json: bool) -> None:
    """Print the result of a shadow run."""
    if as_json:
        click.echo(json.dumps({"equal": report.equal, **asdict(report)}, indent=2))
        return
    for source in report.unequal_sources:
        old, new = _number(source.old), _number(source.new)
        click.echo(f"{source.name} ({source.uid}): old {old}, new {new} records read")
    for sink in report.sinks:
        _print_sink(sink)
    read = sum(source.old or 0 for source in report.sources)
    what = (
        f"{_count(len(report.sinks), 'sink')} over {_count(report.snapshots, 'snapshot')} "
        f"({read:,} records read from snapshot {report.snapshot} on)"
    )
    if report.equal:
        written = sum(sink.new or 0 for sink in report.sinks)
        click.echo(f"shadow: {written:,} records of {what} are equal")
    else:
        differing = sum(sink.only_old + sink.only_new for sink in report.sinks)
        click.echo(f"shadow: {differing:,} records of {what} differ")


def _print_sink(sink: SinkComparison) -> None:
    equal = (sink.old or 0) - sink.only_old
    click.echo(
        f"{sink.name} ({sink.uid}): old {_number(sink.old)}, new {_number(sink.new)}; "
        f"{equal:,} equal, {sink.only_old:,} only old, {sink.only_new:,} only new"
    )
    for label, texts in (("only old", sink.first_old), ("only new", sink.first_new)):
        for text in texts:
            shown = text if len(text) <= RECORD_LENGTH else f"{text[: RECORD_LENGTH - 1]}…"
            click.echo(f"  {label}: {shown}")


def _number(count: int | None) -> str:
    return "none there" if count is None else f"{count:,}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

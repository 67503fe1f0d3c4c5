"""Read snapshots as data: `penstock snapshots query`, `diff`, `export`, `sql`, `verify`, `copy`.

The commands need neither the job nor its code, and the job may be running. A lease keeps it from
removing the snapshot meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import Command, reporting_errors
from penstock.cli.snapshots import SnapshotPath, print_table, snapshots
from penstock.cli.text_format import size_text
from penstock.dataflow.config.snapshot_stores import checkpoint_place, is_store_url

if TYPE_CHECKING:
    from penstock.saved.diff import StateChange
    from penstock.saved.entries import StateEntry
    from penstock.saved.snapshot import SavedSnapshot

_PATH = click.argument("path", metavar="PATH", type=SnapshotPath())
_OPERATOR = click.argument("operator", metavar="OPERATOR")
_STATE = click.argument("state", metavar="STATE")
_NUMBER = click.option(
    "--number", "-n", type=click.IntRange(min=0), help="The number of the snapshot."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def entry_options(command: Command) -> Command:
    """Add the options that choose entries of a state."""
    options = (
        click.option(
            "--key", metavar="JSON", help="Show the entries of this key, for example '\"ada\"'."
        ),
        click.option("--prefix", metavar="TEXT", help="Show the keys that begin with this text."),
        click.option(
            "--top", metavar="N", type=click.IntRange(min=1), help="Show the N largest entries."
        ),
        click.option(
            "--by",
            metavar="FIELD",
            default="value",
            show_default=True,
            help="With --top: the field that counts, for example value.amount or value.1.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            default=100,
            show_default=True,
            help="The largest number of entries to show, without --top.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _open(path: Path, number: int | None) -> SavedSnapshot:
    from penstock.saved.snapshot import open_snapshot

    return open_snapshot(path, number)


@snapshots.command("query")
@_PATH
@_OPERATOR
@_STATE
@_NUMBER
@entry_options
@_JSON
@reporting_errors
def query(
    path: Path,
    operator: str,
    state: str,
    number: int | None,
    key: str | None,
    prefix: str | None,
    top: int | None,
    by: str,
    limit: int,
    as_json: bool,
) -> None:
    """Show entries of the state STATE of the operator with the uid OPERATOR.

    PATH is a job's checkpoint folder, or the folder of a snapshot. A key is given as JSON: a
    number, a text in quotes, or a list for a tuple. It is looked up, and nothing else is read. The
    exit code is 1 if there is no entry of the key.

    \b
    Examples:
      penstock snapshots query job count total --key '"ada"'
      penstock snapshots query job count total --prefix ad
      penstock snapshots query job orders last --top 10 --by value.amount
    """
    from itertools import islice

    from penstock.dataflow.errors import GraphError
    from penstock.saved.queries import entries_of_key, largest

    if sum(one is not None for one in (key, prefix, top)) > 1:
        raise GraphError("give only one of --key, --prefix and --top")
    with _open(path, number) as snapshot:
        more = False
        if key is not None:
            found = entries_of_key(snapshot, operator, state, key)
        elif top is not None:
            found = largest(snapshot.entries(operator, state), top, by)
        else:
            if prefix is None:
                snapshot.state(operator, state)
                left = snapshot.entries(operator, state)
            else:
                left = snapshot.prefix(operator, state, prefix)
            found = list(islice(left, limit + 1))
            more = len(found) > limit
            found = found[:limit]
        print_entries(found, as_json)
        if more and not as_json:
            click.echo(f"... more than {limit} entries: use --limit, --key, --prefix or --top")
        if key is not None and not found:
            raise SystemExit(1)


def print_entries(found: Iterable[StateEntry], as_json: bool) -> None:
    """Print entries of a state as a table, or as lines of JSON."""
    from penstock.saved.state_requests import entry_row

    print_entry_rows(list(map(entry_row, found)), as_json)


def print_entry_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the rows of `entry_row` as a table, or as lines of JSON."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    names = ["key", "part", "value", "last_used_ms"]
    names = [n for n in names if n == "value" or any(row[n] is not None for row in rows)]
    _print_rows(names, ([_text(row[name]) for name in names] for row in rows))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _print_rows(headings: list[str], rows: Iterable[list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table)


@snapshots.command("diff")
@click.argument("before", metavar="BEFORE", type=SnapshotPath())
@click.argument("after", metavar="AFTER", type=SnapshotPath(ids=False))
@click.option("--operator", metavar="UID", help="Compare only the state of this operator.")
@click.option("--state", metavar="NAME", help="Compare only the state of this name.")
@click.option("--summary", is_flag=True, help="Show only the numbers of changes of each state.")
@_JSON
@reporting_errors
def diff(
    before: Path, after: Path, operator: str | None, state: str | None, summary: bool, as_json: bool
) -> None:
    """Show the entries of state that differ between two snapshots.

    BEFORE and AFTER are folders of snapshots, or checkpoint folders or URLs, whose newest snapshot
    counts.
    AFTER may also be the number of a snapshot in the folder of BEFORE. Files that both
    snapshots share are not read. The exit code is 1 if there is a difference, as that of diff.

    \b
    Examples:
      penstock snapshots diff job/checkpoints/000012 job/checkpoints/000013
      penstock snapshots diff job/checkpoints/000012 13 --summary
    """
    from collections import Counter

    from penstock.saved.diff import compare

    number = None
    if not after.exists() and str(after).isdecimal():
        after, number = _job_of(before), int(str(after))
    counts: Counter[tuple[str, str, str]] = Counter()
    with _open(before, None) as old, _open(after, number) as new:
        for change in compare(old, new, operator, state):
            entry = change.after or change.before
            assert entry is not None
            counts[entry.operator, entry.state, change.kind] += 1
            if not summary:
                _print_change(change, entry, as_json)
    if summary and as_json:
        for (uid, name, kind), count in sorted(counts.items()):
            click.echo(json.dumps({"operator": uid, "state": name, "kind": kind, "count": count}))
    elif not as_json:
        if not counts:
            click.echo("no differences")
        for uid, name in sorted({place[:2] for place in counts}):
            parts = [f"{counts[uid, name, k]:,} {k}" for k in ("added", "changed", "removed")]
            click.echo(f"{uid} {name}: {', '.join(parts)}")
    if counts:
        raise SystemExit(1)


def _job_of(path: Path) -> Path:
    from penstock.snapshot.storage.job_paths import JobPaths

    return JobPaths.locate(path)[0].root


_SIGNS = {"added": "+", "changed": "~", "removed": "-"}


def _print_change(change: StateChange, entry: StateEntry, as_json: bool) -> None:
    from penstock.saved.json_values import json_value

    row: dict[str, Any] = {
        "kind": change.kind,
        "operator": entry.operator,
        "state": entry.state,
        "key": json_value(entry.key),
        "part": json_value(entry.part),
        "before": None if change.before is None else json_value(change.before.value),
        "after": None if change.after is None else json_value(change.after.value),
    }
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False))
        return
    place = (
        _text(row["key"]) if row["part"] is None else f"{_text(row['key'])} {_text(row['part'])}"
    )
    values = [_text(row[name]) for name in ("before", "after") if getattr(change, name) is not None]
    click.echo(
        f"{_SIGNS[change.kind]} {entry.operator} {entry.state} {place}: {' -> '.join(values)}"
    )


@snapshots.command("sql")
@_PATH
@click.argument("query", metavar="QUERY")
@_NUMBER
@_JSON
@reporting_errors
def sql(path: Path, query: str, number: int | None, as_json: bool) -> None:
    """Run an SQL query over the snapshot in PATH, with DuckDB.

    Each state is a table "uid"."state", or "state" if only one operator has a state of this name.
    The tables operators, states, sources and in_flight describe the snapshot. It needs
    pip install 'penstock[sql]'.

    \b
    Examples:
      penstock snapshots sql job 'SELECT * FROM states'
      penstock snapshots sql job 'SELECT avg(value.amount) FROM orders."last"'
    """
    from penstock.saved.json_values import json_value

    with _open(path, number) as snapshot:
        result = snapshot.sql(query)
    rows = ({name: json_value(v) for name, v in row.items()} for row in result.to_pylist())
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        names = result.column_names
        _print_rows(names, ([_text(row[name]) for name in names] for row in rows))


@snapshots.command("export")
@_PATH
@_OPERATOR
@_STATE
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@_NUMBER
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "csv", "jsonl"]),
    help="The format; by default that of the file's suffix.",
)
@reporting_errors
def export(
    path: Path, operator: str, state: str, file: Path, number: int | None, kind: str | None
) -> None:
    """Write the entries of a state to FILE, or to standard output if it is -.

    The columns are key, part or window, value, and last_used_ms if values expire. In CSV files,
    values that are no numbers or texts are JSON text. Parquet needs
    pip install 'penstock[columns]'.

    \b
    Examples:
      penstock snapshots export job orders last orders.parquet
      penstock snapshots export job count total - --format csv
    """
    from penstock.dataflow.errors import GraphError
    from penstock.saved.exports import EXPORTS, kind_of

    kind = kind or kind_of(file)
    if kind == "parquet" and str(file) == "-":
        raise GraphError("Parquet is not written to standard output; name a file")
    with _open(path, number) as snapshot:
        count = EXPORTS[kind](snapshot, snapshot.state(operator, state), file)
    if str(file) != "-":
        click.echo(f"{count:,} {'entry' if count == 1 else 'entries'} in {file}")


@snapshots.command("verify")
@_PATH
@_NUMBER
@click.option("--all", "every", is_flag=True, help="Verify all snapshots of the folder.")
@_JSON
@reporting_errors
def verify(path: Path, number: int | None, every: bool, as_json: bool) -> None:
    """Read a snapshot as a whole: compare each checksum, and decode each entry and record.

    The exit code is 1 if a snapshot is damaged.

    \b
    Example:
      penstock snapshots verify snapshots --all
    """
    from penstock.dataflow.errors import StoreError
    from penstock.snapshot.storage.job_paths import JobPaths
    from penstock.snapshot.storage.store import Store

    numbers: list[int | None] = [number]
    if every:
        store = Store(JobPaths.locate(path)[0].root)
        store.job_name()
        numbers = [info.number for info in store.list() if info.published]
    results: list[dict[str, Any]] = []
    for one in numbers:
        result: dict[str, Any] = {"number": one}
        try:
            with _open(path, one) as snapshot:
                result["number"] = snapshot.number
                result |= {**snapshot.verify(), "problem": None}
        except StoreError as error:
            if not every and one is None and result["number"] is None:
                raise  # There is no snapshot to speak of.
            result["problem"] = str(error)
        results.append(result)
    if as_json:
        click.echo(json.dumps(results, indent=2))
    for result in results:
        if result["problem"] is not None:
            click.echo(f"Error: snapshot {result['number']}: {result['problem']}", err=True)
        elif not as_json:
            click.echo(
                f"snapshot {result['number']}: {result['entries']:,} entries and "
                f"{result['records']:,} records in flight decode; {result['files']} files, "
                f"{size_text(result['bytes'])}, have their checksums"
            )
    if any(result["problem"] is not None for result in results):
        raise SystemExit(1)


@snapshots.command("copy")
@click.argument("source", metavar="PATH", type=SnapshotPath())
@click.argument("target", metavar="FOLDER")
@_NUMBER
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reporting_errors
def copy(source: Path, target: str, number: int | None, as_json: bool) -> None:
    """Copy a snapshot into the new FOLDER or object store, from which a job can start.

    All files are copied, with those that sources and sinks keep, and their checksums are compared.
    The copy is a checkpoint folder with one snapshot. Start from it with --resume FOLDER --fork.
    To move a job, stop it, copy its newest snapshot, and resume it in FOLDER. An object store is
    given as s3://bucket/prefix, gs:// or az://.

    \b
    Example:
      penstock snapshots copy job /backup/job-2026-11-26
    """
    from penstock.saved.copying import copy_snapshot, copy_to_store

    place = checkpoint_place(target)
    with _open(source, number) as snapshot:
        if is_store_url(place):
            copied = copy_to_store(snapshot, place)
        else:
            copied = os.fspath(copy_snapshot(snapshot, Path(place)))
        click.echo(json.dumps({"number": snapshot.number, "path": copied}) if as_json else copied)

"""Print the snapshots of a job: `penstock snapshots list`, `show` and `state`.

The commands only read the checkpoint folder, so the job may be running.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import print_message, reporting_errors
from penstock.cli.text_format import size_text
from penstock.dataflow.config.snapshot_stores import is_store_url
from penstock.dataflow.errors import PenstockError, StoreError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.snapshot.metadata.manifest import Manifest, SnapshotInfo
    from penstock.snapshot.storage.store import Store


class SnapshotPath(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A checkpoint folder, a snapshot's folder, the URL of a store, or the id of a job.

    Arguments:
        ids: whether a number is the id of a job.
    """

    name = "path"

    def __init__(self, ids: bool = True) -> None:
        self._ids = ids

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, which is the checkpoint folder of the job for an id.

        For a URL, it is a temporary folder with the manifests of the store.
        """
        if is_store_url(value):
            return _fetched(value, ctx)
        path = Path(value)
        if path.exists() or not (self._ids and str(value).isdecimal()):
            return path
        from penstock.runtime.control.requests import UnknownJob
        from penstock.runtime.dispatcher.job_details import recorded_details
        from penstock.runtime.dispatcher.state_folder import StateFolder

        try:
            record = recorded_details(StateFolder(), value).job
        except UnknownJob as error:
            self.fail(f"there is no folder {value!r}, and {error}", param, ctx)
        if not record.checkpoint_dir:
            self.fail(f"job {value} ({record.name}) has no checkpoint folder", param, ctx)
        return Path(record.checkpoint_dir)


def _fetched(url: str, ctx: click.Context | None) -> Path:
    """Copy the manifests of a store into a temporary folder, which ends with the command."""
    from penstock.snapshot.storage.objects.fetched_snapshots import FetchedFolder

    try:
        folder = FetchedFolder(url)
    except PenstockError as error:
        print_message(f"Error: {error}")
        raise SystemExit(1) from None
    if ctx is not None:
        ctx.call_on_close(folder.remove)
    return folder.path


_FOLDER = click.argument("directory", metavar="DIR", type=SnapshotPath())
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_VERIFY = click.option(
    "--verify", is_flag=True, help="Read all files and compare them with their checksums."
)


@click.group()
def snapshots() -> None:
    """List and show the snapshots of a job, and their contents.

    \b
    Example:
      penstock snapshots list snapshots
    """


@snapshots.command("list")
@_FOLDER
@_JSON
@_VERIFY
@reporting_errors
def list_snapshots(directory: Path, as_json: bool, verify: bool) -> None:
    """List the snapshots in the checkpoint folder DIR, oldest first.

    The exit code is 1 if a snapshot is damaged, or one of the files job, numbers and commits.

    \b
    Example:
      penstock snapshots list snapshots --verify
    """
    from penstock.snapshot.storage.objects.fetched_snapshots import fetch_snapshot

    store, _ = _open(directory)
    name = store.job_name()
    rows, damage = [], store.damaged_records()
    for info in store.list():
        problem = info.problem
        if verify and info.complete:
            fetch_snapshot(store.paths, info.number)
            problem = _damage(store, store.load(info.number))
        if info.published and problem is not None:
            damage.append(f"snapshot {info.number}: {problem}")
        rows.append(_row(info, problem))
    if as_json:
        click.echo(json.dumps({"job": name, "snapshots": rows}, indent=2))
    else:
        _print_list(name, rows)
    for line in damage:
        print_message(f"Error: {line}")
    if damage:
        raise SystemExit(1)


@snapshots.command("show")
@_FOLDER
@click.argument("number", metavar="[NUMBER]", type=click.IntRange(min=0), required=False)
@_JSON
@_VERIFY
@reporting_errors
def show_snapshot(directory: Path, number: int | None, as_json: bool, verify: bool) -> None:
    """Show one snapshot in the checkpoint folder DIR; by default the newest.

    DIR may also be the folder of a snapshot itself. The exit code is 1 if it is damaged.

    \b
    Example:
      penstock snapshots show snapshots 12
    """
    from penstock.snapshot.storage.objects.fetched_snapshots import fetch_snapshot

    store, located = _open(directory)
    store.job_name()
    wanted = located if number is None else number
    manifest = store.newest() if wanted is None else store.load(wanted)
    if manifest is None:
        raise StoreError("there is no complete snapshot in the folder", store.paths.root)
    fetch_snapshot(store.paths, manifest.number)
    # File sizes are always compared, since that is fast. Checksums are compared only on request.
    problem = _damage(store, manifest, checksums=verify)
    details = _details(manifest)
    details["problem"] = problem
    if as_json:
        click.echo(json.dumps(details, indent=2, default=repr))
    else:
        _print_details(details)
    if problem is not None:
        print_message(f"Error: {problem}")
        raise SystemExit(1)


@snapshots.command("state")
@_FOLDER
@click.argument("number", metavar="[NUMBER]", type=click.IntRange(min=0), required=False)
@click.option("--operator", metavar="UID", help="Show only the state of this operator.")
@click.option("--state", metavar="NAME", help="Show only the state of this name.")
@click.option("--key", metavar="JSON", help="Show only the entries of this key.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="The largest number of entries to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each entry.")
@reporting_errors
def show_state(
    directory: Path,
    number: int | None,
    operator: str | None,
    state: str | None,
    key: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the state in a snapshot in the checkpoint folder DIR.

    There is a line for each value, each entry of a map and each element of a list. A key is given
    as JSON: a number, a text in quotes, or a list for a tuple. Without NUMBER, the newest snapshot
    is shown; DIR may also be the folder of a snapshot itself.

    \b
    Example:
      penstock snapshots state snapshots --operator count --key '"ada"'
    """
    from penstock.cli.state_entries import print_entries, select_entries

    found = select_entries(directory, number, operator, state, key)
    print_entries(found, limit, as_json=as_json)


def _open(directory: Path) -> tuple[Store, int | None]:
    from penstock.snapshot.storage.job_paths import JobPaths
    from penstock.snapshot.storage.store import Store

    if not directory.exists():
        raise StoreError("there is no such folder", directory)
    paths, number = JobPaths.locate(directory)
    return Store(paths.root), number


def _damage(store: Store, manifest: Manifest, checksums: bool = True) -> str | None:
    try:
        store.verify(manifest, checksums=checksums)
    except StoreError as error:
        return str(error)
    return None


def _row(info: SnapshotInfo, problem: str | None) -> dict[str, Any]:
    return {
        "number": info.number,
        "kind": None if info.kind is None else info.kind.value,
        "created_ms": info.created_ms,
        "bytes": info.size,
        "lineage": info.lineage,
        "complete": info.published and problem is None,
        "problem": problem,
    }


def _when(created_ms: int | None) -> str:
    if created_ms is None:
        return ""
    return datetime.fromtimestamp(created_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def print_table(table: RenderableType) -> None:
    """Print a table, which is shortened only if standard output is a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    # A program that reads the output needs all columns, so the width is not limited to 80.
    Console(highlight=False, width=None if console.is_terminal else 1000).print(table)


def _print_list(name: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    click.echo(f"job {name}")
    if not rows:
        click.echo("no snapshots")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("number", "kind", "created", "size", "lineage", "problem"):
        table.add_column(heading, justify="right" if heading in ("number", "size") else "left")
    for row in rows:
        cells = (
            str(row["number"]),
            row["kind"] or "",
            _when(row["created_ms"]),
            "" if row["bytes"] is None else size_text(row["bytes"]),
            row["lineage"] or "",
            row["problem"] or "",
        )
        table.add_row(*map(Text, cells))
    print_table(table)


def _details(manifest: Manifest) -> dict[str, Any]:
    from penstock.cli.state_entries import entry_counts, operator_states, state_kinds

    operators = []
    for entry in manifest.operators:
        handles = [handle for handle in manifest.handles if handle.uid == entry.uid]
        keyed = [handle.keyed for handle in handles if handle.keyed is not None]
        logs = [log for handle in handles for log in handle.logs]
        inline = [part.inline or b"" for part in keyed] + [log.inline or b"" for log in logs]
        inline += [h.operator_state.inline or b"" for h in handles if h.operator_state is not None]
        files = [file for handle in handles for file in handle.files]
        operators.append(
            {
                "uid": entry.uid,
                "name": entry.name,
                "kind": entry.kind,
                "parallelism": entry.parallelism,
                "states": sorted({state for handle in keyed for state in handle.states}),
                "kinds": state_kinds(keyed),
                "entries": entry_counts(manifest, entry.uid),
                "operator_states": operator_states(manifest, entry.uid),
                "log_records": sum(log.records for log in logs),
                "log_bytes": sum(log.size for log in logs),
                "inline_bytes": sum(map(len, inline)),
                "files": len(files),
                "file_bytes": sum(file.size for file in files),
            }
        )
    parent = manifest.parent
    return {
        "job": manifest.job,
        "number": manifest.number,
        "kind": manifest.kind.value,
        "created_ms": manifest.created_ms,
        "lineage": manifest.lineage,
        "parent": None if parent is None else {"lineage": parent[0], "number": parent[1]},
        "attempt": manifest.attempt,
        "finished": manifest.finished,
        "version": manifest.version,
        "format": manifest.format,
        "bytes_new": manifest.sizes.new,
        "bytes_linked": manifest.sizes.linked,
        "bytes_total": manifest.sizes.total,
        "max_parallelism": max((e.max_parallelism for e in manifest.operators), default=None),
        "pending_commits": len(manifest.committables),
        "types": [str(schema) for schema in manifest.types],
        "operators": operators,
    }


def _state_text(operator: dict[str, Any], state: str) -> str:
    kind, entries = operator["kinds"][state], operator["entries"].get(state)
    count = "" if entries is None else f", {_entries_text(entries)}"
    return f"{state} ({kind}{count})"


def _operator_texts(operator: dict[str, Any]) -> list[str]:
    """Return a text for each operator state of an operator."""
    return [
        f"{state['name']} ({state['kind']}, {_entries_text(state['elements'])})"
        for state in operator["operator_states"]
    ]


def _entries_text(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _print_details(details: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    parent = details["parent"]
    size = size_text(details["bytes_total"])
    lines = [
        ("snapshot", f"{details['number']} of job {details['job']}"),
        ("kind", details["kind"] + (", after all input was read" if details["finished"] else "")),
        ("created", f"{_when(details['created_ms'])}, in attempt {details['attempt']}"),
        ("lineage", details["lineage"]),
        ("parent", "none" if parent is None else f"{parent['number']} of {parent['lineage']}"),
        ("written by", f"Penstock {details['version']}, format {details['format']}"),
        ("size", f"{size}, {size_text(details['bytes_new'])} of it new"),
        ("pending commits", str(details["pending_commits"])),
        ("record classes", ", ".join(details["types"]) or "none"),
    ]
    for what, value in lines:
        click.echo(f"{what + ':':17}{value}")
    table = Table(box=None, pad_edge=False)
    headings = ("uid", "operator", "kind", "parallelism", "states", "in flight", "inline", "files")
    for heading in headings:
        table.add_column(heading)
    for row in details["operators"]:
        in_flight = f"{row['log_records']:,} records" if row["log_records"] else ""
        files = f"{row['files']}, {size_text(row['file_bytes'])}" if row["files"] else ""
        cells = (
            row["uid"],
            row["name"],
            row["kind"],
            str(row["parallelism"]),
            ", ".join([*map(partial(_state_text, row), row["states"]), *_operator_texts(row)]),
            in_flight,
            size_text(row["inline_bytes"]) if row["inline_bytes"] else "",
            files,
        )
        table.add_row(*map(Text, cells))
    click.echo()
    print_table(table)

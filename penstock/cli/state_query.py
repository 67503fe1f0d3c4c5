"""Show entries of the state of a job of the service: `penstock query`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.job_commands import job_command, job_details, print_json
from penstock.cli.options import print_message
from penstock.cli.service_address import ServiceAddress
from penstock.cli.snapshot_data import entry_options, print_entry_rows
from penstock.cli.text_format import duration_text
from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    from penstock.saved.state_requests import StateRequest


@click.command(short_help="Show entries of the state of a job.")
@job_command
@click.argument("operator", metavar="OPERATOR")
@click.argument("state", metavar="STATE")
@entry_options
@click.option("--live", is_flag=True, help="Ask the running tasks instead of the newest snapshot.")
def query(
    job_id: str,
    operator: str,
    state: str,
    service: ServiceAddress,
    as_json: bool,
    key: str | None,
    prefix: str | None,
    top: int | None,
    by: str,
    limit: int,
    live: bool,
) -> None:
    """Show entries of the state STATE of the operator with the uid OPERATOR of the job ID.

    The newest complete snapshot is read, which is consistent. With --live, the running tasks
    answer, each between two batches. A key is given as JSON: a number, a text in quotes, or a list
    for a tuple. The exit code is 1 if there is no entry of the key.

    \b
    Examples:
      penstock query 3 count total --key '"ada"' --live
      penstock query 3 windows window-contents --top 10 --by value.amount
    """
    from penstock.saved.state_requests import StateRequest

    request = StateRequest(operator, state, key, prefix, top, by, limit)
    if service.url is not None:
        answer = _read_remote(job_id, service, request, live)
    else:
        answer = (_read_live if live else _read_snapshot)(job_id, service, request)
    if as_json:
        print_json(answer)
    else:
        print_entry_rows(answer["entries"], False)
        if answer["more"]:
            click.echo(f"... more than {limit} entries: use --limit, --key, --prefix or --top")
        if live:
            print_message("live: each task has answered at another time")
        else:
            age = duration_text(answer["age_seconds"])
            print_message(f"snapshot {answer['snapshot']}, taken {age} ago")
    if key is not None and not answer["entries"]:
        raise SystemExit(1)


def _read_snapshot(id: str, service: ServiceAddress, request: StateRequest) -> dict[str, Any]:
    from penstock.saved.snapshot import open_snapshot
    from penstock.saved.state_requests import entry_row, read_from_snapshot

    folder = job_details(id, service)["job"]["checkpoint_dir"]
    if not folder:
        raise GraphError(f"job {id} has no checkpoint folder, and so no snapshot: ask with --live")
    with open_snapshot(folder) as snapshot:
        entries, more = read_from_snapshot(snapshot, request)
        age = max(0.0, time.time() - snapshot.manifest.created_ms / 1000)
    return {
        "snapshot": snapshot.number,
        "age_seconds": round(age, 3),
        "live": False,
        "more": more,
        "entries": list(map(entry_row, entries)),
    }


def _read_live(id: str, service: ServiceAddress, request: StateRequest) -> dict[str, Any]:
    from penstock.runtime.control.requests import QueryState
    from penstock.saved.state_requests import entry_row, read_from_answer

    with service.connect() as connection:
        answer = connection.ask(QueryState(id, **request.fields()))
    entries, more = read_from_answer(answer, request)
    rows = list(map(entry_row, entries))
    return {"snapshot": None, "age_seconds": None, "live": True, "more": more, "entries": rows}


def _read_remote(
    id: str, service: ServiceAddress, request: StateRequest, live: bool
) -> dict[str, Any]:
    from penstock.cli.http_connection import HttpConnection

    query = {"live": str(live).lower(), "by": request.by, "limit": str(request.limit)}
    for name in ("key", "prefix", "top"):
        value = getattr(request, name)
        if value is not None:
            query[name] = str(value)
    with service.connect() as connection:
        assert isinstance(connection, HttpConnection)
        return connection.query_state(id, request.operator, request.state, query)

"""Show all running jobs at a glance, again and again: `penstock top`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options import duration, reporting_errors, service_options
from penstock.cli.service_address import ServiceAddress
from penstock.cli.text_format import duration_text, size_text
from penstock.dataflow.errors import PenstockError
from penstock.dataflow.time.watermark import MAX_WATERMARK

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class JobRow:
    """The figures of one job. A value that is not known is None.

    Arguments:
        id, name, state, restarts: as in a `JobRecord`.
        parallelism: the parallelism of the job.
        records_per_second: the records that its sources emit per second.
        busy: the share of time that the tasks of the busiest operator work, from 0 to 1.
        busiest: the name of this operator.
        blocked: the largest share of time that the tasks of an operator wait for later ones.
        watermark_lag: how far the lowest watermark is behind the time of day, in seconds.
        snapshot: the newest snapshot: `number`, `age_seconds`, `duration_ms` and `bytes_total`.
        note: the reason for which the job waits, or its last error.
    """

    id: str
    name: str
    state: str
    parallelism: int
    records_per_second: float | None
    busy: float | None
    busiest: str | None
    blocked: float | None
    watermark_lag: float | None
    snapshot: dict[str, Any] | None
    restarts: int
    note: str


def job_row(before: dict[str, Any] | None, now: dict[str, Any], wall_time: float) -> JobRow:
    """Return what is shown of a job.

    Arguments:
        before: the entry of the job in an earlier answer to `ListJobs(activity=True)`; None if
            there was none.
        now: the entry of the job in the newest answer.
        wall_time: the time of day, in seconds since the epoch.
    """
    activity = now["activity"] or {"time": 0.0, "operators": [], "snapshot": None}
    rates = _rates(before, activity)
    watermarks = [
        row["watermark"]
        for row in activity["operators"]
        if row.get("watermark") not in (None, MAX_WATERMARK)
    ]
    snapshot = None
    if activity["snapshot"] is not None:
        snapshot = dict(activity["snapshot"])
        snapshot["age_seconds"] = round(max(0.0, wall_time - snapshot.pop("time")), 3)
    elif now["last_snapshot"] is not None:
        snapshot = {"number": now["last_snapshot"]}
    lag = round(max(0.0, wall_time - min(watermarks) / 1000), 3) if watermarks else None
    note = now["waiting"] or (now["error"] or "").strip().split("\n")[-1]
    return JobRow(
        id=now["id"],
        name=now["name"],
        state=now["state"],
        parallelism=now["parallelism"],
        watermark_lag=lag,
        snapshot=snapshot,
        restarts=now["restarts"],
        note=note,
        **rates,
    )


def _rates(before: dict[str, Any] | None, activity: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a job that follow from the difference of two answers."""
    unknown = dict.fromkeys(("records_per_second", "busy", "busiest", "blocked"))
    earlier = None if before is None else before["activity"]
    seconds = 0.0 if earlier is None else activity["time"] - earlier["time"]
    if earlier is None or seconds <= 0 or not activity["operators"]:
        return unknown
    old = {row["uid"]: row for row in earlier["operators"]}

    def change(row: dict[str, Any], name: str) -> float:
        # After a restart the counters begin at 0 again.
        since = row[name] - old.get(row["uid"], {}).get(name, 0)
        return float(since if since >= 0 else row[name])

    def share(row: dict[str, Any], name: str) -> float:
        return min(1.0, change(row, name) / (seconds * int(row["parallelism"])))

    operators = activity["operators"]
    read = sum(change(row, "records_out") for row in operators if row["source"])
    busiest = max(operators, key=lambda row: share(row, "busy_seconds"))
    return {
        "records_per_second": round(read / seconds, 3),
        "busy": round(share(busiest, "busy_seconds"), 4),
        "busiest": busiest["name"],
        "blocked": round(max(share(row, "blocked_seconds") for row in operators), 4),
    }


def top_table(rows: list[JobRow], note: str = "") -> RenderableType:
    """Return the table of all jobs.

    Arguments:
        rows: the jobs.
        note: a text below the table.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("id", "name", "state"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for heading in ("records/s", "busy", "blocked", "lag"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("busiest operator", "snapshot"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    table.add_column("restarts", justify="right", no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True)
    for row in rows:
        cells = (
            row.id,
            row.name,
            row.state,
            "" if row.records_per_second is None else f"{row.records_per_second:,.0f}",
            "" if row.busy is None else f"{row.busy:.0%}",
            "" if row.blocked is None else f"{row.blocked:.0%}",
            "" if row.watermark_lag is None else duration_text(row.watermark_lag),
            row.busiest or "",
            _snapshot_text(row.snapshot),
            str(row.restarts),
            row.note,
        )
        table.add_row(*map(Text, cells))
    if not rows:
        return Text(note or "no jobs run; penstock list shows those that have ended")
    return Group(table, Text(note)) if note else table


def _snapshot_text(snapshot: dict[str, Any] | None) -> str:
    if snapshot is None:
        return ""
    if "age_seconds" not in snapshot:
        return str(snapshot["number"])
    age, size = duration_text(snapshot["age_seconds"]), size_text(snapshot["bytes_total"])
    return f"{snapshot['number']}: {age} ago, {snapshot['duration_ms']:.0f} ms, {size}"


class JobSampler:
    """Asks the service for its jobs again and again, and compares each answer with the one before.

    Arguments:
        service: where the service is.
        every: whether jobs that have ended are shown, too.
    """

    def __init__(self, service: ServiceAddress, every: bool) -> None:
        self._service, self._every = service, every
        self._before: dict[str, dict[str, Any]] = {}

    def rows(self) -> list[JobRow]:
        """Return what is shown of the jobs now. Raise `PenstockError` if no service answers."""
        from penstock.runtime.control.requests import ListJobs

        with self._service.connect() as connection:
            jobs = connection.ask(ListJobs(activity=True))["jobs"]
        before, self._before = self._before, {job["id"]: job for job in jobs}
        now = time.time()
        return [
            job_row(before.get(job["id"]), job, now)
            for job in jobs
            if self._every or job["state"] in ("running", "queued")
        ]


@click.command(short_help="Show all running jobs at a glance.")
@service_options
@click.option("--once", is_flag=True, help="Show the jobs once, and return.")
@click.option("--all", "every", is_flag=True, help="Show jobs that have ended, too.")
@click.option(
    "--interval",
    callback=duration,
    default="2s",
    show_default=True,
    metavar="T",
    help="Time between two looks. Rates and shares are those of this time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as a line of JSON each time.")
@reporting_errors
def top(service: ServiceAddress, once: bool, every: bool, interval: float, as_json: bool) -> None:
    """Show what all running jobs do, again and again until Ctrl-C.

    For each job: the records that its sources read per second; how busy its busiest operator is;
    how long operators wait for later ones (backpressure); how far the watermark is behind the time
    of day; the newest snapshot; and the number of restarts. If standard output is no terminal, the
    command shows them once, or with --json again and again.

    \b
    Examples:
      penstock top
      penstock top --once --json | jq '.[] | select(.busy > 0.9) | .name'
    """
    sampler = JobSampler(service, every)
    sampler.rows()  # an error of the first look ends the command
    if once or not (as_json or sys.stdout.isatty()):
        time.sleep(interval)
        _print(sampler.rows(), as_json)
    elif as_json:
        while True:
            time.sleep(interval)
            _print(sampler.rows(), as_json)
    else:
        _show(sampler, interval)


def _print(rows: list[JobRow], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows]))
        return
    from penstock.cli.snapshots import print_table

    print_table(top_table(rows))


def _show(sampler: JobSampler, interval: float) -> None:
    """Redraw the table until Ctrl-C. A service that is gone may come back."""
    from rich.console import Console
    from rich.live import Live

    rows: list[JobRow] = []
    with Live(top_table(sampler.rows()), console=Console(highlight=False)) as live:
        while True:
            time.sleep(interval)
            note = ""
            try:
                rows = sampler.rows()
            except PenstockError as error:
                note = str(error)
            live.update(top_table(rows, note), refresh=True)

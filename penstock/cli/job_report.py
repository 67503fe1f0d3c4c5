"""Write one HTML page with all that is known about a job: `penstock report`.

The page needs no other file and no network. Every text is escaped, and what looks like a secret is
removed, because the page is made to be sent to somebody.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import click

from penstock.cli.graph_drawing import graph_svg
from penstock.cli.job_commands import job_command, job_details, print_json
from penstock.cli.options import print_message
from penstock.cli.redaction import redacted_value
from penstock.cli.service_address import ServiceAddress
from penstock.cli.service_connection import NoServiceError
from penstock.cli.text_format import duration_text, size_text
from penstock.dataflow.errors import StoreError
from penstock.dataflow.time.watermark import watermark_text

#: The number of lines of the log that a report has.
LOG_LINES = 300
#: The packages whose versions a report has.
_PACKAGES = ("penstock", "trio", "msgpack", "cloudpickle", "rocksdict", "click", "rich", "pyarrow")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
h2 { border-bottom: 1px solid #8886; margin-top: 2.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
th { font-weight: 600 }
pre { overflow: auto; max-height: 34rem; padding: .7rem; background: #8881; white-space: pre-wrap }
svg { max-width: 100%; height: auto } svg text { font: 13px system-ui, sans-serif }
.scroll { overflow-x: auto }
"""


@click.command(short_help="Write one HTML page with all that is known about a job.")
@job_command
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="The file to write; - for standard output.  [default: penstock-report-ID.html]",
)
def report(job_id: str, service: ServiceAddress, as_json: bool, output: str | None) -> None:
    """Write one HTML page about the job ID, to attach it to a question.

    The page has the graph, the figures, the last snapshots and failures with tracebacks, the
    settings, the end of the log, and versions. It needs no other file. Values that look like
    passwords or tokens are removed. Records in tracebacks and lines of the log stay, so read the
    page before you send it. With --json, the same data is printed and no file is written.

    \b
    Examples:
      penstock report 3
      penstock report 3 -o - > report.html
    """
    data = redacted_value(_gather(job_id, service))
    if as_json:
        print_json(data)
        return
    page = report_page(data)
    if output == "-":
        click.echo(page)
        return
    path = Path(output or f"penstock-report-{job_id}.html")
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the report cannot be written: {error.strerror}", path) from error
    click.echo(path)
    print_message("the report has lines of the log and tracebacks: read it before you send it")


def _gather(id: str, service: ServiceAddress) -> dict[str, Any]:
    """Return all that is known about a job."""
    details = job_details(id, service)
    events, log = _history(id, service)
    started: dict[str, Any] = {}
    for event in events:
        if event["event"] in ("started", "slots"):
            started |= {key: event[key] for key in ("graph", "config") if key in event}
    kinds = ("status", "started", "snapshot", "began", "committed")
    return {
        "written": time.time(),
        **details,
        "graph": started.get("graph", {"vertices": [], "edges": []}),
        "config": started.get("config", {}),
        "events": [event for event in events if event["event"] not in kinds][-200:],
        "log": log,
        "versions": _versions(),
    }


def _history(id: str, service: ServiceAddress) -> tuple[list[dict[str, Any]], str]:
    """Return the kept events of a job, and the end of its log."""
    from penstock.runtime.control.requests import Events, Logs

    try:
        with service.connect() as connection:
            events = list(connection.answers(Events(id)))
        with service.connect() as connection:
            parts = [answer["part"] for answer in connection.answers(Logs(id, -LOG_LINES))]
        data = b"".join(parts)
    except NoServiceError:
        from penstock.runtime.dispatcher.job_details import read_part, span_of
        from penstock.runtime.dispatcher.job_registry import JobRegistry
        from penstock.runtime.dispatcher.state_folder import StateFolder

        registry = JobRegistry(StateFolder(service.directory).jobs)
        events = list(registry.journal(id).read())
        path = registry.log(id)
        begin, end = span_of(path, -LOG_LINES)
        data = b""
        while part := read_part(path, begin + len(data), end):
            data += part
    return events, data.decode(errors="replace")


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"Python": sys.version.split()[0], "system": platform.platform()}
    found["processors"] = str(os.cpu_count())
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def report_page(data: dict[str, Any]) -> str:
    """Return the page as HTML. All texts of the data are escaped.

    Arguments:
        data: what `_gather` returns, without secrets.
    """
    job, figures = data["job"], data["figures"]
    title = f"Job {job['id']}: {job['name']}"
    facts = {
        "state": job["state"] + (f": {job['waiting']}" if job["waiting"] else ""),
        "submitted": _when(job["submitted"]),
        "started": _when(job["started"]),
        "ended": _when(job["ended"]),
        "parallelism": f"{job['parallelism']} (at most {job['max_parallelism']})",
        "slots": job["slots"],
        "restarts": job["restarts"],
        "newest snapshot": job["last_snapshot"],
        "checkpoint folder": job["checkpoint_dir"],
        "error": job["error"],
        "report written": _when(data["written"]),
    }
    operators = figures.get("operators", [])
    failures = [
        f"<h3>{escape(one['event'])} {escape(_when(one['time']))}</h3>"
        f"<p>{_text(one.get('operator') or '')}</p>"
        f"<pre>{_text(one.get('user_traceback') or one.get('message') or '')}</pre>"
        for one in reversed(data["failures"][-20:])
    ]
    sections = (
        ("Job", _facts(facts)),
        ("Graph", f'<div class="scroll">{graph_svg(data["graph"])}</div>'),
        ("Operators", _table(_OPERATOR, (_operator_cells(row) for row in operators))),
        ("Loops", _values(figures.get("loops", []))),
        (
            "Metrics",
            _table(("operator", "name", "value"), map(_metric, figures.get("metrics", []))),
        ),
        ("Snapshots", _table(_SNAPSHOT, map(_snapshot, reversed(data["snapshots"])))),
        ("Failures", "".join(failures)),
        ("Events", _table(("time", "event", "text"), map(_event, reversed(data["events"])))),
        ("Settings", _facts(data["config"])),
        ("Versions", _facts(data["versions"])),
        ("End of the log", f"<pre>{_text(data['log'])}</pre>" if data["log"] else ""),
    )
    body = "".join(
        f"<h2>{escape(heading)}</h2>\n{content or '<p>none</p>'}\n" for heading, content in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{_text(title)}</h1>\n{body}</body></html>\n"
    )


_OPERATOR = ("operator", "uid", "parallelism", "in", "out", "busy s", "blocked s", "watermark")
_SNAPSHOT = ("number", "kind", "taken", "ms", "aligned ms", "new", "size", "in-flight records")


def _operator_cells(row: dict[str, Any]) -> Sequence[object]:
    watermark = row.get("watermark")
    return (
        row["name"],
        row["uid"],
        row["parallelism"],
        f"{row['records_in']:,}",
        f"{row['records_out']:,}",
        f"{row['busy_seconds']:,.1f}",
        f"{row['blocked_seconds']:,.1f}",
        "" if watermark is None else watermark_text(watermark),
    )


def _snapshot(one: dict[str, Any]) -> Sequence[object]:
    return (
        one["number"],
        one["kind"],
        _when(one["time"]),
        f"{one['duration_ms']:.0f}",
        f"{one['aligned_ms']:.0f}",
        size_text(one["bytes_new"]),
        size_text(one["bytes_total"]),
        f"{one['log_records']:,}",
    )


def _metric(row: dict[str, Any]) -> Sequence[object]:
    return row["operator"], row["name"], row["value"]


def _event(event: dict[str, Any]) -> Sequence[object]:
    left_out = ("event", "seq", "time", "user_traceback", "report", "operators", "metrics")
    rest = {key: value for key, value in event.items() if key not in left_out}
    text = event.get("text") or event.get("message") or event.get("reason")
    return _when(event.get("time")), event["event"], text or rest


def _when(seconds: float | None) -> str:
    if not seconds:
        return ""
    ago = duration_text(max(0.0, time.time() - seconds))
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC ({ago} ago)"


def _text(value: object) -> str:
    return escape(str(value))


def _facts(facts: dict[str, Any]) -> str:
    shown = {name: value for name, value in facts.items() if value not in (None, "")}
    rows = (f"<tr><th>{_text(name)}</th><td>{_text(shown[name])}</td></tr>" for name in shown)
    return f"<table>{''.join(rows)}</table>" if shown else ""


def _values(rows: list[dict[str, Any]]) -> str:
    return _table(tuple(rows[0]), (tuple(row.values()) for row in rows)) if rows else ""


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>\n" for cells in rows
    )
    if not body:
        return ""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'

"""The lines and the live view of a running job, made of the events that it reports."""

import io
import re

from rich.console import Console

from penstock.cli.event_lines import EventLines
from penstock.cli.live_view import LiveView


def snapshot_event(number):
    return {"event": "snapshot", "number": number, "duration_ms": 4.0, "bytes_total": 1500}


def status(records, busy, blocked, metrics=()):
    figures = {"records_in": records, "records_out": 0, "busy_seconds": busy}
    row = {"uid": "a", "name": "Map", "parallelism": 2, "blocked_seconds": blocked, **figures}
    return {
        "event": "status",
        "operators": [row],
        "busy_workers": [],
        "loops": [],
        "metrics": metrics,
    }


def test_lines_about_snapshots_come_at_most_once_a_second():
    said, now = [], [0.0]
    lines = EventLines(said.append, clock=lambda: now[0])
    for number in range(11):
        lines(snapshot_event(number))
        now[0] += 0.125
    assert said == [
        "snapshot 0: 4 ms, 1.5 KB",
        "snapshot 8: 4 ms, 1.5 KB (7 more since the last line)",
    ]


def test_a_busy_worker_is_reported_once():
    said = []
    lines = EventLines(said.append)
    lines({"event": "workers", "pids": [70, 71]})
    for busy in ([], [1], [1], []):
        lines({"event": "status", "operators": [], "busy_workers": busy, "loops": []})
    assert said[1:] == ["busy: worker 1 (pid 71) has been inside one call of a function for long"]


def metric(name, value, kind="counter", operator="Map", subtasks=()):
    return {"operator": operator, "name": name, "value": value, "kind": kind, "subtasks": subtasks}


METRICS = [
    metric("seen", 1234),
    metric("mails", {"count": 600, "rate": 12.5}, "meter"),
    metric("size", {"count": 2, "sum": 5, "min": 2, "max": 3, "mean": 2.5}, "distribution"),
    metric("size of none", {"count": 0, "min": None}, "distribution"),
    metric("open", {"min": 1, "max": 4, "sum": 5}, "gauge"),
    metric("mode", None, "gauge", subtasks=["slow"]),
    metric("numLateRecordsDropped", 1632, operator="Window"),
    metric("numLateRecordsToSideOutput", 0, operator="Join"),
]


def test_the_end_of_a_job_shows_its_metrics_and_says_what_was_lost(monkeypatch):
    said = []
    lines = EventLines(said.append, clock=lambda: 0.0)
    totals = {"snapshots": 0, "restarts": 0}
    end = {"event": "finished", "operators": [], "stopped": False, "totals": totals}
    lines({**end, "metrics": METRICS})
    assert said == [
        "  Map: seen 1,234",
        "  Map: mails 600 (12.5/s)",
        "  Map: size 2 values, 2 to 3, mean 2.5",
        "  Map: size of none 0 values",
        "  Map: open 1 to 4",
        "  Map: mode slow",
        "1,632 late records were dropped by 'Window': the watermark had passed their time. To keep "
        "them, let the watermark strategy wait longer, or read them from a side output",
        "finished after 0.0 s: snapshots 0 · restarts 0",
    ]
    said.clear()
    lines({**end, "metrics": [metric(str(number), 1) for number in range(50)]})
    assert said[19:21] == ["  Map: 19 1", "  and 30 more metrics, which are in the report"]
    said.clear()
    lines({**end, "metrics": [metric("numLateRecordsDropped", 1)]})
    assert said[0].startswith("1 late record was dropped by 'Map'")


def test_a_failure_that_repeats_is_reported_in_full_once():
    said = []
    lines = EventLines(said.append)
    for cause in ("worker 1 died", "worker 1 died", "worker 2 died"):
        lines({"event": "restarting", "message": cause, "delay_seconds": 0.1})
    causes = [line.removeprefix("restarting in 0.1 s: ") for line in said]
    assert causes == ["worker 1 died", "as before: worker 1 died", "worker 2 died"]


def test_the_live_view_shows_rates_and_shares():
    now = [0.0]
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with LiveView(console=console, clock=lambda: now[0]) as view:
        view({"event": "started", "pid": 7})
        view(status(1000, 1.0, 0.0))
        now[0] = 2.0
        view(status(5000, 2.0, 2.0, METRICS))
        view(snapshot_event(3))
        told = {"message": "Traceback\nworker 1 died", "delay_seconds": 0.1}
        view({"event": "restarting", **told})
        now[0] = 5.0
        plain = Console(file=io.StringIO(), width=100)
        plain.print(view.render())
    text = plain.file.getvalue()
    assert re.search(r"Map +5,000 +0 +2,000 +25% +25% +50%", text)
    assert "Map: seen 1,234" in text
    assert "1,632 late records were dropped by 'Window'" in text
    assert "snapshot 3: 3 s ago, took 4 ms, 1.5 KB" in text
    assert "restarts: 1, the last: worker 1 died" in text
    assert "started: JobManager pid 7" in console.file.getvalue()

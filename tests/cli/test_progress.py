"""The lines and the live view of a running job, made of the events that it reports."""

import io
import re

from rich.console import Console

from penstock.cli.event_lines import EventLines
from penstock.cli.live_view import LiveView


def snapshot_event(number):
    return {"event": "snapshot", "number": number, "duration_ms": 4.0, "bytes_total": 1500}


def status(records, busy, blocked):
    figures = {"records_in": records, "records_out": 0, "busy_seconds": busy}
    row = {"uid": "a", "name": "Map", "parallelism": 2, "blocked_seconds": blocked, **figures}
    return {"event": "status", "operators": [row], "busy_workers": [], "loops": []}


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
        view(status(5000, 2.0, 2.0))
        view(snapshot_event(3))
        told = {"message": "Traceback\nworker 1 died", "delay_seconds": 0.1}
        view({"event": "restarting", **told})
        now[0] = 5.0
        plain = Console(file=io.StringIO(), width=100)
        plain.print(view.render())
    text = plain.file.getvalue()
    assert re.search(r"Map +5,000 +0 +2,000 +25% +25% +50%", text)
    assert "snapshot 3: 3 s ago, took 4 ms, 1.5 KB" in text
    assert "restarts: 1, the last: worker 1 died" in text
    assert "started: JobManager pid 7" in console.file.getvalue()

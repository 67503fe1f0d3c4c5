"""The page in Chromium, over a job service with a real job. It makes the screenshots of the docs.

`PENSTOCK_SCREENSHOTS=docs/guides/pictures` before the command of the test writes them there.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.harness import wait_until
from tests.rest.browser import Browser, browser
from tests.rest.served import Client
from tests.runtime.dispatcher.service import Service

JOB = """
import sys
import time
from pathlib import Path

from penstock import (
    Duration, StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
)

broken = Path(sys.argv[1])


def priced(click):
    if broken.exists() and click[1] % 100 == 7:
        broken.unlink()
        raise ValueError(f"no price for article {click[1]}")
    for _ in range(1000):
        hash(click)
    return click


def click(i):
    # A third of all clicks are of one user, so that one subtask has more work than the others.
    return ("user 0" if i % 3 == 0 else f"user {i % 500}", i % 1000, 1)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
# The page shows the last 60 snapshots, and must show the savepoint until the end.
env.enable_checkpointing(3000)
env.config.max_parallelism = 16
times = WatermarkStrategy.for_monotonous_timestamps()
times = times.with_timestamp_assigner(lambda click, _: int(time.time() * 1000))
clicks = env.from_generator(click, None, 4_000).name("Clicks").uid("clicks")
timed = clicks.assign_timestamps_and_watermarks(times).name("Times")
open_orders = timed.map(priced).name("Prices").uid("prices").iterate()
tried = open_orders.map(lambda click: (click[0], click[1], click[2] + 1)).name("Try to deliver")
later = tried.filter(lambda click: click[1] % 10 == 1 and click[2] < 5).name("Later")
open_orders.close_with(later)
users = tried.key_by(lambda click: click[0])
users.reduce(lambda a, b: (a[0], b[1], a[2] + b[2])).name("Sums of users").uid("sums").print()
articles = timed.key_by(lambda click: click[1] % 50)
windows = articles.window(TumblingEventTimeWindows.of(Duration.of_seconds(5)))
windows.reduce(lambda a, b: max(a, b)).name("Highest of 5 s").uid("highest").print()
env.execute("orders")
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    one = Service(tmp_path)
    (tmp_path / "orders.py").write_text(JOB)
    yield one
    one.end()


def start(service: Service, port: int = 0) -> Client:
    """Start the service, and return a client of its API."""
    process = service.start("--ui", str(port))
    said = service.said(process)
    found = re.search(r"HTTP API at http://127\.0\.0\.1:(\d+)/v1", said)
    assert found is not None
    token = (service.home / "http" / "token").read_text()
    # The standard error is no terminal, so the address has no token.
    assert f"page at http://127.0.0.1:{found[1]}/\n" in said
    assert token not in said
    return Client(int(found[1]), token)


def submit(api: Client, service: Service) -> str:
    root = service.root
    body = {
        "path": str(root / "orders.py"),
        "options": ["--checkpoint-dir", str(root / "ck")],
        "arguments": [str(root / "broken")],
    }
    answer = api.ask("/jobs", method="POST", body=body)
    assert answer.status == 202, answer.body
    id = answer.json["jobid"]
    wait_until(
        lambda: api.ask(f"/jobs/{id}/checkpoints").json["counts"]["completed"] >= 3, "3 snapshots"
    )
    return str(id)


def go(tab: Browser, path: str) -> None:
    tab.script("location.hash = arguments[0]", path)


def disabled(tab: Browser, order: str) -> bool:
    return bool(tab.script(f"return document.querySelector('[data-order={order}]').disabled"))


def numbers(tab: Browser, css: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", tab.text(css).replace(",", ""))]


def test_a_job_of_a_service_is_watched_and_controlled_on_the_page(service: Service):
    with browser() as tab:
        _check(tab, service)


def _check(tab: Browser, service: Service) -> None:
    api = start(service)
    id = submit(api, service)

    def of_job(path: str = "") -> Any:
        return api.ask(f"/jobs/{id}{path}").json

    # The page shows what the API says.
    tab.open(f"http://127.0.0.1:{api.port}/#token={(service.home / 'http' / 'token').read_text()}")
    tab.wait("#connection", "live")
    tab.wait("#jobs tbody", "orders")
    tab.click("#jobs tbody a")
    tab.wait("#graph .node")
    job = of_job()
    assert tab.texts("#graph .node title") == [one["name"] for one in job["vertices"]]
    back = [one for node in job["plan"]["nodes"] for one in node["inputs"] if one["back_edge"]]
    assert len(back) == len(tab.texts("#graph .back-edge")) == 1

    # It changes with the job.
    shown = "dl.facts div:nth-child(4) dd"
    tab.wait(shown, "")
    before = numbers(tab, shown)[0]
    wait_until(lambda: numbers(tab, shown)[0] > before + 1, "the page counts new snapshots")
    wait_until(lambda: any(one not in ("0", "") for one in tab.texts(".node .rate")), "rates")

    # A failure is shown with the user's traceback and the record.
    (service.root / "broken").touch()
    wait_until(lambda: of_job("/exceptions")["exceptionHistory"]["entries"], "the job has failed")
    go(tab, f"#/jobs/{id}/exceptions")
    tab.wait("#exceptions article pre", "no price for article")
    failure = of_job("/exceptions")["exceptionHistory"]["entries"][0]
    assert tab.text("#exceptions .record") == failure["record"]
    assert "priced" in tab.text("#exceptions article pre")
    tab.picture("page-exceptions", 620)
    wait_until(lambda: of_job("/status")["status"] == "RUNNING", "the job runs again")

    # Buttons: a savepoint, and another parallelism.
    tab.order("savepoint")
    location = tab.wait("#order-result", "savepoint: /").removeprefix("savepoint: ")
    assert Path(location, "manifest").is_file()
    tab.click("[data-order=rescale]")
    tab.wait("dialog[open] input")
    value = tab.script("return document.querySelector('dialog input').value")
    assert value == "2"  # the parallelism of now
    tab.type("dialog input[name=parallelism]", "4")
    tab.click("dialog [data-confirm]")
    tab.wait("#order-result", "the job continues with parallelism 4")
    wait_until(
        lambda: (
            of_job()["vertices"][-1]["parallelism"] == 4
            and of_job("/status")["status"] == "RUNNING"
        ),
        "the job runs with another parallelism",
    )
    go(tab, f"#/jobs/{id}/graph")
    tab.wait("#graph .node .parallelism", "×4")
    wait_until(lambda: len(of_job("/checkpoints")["history"]) > 20, "20 snapshots", every=0.2)
    wait_until(lambda: tab.text(".node .rate") != "0", "rates of the new tasks")
    go(tab, f"#/jobs/{id}/graph/1")
    tab.wait("#subtasks tbody tr")
    tab.picture("page-graph", 900)

    # State: its sizes, the largest entries, and one key.
    go(tab, f"#/jobs/{id}/state")
    tab.wait("#states", "Sums of users")
    option = tab.script(
        "return [...document.querySelectorAll('#states option')]"
        ".findIndex((one) => one.textContent.startsWith('Sums of users'))"
    )
    tab.click(f"#states option[value='{option}']")
    tab.type("input[name=key]", '"user 0"')
    tab.click("#find")
    tab.wait("#entries tbody", '"user 0"')
    tab.type("input[name=key]", "no JSON")
    tab.click("#find")
    tab.wait("#query-problem", "JSON")
    tab.click("#largest")
    tab.wait("#entries tbody", "user")
    assert len(tab.texts("#entries tbody tr")) == 20
    refused = [text for text in tab.complaints() if "400" not in text]  # Chromium reports these
    assert refused == []

    # A flame graph shows the functions of the job.
    go(tab, f"#/jobs/{id}/flamegraph")
    tab.click("#sample")
    tab.wait("#flames", "unrolled_run")  # the event loop, whatever the tasks do
    workers = of_job("/flamegraph")["workers"]
    frames = {frame.split(" (")[0] for one in workers for frame in one["frames"]}
    assert {"MainThread", "unrolled_run"} <= frames
    if "priced" in frames:
        tab.wait("#flames", "priced")

    # Records that travel on the edges, while somebody looks.
    go(tab, f"#/jobs/{id}/records")
    names = [f"option[value='{one['edge']}']" for one in of_job()["plan"]["nodes"][-1]["inputs"]]
    tab.click(f"#edges {names[0]}")
    tab.click("#look")
    tab.wait("#records tbody code", "user")
    tab.wait("#seen", "records in the last second")
    assert tab.text("#look") == "Stop"
    tab.click("#look")
    wait_until(lambda: tab.text("#look") == "Look", "the page looks no more")

    # Snapshots: the page lists those of the API, and the history is longer than the service lives.
    go(tab, f"#/jobs/{id}/snapshots")
    tab.wait("#strip [data-snapshot]")
    kept = of_job("/checkpoints")["history"][-1]["id"]
    savepoint = next(one["id"] for one in of_job("/checkpoints")["history"] if one["is_savepoint"])
    tab.wait(f"#strip [data-snapshot='{savepoint}'] .mark")
    newest = of_job("/checkpoints")["latest"]["completed"]["id"]
    go(tab, f"#/jobs/{id}/snapshots/{newest}")
    tab.wait("#snapshot h2", f"Snapshot {newest}")
    tab.wait("#gantt [data-subtask='3']")
    tab.picture("page-snapshots", 900)
    assert tab.complaints() == []

    service.processes[-1].send_signal(signal.SIGKILL)
    service.processes[-1].wait()
    tab.wait("#connection", "The server does not answer. Trying again")
    api = start(service, api.port)
    tab.wait("#connection", "live")
    before = of_job("/checkpoints")["counts"]["completed"]
    wait_until(
        lambda: numbers(tab, "#counts")[:1] > [before], "the page goes on with the new service"
    )
    assert kept in [one["id"] for one in of_job("/checkpoints")["history"]]
    tab.wait(f"#strip [data-snapshot='{savepoint}'] .mark")

    # The history is longer than the JobManager lives, too.
    pid = of_job()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: of_job()["pid"] not in (None, pid), "there is another JobManager")
    wait_until(lambda: of_job("/status")["status"] == "RUNNING", "the job runs again")
    tab.wait(f"#strip [data-snapshot='{savepoint}'] .mark")
    go(tab, f"#/jobs/{id}/exceptions")
    tab.wait("#exceptions article pre", "no price for article")

    # The end: stopped, started again, cancelled.
    tab.order("stop")
    tab.wait("#order-result", "stopped with /")
    wait_until(lambda: of_job("/status")["status"] == "FINISHED", "the job has ended")
    wait_until(lambda: not disabled(tab, "restart"), "the job can be started again")
    tab.order("restart")
    wait_until(lambda: of_job("/status")["status"] == "RUNNING", "the job runs again")
    wait_until(lambda: not disabled(tab, "cancel"), "the job can be cancelled")
    tab.order("cancel")
    wait_until(lambda: of_job("/status")["status"] == "CANCELED", "the job was cancelled")
    tab.wait(".title .state", "canceled")
    assert [text for text in tab.complaints() if "ERR_CONNECTION" not in text] == []

"""The HTTP API of a job service, with real jobs."""

from __future__ import annotations

import http.client
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.harness import PATIENCE, wait_until
from tests.rest.served import Client
from tests.runtime.dispatcher.service import Service

JOB = """
import sys
from penstock import StreamExecutionEnvironment

keys = int(sys.argv[1])
env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
numbers = env.from_generator(lambda i: i, None, 500)
numbers.key_by(lambda i: i % keys).reduce(lambda a, b: a + b).print()
env.execute("numbers")
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    one = Service(tmp_path)
    (tmp_path / "endless.py").write_text(JOB)
    yield one
    one.end()


def client(service: Service, *args: str) -> Client:
    """Start the service, and return a client of its API."""
    process = service.start("--ui", "0", *args)
    found = re.search(r"HTTP API at http://127\.0\.0\.1:(\d+)/v1", service.said(process))
    assert found is not None
    return Client(int(found[1]), (service.home / "http" / "token").read_text())


def state(api: Client, id: str) -> str:
    return str(api.ask(f"/jobs/{id}/status").json["status"])


def snapshots(api: Client, id: str) -> int:
    return int(api.ask(f"/jobs/{id}/checkpoints").json["counts"]["completed"])


def done(api: Client, id: str, request: str) -> dict[str, Any]:
    path = f"/jobs/{id}/savepoints/{request}"
    found = wait_until(lambda: api.ask(path).json.get("operation"), "the request is done")
    assert isinstance(found, dict)
    return found


def submit(api: Client, service: Service) -> str:
    """Submit an endless job over the API, and return its id when it has a snapshot."""
    body = {
        "path": str(service.root / "endless.py"),
        "options": ["--checkpoint-dir", str(service.root / "ck")],
        "arguments": ["3"],
    }
    answer = api.ask("/jobs", method="POST", body=body)
    assert answer.status == 202, answer.body
    id = answer.json["jobid"]
    wait_until(lambda: snapshots(api, id), "a snapshot")
    return str(id)


def test_the_service_ends_without_a_traceback_while_a_browser_is_connected(service: Service):
    api = client(service)
    token = (service.home / "http" / "token").read_text()
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE)
    connection.request("GET", "/v1/jobs", headers={"Authorization": f"Bearer {token}"})
    assert connection.getresponse().read() == b'{"jobs":[]}'  # The connection stays open.
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(PATIENCE) == 0
    assert "Traceback" not in service.said(service.process)
    connection.close()


def test_a_job_is_submitted_watched_rescaled_stopped_and_restarted(service: Service):
    api = client(service)
    id = submit(api, service)
    assert [job["id"] for job in api.ask("/jobs").json["jobs"]] == [id]
    assert state(api, id) == "RUNNING"
    assert len(api.ask(f"/jobs/{id}").json["vertices"]) >= 2
    request = api.ask(f"/jobs/{id}/savepoints", method="POST").json["request-id"]
    assert Path(done(api, id, request)["location"], "manifest").is_file()
    for target, text in ((service.root, "must be new or empty"), ("relative", "absolute path")):
        body = {"target-directory": str(target)}
        refused = api.ask(f"/jobs/{id}/savepoints", method="POST", body=body)
        assert refused.status == 400 and text in refused.json["errors"][0]
    body = {"target-directory": str(service.root / "copy")}
    request = api.ask(f"/jobs/{id}/savepoints", method="POST", body=body).json["request-id"]
    copied = Path(done(api, id, request)["location"])
    assert copied.parent.parent == service.root / "copy" and (copied / "manifest").is_file()
    assert api.ask(f"/jobs/{id}/rescale", method="POST", body={"parallelism": 2}).status == 202
    wait_until(
        lambda: (
            api.ask(f"/jobs/{id}").json["vertices"][-1]["parallelism"] == 2
            and state(api, id) == "RUNNING"
        ),
        "the job runs with another parallelism",
    )
    body = {"targetDirectory": str(service.root / "last")}
    request = api.ask(f"/jobs/{id}/stop", method="POST", body=body).json["request-id"]
    copied = Path(done(api, id, request)["location"])
    assert copied.parent.parent == service.root / "last" and (copied / "manifest").is_file()
    wait_until(lambda: state(api, id) == "FINISHED", "the job has ended")
    assert api.ask(f"/jobs/{id}/stop", method="POST").status == 409
    assert api.ask(f"/jobs/{id}/restart", method="POST").status == 202
    wait_until(lambda: state(api, id) == "RUNNING", "the job runs again")
    assert api.ask(f"/jobs/{id}/log").status == 200
    assert "penstock_taskmanager_job_task" in wait_until(
        lambda: (text := api.ask("//metrics").body.decode()).count("numRecordsIn") and text,
        "figures have come",
    )
    assert api.ask(f"/jobs/{id}", method="PATCH").status == 202
    wait_until(lambda: state(api, id) == "CANCELED", "the job was cancelled")


def test_the_history_of_a_job_survives_the_service(service: Service):
    api = client(service)
    id = submit(api, service)
    before = api.ask(f"/jobs/{id}/checkpoints").json
    service.processes[-1].send_signal(signal.SIGKILL)
    service.processes[-1].wait()
    again = client(service)
    history = wait_until(
        lambda: again.ask(f"/jobs/{id}/checkpoints").json["history"], "the history is read"
    )
    # The newest are kept. The job goes on, so the first ones may be gone by now.
    kept = {entry["id"]: entry["trigger_timestamp"] for entry in history}
    known = {entry["id"]: entry["trigger_timestamp"] for entry in before["history"]}
    assert {id: kept.get(id) for id in known if id >= min(kept)} == {
        id: time for id, time in known.items() if id >= min(kept)
    }
    counts = again.ask(f"/jobs/{id}/checkpoints").json["counts"]
    assert counts["completed"] >= before["counts"]["completed"] > 0
    count = snapshots(again, id)
    wait_until(lambda: snapshots(again, id) > count, "the job goes on")
    assert again.ask(f"/jobs/{id}/exceptions").json["exceptionHistory"]["entries"] == []


def test_a_job_file_that_fails_is_refused_with_its_traceback(service: Service):
    api = client(service)
    path = service.root / "bad.py"
    path.write_text("import nothing_of_this_name\n")
    answer = api.ask("/jobs", method="POST", body={"path": str(path)})
    assert answer.status == 400
    assert "No module named 'nothing_of_this_name'" in answer.json["errors"][0]
    for body in ({}, {"path": 7}, {"path": "x", "options": [1]}):
        assert api.ask("/jobs", method="POST", body=body).status == 400
    assert api.ask("/jobs").json == {"jobs": []}


def test_a_job_that_fails_shows_its_failure(service: Service):
    api = client(service)
    answer = api.ask("/jobs", method="POST", body={"path": str(service.root / "failing.py")})
    id = answer.json["jobid"]
    wait_until(lambda: state(api, id) == "FAILED", "the job has failed")
    failure = api.ask(f"/jobs/{id}/exceptions").json["exceptionHistory"]["entries"][0]
    assert "ZeroDivisionError" in failure["stacktrace"]


SHADOWED = """
import sys
from penstock import FileSink, JsonLines, StreamExecutionEnvironment

def counted(pair):
    if VERSION == "broken":
        raise RuntimeError("broken")
    return [pair[0], -pair[1] if VERSION == "wrong" else pair[1]]

print("this is", VERSION)
env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
numbers = env.from_generator(lambda i: i, None, 500).uid("numbers")
counts = numbers.key_by(lambda i: i % 3).count().uid("count").map(counted).uid("map")
counts.sink_to(FileSink(sys.argv[1], JsonLines())).uid("out")
env.execute("shadowed")
"""


def test_a_shadow_run_is_requested_and_its_report_read(service: Service):
    for version in ("first", "equal", "wrong", "broken"):
        path = service.root / f"{version}.py"
        path.write_text(f"VERSION = {version!r}\n{SHADOWED}")
    api = client(service, "--slots", "3")

    def body(version: str, *options: str, **more: Any) -> dict[str, Any]:
        path = str(service.root / f"{version}.py")
        return {"path": path, "options": list(options), "arguments": ["out"], **more}

    folder = ("--checkpoint-dir", str(service.root / "ck"))
    id = str(api.ask("/jobs", method="POST", body=body("first", *folder)).json["jobid"])
    wait_until(lambda: snapshots(api, id), "a snapshot")

    def run(version: str, *options: str, **more: Any) -> dict[str, Any]:
        answer = api.ask(
            f"/jobs/{id}/shadow-runs", method="POST", body=body(version, *options, **more)
        )
        assert answer.status == 202, answer.body
        path = f"/jobs/{id}/shadow-runs/{answer.json['request-id']}"

        def ended() -> Any:
            found = api.ask(path).json
            return found if found["status"]["id"] == "COMPLETED" else None

        found = wait_until(ended, "the shadow run has ended")
        assert isinstance(found, dict)
        return found

    before = api.ask(f"/jobs/{id}").json["pid"]
    report = run("wrong", promote=True, snapshots=2)["report"]
    (sink,) = report["sinks"]
    assert not report["equal"] and report["snapshots"] >= 2
    assert sink["only_old"] == sink["only_new"] == sink["old"] == sink["new"] > 0
    assert "RuntimeError: broken" in run("broken")["failure"]
    assert "it needs 3 slots, and 1 of 3 slots" in run("equal", "--parallelism", "3")["failure"]
    assert api.ask(f"/jobs/{id}").json["pid"] == before
    # Other requests are refused at once.
    refused = api.ask(f"/jobs/{id}/upgrade", method="POST", body=body("equal", "--shadow"))
    assert refused.status == 400 and b"shadow-runs" in refused.body
    assert api.ask(f"/jobs/{id}/shadow-runs/none").status == 404
    assert api.ask("/jobs/9/shadow-runs", method="POST", body=body("equal")).status == 404
    wrong = body("equal", snapshots=0)
    assert api.ask(f"/jobs/{id}/shadow-runs", method="POST", body=wrong).status == 400
    assert run("equal", promote=True)["report"]["equal"]
    wait_until(lambda: api.ask(f"/jobs/{id}").json["pid"] != before, "the new program runs")

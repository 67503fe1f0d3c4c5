"""The option `--ui`: the HTTP API of a job that `penstock run` runs."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.rest.server import listen
from tests.processes.harness import wait_until

JOB = """
from penstock import StreamExecutionEnvironment
from penstock.connectors import GeneratorSource

def records(index):
    return index

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(100)
source = GeneratorSource(records, None, 1000.0)
env.from_source(source).key_by(lambda number: number % 3).count().filter(lambda _: False).print()
env.execute("counts")
"""


class Api:
    """A client of the API of a running program."""

    def __init__(self, process: subprocess.Popen[str], port: int, token: str) -> None:
        self.process, self.port, self._token = process, port, token

    def ask(self, path: str, method: str = "GET") -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"Authorization": f"Bearer {self._token}"}
            connection.request(method, f"/v1{path}", headers=headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def job(self) -> str:
        """Return the path of the job when it runs."""

        def running() -> str | None:
            jobs = self.ask("/jobs")["jobs"]
            ready = bool(jobs) and jobs[0]["status"] == "RUNNING"
            return f"/jobs/{jobs[0]['id']}" if ready else None

        return str(wait_until(running, "the job runs"))


@contextmanager
def running(folder: Path) -> Iterator[Api]:
    path = folder / "job.py"
    path.write_text(JOB)
    home = folder / "home"
    command = ["run", str(path), "--checkpoint-dir", str(folder / "state"), "--ui", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command, "--progress", "plain"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={"PENSTOCK_HOME": str(home), "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(
            r"HTTP API at http://127\.0\.0\.1:(\d+)/v1, its token is in (.*)\n", line
        )
        assert found, line + process.stderr.read()
        yield Api(process, int(found[1]), Path(found[2]).read_text())
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_running_job_is_watched_takes_a_savepoint_and_stops(tmp_path: Path) -> None:
    with running(tmp_path) as api:
        job = api.job()
        plan = api.ask(f"{job}/plan")["plan"]
        assert plan["name"] == "counts"
        wait_until(lambda: api.ask(f"{job}/checkpoints")["counts"]["completed"], "a snapshot")
        wait_until(lambda: api.ask(f"{job}/vertices/1/metrics"), "figures have come")
        id = api.ask(f"{job}/savepoints", "POST")["request-id"]
        done = wait_until(
            lambda: api.ask(f"{job}/savepoints/{id}").get("operation"), "the savepoint is complete"
        )
        assert Path(done["location"], "manifest").is_file()
        api.ask(f"{job}/stop", "POST")
        assert api.process.wait(120) == 0


def test_a_cancelled_job_ends_with_a_message(tmp_path: Path) -> None:
    with running(tmp_path) as api:
        api.ask(api.job(), "PATCH")
        assert api.process.wait(120) == 1
        assert api.process.stderr is not None
        assert "since the job was cancelled" in api.process.stderr.read()


def _fails(*options: str) -> str:
    done = CliRunner().invoke(main, ["run", *options])
    assert done.exit_code in (1, 2), done.output
    return done.output


def test_bad_options_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    job = str(path)
    assert f"penstock run {job} --ui" in _fails("job.py", "--ui", job)
    assert "'70000' is no port" in _fails(job, "--ui", "70000")
    assert "go with --ui" in _fails(job, "--ui-host", "::1")
    assert "--ui-cert and --ui-key go together" in _fails(job, "--ui", "--ui-cert", job)
    bad = ("--ui", "0", "--ui-cert", job, "--ui-key", job)
    assert "cannot use the certificate" in _fails(job, *bad)


def test_a_port_in_use_is_reported_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    path = tmp_path / "job.py"
    path.write_text("raise SystemExit('the job has started')")
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert "it is in use; give another" in _fails(str(path), "--ui", port)


def test_without_the_packages_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "pip install 'penstock[service]'" in _fails(str(path), "--ui", "0")

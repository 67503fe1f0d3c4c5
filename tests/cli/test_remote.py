"""The commands against a service that is reached by HTTP, with real jobs."""

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.cli.http_connection import HttpConnection, read_token
from penstock.cli.options import JobOptions
from penstock.cli.program_archive import ProgramArchive
from penstock.cli.remote_submit import submit_words
from penstock.dataflow.errors import GraphError, PenstockError
from penstock.runtime.control.requests import ListJobs
from tests.connectors.certificates import make_certificates
from tests.processes.harness import PATIENCE, wait_until
from tests.rest.served import TOKENS, Client, served
from tests.runtime.dispatcher.service import Service

#: A program that imports a module beside it, one of a package beside it, and one of `--py-files`.
PROGRAM = """
import sys
import beside, sent_factor
from package.inner import ADDED
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
count = None if sys.argv[1] == "endless" else int(sys.argv[1])
numbers = env.from_generator(lambda i: i, count, 500)
sums = numbers.key_by(lambda i: i % 3).reduce(lambda a, b: beside.later(a, b)).uid("sums")
sums.map(lambda i: f"value {ADDED + sent_factor.FACTOR}").print()
env.execute("numbers")
"""


class Remote:
    """A service with an HTTP API, and a person on another machine, who has a folder there."""

    def __init__(self, service: Service, folder: Path, *options: str) -> None:
        self.service, self.folder = service, folder
        said = service.said(service.start("--ui", "0", *options))
        found = re.search(r"HTTP API at (https?://127\.0\.0\.1:(\d+))/v1", said)
        assert found is not None
        self.url, self.port = found[1], int(found[2])
        self.token = service.home / "http" / "token"
        (folder / "package").mkdir(parents=True)
        (folder / "lib").mkdir()
        (folder / "program.py").write_text(PROGRAM)
        (folder / "beside.py").write_text("def later(a, b):\n    return b\n")
        (folder / "package" / "__init__.py").write_text("")
        (folder / "package" / "inner.py").write_text("ADDED = 40\n")
        (folder / "lib" / "sent_factor.py").write_text("FACTOR = 2\n")

    def call(self, command: str, *args: str, code: int = 0, env: dict[str, str] | None = None):
        """Run a command in a process of its own, in the person's folder."""
        done = subprocess.run(
            [sys.executable, "-m", "penstock", command, "--service", self.url, *args],
            cwd=self.folder,
            env={
                **os.environ,
                "PENSTOCK_TOKEN": self.token.read_text(),
                "PENSTOCK_HOME": str(self.folder / "nothing"),
                **(env or {}),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def here(self, command: str, *args: str, code: int = 0) -> str:
        """Run a command in this process, and return its output."""
        token = ("--token-file", str(self.token))
        done = CliRunner().invoke(main, [command, "--service", self.url, *token, *args])
        assert done.exit_code == code, done.output
        return done.output


@pytest.fixture
def service(tmp_path):
    one = Service(tmp_path)
    yield one
    one.end()


def test_a_program_is_sent_run_changed_and_stopped_over_http(service, tmp_path):
    remote = Remote(service, tmp_path / "elsewhere")
    place = ("--checkpoint-dir", str(tmp_path / "ck"), "-pyfs", "lib/sent_factor.py")
    done = remote.call("submit", "program.py", *place, "--detach", "--", "endless")
    id = done.stdout.strip()
    assert f"submitted as job {id}" in done.stderr
    service.begun(id)
    # The outputs are those of the local socket.
    for command in (("list", "--json"), ("show", id, "--json")):
        ours, theirs = (json.loads(one.here(*command)) for one in (remote, service))
        for one in (ours, theirs):
            job = (one[0] if isinstance(one, list) else one["job"]).items()
            assert ("id", id) in job and ("state", "running") in job
        assert type(ours) is type(theirs) and json.dumps(ours)[:40] == json.dumps(theirs)[:40]
    wait_until(lambda: "value 42" in remote.here("logs", id), "output of the job")
    assert remote.here("logs", id, "-n", "1").count("\n") == 1
    path = remote.here("savepoint", id).split("\n")[0]
    assert Path(path, "manifest").is_file()
    elsewhere = remote.here("savepoint", id, "--target", "copy", code=1)
    assert "--target goes with a service on this machine" in elsewhere
    remote.here("rescale", id, "-p", "2")
    assert service.job(id)["parallelism"] == 2
    (remote.folder / "package" / "inner.py").write_text("ADDED = 100\n")
    upgraded = ("upgrade", id, "program.py", "-pyfs", "lib/sent_factor.py", "--json")
    record = json.loads(remote.call(*upgraded, "--", "endless").stdout)
    assert (record["id"], record["state"], record["parallelism"]) == (id, "running", 2)
    wait_until(lambda: "value 102" in remote.here("logs", id), "output of the new program")
    assert "running" in remote.here("top", "--once", "--interval", "1ms")
    assert "<svg" in remote.here("report", id, "-o", "-")
    path = remote.here("stop", id, "--savepoint").split("\n")[0]
    assert Path(path, "manifest").is_file()
    # The modules that were sent are still there.
    remote.here("restart", id)
    remote.here("cancel", id)
    assert service.job(id)["state"] == "stopped"


def test_a_submitted_program_is_followed_to_its_end_with_its_exit_code(service, tmp_path):
    remote = Remote(service, tmp_path / "elsewhere")
    place = ("-pyfs", "lib/sent_factor.py", "--report", "report.json")
    done = remote.call("submit", "program.py", *place, "--", "20")
    assert "finished after" in done.stderr and "workers: pids" in done.stderr
    report = json.loads((remote.folder / "report.json").read_text())
    assert (report["job"], report["status"]) == ("numbers", "finished")
    (remote.folder / "failing.py").write_text((service.root / "failing.py").read_text())
    done = remote.call("submit", "failing.py", code=1)
    assert "ZeroDivisionError" in done.stderr and "operator: Map" in done.stderr
    (remote.folder / "bad.py").write_text("import nothing_of_this_name\n")
    done = remote.call("submit", "bad.py", code=1)
    assert "No module named 'nothing_of_this_name'" in done.stderr
    assert "there is no job file" in remote.call("submit", "missing.py", code=1).stderr
    done = remote.call("submit", "program.py", "--checkpoint-dir", "ck", code=1)
    assert "give the whole path" in done.stderr


def test_an_upgrade_that_does_not_fit_is_refused_and_the_job_goes_on(service, tmp_path):
    remote = Remote(service, tmp_path / "elsewhere")
    place = ("--checkpoint-dir", str(tmp_path / "ck"), "-pyfs", "lib/sent_factor.py")
    id = remote.call("submit", "program.py", *place, "--detach", "--", "endless").stdout.strip()
    service.begun(id)
    text = (remote.folder / "program.py").read_text()
    (remote.folder / "program.py").write_text(text.replace('uid("sums")', 'uid("others")'))
    upgraded = ("upgrade", id, "program.py", "-pyfs", "lib/sent_factor.py", "--", "endless")
    done = remote.call(*upgraded, code=1)
    assert "cannot go on from snapshot" in done.stderr and "dropped" in done.stderr
    api = Client(remote.port, remote.token.read_text())
    body = {"path": str(remote.folder / "missing.py")}
    assert api.ask(f"/jobs/{id}/upgrade", method="POST", body=body).status == 400
    assert api.ask("/jobs/9/upgrade", method="POST", body=body).status == 404
    assert api.ask(f"/jobs/{id}/upgrade", method="POST", body={}).status == 400
    assert service.job(id)["state"] == "running" and service.job(id)["restarts"] == 0


def test_misuse_is_refused_with_a_sentence(service, tmp_path):
    remote = Remote(service, tmp_path / "elsewhere")
    assert "there is no job 9" in remote.here("show", "9", code=1)
    assert "there is no job 9" in remote.here("rescale", "9", "-p", "2", code=1)
    wrong = {"PENSTOCK_TOKEN": "wrong-" + "x" * 20}
    assert "the token of the request is wrong" in remote.call("list", code=1, env=wrong).stderr
    done = remote.call("list", code=1, env={"PENSTOCK_TOKEN": ""})
    assert "$PENSTOCK_TOKEN has no token" in done.stderr
    reading = {"PENSTOCK_TOKEN": (service.home / "http" / "read-token").read_text()}
    assert "no jobs" in remote.call("list", env=reading).stdout
    done = remote.call("submit", "program.py", code=1, env=reading)
    assert "only for reading" in done.stderr
    api = Client(remote.port, remote.token.read_text())
    for body, status in (
        (b"garbage", 400),
        (b"[]", 400),
        ({"do": "nothing"}, 400),
        ({"do": "show"}, 400),
        ({"do": "show", "id": 7}, 400),
        ({"do": "show", "id": "9"}, 404),
        ({"do": "restart", "id": "9"}, 404),
        ({"do": "submit", "name": "x", "folder": "/", "job": "x"}, 400),
        (b"x" * 2_000_000, 413),
    ):
        answer = api.ask("/requests", method="POST", body=body)
        assert answer.status == status and len(answer.json["errors"][0]) > 15, body
    answer = api.ask("/requests?request=%7B%22do%22:%22restart%22,%22id%22:%221%22%7D")
    assert answer.status == 403 and "POST" in answer.json["errors"][0]
    assert api.ask("/requests").status == 400
    answer = api.ask("/programs", method="POST", body=b"no archive")
    assert answer.status == 400 and "no zip archive" in answer.json["errors"][0]
    assert list((service.home / "programs").iterdir()) == []


def test_certificates_are_verified(service, tmp_path):
    files = make_certificates(tmp_path / "certificates")
    remote = Remote(
        service,
        tmp_path / "elsewhere",
        "--ui-cert",
        str(files.certificate),
        "--ui-key",
        str(files.key),
    )
    assert "is not trusted" in remote.call("list", code=1).stderr
    assert "no jobs" in remote.call("list", env={"SSL_CERT_FILE": str(files.ca)}).stdout


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://host:1", "is no URL"),
        ("https://", "is no URL"),
        ("https://host:99999999", "is no URL"),
        ("http://example.org:8081", "use https"),
        ("https://me:pw@host", "has no user"),
    ],
)
def test_a_wrong_url_is_refused_before_the_token_is_sent(url, text):
    with pytest.raises(PenstockError, match=text):
        HttpConnection(url, "x" * 30)


def test_where_nothing_or_something_else_listens_the_error_says_so():
    with pytest.raises(PenstockError, match=r"cannot reach the service at http://127\.0\.0\.1:1"):
        HttpConnection("http://127.0.0.1:1", "x" * 30).ask(ListJobs())
    with served() as one:
        connection = HttpConnection(f"http://127.0.0.1:{one.port}/v1/", TOKENS.full)
        with pytest.raises(PenstockError, match="this is the API of one program"):
            connection.ask(ListJobs())
        with pytest.raises(PenstockError, match="takes no jobs"):
            connection.send_program(b"x")


def test_options_that_do_not_fit_together_are_a_wrong_command_line(tmp_path):
    run = CliRunner().invoke
    assert run(main, ["list", "--service", "https://h", "--dir", "x"]).exit_code == 2
    assert run(main, ["list", "--token-file", "x"]).exit_code == 2
    # The option for this machine counts more than the variable for another one.
    variables = {"PENSTOCK_SERVICE": "https://host"}
    local = run(main, ["list", "--dir", str(tmp_path)], env=variables)
    assert "no job manager runs" in local.output
    assert "$PENSTOCK_TOKEN has no token" in run(main, ["list"], env=variables).output
    with pytest.raises(PenstockError, match="cannot read the token"):
        read_token(tmp_path / "missing")


def test_the_archive_has_what_the_program_needs_and_nothing_else(tmp_path):
    for name in ("job.py", "beside.py", "data.bin", "p/__init__.py", "p/data.txt", "q/x.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("p/__pycache__", "lib", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("")
    (tmp_path / "requirements.txt").write_text("")
    options = JobOptions(
        "submit",
        str(tmp_path / "job.py"),
        py_files=f"{tmp_path}/lib,{tmp_path}/q/x.py",
        py_requirements=f"{tmp_path}/requirements.txt#cache",
    )
    archive = ProgramArchive(options)
    names = zipfile.ZipFile(io.BytesIO(archive.data)).namelist()
    beside = ["job/beside.py", "job/job.py", "job/p/__init__.py", "job/p/data.txt"]
    assert sorted(names)[3:] == beside
    assert archive.words == [
        "--py-files",
        "../files/4/lib,../files/5/x.py",
        "--py-requirements",
        "../files/6/requirements.txt#cache",
    ]
    with pytest.raises(GraphError, match="there is no file"):
        ProgramArchive(JobOptions("submit", str(tmp_path / "job.py"), py_files="missing.py"))


def test_options_of_submit_are_passed_on():
    options = JobOptions(
        "submit",
        "job.py",
        name="n",
        parallelism=2,
        checkpoint_dir="/ck",
        checkpoint_interval=0.5,
        resume=7,
        fork=True,
        allow_dropped=True,
        sink_markers=("a=1",),
        on_lost_position="fail",
        log_level="INFO",
        runtime_mode="batch",
        params=("a=b",),
        py_executable="/usr/bin/python3",
        install_requirements=True,
    )
    words = submit_words(options)
    for word in ("--name n", "--resume 7", "--fork", "--sink-marker a=1", "--param a=b"):
        assert word in " ".join(words)
    # `penstock submit` reads them, and then looks for the service.
    done = CliRunner().invoke(main, ["submit", "missing.py", "--detach", *words])
    assert done.exit_code == 1 and "there is no job file" in done.output


def test_a_shadow_run_of_files_that_were_sent_reports_its_result(service, tmp_path):
    remote = Remote(service, tmp_path / "elsewhere")
    place = ("--checkpoint-dir", str(tmp_path / "ck"), "-pyfs", "lib/sent_factor.py")
    id = remote.call("submit", "program.py", *place, "--detach", "--", "endless").stdout.strip()
    service.begun(id)
    shadow = ("upgrade", id, "program.py", "-pyfs", "lib/sent_factor.py", "--shadow")
    # Both versions have a module of this name, in different folders.
    (remote.folder / "package" / "inner.py").write_text("ADDED = 100\n")
    done = remote.call(*shadow, "--promote", "--snapshots", "1", "--", "endless", code=1)
    assert "only old: 'value 42'" in done.stderr and "only new: 'value 102'" in done.stderr
    (remote.folder / "package" / "inner.py").write_text("ADDED = 30 + 10\n")
    before = service.job(id)
    done = remote.call(*shadow, "--snapshots", "1", "--json", "--", "endless")
    assert json.loads(done.stdout)["equal"]
    assert service.job(id)["pid"] == before["pid"] and service.job(id)["restarts"] == 0
    done = remote.call(*shadow, "--snapshots", "1", "--promote", "--", "endless")
    assert "are equal" in done.stdout and f"job {id} runs the new program" in done.stderr
    assert service.job(id)["pid"] != before["pid"]
    api = Client(remote.port, remote.token.read_text())
    body = {"path": "program.py", "options": ["--shadow"]}
    refused = api.ask(f"/jobs/{id}/upgrade", method="POST", body=body)
    assert refused.status == 400 and b"/shadow-runs" in refused.body

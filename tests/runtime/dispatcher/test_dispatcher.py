"""The job service with real processes: jobs are submitted, listed, stopped and killed."""

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from penstock.dataflow.errors import StoreError
from penstock.runtime.dispatcher.job_registry import JobRecord, JobRegistry
from penstock.runtime.dispatcher.state_folder import StateFolder
from penstock.runtime.system.unix_sockets import MAX_SOCKET_PATH
from tests.processes.harness import PATIENCE, gone, wait_until
from tests.runtime.dispatcher.service import SENDING, Service

#: What a line of `logging` begins with.
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path)
    yield service
    service.end()


def test_a_submitted_job_is_followed_to_its_end_and_its_files_are_private(service):
    process = service.start()
    done = service.call("submit", "job.py", "--report", "report.json", "--", "short")
    assert done.stdout.strip() == "after execute"
    assert "submitted as job 1" in done.stderr
    assert "finished after" in done.stderr
    report = json.loads((service.root / "report.json").read_text())
    assert report["status"] == "finished"
    job = service.job("1")
    assert (job["name"], job["state"], job["restarts"]) == ("numbers", "finished", 0)
    lines = Path(job["log"]).read_text().splitlines()
    of_the_job = [line for line in lines if "penstock.jobmanager [JobManager]: " in line]
    assert len(lines) - len(of_the_job) == 20
    assert re.match(rf"{TIME} INFO  .*: job 'numbers' starts", of_the_job[0])
    assert of_the_job[-1].endswith("job 'numbers' has finished")
    assert "finished" in service.call("list").stdout
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in [service.home, *service.home.rglob("*")]
        if not path.is_socket()
    }
    folders = {"home": 0o700, "jobs": 0o700}
    assert modes == {name: folders.get(name, 0o600) for name in modes}
    assert {"token", "address", "1.json", "1.log"} < set(modes)
    # A module that is not in the folder of the job travels with it.
    (service.root / "lib").mkdir()
    (service.root / "lib" / "sent_factor.py").write_text("FACTOR = 7\n")
    (service.root / "sending.py").write_text(SENDING)
    service.call("submit", "sending.py", "-pyfs", "lib/sent_factor.py")
    assert "42" in Path(service.job("2")["log"]).read_text().splitlines()
    service.end()
    assert process.returncode == 0
    assert not (service.home / "address").exists()


def test_a_job_is_cancelled_with_a_last_snapshot_and_resumed(service):
    service.start()
    id = service.submit()
    job = service.job(id)
    assert job["state"] == "running"
    assert [gone(pid) for pid in [job["pid"], *job["worker_pids"]]] == [False, False]
    assert f"job {id} is stopped; its last snapshot is" in service.call("cancel", id).stderr
    assert service.job(id)["state"] == "stopped"
    assert gone(job["pid"])
    assert "does not run: it is stopped" in service.call("cancel", id, code=1).stderr
    assert "there is no job 77" in service.call("cancel", "77", code=1).stderr
    kinds = json.loads(service.call("snapshots", "list", "ck", "--json").stdout)["snapshots"]
    assert kinds[-1]["kind"] == "final"
    following = service.background(
        "submit", "job.py", "--checkpoint-dir", "ck", "--resume", "--", "endless"
    )
    wait_until(lambda: "resumed from snapshot" in service.said(following), "it is resumed")
    assert "is killed" in service.call("cancel", "2", "--now").stderr
    assert following.wait(PATIENCE) == 1


def test_a_jobmanager_that_dies_is_replaced_if_its_job_has_a_checkpoint_folder(service):
    service.start()
    following = service.background("submit", "job.py", "--checkpoint-dir", "ck", "--", "endless")
    job = service.first_job()
    os.kill(job["pid"], signal.SIGKILL)
    # It takes the workers over, or starts others if the machine stands still for too long.
    went_on = ("are taken over", "resumed from snapshot")
    wait_until(lambda: any(text in service.said(following) for text in went_on), "it goes on")
    text = f"the JobManager (pid {job['pid']}) was killed by signal 9: another one goes on"
    assert text in service.said(following)
    again = service.job("1")
    assert again["state"] == "running"
    assert again["pid"] != job["pid"]
    assert text in Path(job["log"]).read_text()
    assert "job 1 is stopped; its last snapshot is" in service.call("cancel", "1").stderr
    assert gone(again["pid"])
    wait_until(lambda: all(map(gone, job["worker_pids"])), "the workers have ended")
    assert following.wait(PATIENCE) == 143


def test_a_killed_jobmanager_of_a_job_without_a_checkpoint_folder_is_reported(service):
    service.start()
    following = service.background("submit", "job.py", "--", "endless")
    job = wait_until(lambda: service.jobs().get("1", {}).get("worker_pids"), "it runs")
    os.kill(service.job("1")["pid"], signal.SIGKILL)
    assert following.wait(PATIENCE) == 1
    assert "the JobManager process was killed by signal 9" in service.said(following)
    assert service.job("1")["state"] == "killed"
    wait_until(lambda: all(map(gone, job)), "the workers have ended")


def test_a_failing_job_is_reported_with_its_own_traceback_first(service):
    service.start()
    done = service.call("submit", "failing.py", "--progress", "none", code=1)
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "8 // i" in done.stderr
    job = service.job("1")
    assert job["state"] == "failed"
    assert "ZeroDivisionError" in job["error"]
    log = Path(job["log"]).read_text()
    assert "8 // i" in log
    assert re.search(rf"^{TIME} ERROR penstock.jobmanager .*: the job has failed:$", log, re.M)


def test_a_follower_may_leave_and_a_stopped_service_stops_its_jobs_in_order(service):
    process = service.start()
    following = service.background("submit", "job.py", "--checkpoint-dir", "ck", "--", "endless")
    job = service.first_job()
    # Which it says when it follows; a Ctrl-C before that would be one while it submits.
    wait_until(lambda: "workers: pids" in service.said(following), "the job is followed")
    following.send_signal(signal.SIGINT)
    assert following.wait(PATIENCE) == 130
    assert "job 1 goes on; stop it with: penstock cancel 1" in service.said(following)
    assert service.job("1")["state"] == "running"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert gone(job["pid"])
    listed = service.call("list", "--json")
    assert "no job manager runs" in listed.stderr
    assert [job["state"] for job in json.loads(listed.stdout)] == ["stopped"]


def test_one_service_at_a_time_has_the_state_folder_and_strangers_are_refused(service):
    process = service.start()
    second = service.call("jobmanager", code=1)
    assert f"a job manager already runs here, with pid {process.pid}" in second.stderr
    token = service.home / "token"
    right = token.read_text()
    token.write_text("00" * 32)
    assert "does not answer as it should" in service.call("list", code=1).stderr
    token.write_text(right)
    assert service.jobs() == {}


def test_the_service_listens_on_a_given_port_and_reports_when_it_is_in_use(service):
    service.start("--port", "0")
    assert (service.home / "address").read_text().startswith("tcp:127.0.0.1:")
    assert service.call("list").stdout == "no jobs\n"
    service.end()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = service.call("jobmanager", "--port", port, code=1).stderr
    assert f"port {port} of 127.0.0.1: it is in use; give another with --port" in refused


def test_records_are_not_collected_from_a_submitted_job(service):
    service.start()
    (service.root / "collect.py").write_text(
        "from penstock import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1]).execute_and_collect()\n"
    )
    refused = service.call("submit", "collect.py", code=1).stderr
    assert "write them to a sink and call env.execute(), or use penstock run" in refused
    assert "collect.py, line 3" in refused


# ---- the state folder


def test_a_long_path_moves_the_socket_and_not_the_folder(tmp_path):
    folder = StateFolder(tmp_path / ("x" * 90) / ("y" * 90))
    folder.open()
    bound, text = folder.bind_socket()
    bound.close()
    path = Path(text)
    assert path.is_socket() and len(os.fsencode(path)) <= MAX_SOCKET_PATH
    assert path.parent.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert not path.parent.exists()


@pytest.mark.parametrize("name", ["lock", "jobs", "address", "token", "jobs/1.log", "socket"])
def test_a_link_in_the_state_folder_is_not_followed(tmp_path, name):
    outside, root = tmp_path / "outside", tmp_path / "home"
    (root / "jobs").mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    if name != "lock":
        (root / "lock").touch()
    if name == "jobs":
        (root / name).rmdir()
        outside.mkdir()
    else:
        outside.write_text("before")
    if name == "token":
        (root / "address").write_text("unix:/x")
    (root / name).symlink_to(outside)
    folder = StateFolder(root)

    def use():
        folder.open()
        folder.contact()
        JobRegistry(folder.jobs).open_log("1").close()

    if name == "socket":
        use()
        folder.bind_socket()[0].close()
    else:
        with pytest.raises((StoreError, OSError), match=r"link|not a folder"):
            use()
    folder.close()
    assert outside.is_dir() or outside.read_text() == "before"


def test_files_of_the_service_are_read_and_written_as_before_where_nothing_is_a_link(tmp_path):
    folder = StateFolder(tmp_path / "home")
    folder.open()
    registry, token = JobRegistry(folder.jobs), folder.new_token()
    folder.publish_address("unix:/x")
    assert folder.contact() == ("unix:/x", token)
    for text in (b"a", b"b"):
        with registry.open_log("1") as log:
            log.write(text)
    assert registry.log("1").read_bytes() == b"ab"
    folder.close()


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_folder_with_other_files_is_neither_used_nor_made_private(tmp_path, mode):
    tmp_path.chmod(mode)
    (tmp_path / "token").write_text("Dear")
    with pytest.raises(StoreError, match="holds other files and is no state folder"):
        StateFolder(tmp_path).open()
    assert tmp_path.stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_the_state_folder_is_the_users_own_unless_another_one_is_given(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StateFolder().root == tmp_path / ".penstock"
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "other"))
    assert StateFolder().root == tmp_path / "other"
    assert StateFolder(tmp_path / "given").root == tmp_path / "given"


def test_a_damaged_record_is_skipped_and_its_number_is_not_used_again(tmp_path):
    folder = StateFolder(tmp_path / "home")
    folder.open()
    registry = JobRegistry(folder.jobs)
    registry.save(JobRecord("3", "numbers", worker_pids=[5]))
    registry.save(JobRecord("2", "numbers", "finished"))
    (folder.jobs / "8.json").write_text("{")
    registry.load()
    records = {record.id: record for record in registry.records}
    free = int(registry.create("numbers", "/").id)
    folder.close()
    assert {id: record.state for id, record in records.items()} == {"2": "finished", "3": "running"}
    assert list(records) == ["2", "3"]
    assert free == 9

"""Jobs outlive their service, which is killed with SIGKILL here, and so do its promises."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from tests.processes.harness import PATIENCE, gone, wait_until
from tests.runtime.dispatcher.service import Service, kill


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path)
    yield service
    service.end()


def processes(job):
    return [job["pid"], *job["worker_pids"]]


def test_a_killed_service_costs_no_job_a_record_or_a_restart(service):
    service.start()
    counting = service.begun(service.count("a", "endless", "-p", "2"))
    service.call("submit", "job.py", "--detach", "--", "endless")  # it has no checkpoint folder
    other = wait_until(lambda: service.job("2")["worker_pids"] and service.job("2"), "it runs")
    for _ in range(2):
        service.kill()
        taken = service.snapshots("a")
        wait_until(lambda taken=taken: service.snapshots("a") > taken + 2, "it goes on alone")
        service.start()
        for before in (counting, other):
            service.found(before["id"])
            now = service.job(before["id"])
            assert (now["state"], now["restarts"]) == ("running", 0)
            assert processes(now) == processes(before)
            assert not any(map(gone, processes(now)))
    assert "is stopped" in service.here("cancel", "1")
    assert service.lost_and_doubled("a") == (0, 0)
    assert gone(counting["pid"])


def test_a_command_that_waits_for_a_job_follows_it_to_the_next_service(service):
    service.start()
    options = ("--checkpoint-dir", "a-ck", "--progress", "plain", "--", "a-out")
    following = service.background("submit", "counting.py", *options, "endless")
    wait_until(lambda: "workers: pids" in service.said(following), "the job is followed")
    service.begun("1")
    service.kill()
    gone_text = "the job manager is gone; job 1 goes on without it"
    wait_until(lambda: gone_text in service.said(following), "it is said")
    service.start()
    service.found("1")
    assert "is stopped" in service.here("cancel", "1")
    assert following.wait(PATIENCE) == 143
    assert "stopped after" in service.said(following)
    assert service.said(following).count("started: JobManager") == 1


def test_a_later_service_supervises_the_jobmanagers_of_an_earlier_one(service):
    service.start()
    before = service.begun(service.count("a", "endless", "-p", "2"))
    service.kill()
    service.start()
    service.found("1")
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: service.job("1")["pid"] != before["pid"], "another JobManager runs")
    taken = service.snapshots("a")
    wait_until(lambda: service.job("1")["last_snapshot"] > taken, "it goes on")
    after = service.job("1")
    # It takes the workers over, or starts others if the machine stands still for too long. If none
    # of them has come, its log does not mention them.
    if "are taken over" in service.here("logs", "1"):
        assert after["worker_pids"] == before["worker_pids"]
    assert "is stopped" in service.here("cancel", "1")
    assert service.lost_and_doubled("a") == (0, 0)


def test_what_died_with_the_machine_starts_again_if_it_was_meant_to_run(service):
    service.start()
    running = service.begun(service.count("a"))
    service.begun(service.count("b"))
    service.here("cancel", "2")
    service.call("submit", "failing.py", "--progress", "none", code=1)
    service.call("submit", "job.py", "--detach", "--", "endless")
    lost = wait_until(lambda: service.job("4")["worker_pids"] and service.job("4"), "it runs")
    service.kill()
    kill(*processes(running), *processes(lost))
    service.start()
    wait_until(lambda: service.job("1")["pid"] != running["pid"], "it starts again")
    states = {id: job["state"] for id, job in service.jobs().items()}
    assert states == {"1": "running", "2": "stopped", "3": "failed", "4": "lost"}
    assert "no checkpoint folder" in service.job("4")["error"]
    assert "the job starts again" in service.here("logs", "1")
    service.here("cancel", "1")
    assert service.lost_and_doubled("a") == (0, 0)


def test_what_ended_while_no_service_ran_is_known_to_the_next_one(service):
    service.start()
    gate = service.root / "gate"
    service.count("a", 1500, gate=gate)
    service.begun(service.count("b"))
    wait_until(lambda: service.job("1")["worker_pids"], "the first job has workers")
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(PATIENCE) == 0
    jobs = service.jobs()
    assert not any(gone(job["pid"]) for job in jobs.values())
    gate.touch()
    # As when the machine is shut down.
    os.kill(jobs["2"]["pid"], signal.SIGTERM)
    wait_until(lambda: all(gone(job["pid"]) for job in jobs.values()), "both have ended")
    service.start()
    wait_until(lambda: service.job("2")["state"] == "running", "it starts again")
    finished = service.job("1")
    assert (finished["state"], finished["error"]) == ("finished", None)
    assert service.lost_and_doubled("a") == (0, 0)
    service.begun("2")
    service.here("cancel", "2", "--now")
    assert service.job("2")["state"] == "killed"
    service.kill()
    service.start()
    assert service.job("2")["state"] == "killed"


def test_jobs_wait_for_slots_and_say_why_also_after_a_restart(service):
    service.start("--slots", "2")
    first = service.begun(service.count("a"))
    never = service.call(
        "submit", "counting.py", "-p", "3", "--detach", "--", "x", "9", code=1
    ).stderr
    assert "can never run here: it needs 3 slots, and the service has 2 slots" in never
    second = service.count("b", "endless", "-p", "2")
    third = service.count("c", 100)
    reason = "it needs 2 slots, and 1 of 2 slots are taken by job 1"
    assert [service.job(id)["waiting"] for id in (second, third)] == [reason, "job 2 is before it"]
    assert reason in service.here("list") and reason in service.here("show", second)
    assert "job 3 cannot take a savepoint: it is queued" in service.here("savepoint", third, code=1)
    later = service.here("rescale", "1", "-p", "3", code=1)
    assert "can never run here: it needs 3 slots" in later
    service.kill()
    service.start("--slots", "2")
    service.found("1")
    assert processes(service.job("1")) == processes(first)
    assert [service.job(id)["state"] for id in (second, third)] == ["queued", "queued"]
    assert "is stopped" in service.here("cancel", second)
    wait_until(lambda: service.job(third)["state"] == "finished", "the third one has run")
    assert service.lost_and_doubled("c") == (0, 0)
    assert service.job(second)["started"] == 0


def test_workers_of_single_tasks_are_counted(service, monkeypatch):
    service.start("--slots", "5")
    service.begun(service.count("a"))
    # One task reads and maps, and each subtask of the others is a task of its own.
    monkeypatch.setenv("PENSTOCK_RESTART_SCOPE", "task")
    with contextlib.chdir(service.root):
        graph = CliRunner().invoke(main, ["graph", "counting.py", "-p", "4", "--", "x", "9"])
    assert graph.output.startswith("workers: 5, one for each task   key groups: 8")
    waiting = service.count("b", "endless", "-p", "4")
    reason = "it needs 5 slots (one for each task), and 1 of 5 slots are taken by job 1"
    job = service.job(waiting)
    assert (job["state"], job["waiting"], job["slots"]) == ("queued", reason, 5)
    assert reason in service.here("list") and reason in service.here("show", waiting)
    service.here("cancel", "1")
    wait_until(lambda: len(service.job(waiting)["worker_pids"]) == 5, "all its workers run")
    never = service.here("rescale", waiting, "-p", "5", code=1)
    assert "it needs 6 slots (one for each task), and the service has 5 slots" in never
    assert "with parallelism 2 (3 workers)" in service.here("rescale", waiting, "-p", "2")
    job = service.job(waiting)
    assert (job["slots"], len(job["worker_pids"])) == (3, 3)
    assert "is stopped" in service.here("cancel", waiting)
    assert service.lost_and_doubled("b") == (0, 0)


def test_a_job_is_rescaled_saved_stopped_and_restarted_without_loss(service):
    service.start("--slots", "4")
    service.begun(service.count("a"))
    taken = json.loads(service.here("savepoint", "1", "--json"))
    assert taken["path"] == str(service.root / "a-ck" / "checkpoints" / f"{taken['number']:06d}")
    copy = service.root / "copy"
    told = service.here("savepoint", "1", "--target", str(copy)).splitlines()
    copied = Path(told[0])
    assert copied.parent.parent == copy and (copied / "manifest").is_file()
    refused = service.here("stop", "1", "--savepoint", "--target", str(copy), code=1)
    assert "must be new or empty" in refused and "the job goes on" in refused
    assert service.job("1")["state"] == "running"
    for parallelism in (2, 1, 4):
        told = service.here("rescale", "1", "-p", str(parallelism))
        assert f"runs with parallelism {parallelism}" in told
        assert len(service.job("1")["worker_pids"]) == parallelism
    assert "its maximum parallelism is 8" in service.here("rescale", "1", "-p", "9", code=1)
    assert "needs 5 slots, and the service has 4" in service.here("rescale", "1", "-p", "5", code=1)
    pid = service.job("1")["pid"]
    assert "is running" in service.here("restart", "1")
    assert service.job("1")["pid"] != pid
    service.kill()
    service.start("--slots", "4")
    last = service.root / "last"
    stopped = json.loads(service.here("stop", "1", "--target", str(last), "--json"))
    assert Path(stopped["path"]).parent.parent == last
    assert stopped["job"]["state"] == "stopped"
    assert stopped["number"] == service.job("1")["last_snapshot"]
    assert "is running" in service.here("restart", "1")
    job = service.begun("1")
    assert len(job["worker_pids"]) == 4
    service.here("cancel", "1")
    assert service.lost_and_doubled("a") == (0, 0)
    assert "does not run: it is stopped" in service.here("savepoint", "1", code=1)

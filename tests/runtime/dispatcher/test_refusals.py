"""What the service refuses ends with a sentence and an exit code, and the service lives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from penstock.cli.service_address import ServiceAddress
from penstock.dataflow.errors import PenstockError, StoreError
from penstock.runtime.control.requests import Conflict, Savepoint, SubmitScript
from penstock.runtime.dispatcher.control_plane import ControlPlane
from penstock.runtime.dispatcher.job_runner import JobRunner
from penstock.runtime.dispatcher.state_folder import StateFolder
from tests.processes.harness import PATIENCE
from tests.runtime.dispatcher.service import Service

BROKEN = """
import missing_module_of_the_job
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Any]:
    service = Service(tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN)
    service.start()
    yield service
    service.end()


def ask_for_script(service: Any, path: str, *options: str) -> dict[str, Any]:
    with ServiceAddress(service.home).connect() as connection:
        return connection.ask(SubmitScript(path, list(options), ["endless"], str(service.root)))


def test_each_refusal_is_a_sentence(service: Any):
    for command in ("show", "logs", "cancel", "stop", "savepoint", "restart"):
        assert "there is no job 7" in service.here(command, "7", code=1)
    assert "there is no job 7" in service.here("rescale", "7", "-p", "2", code=1)
    # A script that the service runs itself.
    with pytest.raises(PenstockError, match="No module named 'missing_module_of_the_job'"):
        ask_for_script(service, "broken.py")
    with pytest.raises(PenstockError, match="there is no job file"):
        ask_for_script(service, "nowhere.py")
    assert ask_for_script(service, "job.py", "--checkpoint-dir", "ck")["id"] == "1"
    service.begun("1")
    again = service.call(
        "submit", "job.py", "--checkpoint-dir", "ck", "--", "endless", code=1
    ).stderr
    assert "job 1 (running) uses the checkpoint folder" in again
    # A job without snapshots.
    assert ask_for_script(service, "job.py")["id"] == "2"
    for command in ("stop", "savepoint", "restart"):
        assert "it has no checkpoint folder" in service.here(command, "2", code=1)
    assert "is killed" in service.here("cancel", "2", "--now")
    assert "no checkpoint folder to go on from" in service.here("restart", "2", code=1)
    # A job that has failed.
    service.call("submit", "failing.py", "--progress", "none", code=1)
    assert "does not run: it is failed" in service.here("savepoint", "3", code=1)
    assert "ZeroDivisionError" in service.here("show", "3")
    assert service.job("1")["state"] == "running"
    lines = service.here("logs", "1", "-n", "1", "--json").splitlines()
    assert len(lines) == 1 and lines[0].startswith('"')


def test_a_snapshot_that_cannot_be_copied_is_named(service: Any, monkeypatch: pytest.MonkeyPatch):
    ask_for_script(service, "job.py", "--checkpoint-dir", "ck")
    service.begun("1")

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr("penstock.saved.savepoint_target.copy_snapshot", full)
    for command, text, state in (
        ("savepoint", "job 1 goes on", "running"),
        ("stop", "job 1 is stopped", "stopped"),
    ):
        told = service.here(command, "1", "--target", str(service.root / "copy"), code=1)
        found = re.search(rf"{text}, and its snapshot is (\S+)\. .*: the disk is full", told)
        assert found is not None, told
        assert Path(found[1], "manifest").is_file() and service.job("1")["state"] == state


def test_a_savepoint_of_a_job_that_fails_meanwhile_is_refused(tmp_path: Path):
    folder = StateFolder(tmp_path / "home")
    folder.open()
    refused = []

    async def main() -> None:
        control = ControlPlane(folder)
        record = control._registry.create("job", "/", str(tmp_path / "ck"))
        record.state = "running"
        control._registry.add(record, b"no request")
        control._runners["1"] = runner = JobRunner(record, control._registry, "INFO")

        async def take() -> None:
            with pytest.raises(Conflict) as refusal:
                await control.savepoint(Savepoint("1"))
            refused.append(str(refusal.value))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                await trio.testing.wait_all_tasks_blocked()
                await runner.run()  # which fails, since the file with the job is damaged

    trio.run(main)
    folder.close()
    assert "job 1 ended before it took the savepoint: it is failed: malformed" in refused[0]

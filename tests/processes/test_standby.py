"""Processes that have loaded the code of the job take the places of lost workers."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.config.start_method import StartMethod
from tests.processes.harness import (
    Settings,
    committed,
    count_words,
    counting_env,
    expected_words,
    gone,
    lost_and_doubled,
    run,
    wait_until,
)
from tests.processes.parts import let_all_go

#: A module of the job, which writes down which processes import it.
_MODULE = """
import os
from pathlib import Path

(Path(__file__).parent / "loaded" / str(os.getpid())).touch()

def same(value):
    return value
"""


class _Killer:
    """Kills the workers, or other processes before, when so many processes have loaded the code."""

    def __init__(self, folder: Path, processes: int, first: Callable[[set[int]], None]) -> None:
        self.folder, self.processes, self.first = folder, processes, first
        self.pids: list[list[int]] = []
        self.before: set[int] = set()
        self.restarts = 0

    def loaded(self) -> set[int]:
        return {int(path.name) for path in (self.folder / "loaded").iterdir()} - {os.getpid()}

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "workers":
                self.pids.append(event["pids"])
            case "snapshot" if not self.before:
                wait_until(lambda: len(self.loaded()) >= self.processes, "the code is loaded")
                self.before = self.loaded()
                self.first(self.before - set(self.pids[0]))
                os.kill(self.pids[0][0], signal.SIGKILL)
            case "restarted":
                self.restarts += 1
                let_all_go(self.folder / "gate")
            case _:
                pass


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "loaded").mkdir()
    (tmp_path / "code_of_the_job.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "code_of_the_job", raising=False)
    return Settings(tmp_path, 2_000, interval_ms=30, parts=2)


def _job(settings: Settings, standby: int) -> StreamExecutionEnvironment:
    import code_of_the_job

    env = counting_env(settings)
    env.config.restart_standby = standby
    count_words(env, settings)
    env.from_collection([1, 2]).map(code_of_the_job.same).print()
    return env


def _nothing(_: set[int]) -> None:
    pass


def test_standby_processes_become_the_workers_of_the_next_attempt(settings, tmp_path):
    # Two workers, two that stand by, and the JobManager.
    killer = _Killer(tmp_path, 5, _nothing)
    result = run(_job(settings, 2), progress=killer)
    assert killer.restarts == len(result.restarts) == 1
    assert set(killer.pids[1]) < killer.before and not set(killer.pids[1]) & set(killer.pids[0])
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)
    wait_until(lambda: all(map(gone, killer.loaded())), "no process is left")


def test_a_standby_process_that_has_died_is_passed_over(settings, tmp_path):
    def kill_one(others: set[int]) -> None:
        # The JobManager is the parent of the fork server, whose child stands by.
        [standing_by] = [pid for pid in others if _parent(_parent(pid)) in others]
        os.kill(standing_by, signal.SIGKILL)

    killer = _Killer(tmp_path, 4, kill_one)
    result = run(_job(settings, 1), progress=killer)
    assert killer.restarts == len(result.restarts) == 1
    assert len(set(killer.pids[1]) & killer.before) <= 1
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_job_that_starts_its_workers_in_another_way_says_that_none_stand_by(settings):
    env = _job(settings, 1)
    env.config.start_method = StartMethod.SPAWN
    let_all_go(settings.gate)
    notes: list[str] = []

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            notes.append(event["text"])

    run(env, progress=observe)
    assert [note for note in notes if "restart_standby has no effect" in note]
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)

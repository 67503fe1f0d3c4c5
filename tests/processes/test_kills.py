"""Real processes, real signals: what a job has committed holds every record once."""

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.snapshot.storage.store import Store
from tests.processes.harness import (
    Killer,
    Settings,
    committed,
    counting_job,
    expected_words,
    gone,
    lost_and_doubled,
    run,
    run_to_the_end,
    wait_until,
)
from tests.processes.parts import let_go
from tests.sizes import sized


def _check(settings: Settings) -> None:
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


@pytest.mark.parametrize(("seed", "inline_threshold"), [(1, 0), (2, 64 * 1024)])
def test_killed_workers_lose_and_double_nothing(tmp_path: Path, seed: int, inline_threshold: int):
    settings = Settings(tmp_path, count=40_000, inline_threshold=inline_threshold, parts=4)
    killer = Killer(random.Random(seed), kills=3, gate=settings.gate)
    result = run_to_the_end(settings, killer)
    assert len(killer.killed) == 3, f"seed {seed}"
    assert len(result.restarts) == 3
    for (_, pid), restart in zip(killer.killed, result.restarts, strict=True):
        # How it ended may come to be known too late, after the end of its connection.
        assert f"(pid {pid})" in restart["cause"], result.restarts
    store, last = Store(settings.job), result.restarts[-1]["snapshot"]
    # A worker that is dying may still write while a restart cleans up, and the next start does.
    assert all(found.published for found in store.list() if found.number <= last)
    run(counting_job(settings), resume="newest")
    assert all(found.published for found in store.list())
    _check(settings)


@pytest.mark.parametrize(
    ("target", "inline_threshold"), [("jobmanager", 0), ("jobmanager", 64 * 1024), ("both", 0)]
)
def test_a_killed_jobmanager_is_resumed_without_loss(
    tmp_path: Path, target: str, inline_threshold: int
):
    seed = 11
    settings = Settings(tmp_path, count=30_000, inline_threshold=inline_threshold, parts=3)
    killer = Killer(random.Random(seed), kills=2, targets=(target,), gate=settings.gate)
    run_to_the_end(settings, killer)
    assert len(killer.killed) >= 2, f"seed {seed}"
    assert [event["number"] for event in killer.events if event["event"] == "resumed"]
    _check(settings)


@pytest.mark.parametrize("seed", range(sized(3, 12)))
def test_kills_in_any_phase_lose_and_double_nothing(tmp_path: Path, seed: int):
    inline_threshold = seed % 2 * 4096
    settings = Settings(
        tmp_path, rate=40_000, interval_ms=30, inline_threshold=inline_threshold, parts=7
    )
    targets = ("worker", "worker", "jobmanager", "both")
    killer = Killer(
        random.Random(seed), kills=6, targets=targets, after_snapshots=None, gate=settings.gate
    )
    run_to_the_end(settings, killer)
    assert len(killer.killed) >= 6, f"seed {seed}"
    _check(settings)


def _job_that_retains_all(settings: Settings) -> StreamExecutionEnvironment:
    env = counting_job(settings)
    env.get_checkpoint_config().set_retained_checkpoints(1000)
    return env


def test_what_is_restored_from_checkpoints_that_were_begun_ahead_is_exact(tmp_path: Path):
    """They have a log of what was written between their beginning and their barrier."""
    # There is time to announce each snapshot, and records come for as long as it takes.
    settings = Settings(tmp_path, count=100_000, rate=2_000, interval_ms=1_500, inline_threshold=0)
    store = Store(settings.job)

    def logged(number: int) -> int:
        return sum(log.stat().st_size for log in store.paths.snapshot(number).rglob("*.log"))

    def begun_ahead() -> bool:
        newest = store.newest()
        return newest is not None and logged(newest.number) > 0

    targets = ("worker", "jobmanager")
    killer = Killer(random.Random(8), 3, targets, gate=settings.gate, when=begun_ahead)
    run_to_the_end(settings, killer, job=_job_that_retains_all)
    assert len(killer.killed) >= 3
    names = {"restarted": "snapshot", "resumed": "number"}
    restored = [e[names[e["event"]]] for e in killer.events if e["event"] in names]
    assert len(restored) >= 3 and None not in restored
    assert any(map(logged, restored)), restored
    _check(settings)


def test_a_stopped_worker_is_replaced_after_the_heartbeat_timeout(tmp_path: Path):
    settings = Settings(tmp_path, count=20_000, heartbeat_timeout=2.0, parts=2)
    killer = Killer(random.Random(5), number=signal.SIGSTOP, gate=settings.gate)
    result = run_to_the_end(settings, killer)
    [(_, pid)] = killer.killed
    # Where the machine stands still the other one may be as silent, and be named.
    causes = [restart["cause"] for restart in result.restarts]
    assert any("has sent no heartbeat for 2 s" in cause for cause in causes), causes
    attempts = [event["pids"] for event in killer.events if event["event"] == "workers"]
    assert any(pid in pids for pids in attempts) and pid not in attempts[-1]
    wait_until(lambda: gone(pid), "the stopped worker has ended")
    _check(settings)


def test_a_jobmanager_that_stood_still_gives_no_worker_up(tmp_path: Path):
    settings = Settings(tmp_path, count=20_000, heartbeat_timeout=4.0, parts=2)
    jobmanager: list[int] = []

    def go_on() -> None:
        os.kill(jobmanager[0], signal.SIGCONT)
        let_go(settings.gate)

    # For longer than the timeout, and heartbeats wait to be read when it goes on.
    later = threading.Timer(6.0, go_on)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            jobmanager.append(event["pid"])
        elif event["event"] == "snapshot" and not later.ident:
            os.kill(jobmanager[0], signal.SIGSTOP)
            later.start()

    result = run(counting_job(settings), progress=stop)
    assert result.wall_seconds > 6
    assert result.restarts == []
    _check(settings)


def test_a_resume_goes_on_at_another_parallelism(tmp_path: Path):
    settings = Settings(tmp_path, count=30_000, inline_threshold=0, parts=3)
    for number, parallelism in enumerate((2, 3)):
        killer = Killer(random.Random(number), targets=("jobmanager",), after_snapshots=2)
        with pytest.raises(Exception, match="killed by signal 9"):
            run(
                counting_job(settings),
                parallelism=parallelism,
                resume="newest" if number else None,
                progress=killer,
            )
        let_go(settings.gate)
    result = run(counting_job(settings), parallelism=1, resume="newest")
    assert not result.restarts
    _check(settings)


def test_killed_workers_do_not_remain_as_zombies(tmp_path: Path):
    settings = Settings(tmp_path, count=20_000, parts=2)
    pids: dict[str, Any] = {}
    states: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                pids["jobmanager"] = event["pid"]
            case "workers":
                pids.setdefault("killed", event["pids"])
            case "snapshot" if "restarted" not in pids:
                os.kill(pids["killed"][0], signal.SIGKILL)
                pids["restarted"] = False
            case "running" if pids.get("restarted") is False:
                pids["restarted"] = True
                [(server, _)] = _children(pids["jobmanager"])
                # The server may not have run since they were killed.
                only = "only the new workers are children of the fork server"
                wait_until(lambda: len(_children(server)) == 2, only)
                states.extend(state for _, state in _children(server))
                let_go(settings.gate)

    result = run(counting_job(settings), progress=listen)
    assert len(result.restarts) == 1
    assert len(states) == 2 and "Z" not in states
    _check(settings)


def _children(pid: int) -> list[tuple[int, str]]:
    """Return each child of a process with its state, such as S for sleeping or Z for a zombie."""
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # the process has ended
        if int(parent) == pid:
            children.append((int(path.parent.name), state))
    return children

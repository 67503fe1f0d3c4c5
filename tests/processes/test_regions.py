"""Parts of a job without a path between them restart alone, and lose and double nothing."""

import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    JsonLines,
    MapFunction,
    RuntimeContext,
    StoreError,
    StreamExecutionEnvironment,
)
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.snapshot.storage.store import Store
from tests.processes.harness import (
    Killer,
    Settings,
    committed,
    count_words,
    counting_env,
    expected_words,
    lost_and_doubled,
    run,
    run_to_the_end,
    wait_until,
)
from tests.processes.parts import PartedSource, let_all_go
from tests.sizes import sized

PARTS = ("left", "right")


def _part(settings: Settings, name: str) -> Settings:
    """The settings of one region: the gate is that of the whole job."""
    return replace(settings, folder=settings.folder / name)


def regions_job(settings: Settings) -> StreamExecutionEnvironment:
    env = counting_env(settings)
    env.config.restart_scope = RestartScope.REGION
    for name in PARTS:
        part = _part(settings, name)
        part.folder.mkdir(parents=True, exist_ok=True)
        if not part.gate.exists():
            settings.gate.mkdir(parents=True, exist_ok=True)
            part.gate.symlink_to(settings.gate, target_is_directory=True)
        count_words(env, part, name)
    return env


def lost_and_doubled_of(settings: Settings) -> tuple[int, int]:
    """Return the numbers of lost and doubled records of both regions."""
    outputs = [committed(_part(settings, name).output) for name in PARTS]
    found = [lost_and_doubled(output, expected_words(settings)) for output in outputs]
    return sum(lost for lost, _ in found), sum(doubled for _, doubled in found)


def _check(settings: Settings) -> None:
    assert lost_and_doubled_of(settings) == (0, 0)


@pytest.mark.parametrize("seed", range(sized(2, 12)))
def test_killed_workers_restart_their_region_and_lose_and_double_nothing(tmp_path, seed):
    inline_threshold = seed % 2 * 4096
    settings = Settings(
        tmp_path, 20_000, interval_ms=30, inline_threshold=inline_threshold, parts=7
    )
    killer = Killer(random.Random(seed), kills=6, gate=settings.gate)
    result = run_to_the_end(settings, killer, job=regions_job)
    assert len(killer.killed) >= 6, f"seed {seed}"
    named = [restart.get("region") for restart in result.restarts]
    # Only a kill before the job has begun to run restarts all of it.
    assert None not in named and {name.partition(" →")[0] for name in named} == {
        f"Source: Generator{name}" for name in PARTS
    }
    _check(settings)


@pytest.mark.parametrize("seed", range(sized(2, 12)))
def test_regions_and_whole_jobs_that_restart_in_turns_lose_and_double_nothing(tmp_path, seed):
    settings = Settings(tmp_path, 20_000, interval_ms=30, inline_threshold=0, parts=7)
    targets = ("worker", "worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), 6, targets, after_snapshots=None, gate=settings.gate)
    run_to_the_end(settings, killer, job=regions_job)
    assert len(killer.killed) >= 6, f"seed {seed}"
    _check(settings)


class _OpensLate(MapFunction):
    """Passes records on. After the first attempt it opens only when a file says so."""

    def __init__(self, may_open: Path) -> None:
        self.may_open = may_open

    def open(self, context: RuntimeContext) -> None:
        if context.get_attempt_number():
            wait_until(self.may_open.exists, "the region may open")

    def map(self, value: Any) -> Any:
        return value


class _KillsTheLast:
    """Kills a worker of the last region, and lets all records come when the others went on."""

    def __init__(self, let_go: Any, number: int = signal.SIGKILL) -> None:
        self.let_go = let_go
        self.pids: list[int] = []
        self.snapshots = self.meanwhile = 0
        self.away = False
        self.victims: list[int] = []
        self.restarted: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "workers":
                self.pids = event["pids"]
            case "restarting":
                self.away = True
            case "snapshot":
                self.snapshots += 1
                if self.snapshots >= 2 and not self.victims:
                    self.victims = list(self.pids)
                    os.kill(self.pids[-1], signal.SIGKILL)
                self.meanwhile += self.away
                if self.meanwhile == 5:
                    self.let_go(self)
            case "restarted":
                self.away = False
                self.restarted.append(event)
            case _:
                pass


def _job_that_opens_late(settings: Settings) -> StreamExecutionEnvironment:
    env = regions_job(settings)
    source = PartedSource(settings.gate, 2, int, 1000)
    late = env.from_source(source, None, "Source: late").uid("late")
    opened = late.map(_OpensLate(settings.folder / "open")).uid("opens")
    opened.sink_to(FileSink(settings.output, JsonLines())).uid("late files")
    return env


def _settings(folder: Path) -> Settings:
    return Settings(folder, 20_000, interval_ms=30, inline_threshold=0, parts=2)


def test_snapshots_of_the_others_complete_while_a_region_is_away(tmp_path):
    settings = _settings(tmp_path)

    def let_go(_: Any) -> None:
        (tmp_path / "open").touch()
        let_all_go(settings.gate)

    killer = _KillsTheLast(let_go)
    result = run(_job_that_opens_late(settings), progress=killer)
    assert killer.meanwhile >= 5 and len(killer.restarted) == 1
    assert [restart["region"] for restart in result.restarts] == [
        "Source: late → Map → Sink: FileSink"
    ]
    # The workers of the others have not restarted, and each region has two.
    assert killer.pids[:4] == killer.victims[:4]
    assert not {*killer.pids[4:]} & {*killer.victims}
    _check(settings)
    assert sorted(committed(settings.output)) == list(range(1000))


def test_a_snapshot_without_a_region_restores_the_whole_job(tmp_path):
    """The part of the region that is away comes from the snapshot before."""
    settings = _settings(tmp_path)
    jobmanager: list[int] = []

    def kill_all(killer: _KillsTheLast) -> None:
        os.kill(jobmanager[0], signal.SIGKILL)

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            jobmanager.append(event["pid"])
        killer(event)

    killer = _KillsTheLast(kill_all)
    with pytest.raises(StoreError, match="killed by signal 9"):
        run(_job_that_opens_late(settings), progress=observe)
    assert killer.meanwhile >= 5 and not killer.restarted
    newest = Store(settings.job).newest()
    assert newest is not None
    Store(settings.job).verify(newest, checksums=True)
    assert {handle.uid for handle in newest.handles} >= {"late", "countleft", "countright"}
    (tmp_path / "open").touch()
    let_all_go(settings.gate)
    run(_job_that_opens_late(settings), resume="newest")
    _check(settings)
    assert sorted(committed(settings.output)) == list(range(1000))


def test_regions_of_a_dead_jobmanager_are_not_taken_over_and_lose_and_double_nothing(tmp_path):
    settings = Settings(tmp_path, 20_000, parts=4)
    killer = Killer(random.Random(5), kills=3, targets=("jobmanager",), gate=settings.gate)
    run(regions_job(settings), progress=killer, supervise=True)
    killer.disarm()
    assert len(killer.killed) >= 3
    notes = [event["text"] for event in killer.events if event["event"] == "note"]
    refused = [text for text in notes if "are not taken over" in text]
    assert refused and not any("are taken over" in text for text in notes), notes
    _check(settings)

"""A job whose workers cannot be started again goes on with fewer, and grows when they can."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import StoreError, StreamExecutionEnvironment
from penstock.dataflow.config import CheckpointingMode
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
)
from tests.processes.parts import let_all_go
from tests.processes.slots import Slots
from tests.sizes import sized


class _TakesSlots:
    """Kills a worker and takes its slot away, and gives it back after some snapshots.

    Arguments:
        settings: of the job.
        slots: of its workers.
        left: how many slots are left.
        meanwhile: called when the job goes on with them, and has taken a snapshot.
    """

    def __init__(
        self,
        settings: Settings,
        slots: Slots,
        left: int = 1,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.slots, self.left, self.meanwhile = settings, slots, left, meanwhile
        self.workers: list[list[int]] = []
        self.changes: list[tuple[int, int]] = []
        #: The parallelism of the count, in status events and in snapshots of each attempt.
        self.shown: set[int] = set()
        self.saved: list[int] = []
        self.notes: list[str] = []
        self.jobmanagers: list[int] = []
        self.killed = 0
        self._snapshots = 0

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.jobmanagers.append(event["pid"])
            case "note":
                self.notes.append(event["text"])
            case "workers":
                self.workers.append(event["pids"])
            case "running":
                self._snapshots = 0
            case "slots":
                self.changes.append((event["slots"], event["wanted"]))
            case "status":
                rows = [row for row in event["operators"] if row["uid"].startswith("count")]
                self.shown |= {row["parallelism"] for row in rows}
            case "snapshot":
                self._snapshots += 1
                self._after_snapshot()
            case _:
                pass

    def _after_snapshot(self) -> None:
        if not self.killed and self._snapshots == 2:
            self.killed, *others = reversed(self.workers[-1])
            for pid in [self.killed, *others][: len(self.workers[-1]) - self.left]:
                self.slots.take_from(pid)
            os.kill(self.killed, signal.SIGKILL)
        elif self._snapshots == 2 and len(self.changes) == 1 and not self.saved:
            newest = Store(self.settings.job).newest()
            assert newest is not None
            self.saved += [e.parallelism for e in newest.operators if e.uid.startswith("count")]
            self.meanwhile()
            self.slots.set(9)
        elif self._snapshots == 1 and len(self.changes) == 2:
            let_all_go(self.settings.gate)


def _job(settings: Settings, slots: Slots, mode: CheckpointingMode) -> StreamExecutionEnvironment:
    env = counting_env(settings)
    slots.use(env)
    env.config.checkpointing_mode = mode
    count_words(env, settings)
    return env


def _check(settings: Settings) -> None:
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


@pytest.mark.parametrize("mode", [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED])
@pytest.mark.parametrize("left", [1, 2])
def test_a_job_goes_on_with_fewer_workers_and_grows_again(tmp_path: Path, left: int, mode: Any):
    settings = Settings(
        tmp_path, 20_000, interval_ms=30, inline_threshold=0, parallelism=3, parts=2
    )
    slots = Slots(tmp_path, 3)
    taker = _TakesSlots(settings, slots, left)
    result = run(_job(settings, slots, mode), progress=taker)
    assert taker.killed in taker.workers[0]
    assert taker.changes == [(left, 3), (3, 3)]
    numbers = [len(pids) for pids in taker.workers]
    assert numbers[0] == numbers[-1] == 3 and left in numbers
    assert taker.saved == [left]
    assert [(one["slots"], one["wanted"]) for one in result.rescales] == taker.changes
    assert "workers could not be started" in str(result.rescales[0]["reason"])
    assert result.rescales[1]["reason"] == f"{3 - left} more can be started again"
    _check(settings)


def test_a_job_that_finds_fewer_slots_at_its_start_begins_with_them(tmp_path: Path):
    settings = Settings(tmp_path, 2_000, interval_ms=30, parallelism=2)
    slots = Slots(tmp_path, 1)
    taker = _TakesSlots(settings, slots)
    taker.killed = -1
    run(_job(settings, slots, CheckpointingMode.EXACTLY_ONCE), progress=taker)
    assert taker.changes[0] == (1, 2) and 1 in [len(pids) for pids in taker.workers]
    _check(settings)


@pytest.mark.parametrize("seed", range(sized(2, 12)))
def test_slots_that_come_and_go_lose_and_double_nothing(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    settings = Settings(
        tmp_path, 20_000, interval_ms=30, inline_threshold=seed % 2 * 4096, parallelism=3, parts=7
    )
    slots = Slots(tmp_path, 3)
    killer = Killer(rng, kills=6, gate=settings.gate)
    changes: list[int] = []

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "restarting":
            slots.set(rng.choice([1, 2, 3]))
        elif event["event"] == "slots":
            changes.append(event["slots"])
        killer(event)

    run(_job(settings, slots, CheckpointingMode.EXACTLY_ONCE), progress=observe)
    killer.disarm()
    assert len(killer.killed) >= 6 and min(changes) < 3, f"seed {seed}: {changes}"
    _check(settings)


def test_a_region_that_has_lost_a_slot_goes_on_with_fewer_workers(tmp_path: Path):
    settings = Settings(tmp_path, 20_000, interval_ms=30, parts=2)
    slots = Slots(tmp_path, 4)
    env = counting_env(settings)
    slots.use(env)
    env.config.restart_scope = RestartScope.REGION
    count_words(env, settings, "left")
    count_words(env, settings, "right")
    taker = _TakesSlots(settings, slots, 3)
    run(env, progress=taker)
    assert taker.changes == [(3, 4), (4, 4)]
    assert len(taker.workers[0]) == 4 and 3 in map(len, taker.workers)
    assert sorted(taker.saved) == [1, 2]
    # Both regions write all words.
    output = committed(settings.output)
    words = expected_words(settings)
    once = {(word, n + 1) for word, count in words.items() for n in range(count)}
    seen = sorted((word, number) for word, number in output)
    assert seen == sorted([*once, *once])


def test_after_its_jobmanager_has_died_a_smaller_job_restarts(tmp_path: Path):
    """Its workers are not taken over, since the program asks for more of them."""
    settings = Settings(tmp_path, 20_000, interval_ms=30, parts=2)
    slots = Slots(tmp_path, 2)

    def kill() -> None:
        os.kill(taker.jobmanagers[-1], signal.SIGKILL)

    taker = _TakesSlots(settings, slots, meanwhile=kill)
    env = _job(settings, slots, CheckpointingMode.EXACTLY_ONCE)

    def observe(event: dict[str, Any]) -> None:
        taker(event)
        if event["event"] == "snapshot" and len(taker.jobmanagers) == 2:
            let_all_go(settings.gate)

    run(env, progress=observe, supervise=True)
    assert len(taker.jobmanagers) == 2 and taker.changes[0] == (1, 2)
    assert any("are not taken over: worker 1 has not come" in note for note in taker.notes)
    _check(settings)


def test_without_the_setting_the_restart_strategy_decides(tmp_path: Path):
    settings = Settings(tmp_path, 2_000, interval_ms=30)
    slots = Slots(tmp_path, 1)
    env = _job(settings, slots, CheckpointingMode.EXACTLY_ONCE)
    env.config.restart_reactive = False
    taker = _TakesSlots(settings, slots)
    with pytest.raises((StoreError, Exception), match="exited with code 1"):
        run(env, progress=taker)
    assert not taker.changes

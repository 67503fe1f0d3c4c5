"""A whole cluster in one trio run: JobManager, two workers, channels and store, killed at random.

Goal: whatever is killed, and whenever, the committed output is that of an undisturbed run: no
record is lost, none is doubled. Method: see `tests/simulation`. A failure names its seed, and
`Simulation(seed).run()` runs that very run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from penstock.dataflow.errors import StoreError
from penstock.dataflow.source import ListEnumerator, Split
from penstock.runtime.jobmanager import jobmanager
from penstock.runtime.system.system import System
from penstock.snapshot.storage.store import Store
from penstock.testing.simulation.machine import Machine
from penstock.testing.simulation.scheduler import seed_scheduler
from tests.simulation.cluster import Fault, Outcome, Simulation
from tests.sizes import sized

SEEDS = sized(180, 3_000)
#: Every so many seeds state is kept in RocksDB or SQLite, and snapshots on the disk.
ON_DISK_EVERY = 15


def check(seed: int, simulation: Simulation) -> Outcome:
    try:
        outcome = simulation.run()
    except BaseException as error:
        error.add_note(f"seed {seed}, faults {simulation.faults}")
        error.add_note("\n".join(map(str, simulation.outcome.trace[-30:])))
        raise
    assert outcome.exact, (
        f"seed {seed}: lost {outcome.lost}, doubled {outcome.doubled}, crashes {outcome.crashes}, "
        f"faults {simulation.faults}\n" + "\n".join(map(str, outcome.trace))
    )
    return outcome


def test_whatever_is_killed_and_whenever_nothing_is_lost_or_doubled() -> None:
    kills: Counter[tuple[str, str]] = Counter()
    committed = 0
    for seed in range(SEEDS):
        outcome = check(seed, Simulation(seed, on_disk=seed % ON_DISK_EVERY == 7))
        kills.update(outcome.kills)
        committed += outcome.committed
    assert committed > 30 * SEEDS
    phases = [
        "deploying",
        "before the first snapshot",
        "during a snapshot",
        "between publish and commit",
        "between snapshots",
        "after the end of input",
    ]
    for target in ("worker", "jobmanager", "machine"):
        missed = [phase for phase in phases if not kills[target, phase]]
        assert not missed, f"a {target} was never killed {missed}: {kills}"


def test_a_root_whose_name_was_not_synced_is_not_used() -> None:
    # The sync of the folder above it fails as on a full disk, and later the machine dies.
    outcome = check(1482, Simulation(1482))
    assert any("checkpoint folder" in str(error) for error in outcome.failures)


def test_an_undisturbed_run_commits_what_it_must_with_several_snapshots() -> None:
    snapshots = 0
    for seed in range(10):
        outcome = check(seed, Simulation(seed, faults=[]))
        assert not outcome.kills
        snapshots += sum(what[1] == "snapshot" for what in outcome.trace)
    assert snapshots > 20


@pytest.mark.parametrize("seed", [1, 9, 560])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    first, second = Simulation(seed).run(), Simulation(seed).run()
    assert first.trace == second.trace
    assert len(first.trace) > 5
    assert Simulation(seed + 1).run().trace != first.trace


def test_a_seed_decides_how_trio_schedules() -> None:
    async def order() -> list[int]:
        order: list[int] = []

        async def note(number: int) -> None:
            for _ in range(5):
                await trio.lowlevel.checkpoint()
                order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(note, number)
        return order

    def run(seed: int) -> list[int]:
        seed_scheduler(seed)
        return trio.run(order, clock=trio.testing.MockClock(autojump_threshold=0))

    assert run(1) == run(1)
    assert len({tuple(run(seed)) for seed in range(10)}) > 5


def test_a_snapshot_begun_before_the_input_ended_does_not_pass_for_the_last_one() -> None:
    # Its manifest said so when the last task ended while it was being published, and what came
    # behind its barrier was lost with the JobManager.
    kills = [Fault("jobmanager", "published", count, None) for count in range(1, 8)]
    for seed in range(sized(8, 40)):
        check(seed, Simulation(seed, faults=kills))


def test_a_commit_that_fails_is_made_again() -> None:
    told = ""
    for seed in range(8):
        simulation = Simulation(seed, faults=[])
        simulation.ledger.commit_failures = 0.3
        told += str(check(seed, simulation).trace)
    assert "could not be published" in told


def test_what_commits_need_is_made_good_again_before_a_restart_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As when the JVM of a driver dies: output is pending then, and no worker has started yet.
    simulation = Simulation(3, faults=[])
    lives, commits, make_system = True, 0, Machine.system

    def commit(moment: str) -> None:
        nonlocal lives, commits
        commits += moment == "commit"
        lives = lives and commits != 1
        if not lives:
            raise OSError("the catalog is gone")
        simulation.at(moment)

    def revive() -> None:
        nonlocal lives
        lives = True

    simulation.ledger.on_commit = commit
    simulation.ledger.commit_failures = simulation.ledger.stage_failures = 0.0
    monkeypatch.setattr(
        Machine, "system", lambda *given: replace(make_system(*given), revive=revive)
    )
    outcome = check(3, simulation)
    assert outcome.failures == []
    assert [told[1] for told in outcome.trace].count("restarting") == 1


class Threads:
    """Knows whether what runs is in a thread, in all processes of a simulation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = False
        make_system = Machine.system
        monkeypatch.setattr(Machine, "system", lambda *given: self._watched(make_system(*given)))

    def _watched(self, system: System) -> System:
        def entering(function: Callable[[], Any]) -> Any:
            self.entered = True
            try:
                return function()
            finally:
                self.entered = False

        return replace(system, offload=lambda function: system.offload(partial(entering, function)))


def test_a_source_that_looks_for_splits_does_not_hold_up_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, asked, look = Threads(monkeypatch), [], ListEnumerator.next_split

    def next_split(enumerator: ListEnumerator, subtask: int) -> Split | None:
        asked.append(threads.entered)
        return look(enumerator, subtask)

    monkeypatch.setattr(ListEnumerator, "next_split", next_split)
    check(5, Simulation(5, faults=[]))
    assert asked and all(asked)


def test_folders_that_are_removed_do_not_hold_up_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, removed = Threads(monkeypatch), []

    monkeypatch.setattr(jobmanager, "remove_work", lambda _: removed.append(threads.entered))
    check(5, Simulation(5, faults=[]))
    assert set(removed) == {True}


def test_a_job_recovers_though_what_an_attempt_left_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clean, failed = Store.clean_debris, 0

    def fail(store: Store) -> Any:
        nonlocal failed
        if not store.list():
            return clean(store)
        failed += 1
        raise StoreError("it is in use elsewhere")

    monkeypatch.setattr(Store, "clean_debris", fail)
    faults = [Fault("worker", "published", count, 0.002) for count in (1, 2)]
    outcome = check(3, Simulation(3, faults=faults))
    assert failed == len(outcome.kills) == 2
    assert [told[1] for told in outcome.trace].count("restarted") == 2


# Snapshots are announced in every other simulation.
ANNOUNCED = range(1, 20, 2)


def test_the_folder_of_an_announced_snapshot_is_made_ahead_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    create, anchor = Store.create_folder, Store.persist_folder
    made = set[int]()

    def create_once(store: Store, number: int) -> Path:
        assert number not in made
        folder = create(store, number)
        made.add(number)  # or the disk was full, as it is at times
        return folder

    def note(store: Store, number: int) -> None:
        calls["anchored"] += number in made
        anchor(store, number)

    monkeypatch.setattr(Store, "create_folder", create_once)
    monkeypatch.setattr(Store, "persist_folder", note)
    for seed in ANNOUNCED:
        made.clear()
        check(seed, Simulation(seed, faults=[]))
    assert calls["anchored"] > 10


def test_a_folder_that_cannot_be_made_ahead_is_made_when_its_snapshot_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create, tried, made_later = Store.create_folder, set[int](), 0

    def create_second(store: Store, number: int) -> Path:
        nonlocal made_later
        # Not each, since the last one of a run is not announced.
        if number % 2 and number not in tried:
            tried.add(number)
            raise StoreError("the disk is full for a moment")
        made_later += number in tried
        return create(store, number)

    monkeypatch.setattr(Store, "create_folder", create_second)
    # Few runs have one, so there are more of them.
    for seed in range(1, 60, 2):
        tried.clear()
        check(seed, Simulation(seed, faults=[]))
    assert made_later > 5


def test_output_that_cannot_be_staged_is_produced_again() -> None:
    told = ""
    for seed in range(8):
        simulation = Simulation(seed, faults=[])
        simulation.ledger.stage_failures = 0.3
        told += str(check(seed, simulation).trace)
    assert "could not be staged" in told

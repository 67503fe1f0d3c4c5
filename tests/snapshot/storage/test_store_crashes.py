"""Crashes of the machine at any step of the store, on a file system that forgets.

Goal: whatever the moment of a crash, and whatever part of what was not synced outlives it, the
newest snapshot is whole, is at least the last that was reported as published, and no number comes
back. Method: play a job's life up to each of its file operations, crash there, and look at what a
new process finds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.handles import FileRecord, KeyedHandle
from penstock.snapshot.metadata.manifest import SnapshotKind
from penstock.snapshot.storage.filesystem.memory import MemoryFileSystem
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store
from tests.sizes import sized
from tests.snapshot.storage.test_store import (
    CountingFiles,
    make_manifest,
    memory_store,
    take,
    with_log,
)


class Crash(Exception):
    """The machine stops here."""


class CrashingFiles(MemoryFileSystem):
    """Stops before operation number `stop`; syncs of paths that are `unsynced` do nothing."""

    def __init__(self, seed: int, stop: int | None, unsynced: Callable[[Path], bool]) -> None:
        super().__init__(seed)
        self.steps = 0
        self._stop = stop
        self._unsynced = unsynced

    def _change(self, operation: str, path: Path) -> None:
        if self.steps == self._stop:
            raise Crash(f"{operation} {path}")
        self.steps += 1

    def sync(self, path: Path) -> None:
        if self._unsynced(path):
            self._change("sync", path)
        else:
            super().sync(path)

    def kill(self) -> None:
        """The process stops here, and the machine goes on: nothing is forgotten."""
        self._stop = None
        self._locks.clear()


@dataclass
class Life:
    """What a job was told by its store before the crash."""

    published: list[int] = field(default_factory=list)
    begun: int = 0
    given: int = 0


def live(files: MemoryFileSystem, life: Life, small: bool = False) -> None:
    """Four snapshots with a file each, one of them a savepoint and one aborted; then retention.

    If they are small, they have no files but the manifest.
    """
    store = Store(Path("/jobs/words"), files, clock=lambda: 0.0)
    store.open("words")
    store.lock()
    store.clean_debris()
    for block in range(2):
        for number in store.reserve_numbers(3):
            life.given = number
            folder = store.create_folder(number)
            if number % 2:
                store.persist_folder(number)
            if small:
                if number == 2:
                    store.discard(number)
                    continue
                life.begun = number
                kind = SnapshotKind.SAVEPOINT if number == 3 else SnapshotKind.CHECKPOINT
                store.publish(make_manifest(number, kind))
                life.published.append(number)
                continue
            # What a worker does before it acknowledges.
            name = JobPaths.task_name("count", 0, 1)
            data = f"state {number}".encode()
            files.make_folder(folder / name)
            files.write(folder / name / "1.sst", data)
            files.sync(folder / name / "1.sst")
            files.sync(folder / name)
            if number == 2:
                store.discard(number)
                continue
            checksum = files.checksum(folder / name / "1.sst")
            record = FileRecord(f"{name}/1.sst", len(data), checksum)
            keyed = KeyedHandle(0, 128, ("s",), None, name, (record,))
            kind = SnapshotKind.SAVEPOINT if number == 3 else SnapshotKind.CHECKPOINT
            (logged,) = with_log(number, store, files).handles
            handles = (replace(logged, keyed=keyed),)
            life.begun = number
            store.publish(replace(make_manifest(number, kind), handles=handles))
            life.published.append(number)
        store.retain(1 + block)


def check_what_is_left(files: MemoryFileSystem, life: Life) -> None:
    store = Store(Path("/jobs/words"), files, clock=lambda: 0.0)
    store.open("words")
    if life.published:
        trace = json.loads(files.read(store.paths.numbers))["published"]
        assert trace >= life.published[-1], "a published snapshot left no trace"
    # A trace that is ahead of the manifests would be an alarm here.
    newest = store.newest()
    store.lock()
    assert store.newest() == newest
    if newest is None:
        assert not life.published, "a snapshot that was reported as published is lost"
    else:
        assert newest.number in {*life.published[-1:], life.begun}
    if 3 in life.published:
        assert store.load(3).kind is SnapshotKind.SAVEPOINT
    for info in store.list():
        if info.published:
            store.verify(store.load(info.number), checksums=True)
    store.clean_debris()
    assert all(info.complete for info in store.list())
    (number,) = store.reserve_numbers(1)
    assert number > life.given, "a number came back"
    take(store, number)
    assert store.newest() == make_manifest(number)


def take_over(files: MemoryFileSystem, life: Life) -> None:
    """What a new process sees, relies on and tidies before it has a snapshot of its own."""
    store = Store(Path("/jobs/words"), files, clock=lambda: 0.0)
    store.open("words")
    store.lock()
    newest = store.newest()
    if newest is not None:
        # Restored from, so its output gets committed: it counts as published from here on.
        life.published.append(newest.number)
    store.clean_debris()
    life.given = store.reserve_numbers(1)[0]


def crash_everywhere(
    seeds: range,
    unsynced: Callable[[Path], bool] = lambda path: False,
    between: Callable[[CrashingFiles, Life], None] = lambda files, life: None,
    small: bool = False,
) -> int:
    """Crash at every step; `between` happens before the machine forgets. Returns the steps."""
    whole = CrashingFiles(0, None, unsynced)
    live(whole, Life(), small)
    for stop in range(whole.steps):
        for seed in seeds:
            files, life = CrashingFiles(seed, stop, unsynced), Life()
            with pytest.raises(Crash) as crash:
                live(files, life, small)
            try:
                files.kill()
                between(files, life)
                files.crash(keep=(0.0, 1.0, 0.5, 0.2, 0.8)[seed % 5])
                check_what_is_left(files, life)
            except (AssertionError, StoreError) as error:
                story = f"crash at step {stop} ({crash.value}), seed {seed}, {life}"
                raise AssertionError(f"{story}: {error}") from error
    return whole.steps


def test_a_crash_at_any_step_leaves_the_old_or_the_new_snapshot_whole() -> None:
    assert crash_everywhere(range(sized(5, 20))) > 100


def test_what_a_killed_process_left_is_durable_once_another_has_taken_over() -> None:
    assert crash_everywhere(range(sized(3, 10)), between=take_over) > 100


def test_snapshots_of_small_state_outlive_a_crash_at_any_step() -> None:
    assert crash_everywhere(range(sized(5, 20)), small=True) > 80
    assert crash_everywhere(range(sized(3, 10)), between=take_over, small=True) > 80


@pytest.mark.parametrize("name", ["manifest.", "numbers.", "words", "checkpoints", "chk"])
def test_no_sync_of_small_state_is_needless(name: str) -> None:
    def unsynced(path: Path) -> bool:
        is_folder = JobPaths.number_of(path.name) is not None
        return is_folder if name == "chk" else path.name.startswith(name)

    with pytest.raises(AssertionError, match="crash at step"):
        crash_everywhere(range(15), unsynced, small=True)


def test_small_state_is_durable_with_few_syncs() -> None:
    files = CountingFiles()
    store = memory_store(files)
    for number in store.reserve_numbers(5):
        files.synced.clear()
        store.create_folder(number)
        store.persist_folder(number)
        store.publish(make_manifest(number))
        store.retain(2)
    # The name of its folder, the manifest and its name, and the record with its name.
    assert len(files.synced) == 5


@pytest.mark.parametrize(
    "unsynced",
    [
        lambda path: path.name.startswith("manifest."),
        lambda path: path.name.startswith("numbers."),
        lambda path: path.name == "words",
        lambda path: path.name == "checkpoints",
        lambda path: JobPaths.number_of(path.name) is not None,
        lambda path: path.name.endswith(".log0"),
        lambda path: path.parent.name.endswith(".log0"),
    ],
    ids=["manifest", "numbers", "root", "checkpoints", "snapshot", "log folder", "log file"],
)
def test_a_sync_that_is_left_out_is_noticed(unsynced: Callable[[Path], bool]) -> None:
    with pytest.raises(AssertionError, match="crash at step"):
        crash_everywhere(range(15), unsynced)

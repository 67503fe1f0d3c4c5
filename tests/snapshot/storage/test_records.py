"""The files `job`, `numbers` and `commits`: checksums, damage, and older layouts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import Manifest, SnapshotKind, SnapshotNumber
from penstock.snapshot.storage.confirmed_output import require_published
from penstock.snapshot.storage.filesystem.memory import MemoryFileSystem
from penstock.snapshot.storage.store import Store

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "words")
    store.open("words")
    store.lock()
    yield store
    store.unlock()


def take(store: Store, number: int) -> None:
    kind = SnapshotKind.CHECKPOINT
    store.create_folder(number)
    store.publish(Manifest("words", "l", None, SnapshotNumber(number), kind, 1, 1, "0", "f"))


def confirmed(store: Store) -> dict[tuple[str, str], int]:
    """What a job that resumes from the newest snapshot takes for published."""
    store.open("words")
    newest = store.newest()
    assert newest is not None
    found = store.confirmed()
    require_published(found, newest.lineage, store.highest_published(), store.paths)
    return found


@pytest.mark.parametrize("name", ["job", "numbers", "commits"])
def test_each_flipped_bit_of_a_record_is_told_and_refused(name: str) -> None:
    files = MemoryFileSystem()
    store = Store(Path("/words"), files)
    store.open("words")
    store.lock()
    for number in store.reserve_numbers(3):
        take(store, number)
    store.confirm({("l", "out"): 2})
    assert confirmed(store) == {("l", "out"): 2} and store.damaged_records() == []
    path = store.paths.root / name
    whole = files.read(path)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        files.write(path, bytes(data))
        with pytest.raises(StoreError):
            confirmed(store)
        if name == "job":
            with pytest.raises(StoreError):
                store.job_name()
        else:
            assert any(str(path) in line for line in store.damaged_records())


def test_records_that_are_missing_are_told(store: Store) -> None:
    assert store.damaged_records() == []
    store.paths.commits.unlink()
    (line,) = store.damaged_records()
    assert "is missing" in line and str(store.paths.commits) in line
    store.paths.numbers.unlink()
    assert [line.split()[-1] for line in store.damaged_records()] == [
        f"[{store.paths.numbers}]",
        f"[{store.paths.commits}]",
    ]


def test_a_record_of_commits_that_is_ahead_of_the_snapshots_is_refused(store: Store) -> None:
    take(store, 1)
    # A fork has the record of its parent, whose snapshots have other numbers.
    store.confirm({("l", "out"): 1, ("parent", "out"): 40})
    assert store.damaged_records() == []
    store.confirm({("l", "out"): 2})
    (line,) = store.damaged_records()
    assert "output of snapshot 2 is published, but the newest snapshot is 1" in line
    with pytest.raises(StoreError, match="newest snapshot is 1"):
        confirmed(store)
    # The manifest of snapshot 2 may be gone: then another message says so.
    take(store, 2)
    store.paths.manifest(2).unlink()
    assert store.damaged_records() == []


def test_output_of_removed_snapshots_stays_published(store: Store) -> None:
    # The job is cancelled, and its checkpoints are removed. A savepoint before them stays.
    take(store, 1)
    take(store, 2)
    store.confirm({("l", "out"): 2})
    store.discard(SnapshotNumber(2))
    assert store.newest_published() == 1
    assert store.damaged_records() == []
    assert confirmed(store) == {("l", "out"): 2}


def test_the_records_of_each_layout_are_read(tmp_path: Path) -> None:
    for layout in (1, 2):
        root = tmp_path / str(layout)
        shutil.copytree(GOLDEN / f"layout-{layout}", root)
        store = Store(root)
        before = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
        assert store.damaged_records() == []
        assert store.job_name() == "word count"
        assert store.confirmed() == {("00c0ffee", "words"): 12}
        assert store.newest_published() == 12
        store.open("word count")
        store.lock()
        assert store.reserve_numbers(1) == range(65, 66)
        store.confirm({("00c0ffee", "words"): 12})
        store.unlock()
        if layout == 2:
            assert store.paths.job.read_bytes() == before["job"]
            assert store.paths.commits.read_bytes() == before["commits"]
    golden = Store(tmp_path / "1")
    # Without a checksum, a record has only the entries that Penstock 0.1 wrote.
    golden.paths.numbers.write_text('{"next": 65, "published": 12, "chdcksum": ""}')
    with pytest.raises(StoreError, match="damaged"):
        golden.open("word count")

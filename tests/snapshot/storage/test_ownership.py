"""Folders with files of others are refused, and nothing in a job's own folder is touched that
Penstock did not make."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.dataflow.config import CheckpointConfig, JobConfig
from penstock.dataflow.errors import GraphError, StoreError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.snapshot.metadata.handles import FileRecord, KeyedHandle, OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest, SnapshotKind, SnapshotNumber
from penstock.snapshot.storage.adopted_files import adopt
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.ownership import remove_spill, remove_work
from penstock.snapshot.storage.store import Store


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def taken(root: Path, job: str = "words") -> Store:
    """A job's folder with one snapshot."""
    store = Store(root)
    store.open(job)
    store.lock()
    (number,) = store.reserve_numbers(1)
    store.create_folder(number)
    kind = SnapshotKind.CHECKPOINT
    store.publish(Manifest(job, "l", None, SnapshotNumber(number), kind, 1, 1, "0", "f"))
    store.unlock()
    return store


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "job/numbers",
        "letter.tmp",
        "work/thesis.txt",
        "work/",
        "checkpoints/model.pt",
        "checkpoints/20240131/photo.jpg",
        "sources/main.c",
        "lock",
        "numbers",
        ".git/config",
    ],
)
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=f"is not empty.*{name.split('/')[0]!r}.*an empty folder"):
        Store(tmp_path).open("words")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda paths: None,
        lambda paths: (paths.root / "lost+found").mkdir(),
        lambda paths: paths.checkpoints.mkdir(),
        lambda paths: paths.temporary(paths.numbers, 7).write_text("half"),
        lambda paths: paths.numbers.write_text('{"next": 1}\n'),
        lambda paths: paths.source("table").mkdir(parents=True),
    ],
    ids=["nothing", "of the file system", "checkpoints", "temporary", "numbers", "source"],
)
def test_a_folder_that_was_being_made_is_taken(
    tmp_path: Path, make: Callable[[JobPaths], object]
) -> None:
    make(JobPaths(tmp_path))
    Store(tmp_path).open("words")
    assert Store(tmp_path).job_name() == "words"


def test_a_folder_that_lost_its_identity_is_taken_by_its_own_job_only(tmp_path: Path) -> None:
    store = taken(tmp_path)
    store.paths.work(3).mkdir(parents=True)
    store.paths.job.unlink()
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="snapshot 1 in this folder is of job 'words'"):
        Store(tmp_path).open("other")
    assert tree(tmp_path) == before
    Store(tmp_path).open("words")


def test_folders_that_only_look_like_snapshots_are_not_taken(tmp_path: Path) -> None:
    for name in ("20240131/manifest", "20240201/photo.jpg"):
        (tmp_path / "checkpoints" / name).parent.mkdir(parents=True)
        (tmp_path / "checkpoints" / name).write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="no snapshot in the folder can be read"):
        Store(tmp_path).open("words")
    assert tree(tmp_path) == before


def test_only_temporary_files_of_known_names_are_removed(tmp_path: Path) -> None:
    store = taken(tmp_path)
    kept = ["letter.tmp", "notes.12.tmp", "job.tmp", "job.x.tmp"]
    for name in kept:
        (tmp_path / name).write_text("mine")
    for path in (store.paths.numbers, store.paths.job, store.paths.manifest(1)):
        store.paths.temporary(path, 99).write_text("half")
    store.lock()
    store.clean_debris()
    store.unlock()
    assert [name for name in tree(tmp_path) if name.endswith(".tmp")] == sorted(kept)


def test_only_folders_of_attempts_are_removed_from_work(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path)
    for name in ("4", "128", "mine"):
        (paths.work_root / name).mkdir(parents=True)
        (paths.work_root / name / "file").write_text("x")
    remove_work(paths)
    assert tree(tmp_path) == ["work", "work/mine", "work/mine/file"]
    (paths.work_root / "mine" / "file").unlink()
    (paths.work_root / "mine").rmdir()
    paths.work(5).mkdir()
    remove_work(paths)
    assert tree(tmp_path) == []
    remove_work(paths)


@pytest.mark.parametrize("name", ["checkpoints", "work", "sources"])
def test_nothing_is_removed_through_a_symbolic_link(tmp_path: Path, name: str) -> None:
    photos = tmp_path / "photos"
    (photos / "20240131").mkdir(parents=True)
    store = taken(tmp_path / "job")
    linked = store.paths.root / name
    if linked.exists():
        linked.rename(tmp_path / "old")
    linked.symlink_to(photos)
    with pytest.raises(StoreError, match="this is a symbolic link"):
        Store(store.paths.root).open("words")
    assert tree(photos) == ["20240131"]


@pytest.mark.parametrize("name", ["lock", "numbers.{pid}.tmp"])
def test_no_file_is_written_through_a_symbolic_link(tmp_path: Path, name: str) -> None:
    store = taken(tmp_path / "job")
    (tmp_path / "letter").write_text("Dear")
    link = store.paths.root / name.format(pid=os.getpid())
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "letter")
    with pytest.raises(StoreError):
        store.lock()
        store.reserve_numbers(1)
    store.unlock()
    assert (tmp_path / "letter").read_text() == "Dear"


def test_addresses_of_other_file_systems_are_no_folders() -> None:
    config = JobConfig()
    settings = CheckpointConfig(config)
    for path in ("/jobs/words", "file:///jobs/words", "FILE:///jobs/words", Path("/jobs/words")):
        settings.set_checkpoint_storage_dir(path)
        assert config.checkpoint_dir == "/jobs/words"
    for path in ("ftp://host/x", "hdfs://name/x", "memory://x"):
        with pytest.raises(GraphError, match=f"'{path}' is no place for snapshots"):
            settings.set_checkpoint_storage_dir(path)
        with pytest.raises(GraphError, match=f"'{path}' is no place for snapshots"):
            JobConfig(checkpoint_dir=path).validate()


@pytest.mark.parametrize("links", [True, False])
def test_a_fork_keeps_the_files_of_its_parent_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    source, own, synced = JobPaths(tmp_path / "a"), JobPaths(tmp_path / "b"), []
    names = ["count.x/1.sst", "count.x.log0/000000"]
    for name in names:
        (source.snapshot(7) / name).parent.mkdir(parents=True)
        (source.snapshot(7) / name).write_text(name)
    records = tuple(FileRecord(name, len(name), "") for name in names)
    keyed = KeyedHandle(0, 1, (), folder="count.x", files=records)
    manifest = Manifest(
        *("j", "l", None, SnapshotNumber(7), SnapshotKind.CHECKPOINT, 1, 1, "0", "f"),
        handles=(OperatorHandle("count", 0, keyed), OperatorHandle("count", 1, keyed)),
    )
    if not links:

        def link(*_: Path) -> None:
            raise OSError(errno.EXDEV, "another file system")

        monkeypatch.setattr(FileSystem, "link", link)
    monkeypatch.setattr(FileSystem, "sync", lambda _, path: synced.append(path.name))
    kept = adopt(manifest, source, own)
    assert [(kept.snapshot(7) / name).read_text() for name in names] == names
    assert sorted(synced) == ([] if links else ["000000", "1.sst"])
    remove_work(own)
    assert tree(own.root) == []
    (source.snapshot(7) / names[1]).unlink()
    with pytest.raises(StoreError, match="snapshot 7 was removed while the fork was started"):
        adopt(manifest, source, own)


def test_the_spilled_records_of_one_channel_are_removed(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path)
    folders = [paths.spill(3, 1, 0, target) for target in (0, 1)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "segment").write_bytes(b"records")
    for _ in range(2):  # the folder may be missing
        remove_spill(paths, 3, ChannelId(1, 0, 1))
    assert [folder.exists() for folder in folders] == [True, False]

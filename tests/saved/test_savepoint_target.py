"""Where savepoints are copied to, and what is refused before and after they are taken."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock import FileSink, JsonLines, StoreError, StreamExecutionEnvironment, open_snapshot
from penstock.dataflow.program import RunOptions, run_options
from penstock.saved import copying
from penstock.saved.savepoint_target import copy_savepoint, require_target
from penstock.snapshot.storage.store import Store


def test_a_new_or_empty_folder_is_a_target_and_stays_as_it_was(tmp_path: Path):
    require_target(str(tmp_path / "a" / "new"))
    assert not (tmp_path / "a" / "new").exists()
    (tmp_path / "empty").mkdir()
    require_target(str(tmp_path / "empty"))
    assert list((tmp_path / "empty").iterdir()) == []


def test_targets_that_cannot_be_used_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreError, match="must be new or empty"):
        require_target(str(tmp_path / "full"))
    with pytest.raises(StoreError, match="must be new or empty"):
        require_target(str(tmp_path / "full" / "file"))
    with pytest.raises(StoreError, match="absolute path"):
        require_target("relative")

    def no_space(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("penstock.saved.savepoint_target.sync_file", no_space)
    with pytest.raises(StoreError, match="the disk is full"):
        require_target(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def _job(folder: Path) -> Path:
    """Run a job to its end, and return the folder of its last snapshot."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    words = env.from_collection(["a", "b", "a"]).uid("words")
    counted = words.key_by(lambda word: word).count().uid("count")
    counted.sink_to(FileSink(folder / "out", JsonLines())).uid("out")
    env.execute("words")
    newest = Store(folder / "job").newest()
    assert newest is not None
    return Store(folder / "job").paths.snapshot(newest.number)


def test_a_copy_can_be_moved_and_a_job_starts_from_it(tmp_path: Path):
    snapshot = _job(tmp_path)
    copied = Path(copy_savepoint(str(snapshot), str(tmp_path / "copy")))
    assert copied.parts[-3:] == ("copy", "checkpoints", snapshot.name)
    (tmp_path / "copy").rename(tmp_path / "moved")
    with open_snapshot(tmp_path / "moved") as moved:
        assert moved.verify() is None or moved.verify()
        assert {entry.key: entry.value for entry in moved.entries("count")}["a"]
    other = tmp_path / "other"
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_checkpoint_config().set_checkpoint_storage_dir(other / "job")
    words = env.from_collection(["a", "b", "a"]).uid("words")
    counted = words.key_by(lambda word: word).count().uid("count")
    counted.sink_to(FileSink(other / "out", JsonLines())).uid("out")
    with run_options(RunOptions(resume=str(tmp_path / "moved"), fork=True)):
        env.execute("words")
    assert not list((other / "out").glob("part-*"))  # All input had been read.


def test_a_disk_that_fills_up_leaves_the_snapshot_and_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    snapshot = _job(tmp_path)

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(copying, "_copy_files", no_space)
    with pytest.raises(StoreError, match="cannot copy the snapshot: the disk is full"):
        copy_savepoint(str(snapshot), str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists() and (snapshot / "manifest").is_file()


def test_files_that_a_running_job_removes_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    snapshot = _job(tmp_path)
    sources = tmp_path / "job" / "sources"
    sources.mkdir()
    for name in ("kept", "removed"):
        (sources / name).write_text(name)
    copy = copying._copy_if_there

    def remove_and_copy(source: str, target: str) -> None:
        (sources / "removed").unlink(missing_ok=True)
        copy(source, target)

    monkeypatch.setattr(copying, "_copy_if_there", remove_and_copy)
    copy_savepoint(str(snapshot), str(tmp_path / "copy"))
    assert [path.name for path in (tmp_path / "copy" / "sources").iterdir()] == ["kept"]

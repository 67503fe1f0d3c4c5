"""Temporary folders: which are removed, and which never."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import GraphError, StreamExecutionEnvironment
from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem import temporary_folder as temporary
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder, remove_abandoned

ROOT = str(Path(__file__).resolve().parents[3])


def _abandon(parent: Path) -> Path:
    """Make a folder as a process leaves it that is killed."""
    folder = TemporaryFolder("job", str(parent))
    (folder.path / "state").mkdir()
    (folder.path / "state" / "file").write_text("x")
    assert folder._lock is not None
    os.close(folder._lock)
    folder._lock = None
    return folder.path.parent


def test_a_folder_is_removed_with_all_that_is_in_it(tmp_path: Path):
    with TemporaryFolder("collect", str(tmp_path)) as folder:
        assert folder.path.parent.name.startswith("penstock-collect-")
        assert folder.path.parent.stat().st_mode & 0o777 == 0o700
        (folder.path / "part").write_text("x")
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_removes_those_of_processes_that_have_ended(tmp_path: Path):
    left = [_abandon(tmp_path) for _ in range(2)]
    with TemporaryFolder("sockets", str(tmp_path)) as folder:
        assert list(tmp_path.iterdir()) == [folder.path.parent]
    assert not any(path.exists() for path in left)


def test_a_new_folder_removes_those_at_the_usual_place_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "usual").mkdir()
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path / "usual"))
    left = _abandon(tmp_path / "usual")
    TemporaryFolder("sockets", str(tmp_path)).remove()
    assert not left.exists()


def test_a_program_that_cannot_be_compiled_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.config.channel_batches = 0
    with pytest.raises(GraphError, match="channel_batches"):
        env.from_collection([1]).execute_and_collect()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_its_folder_to_the_next(tmp_path: Path):
    program = (
        "import os, signal\n"
        "from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder\n"
        f"folder = TemporaryFolder('spark', {str(tmp_path)!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": ROOT}
    ended = subprocess.run([sys.executable, "-c", program], env=environment)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_stays_whatever_the_process_ids_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with TemporaryFolder("job", str(tmp_path)) as folder:
        # Of another PID namespace: no process id that is written anywhere would be known.
        monkeypatch.setattr(os, "getpid", lambda: 1)
        TemporaryFolder("job", str(tmp_path)).remove()
        monkeypatch.undo()
        assert folder.path.is_dir()


def test_a_process_that_was_forked_does_not_remove_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with TemporaryFolder("job", str(tmp_path)) as folder:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        folder.remove()
        monkeypatch.undo()
        assert folder.path.is_dir()


def test_folders_that_are_not_ours_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outside = _abandon(tmp_path)
    outside = outside.rename(tmp_path / "outside")
    (tmp_path / "penstock-job-aaaaaaaa").symlink_to(outside)
    (tmp_path / "penstock-job-bbbbbbbb").mkdir()
    linked = tmp_path / "penstock-job-cccccccc"
    linked.mkdir()
    (linked / "lock").symlink_to(outside / "lock")
    piped = tmp_path / "penstock-job-dddddddd"
    piped.mkdir()
    os.mkfifo(piped / "lock")
    before = sorted(tmp_path.rglob("*"))
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    theirs = _abandon(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    remove_abandoned(tmp_path)
    assert theirs.is_dir()


def test_a_folder_with_more_in_it_than_ours_keeps_that(tmp_path: Path):
    left = _abandon(tmp_path)
    (left / "letter").write_text("Dear")
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in left.iterdir()) == ["letter", "lock"]


def test_a_folder_that_another_process_takes_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flock, raced = temporary.fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not raced:
            # Between the making of the file and its lock.
            raced.append(True)
            remove_abandoned(tmp_path)
        flock(descriptor, operation)

    monkeypatch.setattr(temporary.fcntl, "flock", late)
    with TemporaryFolder("job", str(tmp_path)) as folder:
        assert folder.path.is_dir()
        assert list(tmp_path.iterdir()) == [folder.path.parent]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(StoreError, match=r"No such file .* set TMPDIR .*absent"):
        TemporaryFolder("job", str(tmp_path / "absent"))

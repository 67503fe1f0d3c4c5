"""The store: locks, numbers, publishing and retention."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.dataflow.errors import ProtocolError, StoreError
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.handles import (
    FileRecord,
    KeyedHandle,
    OperatorHandle,
    SnapshotBytes,
    StateMode,
)
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.state.operator_state import read_operator_state
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.memory import MemoryFileSystem
from penstock.snapshot.storage.in_flight_log import (
    BATCH,
    Range,
    Segment,
    frame,
    read_log,
    write_log,
)
from penstock.snapshot.storage.store import Store

GOLDEN = Path(__file__).parents[2] / "golden"


def make_manifest(number: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> Manifest:
    sizes = SnapshotBytes(10 * number, 1)
    count = OperatorEntry("count", "Count", "keyed process", 4, 128, True)
    return Manifest(
        *("words", "l", None, SnapshotNumber(number), kind, 1000 + number, 1, "0", "f"),
        operators=(count,),
        sizes=sizes,
    )


def take(store: Store, number: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT) -> Path:
    store.create_folder(number)
    return store.publish(make_manifest(number, kind))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def numbers(store: Store) -> list[int]:
    return [info.number for info in store.list()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "jobs" / "words")
    store.open("words")
    store.lock()
    yield store
    store.unlock()


class FailingFiles(FileSystem):
    """The disk, with one kind of operation that fails."""

    def __init__(self, operation: str, number: int) -> None:
        def fail(path: Path, *_: object) -> None:
            raise OSError(number, os.strerror(number), str(path))

        setattr(self, operation, fail)


# --- opening and locking


class FailingParent(FileSystem):
    """The disk, where the folder above a root cannot be synced."""

    def __init__(self, parent: Path, number: int) -> None:
        self._parent, self._number = parent, number

    def sync(self, path: Path) -> None:
        if path == self._parent:
            raise OSError(self._number, os.strerror(self._number), str(path))
        super().sync(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_root_whose_name_may_not_outlive_a_crash_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(StoreError, match="use the checkpoint folder"):
        Store(tmp_path / "root", FailingParent(tmp_path, number)).open("words")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_parents_that_cannot_be_synced_do_no_harm(tmp_path: Path, number: int) -> None:
    Store(tmp_path / "root", FailingParent(tmp_path, number)).open("words")


def test_a_folder_is_made_and_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        store = Store(tmp_path / "a" / "b", clock=lambda: 12.5)
        store.open("words")
        assert store.job_name() == "words"
        assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
            "checkpoints",
            "commits",
            "job",
            "numbers",
        ]
    identity = json.loads(store.paths.job.read_text())
    assert len(identity.pop("checksum")) == 32
    assert identity == {"layout": 2, "job": "words", "created_ms": 12500}


def test_another_jobs_folder_is_refused_by_name(store: Store) -> None:
    with pytest.raises(StoreError, match=r"belongs to job 'words', not to 'other'"):
        Store(store.paths.root).open("other")


def test_a_folder_that_is_no_jobs_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a job's checkpoint folder"):
        Store(tmp_path).job_name()
    assert Store(tmp_path).list() == []
    assert Store(tmp_path).newest() is None


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EACCES, "not permitted"),
        (errno.EROFS, "read-only"),
        (errno.EXDEV, os.strerror(errno.EXDEV)),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_with_advice(
    tmp_path: Path, number: int, advice: str
) -> None:
    with pytest.raises(StoreError, match=f"cannot use the checkpoint folder: .*{advice}"):
        Store(tmp_path, FailingFiles("write", number)).open("words")


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a part of the path is a file"):
        Store(tmp_path / "file" / "job").open("words")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no hard links"):
        Store(tmp_path, FailingFiles("link", errno.EPERM)).open("words")
    with pytest.raises(StoreError, match="failed"):
        Store(tmp_path, FailingFiles("link", errno.EIO)).open("words")


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"next": "1"}'])
def test_a_damaged_record_of_numbers_is_refused(store: Store, text: str) -> None:
    store.paths.numbers.write_text(text)
    with pytest.raises(StoreError, match="damaged") as caught:
        store.reserve_numbers(1)
    assert caught.value.path == str(store.paths.numbers)


def test_a_missing_record_of_numbers_is_refused(store: Store) -> None:
    store.paths.numbers.unlink()
    with pytest.raises(StoreError, match="numbers might be used twice"):
        Store(store.paths.root).open("words")


def test_a_newer_layout_says_to_upgrade(store: Store) -> None:
    store.paths.job.write_text('{"layout": 3, "job": "words"}')
    with pytest.raises(StoreError, match=r"layout 3, .*upgrade"):
        Store(store.paths.root).open("words")


def test_a_second_holder_is_refused_and_told_who_has_it(store: Store) -> None:
    second = Store(store.paths.root)
    with pytest.raises(StoreError, match=rf"process {os.getpid()} on host {os.uname().nodename}"):
        second.lock()
    store.unlock()
    second.lock()
    second.unlock()
    store.lock()


def test_a_holder_that_left_no_name_is_another_process(store: Store) -> None:
    store.paths.lock.write_text("")
    with pytest.raises(StoreError, match="in use by another process"):
        Store(store.paths.root).lock()


def test_the_lock_holds_between_processes_and_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from penstock.snapshot.storage.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.open('words'); store.lock()\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    root = tmp_path / "words"
    command = [sys.executable, "-c", program, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StoreError, match=f"process {holder.pid} "):
            Store(root).lock()
        holder.kill()
        holder.wait()
        store = Store(root)
        store.lock()
        store.unlock()


def test_locks_that_do_not_lock_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.open("words")
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
    with pytest.raises(StoreError, match="locks do not work on this file system"):
        store.lock()


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSYS, "locks do not work"), (errno.EACCES, "not permitted")]
)
def test_a_lock_that_cannot_be_taken_says_why(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store(tmp_path, FailingFiles("lock", number)).lock()


def test_nothing_is_changed_without_the_lock(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open("words")
    changes: list[Callable[[], object]] = [
        lambda: store.reserve_numbers(1),
        lambda: store.create_folder(1),
        lambda: store.publish(make_manifest(1)),
        lambda: store.discard(1),
        lambda: store.retain(1),
        store.clean_debris,
    ]
    for change in changes:
        with pytest.raises(ProtocolError, match="must be locked"):
            change()
    store.unlock()
    store.lock()
    with pytest.raises(ProtocolError, match="locked already"):
        store.lock()
    store.unlock()


def test_one_whose_lock_was_replaced_stops(store: Store) -> None:
    store.create_folder(1)
    store.paths.lock.unlink()
    with pytest.raises(StoreError, match="lock was removed or replaced"):
        store.publish(make_manifest(1))
    store.paths.lock.write_text("")
    with pytest.raises(StoreError, match="lock was removed or replaced"):
        store.reserve_numbers(1)


# --- numbers


def test_numbers_are_never_given_out_twice(store: Store) -> None:
    assert store.reserve_numbers(3) == range(1, 4)
    assert store.reserve_numbers(2) == range(4, 6)
    store.unlock()
    again = Store(store.paths.root)
    again.open("words")
    again.lock()
    assert again.reserve_numbers(1) == range(6, 7)
    again.unlock()


def test_numbers_go_up_though_folders_were_deleted_or_the_record_is_old(store: Store) -> None:
    old = store.paths.numbers.read_bytes()
    store.reserve_numbers(8)
    take(store, 8)
    store.paths.numbers.write_bytes(old)
    assert store.reserve_numbers(1) == range(9, 10)
    shutil.rmtree(store.paths.checkpoints)
    assert store.reserve_numbers(1) == range(10, 11)


def test_counts_that_mean_nothing_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        store.reserve_numbers(0)
    with pytest.raises(ValueError, match="at least 1"):
        store.retain(0)


# --- publishing and reading


def test_a_snapshot_is_complete_because_its_manifest_exists(store: Store) -> None:
    store.create_folder(1)
    assert store.newest() is None
    with pytest.raises(StoreError, match="no complete snapshot 1"):
        store.load(1)
    path = store.publish(make_manifest(1))
    assert path == store.paths.manifest(1)
    assert names_in(store.paths.snapshot(1)) == ["manifest"]
    assert store.newest() == store.load(1) == make_manifest(1)


def test_a_manifest_is_never_replaced(store: Store) -> None:
    path = take(store, 1)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another one has taken the job over"):
        store.publish(replace(make_manifest(1), attempt=2))
    assert path.read_bytes() == before
    assert names_in(path.parent) == ["manifest"]
    with pytest.raises(StoreError, match="another one has taken the job over"):
        store.create_folder(1)


def test_a_folder_that_was_removed_while_the_job_ran_is_said_to_be(store: Store) -> None:
    with pytest.raises(StoreError, match="cannot publish snapshot 5: it is not there"):
        store.publish(make_manifest(5))


@pytest.mark.parametrize("operation", ["write", "sync", "link", "remove"])
def test_a_snapshot_that_could_not_be_published_is_not_there(
    store: Store, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_folder(1)

    def fail(path: Path, *_: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(FileSystem, operation, lambda self, *paths: fail(*paths))
    with pytest.raises(StoreError, match="cannot publish snapshot 1: the disk is full"):
        store.publish(make_manifest(1))
    assert store.newest() is None
    store.clean_debris()
    assert numbers(store) == []


def test_what_failed_after_the_link_is_taken_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_folder(1)
    sync = FileSystem.sync

    def fail(self: FileSystem, path: Path) -> None:
        if store.paths.manifest(1).exists():
            raise OSError(errno.EIO, "broken")
        sync(self, path)

    monkeypatch.setattr(FileSystem, "sync", fail)
    with pytest.raises(StoreError, match="the disk failed"):
        store.publish(make_manifest(1))
    assert store.newest() is None


def test_a_listing_tells_all_and_what_is_wrong(store: Store) -> None:
    take(store, 1, SnapshotKind.SAVEPOINT)
    store.create_folder(2)
    take(store, 3).write_bytes(encode_manifest(make_manifest(3))[:-1])
    (store.paths.checkpoints / "notes").mkdir()
    first, second, third = store.list()
    assert (first.number, first.kind, first.created_ms) == (1, SnapshotKind.SAVEPOINT, 1001)
    assert (first.size, first.lineage, first.complete) == (11, "l", True)
    assert not second.complete
    assert not second.published
    assert "no manifest" in str(second.problem)
    assert not third.complete
    assert third.published
    assert "truncated" in str(third.problem)


def with_log(number: int, store: Store, files: FileSystem) -> Manifest:
    """A snapshot with a log of one batch in a file of its own and one that was spilled."""
    work = store.paths.root / "work"
    if not files.exists(work):
        files.make_folder(work)
    spilled, data = work / f"segment {number}", frame(BATCH, b"spilled")
    files.write(spilled, data)
    steps = write_log(
        [b"in memory", Range(Segment(spilled, len(data), files.checksum(spilled)), 0, len(data))],
        producer="count",
        input=0,
        source=1,
        partitioning="hash",
        records=2,
        folder=store.paths.log(number, "count", 0, 1, 0),
        inline_threshold=0,
        files=files,
    )
    try:
        step = next(steps)
        assert step is not None
        step()
        next(steps)
    except StopIteration as stop:
        log, _ = stop.value
    return replace(make_manifest(number), handles=(OperatorHandle("count", 0, logs=(log,)),))


def test_verifying_looks_at_the_logs_of_back_edges_too(store: Store) -> None:
    store.create_folder(1)
    manifest = with_log(1, store, FileSystem())
    store.verify(manifest, checksums=True)
    for name in ("000000", "000001"):
        path = store.paths.log(1, "count", 0, 1, 0) / name
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b"!")
        store.verify(manifest)
        with pytest.raises(StoreError, match=r"'count', subtask 0, has another checksum") as caught:
            store.verify(manifest, checksums=True)
        assert caught.value.path == str(path)
        path.write_bytes(data)
    path.unlink()
    with pytest.raises(StoreError, match="is missing"):
        store.verify(manifest)


def test_retention_takes_the_logs_along(store: Store) -> None:
    for number in (1, 2):
        store.create_folder(number)
        store.publish(with_log(number, store, FileSystem()))
    assert store.retain(1) == (1,)
    assert names_in(store.paths.checkpoints) == ["000002"]
    store.verify(store.load(2), checksums=True)


def test_a_damaged_newest_snapshot_is_not_passed_over(store: Store) -> None:
    take(store, 1)
    path = take(store, 2)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="altered") as caught:
        store.newest()
    assert caught.value.path == str(path)
    assert store.load(1) == make_manifest(1)


def test_a_renamed_snapshot_is_found(store: Store) -> None:
    take(store, 1).parent.rename(store.paths.snapshot(7))
    with pytest.raises(StoreError, match="folder says snapshot 7 and its manifest 1"):
        store.newest()


def with_file(number: int, data: bytes, store: Store) -> Manifest:
    path = store.paths.task(number, "count", 0, 1) / "000007.sst"
    path.parent.mkdir()
    path.write_bytes(data)
    record = FileRecord(f"{path.parent.name}/{path.name}", len(data), FileSystem().checksum(path))
    keyed = KeyedHandle(0, 128, ("sum",), None, path.parent.name, (record,))
    handles = (OperatorHandle("src", 0, small=[]), OperatorHandle("count", 0, keyed))
    return replace(make_manifest(number), handles=handles)


def test_verifying_finds_missing_short_and_altered_files(store: Store) -> None:
    store.create_folder(1)
    manifest = with_file(1, b"some keys", store)
    path = store.paths.task(1, "count", 0, 1) / "000007.sst"
    store.verify(manifest, checksums=True)
    path.write_bytes(b"same size")
    store.verify(manifest)
    with pytest.raises(StoreError, match=r"'count', subtask 0, has another checksum") as caught:
        store.verify(manifest, checksums=True)
    assert caught.value.path == str(path)
    path.write_bytes(b"short")
    with pytest.raises(StoreError, match="has 5 bytes instead of 9"):
        store.verify(manifest)
    path.unlink()
    with pytest.raises(StoreError, match="is missing"):
        store.verify(manifest)


@pytest.mark.parametrize("format", [1, 2, 3, 4])
def test_the_golden_snapshots_of_every_format_can_be_read_for_ever(format: int) -> None:
    store = Store(GOLDEN / f"format-{format}")
    assert store.job_name() == "word count"
    manifest = store.newest()
    assert manifest is not None
    assert manifest.format == format
    store.verify(manifest, checksums=True)
    (info,) = store.list()
    assert (info.number, info.kind, info.size) == (12, SnapshotKind.SAVEPOINT, 40)


def test_the_golden_logs_can_be_read_for_ever() -> None:
    store = Store(GOLDEN / "format-2")
    manifest = store.load(12)
    codec = Codec(TypeRegistry([]))
    in_flight = [
        [codec.decode_batch(payload) for payload in read_log(log, store.paths.snapshot(12))]
        for handle in manifest.handles
        for log in handle.logs
    ]
    assert in_flight == [
        [[1, 2, 3]],
        [[("lost", 3), ("found", 1)], [("in", 1), ("flight", 2)], [("äöü", 0)]],
    ]


def test_the_golden_operator_state_can_be_read_for_ever() -> None:
    store = Store(GOLDEN / "format-4")
    manifest = store.load(12)
    codec = Codec(TypeRegistry([]))
    states = {
        state.name: (state.mode, [codec.decode_value(element) for element in state.elements])
        for handle in manifest.handles
        if handle.operator_state is not None
        for state in read_operator_state(handle.operator_state, store.paths.snapshot(12))
    }
    assert states == {
        "rules": (StateMode.BROADCAST, [("a", 1), ("b", 2)]),
        "pending": (StateMode.SPLIT, [1, 2]),
        "offsets": (StateMode.UNION, ["a"]),
    }


# --- removing


def test_retention_keeps_the_newest_and_never_savepoints_nor_the_final_one(store: Store) -> None:
    kinds = {3: SnapshotKind.SAVEPOINT, 7: SnapshotKind.FINAL}
    for number in range(1, 8):
        take(store, number, kinds.get(number, SnapshotKind.CHECKPOINT))
    assert store.retain(2) == (1, 2, 4)
    assert numbers(store) == [3, 5, 6, 7]
    assert store.retain(2) == ()


def test_retention_leaves_what_unconfirmed_committables_need(store: Store) -> None:
    for number in range(1, 5):
        take(store, number)
    assert store.retain(1, protect={2}) == (1, 3)
    assert numbers(store) == [2, 4]


def test_retention_leaves_damaged_and_unfinished_ones_to_people(store: Store) -> None:
    take(store, 1).write_bytes(b"")
    store.create_folder(2)
    take(store, 3)
    assert store.retain(1) == ()
    assert numbers(store) == [1, 2, 3]


def test_discarding_takes_whatever_there_is(store: Store) -> None:
    take(store, 1, SnapshotKind.SAVEPOINT)
    store.create_folder(2)
    for number in (1, 2, 3):
        store.discard(number)
    assert numbers(store) == []


def test_debris_is_removed_and_nothing_else(store: Store) -> None:
    take(store, 1)
    store.create_folder(2)
    (store.paths.snapshot(2) / "count").mkdir()
    (store.paths.snapshot(2) / "count" / "000001.sst").write_bytes(b"x")
    (store.paths.checkpoints / "notes").mkdir()
    for path in (store.paths.numbers, store.paths.manifest(1)):
        store.paths.temporary(path, 99).write_bytes(b"half")
    assert store.clean_debris() == (2,)
    assert names_in(store.paths.checkpoints) == ["000001", "notes"]
    assert names_in(store.paths.snapshot(1)) == ["manifest"]
    assert names_in(store.paths.root) == ["checkpoints", "commits", "job", "lock", "numbers"]


def test_a_newest_snapshot_that_is_gone_is_not_passed_over(store: Store) -> None:
    for number in store.reserve_numbers(3):
        take(store, number)
    store.discard(3)
    assert store.newest() == make_manifest(2)
    store.paths.manifest(2).unlink()
    with pytest.raises(StoreError, match="snapshot 2 was the newest, and its manifest is gone"):
        store.newest()
    assert [(i.number, i.published, i.complete) for i in store.list()] == [
        (1, True, True),
        (2, True, False),
    ]
    assert store.clean_debris() == () and store.paths.snapshot(2).exists()
    assert store.newest(since=3) is None
    take(store, 4)
    assert store.newest() == make_manifest(4)


def test_a_trace_that_cannot_be_written_does_not_undo_the_snapshot(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_folder(1)
    monkeypatch.setattr(FileSystem, "rename", FailingFiles("rename", errno.ENOSPC).rename)
    store.publish(make_manifest(1))
    assert store.newest() == make_manifest(1)


def test_confirmed_commits_are_recorded(store: Store) -> None:
    assert store.confirmed() == {}
    store.confirm({("l", "b"): 2, ("l", "a"): 7})
    assert store.confirmed() == {("l", "a"): 7, ("l", "b"): 2}
    with pytest.raises(StoreError, match="is damaged"):
        store.paths.commits.write_text("[]")
        store.confirmed()


def test_debris_that_a_dying_worker_still_adds_to_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_folder(1)
    for number, raises in ((errno.ENOTEMPTY, False), (errno.EACCES, True)):
        failing = FailingFiles("remove_tree", number)
        monkeypatch.setattr(FileSystem, "remove_tree", failing.remove_tree)
        if raises:
            with pytest.raises(StoreError, match="not permitted"):
                store.clean_debris()
        else:
            assert store.clean_debris() == (1,)


# --- in memory


class CountingFiles(MemoryFileSystem):
    """Remembers the names of all paths that were synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync(self, path: Path) -> None:
        self.synced.append(path.name)
        super().sync(path)


def test_a_folder_that_was_made_durable_ahead_is_not_synced_again() -> None:
    files = CountingFiles()
    store = Store(Path("/words"), files)
    store.open("words")
    store.lock()
    times = []
    for number in store.reserve_numbers(3):
        store.create_folder(number)
        if number == 2:
            store.persist_folder(number)
        files.synced.clear()
        store.publish(make_manifest(number))
        times.append(files.synced.count("checkpoints"))
    assert times == [1, 0, 1]


def memory_store(files: MemoryFileSystem) -> Store:
    """Return an open and locked store in memory."""
    store = Store(Path("/memory"), files)
    store.open("words")
    store.lock()
    return store


def test_a_folder_that_is_not_there_is_not_taken_for_durable() -> None:
    files = MemoryFileSystem()
    store = memory_store(files)
    store.persist_folder(1)
    take(store, 1)
    files.crash()
    assert Store(store.paths.root, files).newest() == make_manifest(1)


def test_a_store_in_memory_behaves_like_one_on_disk() -> None:
    files = MemoryFileSystem()
    store = memory_store(files)
    with pytest.raises(StoreError, match="in use"):
        Store(store.paths.root, files).lock()
    assert store.reserve_numbers(3) == range(1, 4)
    for number in (1, 2):
        take(store, number)
    with pytest.raises(StoreError, match="taken the job over"):
        store.publish(make_manifest(2))
    with pytest.raises(StoreError, match="not there"):
        store.publish(make_manifest(3))
    assert store.retain(1) == (1,)
    assert store.newest() == make_manifest(2)
    store.unlock()
    files.crash()
    assert store.newest() == make_manifest(2)


def run_with_faults(seed: int) -> list[str]:
    """A job's worth of snapshots on a store that fails at random; the story of it."""
    files = MemoryFileSystem(seed)
    store = memory_store(files)
    files.failure_rate = 0.1
    story, published, given = [], 0, 0
    for _ in range(20):
        try:
            number = store.reserve_numbers(1)[0]
            assert number > given
            given = number
            take(store, number)
            published = number
            store.retain(2)
        except StoreError as error:
            story.append(str(error))
        newest = store.newest()
        # A number whose publishing failed may be there, if taking it back failed as well.
        assert published <= (newest.number if newest else 0) <= given
    return story


def test_a_failing_store_fails_alike_under_one_seed() -> None:
    stories = [run_with_faults(seed) for seed in (1, 1, 2)]
    assert stories[0] == stories[1]
    assert stories[0] != stories[2]
    assert any("publish" in line for line in stories[0])

"""Snapshots in an object store: what survives a machine, a lost answer and a second JobManager."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.storage.objects.fetched_snapshots import fetch_listing, fetch_snapshot
from penstock.snapshot.storage.objects.log_entry import LogEntry
from penstock.snapshot.storage.objects.memory_objects import MemoryBucket
from penstock.snapshot.storage.objects.snapshot_log import SnapshotLog
from penstock.snapshot.storage.store import Store, Upload
from tests.sizes import sized
from tests.snapshot.storage.objects.mirrored_jobs import (
    CHECKPOINT,
    SAVEPOINT,
    MirroredJob,
    contents,
)


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


def started(root: Path, bucket: MemoryBucket) -> MirroredJob:
    job = MirroredJob(root, bucket)
    job.start()
    return job


def keys(bucket: MemoryBucket, kind: str) -> list[str]:
    return sorted(key for key in bucket.objects if key.startswith(f"{kind}/"))


def test_a_snapshot_is_found_again_on_another_machine(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    (first, *_) = job.store.reserve_numbers(4)
    job.take(first, {"a": b"alpha", "b": b"beta"})
    job.store.confirm({("l", "out"): first})
    other = MirroredJob(tmp_path / "two", bucket)
    found = other.start()
    assert found is not None and found.number == first
    assert contents(other.store, found) == {"a": b"alpha", "b": b"beta"}
    assert other.store.confirmed() == {("l", "out"): first}
    assert other.store.reserve_numbers(1).start == first + 4


def test_a_file_is_sent_once(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    job.take(1, {"a": b"alpha", "b": b"beta"})
    job.take(2, {"a": b"alpha", "c": b"gamma"})
    assert bucket.writes["files"] == 3
    # A JobManager on another machine knows what the store has.
    other = started(tmp_path / "two", bucket)
    other.take(7, {"a": b"alpha", "c": b"gamma", "d": b"delta"})
    assert bucket.writes["files"] == 4


def test_retention_removes_objects_that_no_snapshot_needs(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    job = started(tmp_path / "one", bucket)
    job.take(1, {"old": b"old", "kept": b"kept"})
    job.take(2, {"kept": b"kept"}, SAVEPOINT)
    for number in range(3, 9):
        job.take(number, {"kept": b"kept", "new": b"%d" % number})
        job.store.retain(2)
    stored = sorted(bucket.objects[key][0] for key in keys(bucket, "files"))
    assert stored == [b"7", b"8", b"kept"]
    assert len(keys(bucket, "log")) == 3
    other = MirroredJob(tmp_path / "two", bucket)
    found = other.start()
    assert found is not None and contents(other.store, found) == {"kept": b"kept", "new": b"8"}
    other.store.fetch(2)
    assert contents(other.store, other.store.load(2)) == {"kept": b"kept"}


def test_objects_of_an_aborted_snapshot_are_removed(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    job.prepare(1, {"a": b"aborted", "b": b"again"})
    job.store.discard(1)
    job.take(2, {"b": b"again"})
    job.store.retain(1)
    assert [bucket.objects[key][0] for key in keys(bucket, "files")] == [b"again"]


def test_objects_of_a_killed_jobmanager_are_removed(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    numbers = job.store.reserve_numbers(9)
    job.take(numbers[0], {"a": b"alpha"})
    job.prepare(numbers[1], {"a": b"alpha", "b": b"never complete"})
    bucket.settle()
    other = started(tmp_path / "two", bucket)
    other.take(other.store.reserve_numbers(1)[0], {"a": b"alpha"})
    other.store.retain(1)
    assert [bucket.objects[key][0] for key in keys(bucket, "files")] == [b"alpha"]


def test_a_jobmanager_that_was_replaced_ends(tmp_path: Path, bucket: MemoryBucket) -> None:
    old = started(tmp_path / "one", bucket)
    old.take(1, {"a": b"alpha"})
    zombie = old.prepare(2, {"a": b"alpha", "z": b"zombie"})
    new = started(tmp_path / "two", bucket)
    with pytest.raises(StoreError, match="another JobManager has taken the job over") as caught:
        old.store.publish(zombie)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    with pytest.raises(StoreError, match="another JobManager has taken the job over"):
        old.store.reserve_numbers(1)
    with pytest.raises(StoreError, match="another JobManager has taken the job over"):
        old.store.remove_checkpoints()
    # It removes nothing that the new one needs.
    old.store.retain(1)
    new.take(5, {"a": b"alpha"})
    found = MirroredJob(tmp_path / "three", bucket).start()
    assert found is not None and found.number == 5


def test_only_one_of_two_jobmanagers_completes_a_snapshot(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    jobs = [started(tmp_path / name, bucket) for name in ("one", "two")]
    manifests = [job.prepare(9, {"a": name}) for job, name in zip(jobs, (b"1", b"2"), strict=True)]
    jobs[1].store.publish(manifests[1])
    with pytest.raises(StoreError, match="another JobManager"):
        jobs[0].store.publish(manifests[0])
    found = MirroredJob(tmp_path / "three", bucket).start()
    assert found is not None and found.handles == manifests[1].handles


def test_a_listing_that_lags_hides_no_snapshot(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    for number in (1, 2, 3):
        job.take(number, {"a": b"%d" % number})
    assert job.objects.names("log/") == []
    found = MirroredJob(tmp_path / "two", bucket).start()
    assert found is not None and found.number == 3


def test_a_lost_newest_entry_is_never_ignored(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    for number in (1, 2, 3):
        job.take(number, {"a": b"%d" % number})
        job.store.retain(3)
    del bucket.objects[keys(bucket, "log")[-1]]
    with pytest.raises(StoreError, match="it is gone"):
        MirroredJob(tmp_path / "two", bucket).start()


def test_an_emptied_store_is_refused(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    job.take(1, {"a": b"alpha"})
    job.store.unlock()
    with pytest.raises(StoreError, match="the store was emptied"):
        MirroredJob(tmp_path / "one", MemoryBucket()).start()
    assert Store(tmp_path / "one").newest() is not None


def test_a_store_of_another_job_is_refused(tmp_path: Path, bucket: MemoryBucket) -> None:
    started(tmp_path / "one", bucket)
    with pytest.raises(StoreError, match="belongs to job 'words', not to 'other'"):
        MirroredJob(tmp_path / "two", bucket).store.open("other")
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("damage", ["log/0000000002", "newest", "job", "files"])
def test_a_damaged_object_is_refused(tmp_path: Path, bucket: MemoryBucket, damage: str) -> None:
    job = started(tmp_path / "one", bucket)
    job.take(1, {"a": b"alpha"})
    key = keys(bucket, "files")[0] if damage == "files" else damage
    content, version = bucket.objects[key]
    bucket.objects[key] = content[:-3] + b"x", version
    if damage.startswith("log"):
        bucket.objects[key] = b"x" + content[1:], version
    with pytest.raises(StoreError, match=r"is damaged|another checksum"):
        MirroredJob(tmp_path / "two", bucket).start()


def test_a_local_folder_that_is_behind_catches_up(tmp_path: Path, bucket: MemoryBucket) -> None:
    first = started(tmp_path / "one", bucket)
    first.take(1, {"a": b"1"})
    first.store.unlock()
    second = started(tmp_path / "two", bucket)
    for number in (5, 6, 7):
        second.take(number, {"a": b"%d" % number})
        second.store.retain(1)
    again = MirroredJob(tmp_path / "one", bucket)
    found = again.start()
    assert found is not None and found.number == 7
    assert [info.number for info in again.store.list()] == [7]


def test_lost_local_files_come_from_the_store(tmp_path: Path, bucket: MemoryBucket) -> None:
    job = started(tmp_path / "one", bucket)
    job.take(1, {"a": b"alpha"})
    job.store.unlock()
    (job.store.paths.snapshot(1) / "count.0" / "a").unlink()
    again = MirroredJob(tmp_path / "one", bucket)
    found = again.start()
    assert found is not None and contents(again.store, found) == {"a": b"alpha"}


def test_a_file_that_is_gone_is_an_error_that_names_it(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    job = started(tmp_path / "one", bucket)
    gone = Upload(tmp_path / "one" / "table.sst", "0a1b2c", "files/000001/0a1b2c", 10)
    with pytest.raises(StoreError, match=r"read a file of a snapshot.*table\.sst"):
        job.store.send(gone)


def test_a_snapshot_that_only_the_store_has_is_settled(
    tmp_path: Path, bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(tmp_path / "one", bucket)
    job.take(1, {"a": b"1"})
    assert not job.store.in_doubt

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="is full"):
        patch.setattr(Store, "publish", full)
        job.take(2, {"a": b"2"})
    assert job.store.in_doubt
    job.store.settle()
    assert not job.store.in_doubt
    newest = job.store.newest()
    assert newest is not None and newest.number == 2


@pytest.mark.parametrize("case", range(3))
def test_a_lost_answer_is_settled(tmp_path: Path, case: int) -> None:
    # The put has reached the store, or reaches it after the next request, or never.
    class Chosen(random.Random):
        def randrange(self, *_: object) -> int:
            return case

    bucket = MemoryBucket()
    bucket.random = Chosen()
    job = started(tmp_path / "one", bucket)
    job.take(1, {"a": b"1"})
    second = job.prepare(2, {"a": b"2"})
    job.objects.failure_rate = 1.0
    with pytest.raises(StoreError, match="simulated fault"):
        job.store.publish(second)
    assert job.store.in_doubt
    job.objects.failure_rate = 0.0
    job.store.settle()
    assert not job.store.in_doubt
    newest = job.store.newest()
    assert newest is not None and newest.number == (2 if case == 0 else 1)
    bucket.settle()
    found = MirroredJob(tmp_path / "two", bucket).start()
    assert found is not None and found.number == newest.number


def test_snapshots_are_read_without_taking_the_job_over(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    job = started(tmp_path / "one", bucket)
    job.take(1, {"a": b"alpha"})
    job.take(2, {"a": b"alpha", "b": b"beta"})
    fetch_listing("memory://bucket", tmp_path / "read", job.objects)
    reader = Store(tmp_path / "read")
    assert [info.number for info in reader.list()] == [1, 2]
    fetch_snapshot(reader.paths, 2, job.objects)
    reader.verify(reader.load(2), checksums=True)
    job.take(3, {"a": b"alpha"})


@pytest.mark.parametrize("seed", range(sized(25, 1000)))
def test_jobmanagers_with_faults_never_lose_a_committed_snapshot(tmp_path: Path, seed: int) -> None:
    take_turns(tmp_path, seed)


def test_a_log_that_reuses_removed_numbers_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = SnapshotLog._put

    def put_without_look(log: SnapshotLog, entry: LogEntry) -> LogEntry | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SnapshotLog, "_read_named", lambda _: 0)
            return put(log, entry)

    monkeypatch.setattr(SnapshotLog, "_put", put_without_look)
    with pytest.raises(AssertionError):
        for seed in range(100):
            take_turns(tmp_path / str(seed), seed)


def take_turns(folder: Path, seed: int) -> None:
    """Let JobManagers take a job over from each other while requests fail and are late.

    A JobManager whose `publish` returns has committed output. No later JobManager may start from an
    older snapshot, and a snapshot that it starts from has all its files.
    """
    rng, bucket = random.Random(seed), MemoryBucket(seed)
    committed = 0
    jobs: list[MirroredJob] = []
    given: set[int] = set()
    replaced = False
    for turn in range(30):
        if not jobs or rng.random() < 0.15:
            job = MirroredJob(folder / f"{turn}", bucket)
            job.objects.failure_rate = 0.1
            try:
                found = job.start()
            except StoreError as error:
                assert error.recoverability is not Recoverability.NON_RECOVERABLE, (seed, error)
                shutil.rmtree(folder / f"{turn}", ignore_errors=True)
                replaced = True  # its claim may be in the store, or come later
                continue
            replaced = False
            assert (found.number if found else 0) >= committed, seed
            if found is not None:
                contents(job.store, found)
                job.store.verify(found, checksums=True)
            jobs.append(job)
        job = rng.choice(jobs)  # an old one may be a zombie
        try:
            job.store.settle()
            number = job.store.reserve_numbers(rng.randrange(1, 4))[-1]
            assert number not in given, seed
            given.add(number)
            files = {name: name.encode() for name in rng.sample("abcdefgh", 4)}
            files["own"] = b"%d" % number
            job.take(number, files, SAVEPOINT if rng.random() < 0.1 else CHECKPOINT)
        except StoreError as error:
            if error.recoverability is Recoverability.NON_RECOVERABLE:
                assert "another JobManager has taken the job over" in str(error), seed
                assert replaced or job is not jobs[-1], (seed, error)
        else:
            assert job is jobs[-1], f"{seed}: a JobManager that was replaced completed a snapshot"
            committed = number
            job.store.retain(rng.randrange(1, 4))
        if rng.random() < 0.3:
            bucket.arrive()
    bucket.settle()
    final = MirroredJob(folder / "final", bucket)
    found = final.start()
    assert (found.number if found else 0) >= committed, seed
    for number in final.store._log.live:
        final.store.fetch(number)
        final.store.verify(final.store.load(number), checksums=True)


def test_a_folder_is_the_copy_of_one_store(tmp_path: Path, bucket: MemoryBucket) -> None:
    started(tmp_path / "one", bucket).store.unlock()
    other = MirroredJob(tmp_path / "one", MemoryBucket())
    other.objects.url = "memory://other"
    with pytest.raises(StoreError, match="is the local copy of memory://bucket, not of memory"):
        other.start()


def test_snapshots_of_a_folder_that_is_no_copy_are_kept(
    tmp_path: Path, bucket: MemoryBucket
) -> None:
    """The store is ahead of a folder whose snapshots were taken without it."""
    ahead = started(tmp_path / "store", bucket)
    for number in range(1, 5):
        ahead.take(number, {"a": b"%d" % number})
    own = started(tmp_path / "own", MemoryBucket())
    own.take(2, {"b": b"own"})
    own.store.unlock()
    own.store.paths.origin.unlink()
    job = MirroredJob(tmp_path / "own", bucket)
    with pytest.raises(StoreError, match="has snapshot 2, which is no copy") as caught:
        job.start()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    plain = Store(tmp_path / "own")
    assert plain.published() == [2]
    assert contents(own.store, plain.load(2)) == {"b": b"own"}

"""What is done ahead of a snapshot, while a task is idle: entries written, checksums computed."""

import random
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from penstock.runtime.control.world import Signal
from penstock.runtime.persist import Cut, Persister
from penstock.snapshot.events import SnapshotKind
from penstock.snapshot.state import backend as backend_module
from penstock.snapshot.state import checkpoint as checkpoint_module
from penstock.snapshot.state.prewrite import PrewritePolicy
from penstock.snapshot.state.version import ManifestReader, UnknownManifestError
from tests.test_state_backend import contents, drive, fill, make

__all__ = ["make"]


def amid_prewriting(make):
    """A backend of 9,000 dirty entries, of which a first slice was written; and the work."""
    backend = make(inline_threshold=0, slice_seconds=0.0001)
    make.snapshot(backend, 1)
    fill(backend, 9000)
    work = backend.prewrite()
    next(work)
    return backend, work


def test_prewriting_leaves_little_for_the_next_capture(make):
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    fill(backend, 12000)
    backend.table("s").delete("k0")
    drive(backend.prewrite())
    assert len(backend.table("s").dirty) <= 4096
    expected = {f"k{i}": i for i in range(1, 12000)}
    assert contents(backend) == expected
    assert contents(make.restored(make.snapshot(backend, 2))) == expected


def test_prewriting_does_nothing_without_rocksdb_or_with_a_capture_pending(make):
    backend = make()
    fill(backend, 9000)
    assert list(backend.prewrite()) == []
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    fill(backend, 9000)
    backend.capture(2)
    fill(backend, 9000)
    assert list(backend.prewrite()) == []


def test_a_capture_may_come_amid_prewriting(make):
    backend, work = amid_prewriting(make)
    capture = backend.capture(2)
    fill(backend, 9000, lambda i: -i)
    assert list(work) == []
    handle, _ = drive(capture.write(make.root / "2"))
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(9000)}
    assert contents(backend) == {f"k{i}": -i for i in range(9000)}


def test_prewriting_may_be_given_up(make):
    backend, work = amid_prewriting(make)
    work.close()
    table = backend.table("s")
    assert 4096 < len(table.dirty) < 9000
    table.put("k0", "again")
    expected = {f"k{i}": i for i in range(9000)} | {"k0": "again"}
    assert contents(backend) == expected
    assert contents(make.restored(make.snapshot(backend, 2))) == expected


def test_checksums_that_were_computed_ahead_are_those_of_the_files(make, monkeypatch):
    computed = []
    real = checkpoint_module._checksum
    monkeypatch.setattr(
        checkpoint_module, "_checksum", lambda path: computed.append(path.name) or real(path)
    )
    backend = make(inline_threshold=0)
    table = backend.table("s")
    expected = {}
    for number in range(1, 5):
        for i in range(12_000):
            expected[f"key{i}"] = f"{number} {random.random()}" * 5
            table.put(f"key{i}", expected[f"key{i}"])
        drive(backend.prewrite())
        ahead = 0
        while drive(backend.sum_ahead()):
            ahead += 1
        assert not backend.wants_sums
        before = len(computed)
        handle = make.snapshot(backend, number)
        assert len(set(computed)) == len(computed)
        assert ahead == 0 or len(computed) - before < len(handle.files)
        for file in handle.files:
            assert file.checksum == real(make.root / file.name)
        assert contents(make.restored(handle)) == expected
    assert ahead


@pytest.mark.parametrize("error", [None, UnknownManifestError("what is this", Path("MANIFEST"))])
def test_checksums_that_cannot_be_had_ahead_are_computed_later(make, monkeypatch, error):
    backend = make(inline_threshold=0)
    fill(backend, 12_000)
    make.snapshot(backend, 1)
    with monkeypatch.context() as patch:
        if error is None:
            # A compaction has removed it since.
            patch.setattr(backend.store, "tables", lambda: ["999999.sst"])
        else:
            patch.setattr(ManifestReader, "read", Mock(side_effect=error))
        assert not drive(backend.sum_ahead())
    fill(backend, 12_000, lambda i: -i)
    assert contents(make.restored(make.snapshot(backend, 2))) == contents(backend)


def announced(make):
    """A backend that was told that a snapshot is due, and what it holds."""
    backend = make(inline_threshold=0)
    fill(backend, 12_000)
    make.snapshot(backend, 1)
    fill(backend, 12_000, lambda i: -i)
    assert not backend.wants_flush
    backend.prepare(0.0)
    return backend, {f"k{i}": -i for i in range(12_000)}


def test_what_was_written_ahead_is_flushed_once_before_a_snapshot_that_is_announced(make):
    backend, expected = announced(make)
    assert not backend.wants_flush  # there is nothing to flush
    drive(backend.prewrite())
    tables = set(backend.store.tables())
    assert backend.wants_flush
    drive(backend.flush_ahead())
    assert not backend.wants_flush
    new = set(backend.store.tables()) - tables
    assert new
    fill(backend, 100, lambda i: i)
    handle = make.snapshot(backend, 2)
    assert new <= {Path(file.name).name for file in handle.files}
    assert contents(make.restored(handle)) == expected | {f"k{i}": i for i in range(100)}


def test_it_is_not_flushed_long_before(make):
    backend, _ = announced(make)
    backend.prepare(60.0)
    drive(backend.prewrite())
    assert not backend.wants_flush


def test_a_capture_may_come_amid_a_flush(make):
    backend, expected = announced(make)
    drive(backend.prewrite())
    work = backend.flush_ahead()
    flush = next(work)
    capture = backend.capture(2)
    fill(backend, 12_000)
    flush()
    assert list(work) == []
    handle, _ = drive(capture.write(make.root / "2"))
    assert contents(make.restored(handle)) == expected
    assert not backend.wants_flush


def test_a_flush_ahead_that_fails_is_left_to_the_checkpoint(make, monkeypatch):
    backend, expected = announced(make)
    drive(backend.prewrite())
    with monkeypatch.context() as patch:
        patch.setattr(backend.store, "_database", Mock(flush=Mock(side_effect=Exception("no"))))
        drive(backend.flush_ahead())
    assert contents(make.restored(make.snapshot(backend, 2))) == expected


def test_what_is_written_for_nothing_long_before_a_snapshot_is_still_written_shortly_before():
    policy = PrewritePolicy()
    for _ in range(4):
        if policy.allowed:
            policy.wrote(0, [1, 2, 3])
        policy.prepare()
        assert policy.allowed
        policy.wrote(0, [4, 5, 6])
        policy.captured(lambda _, key: key <= 3)
    assert not policy.allowed
    policy.prepare()
    policy.wrote(0, [4])
    policy.captured(lambda _, key: True)
    policy.prepare()
    assert not policy.allowed


def persister_of(backend, quiet=lambda: True):
    return Persister(
        subtask=0,
        lineage="l",
        attempt=1,
        backends={"uid": backend},
        reporter=Mock(),
        paths=Mock(),
        clock=time.monotonic,
        quiet=quiet,
    )


# Which of two that are runnable trio runs first is a matter of chance, so many times.
@pytest.mark.parametrize("turn", range(30))
def test_who_wakes_up_waits_for_one_slice_of_what_is_written_ahead(turn):
    slices, waiting, wake = [], True, Signal()

    def prewrite():
        for number in range(5):
            slices.append(number)
            wake.set()
            yield None

    async def sleeper():
        nonlocal waiting
        await wake.wait()
        waiting = False
        for _ in range(9):
            await trio.lowlevel.checkpoint()

    async def work():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper)
            await trio.testing.wait_all_tasks_blocked()
            await persister.work(None, trio.lowlevel.checkpoint)

    backend = Mock(must_relieve=False, wants_prewrite=True, prewrite=prewrite)
    persister = persister_of(backend, quiet=lambda: waiting)
    persister.idle = True
    trio.run(work)
    assert slices == [0]


def busy_with(backend):
    """The persister of a task that is never idle, and its clock."""
    now = [0.0]
    persister = persister_of(backend, quiet=lambda: False)
    persister._clock = lambda: now[0]
    return persister, now


def test_a_busy_task_writes_ahead_of_a_snapshot_that_is_announced_and_no_longer():
    written = []

    def prewrite():
        for number in range(5):
            written.append(number)
            now[0] += 0.1
            yield None

    backend = Mock(must_relieve=False, wants_prewrite=True, wants_flush=False, prewrite=prewrite)
    persister, now = busy_with(backend)
    assert not persister.has_work()
    persister.prepare(0.15)
    backend.prepare.assert_called_once_with(0.15)
    assert persister.has_work()
    trio.run(persister.work, None, trio.lowlevel.checkpoint)
    # 0.15 seconds, and 0.1 by which it may be late.
    assert written == [0, 1, 2]
    assert not persister.has_work()


def test_a_busy_task_flushes_and_sums_ahead_of_a_snapshot_that_is_announced():
    backend = Mock(must_relieve=False, wants_prewrite=False, wants_flush=True, wants_sums=True)
    backend.flush_ahead = Mock(return_value=(_ for _ in ()))
    backend.sum_ahead = Mock(return_value=(_ for _ in ()))
    persister, _ = busy_with(backend)
    assert not persister.has_work()
    persister.prepare(0.15)
    for _ in range(2):
        assert persister.has_work()
        trio.run(persister.work, None, trio.lowlevel.checkpoint)
        backend.wants_flush = False
    assert backend.flush_ahead.call_count == backend.sum_ahead.call_count == 1
    persister.add(Cut(1, SnapshotKind.CHECKPOINT, "uid"))
    assert not persister._is_due()


def test_a_task_that_is_idle_computes_checksums(make, monkeypatch):
    monkeypatch.setattr(backend_module, "SUM_AHEAD_BYTES", 0)
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    persister = persister_of(backend)
    asked = Mock(side_effect=[True, True, False])
    monkeypatch.setattr(backend.files, "sum_ahead", asked)

    async def offload(call):
        return call()

    assert not persister.has_work()
    persister.idle = True
    assert persister.has_work()
    trio.run(persister.work, offload, trio.lowlevel.checkpoint)
    assert asked.call_count == 3

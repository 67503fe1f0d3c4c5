"""Checkpoints that are made before their barrier, and checksums computed before a snapshot."""

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import msgpack
import pytest
from rocksdict import Options, Rdict

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state.cold import checkpoint as checkpoint_module
from penstock.snapshot.state.eager_flush_policy import EagerFlushPolicy
from penstock.snapshot.state.rocksdb.database import ROCKSDB, RocksDatabase
from penstock.snapshot.state.rocksdb.manifest_reader import ManifestReader, UnknownManifestError
from penstock.snapshot.state.rocksdb.options import database_options
from penstock.snapshot.state.settings import StateSettings
from tests.snapshot.state.backends import GROUPS, PlainCodec, as_rows, contents, drive, fill


def create_without_compactions(folder, shared):
    """Make a database that replaces no table files by itself, at an unknown moment."""

    def options(shared):
        made = database_options(shared)
        made.set_disable_auto_compactions(True)
        return made

    return RocksDatabase.create(folder, shared, options)


def test_checksums_computed_early_are_those_of_the_files(make, monkeypatch):
    computed = []
    real = checkpoint_module._checksum
    monkeypatch.setattr(
        checkpoint_module, "_checksum", lambda path: computed.append(path.name) or real(path)
    )
    backend = make(inline_threshold=0, engine=replace(ROCKSDB, create=create_without_compactions))
    table = backend.table("s")
    expected = {}
    for number in range(1, 5):
        for i in range(12_000):
            expected[f"key{i}"] = f"{number} {random.random()}" * 10
            table.put(f"key{i}", expected[f"key{i}"])
        drive(backend.flush_eagerly())
        if backend.storage.is_open:
            # RocksDB would do it in the background, at an unknown moment.
            backend.storage.database.flush()
        ahead = 0
        while drive(backend.compute_checksum()):
            ahead += 1
        # Before the first snapshot there are no files.
        assert bool(ahead) == (number > 1)
        assert not backend.wants_checksums
        before = len(computed)
        handle = make.snapshot(backend, number)
        assert len(set(computed)) == len(computed)
        assert ahead == 0 or len(computed) - before < len(handle.files)
        for file in handle.files:
            assert file.checksum == real(make.root / file.name)
        assert contents(make.restored(handle)) == expected


@pytest.mark.parametrize("error", [None, UnknownManifestError("what is this", Path("MANIFEST"))])
def test_checksums_that_cannot_be_computed_early_are_computed_later(make, monkeypatch, error):
    backend = make(inline_threshold=0)
    fill(backend, 12_000)
    make.snapshot(backend, 1)
    with monkeypatch.context() as patch:
        if error is None:
            # A compaction has removed it since.
            patch.setattr(backend.storage.database, "tables", lambda: ["999999.sst"])
        else:
            patch.setattr(ManifestReader, "read", Mock(side_effect=error))
        assert not drive(backend.compute_checksum())
    fill(backend, 12_000, lambda i: -i)
    assert contents(make.restored(make.snapshot(backend, 2))) == contents(backend)


def announced(make, create=None, **settings):
    """A backend to which a snapshot was announced, and its entries."""
    backend = make(
        inline_threshold=0,
        settings=StateSettings(**settings),
        engine=replace(make.engine, create=create or make.engine.create),
    )
    fill(backend, 12_000)
    make.snapshot(backend, 1)
    fill(backend, 12_000, lambda i: -i)
    assert not backend.wants_preparation
    backend.announce_snapshot(2, 0.0, target(make))
    return backend, {f"k{i}": -i for i in range(12_000)}


def target(make, number=2):
    """Where the files of a snapshot are to be."""
    return make.root / str(number)


def finished(make, backend, number=2):
    """The handle of a snapshot in that folder."""
    handle, size = drive(backend.capture(number).write(target(make, number)))
    assert size.total == sum(file.size for file in handle.files)
    for file in handle.files:
        path = make.root / file.name
        assert path.stat().st_size == file.size
        assert checkpoint_module._checksum(path) == file.checksum
    names = {path.name for path in target(make, number).iterdir()}
    assert names == {Path(file.name).name for file in handle.files}
    return handle


def logs(handle):
    """The sizes of a handle's logs."""
    return [file.size for file in handle.files if file.name.endswith(".log")]


def files_of(handle):
    return {Path(file.name).name for file in handle.files}


def test_an_announced_snapshot_adds_a_log_to_its_early_checkpoint(make):
    backend, expected = announced(make)
    drive(backend.flush_eagerly())
    assert backend.wants_preparation
    drive(backend.prepare_checkpoint())
    assert not backend.wants_preparation
    begun = {path.name: path.read_bytes() for path in target(make).iterdir()}
    assert [name for name, data in begun.items() if not data] == [*backend_logs(backend)]
    fill(backend, 100, lambda i: i)
    handle = finished(make, backend)
    assert logs(handle) and all(logs(handle))
    assert files_of(handle) == begun.keys()
    for name, data in begun.items():
        assert not data or (target(make) / name).read_bytes() == data
    expected |= {f"k{i}": i for i in range(100)}
    restored = make.restored(handle)
    assert contents(restored) == expected
    # The next snapshot is an ordinary one, for the restored backend too.
    for each in (backend, restored):
        fill(each, 50, lambda i: -7)
        handle = make.snapshot(each, 3)
        assert not any(logs(handle))
        assert contents(make.restored(handle)) == expected | {f"k{i}": -7 for i in range(50)}


def test_preparation_that_takes_longer_begins_sooner(make, monkeypatch):
    now = [0.0]
    backend = make(inline_threshold=0, clock=lambda: now[0])
    fill(backend, 12_000)
    make.snapshot(backend, 1)
    real = backend.storage.files.begin_early

    def slowly(*arguments):
        real(*arguments)
        now[0] += 0.1

    monkeypatch.setattr(backend.storage.files, "begin_early", slowly)
    leads = []
    for number in range(2, 12):
        fill(backend, 100, lambda i, n=number: i * n)
        due = now[0] + 1.0
        backend.announce_snapshot(number, 1.0, target(make, number))
        while not backend.wants_preparation:
            now[0] += 0.001
        leads.append(due - now[0])
        drive(backend.prepare_checkpoint())
        assert logs(finished(make, backend, number))
    assert leads == sorted(leads)
    # It is done shortly before the snapshot is due in any case.
    assert 0.04 < leads[0] < 0.06 and 0.1 < leads[-1] < 0.2
    assert contents(make.restored(make.snapshot(backend, 12))) == contents(backend)


def backend_logs(backend):
    return {path.name for path in backend.storage.database.folder.glob("*.log")}


def test_a_log_is_opened_by_plain_rocksdict_and_restored_at_another_parallelism(make, tmp_path):
    backend, expected = announced(make)
    drive(backend.flush_eagerly())
    drive(backend.prepare_checkpoint())
    fill(backend, 10, lambda i: i)
    backend.table("s").delete("k7")
    handle = finished(make, backend)
    assert all(logs(handle))
    expected |= {f"k{i}": i for i in range(10)}
    del expected["k7"]
    shutil.copytree(target(make), tmp_path / "copy")
    database = Rdict(str(tmp_path / "copy"), Options(raw_mode=True))
    found = {}
    for value in database.values():
        keys, values, deleted = map(PlainCodec().decode_batch, msgpack.unpackb(value))
        found.update(zip(keys, values, strict=True))
        for each in deleted:
            del found[each]
    database.close()
    assert found == expected
    half = GROUPS // 2
    parts = [make.restored(handle, groups=g) for g in (range(half), range(half, GROUPS))]
    assert contents(parts[0]) | contents(parts[1]) == expected
    assert all(map(contents, parts))


def test_a_snapshot_of_rows_adds_a_log_too(make):
    backend = make(inline_threshold=0)
    fill(backend, 2000)
    as_rows(backend)
    make.snapshot(backend, 1)
    backend.announce_snapshot(2, 0.0, target(make))
    drive(backend.prepare_checkpoint())
    fill(backend, 100, lambda i: -i)
    backend.table("s").delete("k1500")
    handle = finished(make, backend)
    assert all(logs(handle)) and logs(handle)
    expected = {f"k{i}": i for i in range(100, 2000) if i != 1500}
    assert contents(make.restored(handle)) == expected | {f"k{i}": -i for i in range(100)}


def test_if_the_log_lacks_writes_an_ordinary_checkpoint_is_made(make):
    backend, _ = announced(make, create_without_compactions)
    drive(backend.flush_eagerly())
    drive(backend.prepare_checkpoint())
    # More than a write buffer holds, so that RocksDB makes a table file and begins another log.
    fill(backend, 12_000, lambda i: random.Random(i).randbytes(100).hex())
    handle = finished(make, backend)
    assert not logs(handle)
    assert contents(make.restored(handle)) == contents(backend)
    # As much is expected next time, so the database is only flushed early.
    fill(backend, 12_000, lambda i: random.Random(-i).randbytes(100).hex())
    backend._flush._policy = EagerFlushPolicy()  # this one has learnt that its flushes were useless
    backend.announce_snapshot(3, 0.0, target(make, 3))
    assert not backend.wants_preparation
    drive(backend.flush_eagerly())
    tables = set(backend.storage.database.tables())
    assert backend.wants_preparation
    drive(backend.prepare_checkpoint())
    assert not target(make, 3).exists()
    new = set(backend.storage.database.tables()) - tables
    assert new
    fill(backend, 100, lambda i: i)
    handle = finished(make, backend, 3)
    assert new <= files_of(handle)
    assert contents(make.restored(handle)) == contents(backend)
    # Little had to be written then, so checkpoints are made early again, after one skipped turn.
    for number in (4, 5):
        backend.announce_snapshot(number, 0.0, target(make, number))
        drive(backend.prepare_checkpoint())
        assert target(make, number).exists() == (number == 5)
        assert contents(make.restored(finished(make, backend, number))) == contents(backend)


def test_files_of_an_unused_early_checkpoint_count_as_new_in_the_next(make):
    backend, _ = announced(make)
    (first,) = make.root.glob("1-*")
    before = {path.name for path in first.iterdir()}
    drive(backend.flush_eagerly())
    drive(backend.prepare_checkpoint())
    fill(backend, 12_000, lambda i: random.Random(i).randbytes(100).hex())
    handle, size = drive(backend.capture(2).write(target(make)))
    assert not logs(handle)
    tables = [file for file in handle.files if file.name.endswith(".sst")]
    new = sum(file.size for file in tables if Path(file.name).name not in before)
    assert 0 < new <= size.new


@pytest.mark.parametrize("other", [3, None])
def test_an_early_checkpoint_is_removed_if_its_snapshot_does_not_come(make, other):
    backend, expected = announced(make)
    drive(backend.flush_eagerly())
    drive(backend.prepare_checkpoint())
    capture = backend.capture(other or 2)
    if other is None:
        capture.abort()
        assert drive(capture.write(None)) is None
    else:
        handle, _ = drive(capture.write(target(make, other)))
        assert not logs(handle) and contents(make.restored(handle)) == expected
    assert not target(make).exists()
    fill(backend, 10)
    handle = finished(make, backend, 4)
    assert not logs(handle)
    assert contents(make.restored(handle)) == expected | {f"k{i}": i for i in range(10)}


def test_an_early_checkpoint_of_blocks_is_not_used_for_rows(make):
    backend, expected = announced(make)
    drive(backend.flush_eagerly())
    drive(backend.prepare_checkpoint())
    handle = finished(make, as_rows(backend))
    assert not logs(handle)
    assert contents(make.restored(handle)) == expected


def test_an_announcement_after_the_snapshot_is_ignored(make):
    """Its barrier comes on another way than the announcement."""
    backend, expected = announced(make)
    handle = finished(make, backend)
    backend.announce_snapshot(2, 0.0, target(make))
    assert not backend.wants_preparation
    drive(backend.prepare_checkpoint())
    backend.storage.files.begin_early(backend.storage.database, target(make))
    assert not backend.storage.files.has_early
    assert contents(make.restored(handle)) == expected


def test_a_checkpoint_by_rocksdb_itself_may_be_early_too(make, monkeypatch):
    backend, expected = announced(make)
    monkeypatch.setattr(ManifestReader, "read", Mock(side_effect=UnknownManifestError("?", "M")))
    drive(backend.prepare_checkpoint())
    fill(backend, 10, lambda i: i)
    handle = finished(make, backend)
    assert all(logs(handle)) and logs(handle)
    assert contents(make.restored(handle)) == expected | {f"k{i}": i for i in range(10)}


def test_after_logs_that_lacked_writes_fewer_checkpoints_are_early(make, monkeypatch):
    backend, _ = announced(make, max_log_bytes=2**30)
    begun = []
    for number in range(2, 20):
        backend.announce_snapshot(number, 0.0, target(make, number))
        drive(backend.prepare_checkpoint())
        begun.append(backend.storage.files.has_early)
        if begun[-1] and number < 10:
            monkeypatch.setattr(backend.storage.database, "_newest_log", lambda: "another.log")
        handle = finished(make, backend, number)
        assert contents(make.restored(handle)) == contents(backend)
        monkeypatch.undo()
    assert begun[:8] == [True, False, True, False, False, True, False, False]
    assert all(begun[-5:])


def test_one_large_interval_does_not_prevent_later_early_checkpoints(make):
    backend, _ = announced(make)
    backend._early._late_bytes = 2**30
    for number in (2, 3):
        fill(backend, 10, lambda i, n=number: i * n)
        backend.announce_snapshot(number, 0.0, target(make, number))
        if backend.wants_preparation:
            drive(backend.prepare_checkpoint())
        begun = backend.storage.files.has_early
        finished(make, backend, number)
    assert begun


def test_the_newest_log_is_the_one_with_the_highest_number(make):
    backend, _ = announced(make)
    for name in ("999999.log", "1000001.log"):
        (backend.storage.database.folder / name).touch()
    assert backend.storage.database._newest_log() == "1000001.log"


def test_a_checkpoint_is_not_made_long_before_its_barrier(make):
    backend, _ = announced(make)
    backend.announce_snapshot(2, 60.0, target(make))
    drive(backend.flush_eagerly())
    assert not backend.wants_preparation


def test_it_is_made_again_if_it_is_announced_again(make):
    backend, expected = announced(make)
    for _ in range(2):
        backend.announce_snapshot(2, 0.0, target(make))
        drive(backend.prepare_checkpoint())
        drive(backend.flush_eagerly())
    assert contents(make.restored(finished(make, backend))) == expected


def test_a_snapshot_may_be_captured_while_its_checkpoint_is_made_early(make):
    backend, expected = announced(make)
    drive(backend.flush_eagerly())
    work = backend.prepare_checkpoint()
    begin = next(work)
    capture = backend.capture(2)
    fill(backend, 12_000)
    begin()
    assert list(work) == []
    handle, _ = drive(capture.write(target(make)))
    assert logs(handle)
    assert contents(make.restored(handle)) == expected
    assert not backend.wants_preparation


def break_sync(patch, backend):
    patch.setattr(checkpoint_module, "sync_path", Mock(side_effect=OSError("no")))


def break_flush(patch, backend):
    patch.setattr(
        backend.storage.database, "_database", Mock(flush=Mock(side_effect=Exception("no")))
    )


def break_log(patch, backend):
    patch.setattr(backend.storage.database, "_newest_log", Mock(side_effect=OSError("no")))


@pytest.mark.parametrize("damage", [break_sync, break_flush, break_log])
@pytest.mark.parametrize("little", [True, False])
def test_after_a_fault_the_checkpoint_is_made_with_the_snapshot(make, monkeypatch, damage, little):
    backend, expected = announced(make, max_log_bytes=2**30 if little else -1)
    drive(backend.flush_eagerly())
    with monkeypatch.context() as patch:
        damage(patch, backend)
        drive(backend.prepare_checkpoint())
    check_ordinary(make, backend, expected)


def check_ordinary(make, backend, expected):
    """The checkpoint that is made now has no log."""
    handle = finished(make, backend)
    assert not logs(handle)
    assert contents(make.restored(handle)) == expected


def test_if_the_log_cannot_be_read_an_ordinary_checkpoint_is_made(make):
    backend, expected = announced(make)
    drive(backend.flush_eagerly())
    drive(backend.prepare_checkpoint())
    for name in backend_logs(backend):
        (backend.storage.database.folder / name).unlink()
    check_ordinary(make, backend, expected)


def test_a_log_that_was_cut_is_refused(make):
    backend, _ = announced(make)
    drive(backend.prepare_checkpoint())
    handle = finished(make, backend)
    (size,) = logs(handle)
    (log,) = target(make).glob("*.log")
    os.truncate(log, size - 10)
    with pytest.raises(StoreError, match="cannot open"):
        make.restored(handle)

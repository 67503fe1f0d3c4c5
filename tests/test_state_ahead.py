"""What is done ahead of a snapshot, while a task is idle: entries written, checksums computed."""

import random

from penstock.snapshot.state import checkpoint as checkpoint_module
from tests.test_state_backend import contents, drive, fill, make

__all__ = ["make"]


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
    backend = make(inline_threshold=0, slice_seconds=0.0001)
    make.snapshot(backend, 1)
    fill(backend, 9000)
    work = backend.prewrite()
    next(work)
    capture = backend.capture(2)
    fill(backend, 9000, lambda i: -i)
    assert list(work) == []
    handle, _ = drive(capture.write(make.root / "2"))
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(9000)}
    assert contents(backend) == {f"k{i}": -i for i in range(9000)}


def test_prewriting_may_be_given_up(make):
    backend = make(inline_threshold=0, slice_seconds=0.0001)
    make.snapshot(backend, 1)
    fill(backend, 9000)
    work = backend.prewrite()
    next(work)
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


def test_a_table_file_that_is_gone_has_no_checksum_ahead(make, monkeypatch):
    backend = make(inline_threshold=0)
    fill(backend, 12_000)
    make.snapshot(backend, 1)
    store = backend.store
    monkeypatch.setattr(store, "tables", lambda: ["999999.sst"])
    assert not drive(backend.sum_ahead())
    assert make.restored(make.snapshot(backend, 2))

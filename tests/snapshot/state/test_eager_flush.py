"""Entries that are flushed before a snapshot, and intervals in which none are."""

from penstock.snapshot.state.eager_flush_policy import EagerFlushPolicy
from tests.snapshot.state.backends import contents, drive, fill


def during_a_flush(make):
    """A backend of 9,000 dirty entries, of which a first slice was written; and the work."""
    backend = make(inline_threshold=0, slice_seconds=0.0001)
    make.snapshot(backend, 1)
    fill(backend, 9000)
    work = backend.flush_eagerly()
    next(work)
    return backend, work


def test_an_eager_flush_leaves_little_for_the_next_snapshot(make):
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    fill(backend, 12000)
    backend.table("s").delete("k0")
    drive(backend.flush_eagerly())
    assert len(backend.table("s").dirty) <= 4096
    expected = {f"k{i}": i for i in range(1, 12000)}
    assert contents(backend) == expected
    assert contents(make.restored(make.snapshot(backend, 2))) == expected


def test_nothing_is_flushed_without_rocksdb_or_while_a_snapshot_is_pending(make):
    backend = make()
    fill(backend, 9000)
    assert list(backend.flush_eagerly()) == []
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    fill(backend, 9000)
    backend.capture(2)
    fill(backend, 9000)
    assert list(backend.flush_eagerly()) == []


def test_a_snapshot_may_be_captured_during_a_flush(make):
    backend, work = during_a_flush(make)
    capture = backend.capture(2)
    fill(backend, 9000, lambda i: -i)
    assert list(work) == []
    handle, _ = drive(capture.write(make.root / "2"))
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(9000)}
    assert contents(backend) == {f"k{i}": -i for i in range(9000)}


def test_a_flush_may_be_given_up(make):
    backend, work = during_a_flush(make)
    work.close()
    table = backend.table("s")
    assert 4096 < len(table.dirty) < 9000
    table.put("k0", "again")
    expected = {f"k{i}": i for i in range(9000)} | {"k0": "again"}
    assert contents(backend) == expected
    assert contents(make.restored(make.snapshot(backend, 2))) == expected


def test_intervals_are_skipped_after_one_whose_flushes_were_mostly_useless():
    policy, allowed = EagerFlushPolicy(), []
    for _ in range(8):
        allowed.append(policy.allowed)
        if policy.allowed:
            policy.note_flushed(0, [1, 2, 3])
        policy.end_interval(lambda _, key: key <= 2)
    assert allowed == [True, False, True, False, False, True, False, False]
    while not policy.allowed:
        policy.end_interval(lambda _, key: True)
    policy.note_flushed(0, [1, 2, 3])
    policy.end_interval(lambda _, key: False)
    assert policy.allowed

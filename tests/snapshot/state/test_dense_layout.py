"""The dense layout: when a table gets it, what is written of it, and when it ends."""

import itertools

import pytest

from penstock.snapshot.state.dense_layout import DenseLayout
from penstock.snapshot.state.settings import StateSettings
from tests.snapshot.state.backends import PlainCodec, as_rows, contents, drive, fill
from tests.snapshot.state.cold.test_blocks import entries, stored

COUNT = 3000


#: The scan for blocks to flush is never suspended.
EAGER = StateSettings(scan_seconds=0.0, max_scan_seconds=0.0)


def is_dense(backend):
    return isinstance(layout_of(backend), DenseLayout)


def layout_of(backend):
    return backend.tables.layouts[backend.table("s").table_id]


@pytest.fixture
def busy(make):
    """A backend whose table has changed as a whole before snapshot 2, and is dense at 3."""
    return dense_backend(make)


def dense_backend(make, **options):
    backend = make(inline_threshold=0, **options)
    backend.table("s").declare_immutable()
    for number in (1, 2, 3):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        handle = make.snapshot(backend, number)
    assert is_dense(backend)
    assert contents(make.restored(handle)) == {f"k{i}": (i, 3) for i in range(COUNT)}
    return backend


@pytest.mark.parametrize("changed", [249, 250])
def test_a_table_becomes_dense_if_a_quarter_changed_while_a_snapshot_was_written(make, changed):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.declare_immutable()
    fill(backend, 1000)
    capture = backend.capture(1)
    fill(backend, changed, lambda i: -i)
    handle, _ = drive(capture.write(make.root / "1"))
    assert is_dense(backend) == (changed == 250)
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(1000)}
    expected = {f"k{i}": -i if i < changed else i for i in range(1000)}
    assert contents(make.restored(make.snapshot(backend, 2))) == contents(backend) == expected


def test_a_table_becomes_dense_if_a_quarter_of_its_entries_changed(make):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.declare_immutable()
    fill(backend, 1000)
    make.snapshot(backend, 1)
    for number, changed in ((2, 249), (3, 249), (4, 250)):
        fill(backend, changed, lambda i, n=number: -i * n)
        make.snapshot(backend, number)
        assert is_dense(backend) == (changed == 250)
    assert table.dirty == contents(backend) and not table.clean and not table.captured


@pytest.mark.parametrize("reason", ["values may change", "a mutable value", "too many"])
def test_a_table_stays_levelled_if_the_dense_layout_is_not_possible(make, reason):
    most = 999 if reason == "too many" else 1000
    backend = make(inline_threshold=0, settings=StateSettings(max_dense_entries=most))
    table = backend.table("s")
    if reason != "values may change":
        table.declare_immutable()
    for number in range(1, 5):
        fill(backend, 1000, lambda i, n=number: i * n)
        if reason == "a mutable value":
            table.allow_mutable()
        make.snapshot(backend, number)
        assert not is_dense(backend)


def test_a_table_becomes_dense_though_all_of_it_changed_while_it_was_written(make):
    backend = make(inline_threshold=0, settings=StateSettings(max_dense_entries=1000))
    backend.table("s").declare_immutable()
    fill(backend, 1000)
    make.snapshot(backend, 1)
    fill(backend, 1000, lambda i: -i)
    capture = backend.capture(2)
    fill(backend, 1000, lambda i: 2 * i)
    drive(capture.write(make.root / "2"))
    assert is_dense(backend)
    handle = make.snapshot(backend, 3)
    assert contents(make.restored(handle)) == {f"k{i}": 2 * i for i in range(1000)}


def test_restored_values_must_be_immutable_too(make):
    for number, value in enumerate(([1], 1), 1):
        backend = make(inline_threshold=0)
        backend.table("s").put("k", value)
        restored = make.restored(make.snapshot(backend, number))
        restored.table("s").declare_immutable()
        assert restored.table("s").only_immutable == (value == 1)


def test_the_database_holds_each_entry_once(busy):
    blocks = stored(busy)
    assert len(blocks) == -(-COUNT // layout_of(busy).blocks.size)
    assert [key for keys, _, _ in blocks.values() for key in keys] == list(busy.table("s").dirty)


def test_comparing_blocks_is_done_in_slices(make):
    clock = itertools.count()
    backend = make(inline_threshold=0, clock=lambda: next(clock))
    backend.table("s").declare_immutable()
    for number in (1, 2, 3):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        make.snapshot(backend, number)
    backend.table("s").put("k0", "new")
    values = list(backend.table("s").dirty.values())
    steps = list(layout_of(backend).write(values, backend.storage.slicing.timer()))
    assert steps.count(None) >= COUNT // layout_of(backend).blocks.size


def test_entries_written_after_the_dense_layout_shadow_its_blocks(make, busy):
    table = busy.table("s")
    table.put("k3", "old")
    make.snapshot(busy, 4)
    table.put("k3", [1])
    table.allow_mutable()
    handle = make.snapshot(busy, 5)
    assert not is_dense(busy)
    assert contents(make.restored(handle))["k3"] == [1]
    assert contents(make.restored(make.snapshot(busy, 6))) == contents(busy)


def test_only_blocks_with_changes_are_written_again(make, busy):
    before = stored(busy)
    busy.table("s").put("k0", "new")
    handle = make.snapshot(busy, 4)
    after = stored(busy)
    assert after.keys() == before.keys()
    assert [number for number in before if after[number] != before[number]] == [min(before)]
    assert contents(make.restored(handle)) == contents(busy)


def test_a_value_that_comes_back_is_written_again(make, busy):
    table = busy.table("s")
    old = dict(table.dirty)
    for number, values in ((4, dict.fromkeys(old, "new")), (5, old), (6, old)):
        for key, value in values.items():
            table.put(key, value)
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == values


def test_writing_that_is_given_up_begins_from_what_is_in_the_database(make):
    backend = dense_backend(make, slice_seconds=0.0)
    old = contents(backend)
    fill(backend, COUNT, lambda i: (i, 4))
    snapshot = backend.capture(4)
    work = snapshot.write(make.root / "4")
    next(work)
    work.close()
    snapshot.abort()
    drive(snapshot.write(None))
    for key, value in old.items():
        backend.table("s").put(key, value)
    assert contents(make.restored(make.snapshot(backend, 5))) == old


def test_new_keys_are_added_at_the_end(make, busy):
    before = stored(busy)
    for number in range(4, 9):
        fill(busy, COUNT + 700 * number, lambda i, n=number: (i, n))
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == contents(busy)
    assert entries(busy) == COUNT + 700 * 8
    assert set(before) < set(stored(busy))


def test_a_table_is_levelled_again_if_little_changes(make, busy):
    for number in range(4, 9):
        busy.table("s").put(f"k{number}", "new")
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == contents(busy)
    table = busy.table("s")
    assert not is_dense(busy)
    assert len(table.clean) == COUNT and not table.dirty
    # And does not begin again because the whole of it was written for that.
    assert entries(busy) == 2 * COUNT + 3


def test_a_table_is_levelled_again_at_the_first_mutable_value(make, busy):
    table = busy.table("s")
    value = [1]
    table.dirty["k0"] = value
    table.allow_mutable()
    capture = busy.capture(4)
    table.get("k0").append(2)
    handle, _ = drive(capture.write(make.root / "4"))
    assert contents(make.restored(handle))["k0"] == [1]
    assert contents(make.restored(make.snapshot(busy, 5)))["k0"] == [1, 2]


def test_the_entries_of_an_aborted_snapshot_are_written_with_the_next(make, busy):
    fill(busy, COUNT, lambda i: (i, "a"))
    capture = busy.capture(4)
    capture.abort()
    assert drive(capture.write(None)) is None
    handle = make.snapshot(busy, 5)
    assert contents(make.restored(handle)) == {f"k{i}": (i, "a") for i in range(COUNT)}


def test_changed_blocks_are_flushed_eagerly(make, busy):
    size = layout_of(busy).blocks.size
    fill(busy, size + size // 2, lambda i: (i, "a"))
    drive(busy.flush_eagerly())
    before = stored(busy)
    assert [values[0][1] for _, values, _ in before.values()] == ["a", 3, 3]
    # A flushed block is not written again, and is not in a snapshot that lacks the change.
    handle = make.snapshot(busy, 4)
    assert stored(busy)[min(before)] == before[min(before)]
    assert contents(make.restored(handle)) == contents(busy)


def test_a_scan_goes_on_where_it_was_given_up(make, monkeypatch):
    backend = make(inline_threshold=0, slice_seconds=0.0)
    backend.table("s").declare_immutable()
    for number in (1, 2, 3):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        make.snapshot(backend, number)
    fill(backend, COUNT, lambda i: (i, "a"))
    for ahead in (1, 2):
        work = backend.flush_eagerly()
        assert next(work) is None
        work.close()
        assert [v[0][1] for _, v, _ in stored(backend).values()].count("a") == ahead
    assert contents(make.restored(make.snapshot(backend, 4))) == contents(backend)


def test_a_table_stays_dense_though_all_of_it_was_flushed_eagerly(make, busy):
    table = busy.table("s")
    # In full blocks only; what is left is too little to be a sign of its own.
    keys = list(table.dirty)[: 2 * layout_of(busy).blocks.size]
    for number in range(4, 9):
        for key in keys:
            table.put(key, number)
        drive(busy.flush_eagerly())
        handle = make.snapshot(busy, number)
        assert is_dense(busy)
        assert contents(make.restored(handle)) == contents(busy)


def writes_of(backend, monkeypatch):
    """A list that gets an item for each write to the database."""
    database, written = backend.storage.database, []
    real = database.write
    monkeypatch.setattr(database, "write", lambda batch: (written.append(1), real(batch)))
    return written


def test_a_block_that_keeps_changing_is_flushed_twice_only(make, monkeypatch):
    busy = dense_backend(make, settings=EAGER)
    size = layout_of(busy).blocks.size
    written = writes_of(busy, monkeypatch)
    for turn in range(20):
        fill(busy, size, lambda i, turn=turn: (i, "a", turn))
        drive(busy.flush_eagerly())
    assert len(written) == 2


def test_other_blocks_are_flushed_though_one_keeps_changing(make, monkeypatch):
    busy = dense_backend(make, settings=EAGER)
    size = layout_of(busy).blocks.size
    for turn in range(4):
        fill(busy, size, lambda i, turn=turn: (i, "a", turn))
        drive(busy.flush_eagerly())
    # The first block has had its turns.
    fill(busy, 2 * size, lambda i: (i, "b"))
    drive(busy.flush_eagerly())
    firsts = [values[0][1] for _, values, _ in stored(busy).values()]
    assert firsts == ["a", "b", 3]


def test_a_partly_changed_block_is_flushed_once_it_stops_changing(make, monkeypatch):
    busy = dense_backend(make, settings=EAGER)
    table = busy.table("s")
    keys = list(table.dirty)[: layout_of(busy).blocks.size]

    def look():
        drive(busy.flush_eagerly())
        return min(stored(busy).items())[1][1][-1][1]

    for key in keys[len(keys) // 2 :]:
        table.put(key, (key, "a"))
    for turn in range(5):
        # It goes on, with one that is in no sample.
        table.put(keys[turn + 1], (turn, "a"))
        assert look() == 3
    assert look() == "a"


def test_a_nearly_changed_block_is_flushed_once_it_stops_changing(make, monkeypatch):
    busy = dense_backend(make, settings=EAGER)
    table = busy.table("s")
    size = layout_of(busy).blocks.size
    written = writes_of(busy, monkeypatch)
    # One that is in no sample is still to come: written now, all of it would be written again.
    fill(busy, size, lambda i: (i, "a"))
    table.put("k1", (1, 3))
    layout_of(busy).blocks.written[1] = table.dirty["k1"]
    drive(busy.flush_eagerly())
    assert not written
    table.put("k1", (1, "a"))
    drive(busy.flush_eagerly())
    assert len(written) == 1


def test_the_last_block_is_flushed_though_it_is_not_full(make, busy):
    assert COUNT % layout_of(busy).blocks.size
    fill(busy, COUNT, lambda i: (i, "a"))
    drive(busy.flush_eagerly())
    assert all(values[-1][1] == "a" for _, values, _ in stored(busy).values())
    # More keys come, and it is written again.
    fill(busy, COUNT + 1, lambda i: (i, "a"))
    handle = make.snapshot(busy, 4)
    assert contents(make.restored(handle)) == contents(busy)
    assert len(contents(busy)) == COUNT + 1


def test_half_a_block_counts_as_half_a_flush(make, monkeypatch):
    busy = dense_backend(make, settings=EAGER)
    table = busy.table("s")
    keys = list(table.dirty)[: layout_of(busy).blocks.size]
    halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    written = writes_of(busy, monkeypatch)
    for turn in range(10):
        for key in halves[turn % 2]:
            table.put(key, (key, turn))
        for _ in range(3):  # until it is known to be still
            drive(busy.flush_eagerly())
    assert len(written) == 4


def test_a_table_becomes_dense_after_an_eager_flush(make):
    backend = make(inline_threshold=0)
    backend.table("s").declare_immutable()
    for number in range(1, 6):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        drive(backend.flush_eagerly())
        handle = make.snapshot(backend, number)
        assert contents(make.restored(handle)) == contents(backend)
    assert is_dense(backend)


def test_an_entry_that_was_flushed_and_changed_again_counts_once(make):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.declare_immutable()
    fill(backend, 8000)
    make.snapshot(backend, 1)
    for number in range(2, 6):
        for turn in range(2):
            fill(backend, 1600, lambda i, n=number, t=turn: (i, n, t))
            assert backend.wants_eager_flush or turn
            drive(backend.flush_eagerly())
        make.snapshot(backend, number)
        assert not is_dense(backend)


@pytest.mark.parametrize("snapshots", [2, 3])
def test_a_barrier_during_the_switch_to_rows_captures_everything(make, monkeypatch, snapshots):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.declare_immutable()
    for number in range(1, snapshots + 1):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        make.snapshot(backend, number)
    backend.memory.budget_bytes = 100_000
    work = backend.evict()
    step = next(work)
    capture = backend.capture(8)
    with pytest.raises(StopIteration):
        while True:
            step = work.send(None if step is None else step())
    handle, _ = drive(capture.write(make.root / "8"))
    assert not is_dense(backend)
    expected = {f"k{i}": (i, snapshots) for i in range(COUNT)}
    assert contents(make.restored(handle)) == contents(backend) == expected


def test_values_that_grow_get_smaller_blocks(make, busy):
    before = layout_of(busy).blocks.size
    for number in range(4, 9):
        fill(busy, COUNT, lambda i, n=number: (i, n, "x" * 1000))
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == contents(busy)
    assert is_dense(busy) and layout_of(busy).blocks.size < before // 2


def held_entries(backend):
    layout = layout_of(backend)
    return layout.table.entries_in_memory() + layout.held_entries()


def test_written_and_captured_values_count_as_memory(make, busy):
    assert held_entries(busy) == 2 * COUNT
    fill(busy, COUNT)
    first, second = busy.capture(4), busy.capture(5)
    assert held_entries(busy) == 4 * COUNT
    second.abort()
    assert held_entries(busy) == 3 * COUNT
    drive(first.write(make.root / "4"))
    assert held_entries(busy) == 2 * COUNT
    drive(second.write(None))


def test_scans_that_find_nothing_become_rare(make):
    now = [0.0]
    backend = dense_backend(make, clock=lambda: now[0])
    layout, scans = layout_of(backend), []
    while now[0] < 20:
        if layout.may_scan(now[0]):
            assert not list(layout.flush_blocks(now[0]))
            scans.append(now[0])
        now[0] += 0.05
    assert 10 < len(scans) < 18
    assert scans[-1] - scans[-2] >= StateSettings().max_scan_seconds
    layout.announce_snapshot()
    assert layout.may_scan(now[0])


def test_a_dense_table_is_switched_to_rows(make, busy):
    as_rows(busy)
    assert not is_dense(busy)
    busy.table("s").put("k1", "new")
    handle = make.snapshot(busy, 4)
    expected = {f"k{i}": (i, 3) for i in range(COUNT)} | {"k1": "new"}
    assert contents(make.restored(handle)) == contents(busy) == expected


def test_a_restored_table_is_levelled_at_first(make, busy):
    restored = make.restored(make.snapshot(busy, 4))
    table = restored.table("s")
    table.declare_immutable()
    assert not is_dense(restored)
    for number in (5, 6, 7):
        fill(restored, COUNT, lambda i, n=number: (i, n))
        handle = make.snapshot(restored, number)
    assert is_dense(restored)
    assert contents(make.restored(handle)) == {f"k{i}": (i, 7) for i in range(COUNT)}
    assert entries(restored) == COUNT


def test_changes_in_blocks_of_higher_numbers_are_restored_with_a_dense_table(make, busy):
    # Version 0.1 wrote the changes of mostly unchanged blocks so.
    encode, table = PlainCodec().encode_batch, busy.table("s")
    changed = range(0, COUNT, 7)
    keys, values = [f"k{i}" for i in changed], [(i, "new") for i in changed]
    number = busy.storage.cold.next_number + (1 << 17)
    busy.storage.cold.put_block(table, number, encode(keys), encode(values), len(keys))
    expected = {f"k{i}": (i, 3) for i in range(COUNT)} | dict(zip(keys, values, strict=True))
    handle = make.snapshot(busy, 4)
    restored = make.restored(handle)
    assert contents(restored) == expected
    assert contents(make.restored(handle, groups=range(4))).items() <= expected.items()
    restored.table("s").declare_immutable()
    for number in (5, 6, 7):
        fill(restored, COUNT, lambda i, n=number: (i, n))
        handle = make.snapshot(restored, number)
    assert is_dense(restored)
    assert contents(make.restored(handle)) == {f"k{i}": (i, 7) for i in range(COUNT)}
    assert entries(restored) == COUNT


def test_a_dense_table_whose_entries_may_be_deleted_flushes_no_blocks(make):
    backend = dense_backend(make, settings=EAGER)
    table = backend.table("s")
    fill(backend, COUNT, lambda i: -i)
    table.allow_mutable()
    table.delete("k1")
    drive(backend.flush_eagerly())
    expected = {f"k{i}": -i for i in range(COUNT) if i != 1}
    assert contents(make.restored(make.snapshot(backend, 4))) == contents(backend) == expected

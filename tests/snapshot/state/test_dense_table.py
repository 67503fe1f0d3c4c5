"""A state of which most changes: when it has one level, what is written of it, and its end."""

import itertools
import random

import pytest

from penstock.snapshot.state import dense_table as positions_module
from penstock.snapshot.state.dense_table import OVERLAY_SHARE, Positions
from tests.snapshot.state.rocksdb.test_blocks import entries, stored
from tests.snapshot.state.test_backend import as_rows, contents, drive, fill, make

__all__ = ["make"]

COUNT = 3000


@pytest.fixture
def busy(make):
    """A backend whose state has changed as a whole before snapshot 2, and is by position at 3."""
    backend = make(inline_threshold=0)
    backend.table("s").expect_immutable()
    for number in (1, 2, 3):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        handle = make.snapshot(backend, number)
    assert backend.table("s").positions is not None
    assert contents(make.restored(handle)) == {f"k{i}": (i, 3) for i in range(COUNT)}
    return backend


@pytest.mark.parametrize("changed", [249, 250])
def test_it_begins_when_a_quarter_has_changed_while_a_capture_was_written(make, changed):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.expect_immutable()
    fill(backend, 1000)
    capture = backend.capture(1)
    fill(backend, changed, lambda i: -i)
    handle, _ = drive(capture.write(make.root / "1"))
    assert (table.positions is not None) == (changed == 250)
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(1000)}
    expected = {f"k{i}": -i if i < changed else i for i in range(1000)}
    assert contents(make.restored(make.snapshot(backend, 2))) == contents(backend) == expected


def test_it_begins_when_a_quarter_of_all_entries_has_changed(make):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.expect_immutable()
    fill(backend, 1000)
    make.snapshot(backend, 1)
    for number, changed in ((2, 249), (3, 249), (4, 250)):
        fill(backend, changed, lambda i, n=number: -i * n)
        make.snapshot(backend, number)
        assert (table.positions is not None) == (changed == 250)
    assert table.dirty == contents(backend) and not table.clean and not table.captured


@pytest.mark.parametrize("reason", ["values may change", "a mutable value", "too many"])
def test_it_does_not_begin_if_it_may_not(make, monkeypatch, reason):
    monkeypatch.setattr(positions_module, "MAX_ENTRIES", 999 if reason == "too many" else 1000)
    backend = make(inline_threshold=0)
    table = backend.table("s")
    if reason != "values may change":
        table.expect_immutable()
    for number in range(1, 5):
        fill(backend, 1000, lambda i, n=number: i * n)
        if reason == "a mutable value":
            table.only_immutable = False
        make.snapshot(backend, number)
        assert table.positions is None


def test_it_begins_though_all_has_changed_again_while_it_was_written(make, monkeypatch):
    monkeypatch.setattr(positions_module, "MAX_ENTRIES", 1000)
    backend = make(inline_threshold=0)
    backend.table("s").expect_immutable()
    fill(backend, 1000)
    make.snapshot(backend, 1)
    fill(backend, 1000, lambda i: -i)
    capture = backend.capture(2)
    fill(backend, 1000, lambda i: 2 * i)
    drive(capture.write(make.root / "2"))
    assert backend.table("s").positions is not None
    handle = make.snapshot(backend, 3)
    assert contents(make.restored(handle)) == {f"k{i}": 2 * i for i in range(1000)}


def test_values_that_were_restored_count_too(make):
    for number, value in enumerate(([1], 1), 1):
        backend = make(inline_threshold=0)
        backend.table("s").put("k", value)
        restored = make.restored(make.snapshot(backend, number))
        restored.table("s").expect_immutable()
        assert restored.table("s").only_immutable == (value == 1)


def test_all_of_it_is_in_blocks_by_position_and_nothing_else(busy):
    first = busy.table("s").positions.first
    blocks = stored(busy)
    assert min(blocks) == first
    assert [key for keys, _, _ in blocks.values() for key in keys] == list(busy.table("s").dirty)


def test_only_blocks_with_many_changes_are_written_again(make, busy):
    positions = busy.table("s").positions
    before, most = stored(busy), int(OVERLAY_SHARE * positions.size)
    fill(busy, most + 1, lambda i: (i, 4))
    for i in range(positions.size, positions.size + most):
        busy.table("s").put(f"k{i}", "new")
    handle = make.snapshot(busy, 4)
    after = stored(busy)
    first, overlay = positions.first, positions.overlay_number
    assert after.keys() == before.keys() | {overlay}
    assert [number for number in before if after[number] != before[number]] == [first]
    keys = [f"k{i}" for i in range(positions.size, positions.size + most)]
    assert after[overlay] == (keys, ["new"] * most, [])
    assert contents(make.restored(handle)) == contents(busy)


def test_what_is_over_a_block_is_never_older_than_the_block(make, busy):
    """Entries go into the overlay and out of it, and blocks are written ahead beneath it."""
    table, size = busy.table("s"), busy.table("s").positions.size
    chance = random.Random(5)
    shrunk = grown = ahead = entries_before = 0
    for number in range(4, 40):
        for begin in range(0, COUNT, size):
            share = chance.choice([0.6, 0.8, 0.9, 1.9])
            block = range(begin, min(begin + size, COUNT))
            for i in chance.sample(block, int(share * len(block)) // 2):
                table.put(f"k{i}", chance.choice([(number, i), (0, 0)]))
        for look in range(chance.choice([0, 3])):
            for block in table.positions.settled(table.dirty, 10.0 * number + look):
                if block is not None:
                    busy.blocks.write_block(table, table.positions, *block)
                    ahead += 1
        handle = make.snapshot(busy, number)
        assert table.positions is not None
        overlay = {n: b for n, b in stored(busy).items() if n >= table.positions.overlay_number}
        entries = sum(len(keys) for keys, _, _ in overlay.values())
        shrunk, grown = shrunk + (entries < entries_before), grown + (entries > entries_before)
        entries_before = entries
        assert contents(make.restored(handle)) == contents(busy)
    assert shrunk > 5 and grown > 5 and ahead > 5


def rewritten(positions, values):
    """What is written again as blocks."""
    return [block for block in positions.changes(values) if block is not None]


def test_an_overlay_that_goes_to_nothing_is_removed(make, busy):
    table, positions = busy.table("s"), busy.table("s").positions
    for i in range(0, COUNT, 2):
        table.put(f"k{i}", "new")
    make.snapshot(busy, 4)
    assert max(stored(busy)) >= positions.overlay_number
    fill(busy, COUNT, lambda i: (i, 5))
    handle = make.snapshot(busy, 5)
    assert max(stored(busy)) < positions.overlay_number
    assert contents(make.restored(handle)) == contents(busy)


def test_a_value_that_is_again_what_its_block_has_is_not_in_the_overlay():
    positions = Positions(0, 4)
    positions.keys = [1, 2, 3, 4]
    values = [object() for _ in range(4)]
    assert rewritten(positions, values) == [(0, values)]
    assert rewritten(positions, ["new", *values[1:]]) == []
    assert positions.overlay == ([1], ["new"])
    assert rewritten(positions, values) == []
    assert positions.overlay == ([], [])


def test_little_changes_though_the_overlay_grows(make, busy):
    """What was in the overlay before has not changed again."""
    table, size = busy.table("s"), busy.table("s").positions.size
    for number in range(4, 9):
        for begin in range(0, COUNT, size):
            for i in range(begin, min(begin + size // 2, COUNT)):
                if number == 4:
                    table.put(f"k{i}", (i, number))
        table.put("k0", number)
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == contents(busy)
        assert (table.positions is None) == (number > 5)
    assert entries(busy) <= 2 * COUNT + 3 * size


def test_values_that_grow_in_the_overlay_only_are_noted_as_well(make, busy):
    table = busy.table("s")
    before, entry = busy.hot_bytes(), table.block_entries()
    for number in range(4, 24):
        for i in range(0, COUNT, 2):
            table.put(f"k{i}", f"{number:1000}")
        handle = make.snapshot(busy, number)
    assert contents(make.restored(handle)) == contents(busy)
    assert busy.hot_bytes() > before + 400 * COUNT
    assert table.block_entries() < entry
    assert max(len(keys) for keys, _, _ in stored(busy).values()) <= entry


def test_a_pass_over_blocks_that_are_not_written_again_is_made_in_slices(make):
    clock = itertools.count()
    backend = make(inline_threshold=0, clock=lambda: next(clock))
    backend.table("s").expect_immutable()
    for number in (1, 2, 3):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        make.snapshot(backend, number)
    positions = backend.table("s").positions
    backend.table("s").put("k0", "new")
    steps = list(backend.capture(4)._write_maps())
    assert steps.count(None) >= COUNT // positions.size


def test_what_the_overlay_holds_counts_as_memory(make, busy):
    table = busy.table("s")
    for number in range(4, 9):
        for i in range(0, COUNT, 10):
            table.put(f"k{i + number}", (number, i))
        make.snapshot(busy, number)
    positions = table.positions
    held = sum(a is not b for a, b in zip(positions.written, table.dirty.values(), strict=True))
    assert positions.overlay == ([], [])
    assert held > 4 * COUNT // 10
    assert positions.held_entries() >= held


def test_what_is_written_after_it_ended_is_over_the_overlay(make, busy):
    table = busy.table("s")
    table.put("k3", "overlay")
    make.snapshot(busy, 4)
    table.put("k3", [1])
    table.only_immutable = False
    handle = make.snapshot(busy, 5)
    assert table.positions is None
    assert contents(make.restored(handle))["k3"] == [1]
    assert contents(make.restored(make.snapshot(busy, 6))) == contents(busy)


def test_new_keys_come_at_the_end(make, busy):
    before = stored(busy)
    for number in range(4, 9):
        fill(busy, COUNT + 700 * number, lambda i, n=number: (i, n))
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == contents(busy)
    assert entries(busy) == COUNT + 700 * 8
    assert set(before) < set(stored(busy))


def test_it_ends_when_little_changes(make, busy):
    for number in range(4, 9):
        busy.table("s").put(f"k{number}", "new")
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == contents(busy)
    table = busy.table("s")
    assert table.positions is None and not table.turned_over
    assert len(table.clean) == COUNT and not table.dirty
    # And does not begin again because the whole of it was written for that.
    assert entries(busy) == 2 * COUNT + 4


def test_it_ends_at_the_first_value_that_may_change(make, busy):
    table = busy.table("s")
    value = [1]
    table.dirty["k0"] = value
    table.only_immutable = False
    capture = busy.capture(4)
    table.get("k0").append(2)
    handle, _ = drive(capture.write(make.root / "4"))
    assert contents(make.restored(handle))["k0"] == [1]
    assert contents(make.restored(make.snapshot(busy, 5)))["k0"] == [1, 2]


def test_an_aborted_one_is_written_with_the_next(make, busy):
    fill(busy, COUNT, lambda i: (i, "a"))
    capture = busy.capture(4)
    capture.abort()
    assert drive(capture.write(None)) is None
    handle = make.snapshot(busy, 5)
    assert contents(make.restored(handle)) == {f"k{i}": (i, "a") for i in range(COUNT)}


def test_a_value_that_comes_back_is_written_again():
    positions = Positions(0, 2)
    a, b = "a", "b"
    positions.keys = [1, 2]
    for values, written in (([a, a], 1), ([a, a], 0), ([b, b], 1), ([a, a], 1)):
        assert len(rewritten(positions, values)) == written
        assert positions.overlay == ([], [])
    # Given up after the first of two blocks: what is in the database is known all the same.
    positions = Positions(0, 1)
    rewritten(positions, [a, a])
    changes = positions.changes([b, b])
    assert next(changes) == (0, [b])
    assert rewritten(positions, [a, a]) == [(0, [a])]


def test_blocks_that_have_changed_are_written_ahead(make, busy):
    table = busy.table("s")
    size = table.positions.size
    fill(busy, size + size // 2, lambda i: (i, "a"))
    drive(busy.flush_eagerly())
    before = stored(busy)
    assert [values[0][1] for _, values, _ in before.values()] == ["a", 3, 3]
    # What was written ahead is not written again, and is no part of a snapshot that lacks it.
    handle = make.snapshot(busy, 4)
    assert stored(busy)[min(before)] == before[min(before)]
    assert contents(make.restored(handle)) == contents(busy)


def test_writing_ahead_goes_on_where_it_was_left(make, monkeypatch):
    backend = make(inline_threshold=0, slice_seconds=0.0)
    backend.table("s").expect_immutable()
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


def test_writing_everything_ahead_is_no_sign_that_little_changes(make, busy):
    table = busy.table("s")
    # In full blocks only; what is left is too little to be a sign of its own.
    keys = list(table.dirty)[: 2 * table.positions.size]
    for number in range(4, 9):
        for key in keys:
            table.put(key, number)
        drive(busy.flush_eagerly())
        handle = make.snapshot(busy, number)
        assert table.positions is not None
        assert contents(make.restored(handle)) == contents(busy)


def test_a_block_that_goes_on_changing_is_left_alone(busy, monkeypatch):
    monkeypatch.setattr(positions_module, "PASS_SECONDS", 0.0)
    table = busy.table("s")
    size = table.positions.size
    written = []
    real = busy.store.write
    monkeypatch.setattr(busy.store, "write", lambda batch: (written.append(1), real(batch)))
    for turn in range(20):
        fill(busy, size, lambda i, turn=turn: (i, "a", turn))
        drive(busy.flush_eagerly())
    assert len(written) == 2


def test_a_block_that_is_left_alone_keeps_no_other_from_being_written(busy, monkeypatch):
    monkeypatch.setattr(positions_module, "PASS_SECONDS", 0.0)
    size = busy.table("s").positions.size
    for turn in range(4):
        fill(busy, size, lambda i, turn=turn: (i, "a", turn))
        drive(busy.flush_eagerly())
    # The first block has had its turns.
    fill(busy, 2 * size, lambda i: (i, "b"))
    drive(busy.flush_eagerly())
    firsts = [values[0][1] for _, values, _ in stored(busy).values()]
    assert firsts == ["a", "b", 3]


def test_a_block_of_which_a_part_changed_is_written_ahead_when_it_is_still(busy, monkeypatch):
    monkeypatch.setattr(positions_module, "MAX_PASS_SECONDS", 0.0)
    table = busy.table("s")
    keys = list(table.dirty)[: table.positions.size]

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


def test_a_block_of_which_nearly_all_changed_is_written_ahead_when_it_is_still(busy, monkeypatch):
    monkeypatch.setattr(positions_module, "PASS_SECONDS", 0.0)
    monkeypatch.setattr(positions_module, "MAX_PASS_SECONDS", 0.0)
    table = busy.table("s")
    size = table.positions.size
    written = []
    real = busy.store.write
    monkeypatch.setattr(busy.store, "write", lambda batch: (written.append(1), real(batch)))
    # One that is in no sample is still to come: written now, all of it would be written again.
    fill(busy, size, lambda i: (i, "a"))
    table.put("k1", (1, 3))
    table.positions.written[1] = table.dirty["k1"]
    drive(busy.flush_eagerly())
    assert not written
    table.put("k1", (1, "a"))
    drive(busy.flush_eagerly())
    assert len(written) == 1


def test_the_last_block_is_written_ahead_though_it_is_not_full(make, busy):
    table = busy.table("s")
    assert COUNT % table.positions.size
    fill(busy, COUNT, lambda i: (i, "a"))
    drive(busy.flush_eagerly())
    assert all(values[-1][1] == "a" for _, values, _ in stored(busy).values())
    # More keys come, and it is written again.
    fill(busy, COUNT + 1, lambda i: (i, "a"))
    handle = make.snapshot(busy, 4)
    assert contents(make.restored(handle)) == contents(busy)
    assert len(contents(busy)) == COUNT + 1


def test_no_entry_of_a_block_is_written_ahead_more_than_twice_for_a_change(busy, monkeypatch):
    monkeypatch.setattr(positions_module, "PASS_SECONDS", 0.0)
    monkeypatch.setattr(positions_module, "MAX_PASS_SECONDS", 0.0)
    table = busy.table("s")
    keys = list(table.dirty)[: table.positions.size]
    halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    written = []
    real = busy.store.write
    monkeypatch.setattr(busy.store, "write", lambda batch: (written.append(1), real(batch)))
    for turn in range(10):
        for key in halves[turn % 2]:
            table.put(key, (key, turn))
        for _ in range(3):  # until it is known to be still
            drive(busy.flush_eagerly())
    assert len(written) == 4


def test_it_begins_after_an_interval_in_which_entries_were_written_ahead(make):
    backend = make(inline_threshold=0)
    backend.table("s").expect_immutable()
    for number in range(1, 6):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        drive(backend.flush_eagerly())
        handle = make.snapshot(backend, number)
        assert contents(make.restored(handle)) == contents(backend)
    assert backend.table("s").positions is not None


def test_what_was_written_ahead_and_changed_again_counts_once(make):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.expect_immutable()
    fill(backend, 8000)
    make.snapshot(backend, 1)
    for number in range(2, 6):
        for turn in range(2):
            fill(backend, 1600, lambda i, n=number, t=turn: (i, n, t))
            assert backend.wants_eager_flush or turn
            drive(backend.flush_eagerly())
        make.snapshot(backend, number)
        assert table.positions is None


@pytest.mark.parametrize("snapshots", [2, 3])
def test_a_barrier_amid_the_move_to_rows_takes_everything(make, monkeypatch, snapshots):
    backend = make(inline_threshold=0)
    table = backend.table("s")
    table.expect_immutable()
    for number in range(1, snapshots + 1):
        fill(backend, COUNT, lambda i, n=number: (i, n))
        make.snapshot(backend, number)
    backend.memory_budget = 100_000
    work = backend.evict()
    step = next(work)
    capture = backend.capture(8)
    with pytest.raises(StopIteration):
        while True:
            step = work.send(None if step is None else step())
    handle, _ = drive(capture.write(make.root / "8"))
    assert table.positions is None
    expected = {f"k{i}": (i, snapshots) for i in range(COUNT)}
    assert contents(make.restored(handle)) == contents(backend) == expected


def test_values_that_grow_get_other_blocks(make, busy):
    before = busy.table("s").positions
    for number in range(4, 9):
        fill(busy, COUNT, lambda i, n=number: (i, n, "x" * 1000))
        handle = make.snapshot(busy, number)
        assert contents(make.restored(handle)) == contents(busy)
    after = busy.table("s").positions
    assert after is not None and after.size < before.size // 2


def test_what_is_held_for_it_counts_as_memory(make, busy):
    table = busy.table("s")
    assert table.hot_entries() == 2 * COUNT
    fill(busy, COUNT)
    first, second = busy.capture(4), busy.capture(5)
    assert table.hot_entries() == 4 * COUNT
    second.abort()
    assert table.hot_entries() == 3 * COUNT
    drive(first.write(make.root / "4"))
    assert table.hot_entries() == 2 * COUNT
    drive(second.write(None))


def test_it_is_not_looked_for_in_vain_too_often():
    now = 0.0
    positions = Positions(0, 1)
    positions.alone = True
    looks = []
    while now < 20:
        if positions.may_pass(now):
            assert not list(positions.settled({}, now))
            looks.append(now)
        now += 0.05
    assert 10 < len(looks) < 18
    assert looks[-1] - looks[-2] >= positions_module.MAX_PASS_SECONDS


def test_it_is_moved_to_rows_as_any_other(make, busy):
    as_rows(busy)
    assert busy.table("s").positions is None
    busy.table("s").put("k1", "new")
    handle = make.snapshot(busy, 4)
    expected = {f"k{i}": (i, 3) for i in range(COUNT)} | {"k1": "new"}
    assert contents(make.restored(handle)) == contents(busy) == expected


def test_a_restored_state_starts_with_levels_and_goes_on(make, busy):
    restored = make.restored(make.snapshot(busy, 4))
    table = restored.table("s")
    table.expect_immutable()
    assert table.positions is None
    for number in (5, 6, 7):
        fill(restored, COUNT, lambda i, n=number: (i, n))
        handle = make.snapshot(restored, number)
    assert table.positions is not None
    assert contents(make.restored(handle)) == {f"k{i}": (i, 7) for i in range(COUNT)}
    assert entries(restored) == COUNT

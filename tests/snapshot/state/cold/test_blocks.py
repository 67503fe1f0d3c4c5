"""Keyed state as blocks: their bytes, which of them are kept, and the way to rows and back."""

import shutil

import msgpack
import pytest
from rocksdict import Options, Rdict

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.state.cold.blocks import read_block
from penstock.snapshot.state.settings import StateSettings
from tests.snapshot.state.backends import GROUPS, PlainCodec, as_rows, contents, drive, fill

#: Blocks are compacted as soon as they hold twice the live entries.
TIGHT = StateSettings(slack_entries=0)


def stored(backend: KeyedBackend) -> dict[int, tuple[list, list, list]]:
    """Number and content of each block in the database."""
    assert backend.storage.is_open
    found = {}
    for key, value in backend.storage.database.rows_of(b"\xff\xff"):
        block = read_block(PlainCodec(), key, value)
        found[block.number] = (block.keys, block.values, block.deleted)
    return found


def entries(backend: KeyedBackend) -> int:
    return sum(len(keys) + len(deleted) for keys, _, deleted in stored(backend).values())


def test_a_block_opens_with_plain_rocksdict_and_has_the_documented_bytes(make):
    backend = make(inline_threshold=0)
    backend.table("other")
    backend.table("s").put("a", ("a", 1))
    make.snapshot(backend, 1)
    backend.table("s").delete("a")
    backend.table("s").put("b", 2)
    handle = make.snapshot(backend, 2)
    copied = make.root / "copy"
    shutil.copytree(make.root / handle.folder, copied)
    database = Rdict(str(copied), Options(raw_mode=True))
    rows = list(database.items())
    database.close()
    encode = PlainCodec().encode_batch
    assert rows == [
        (
            b"\xff\xff\0\1" + bytes(8),
            msgpack.packb([encode(["a"]), encode([("a", 1)]), encode([])]),
        ),
        (
            b"\xff\xff\0\1" + bytes(7) + b"\1",
            msgpack.packb([encode(["b"]), encode([2]), encode(["a"])]),
        ),
    ]


def test_a_snapshot_of_everything_replaces_the_blocks_before(make):
    backend = make(inline_threshold=0, settings=TIGHT)
    for number in range(1, 6):
        fill(backend, 3000, lambda i, n=number: i * n)
        make.snapshot(backend, number)
        assert entries(backend) <= 6000
        assert contents(backend) == {f"k{i}": i * number for i in range(3000)}
    # Of the first there is nothing left, and none was written twice.
    assert entries(backend) in (3000, 6000)
    restored = make.restored(make.snapshot(backend, 9))
    assert contents(restored) == {f"k{i}": i * 5 for i in range(3000)}


def test_blocks_of_small_changes_are_compacted(make):
    backend = make(inline_threshold=0, settings=TIGHT)
    fill(backend, 1000)
    expected = {f"k{i}": i for i in range(1000)}
    most = 0
    for number in range(1, 80):
        for i in range(50):
            key = f"k{(number * 37 + i) % 1000}"
            backend.table("s").put(key, number)
            expected[key] = number
        handle = make.snapshot(backend, number)
        most = max(most, entries(backend))
    assert 1900 < most <= 2 * 1000 + 50
    assert contents(make.restored(handle)) == contents(backend) == expected


def test_entries_that_change_during_compaction_stay_as_they_were_in_the_snapshot(make):
    backend = make(inline_threshold=0, settings=TIGHT, slice_seconds=0.0)
    table = backend.table("s")
    for i in range(3000):
        table.put(i, [i])
    make.snapshot(backend, 1)
    for number in (2, 3):
        for i in range(1501):
            table.put(i, [i, number])
        last = backend.capture(number)
        if number == 2:
            drive(last.write(make.root / "2"))
    work = last.write(make.root / "3")
    before = entries(backend)
    changed = set()
    step, at = None, 3000
    # During writing and compaction, values that the snapshot holds are changed in place.
    while True:
        try:
            step = work.send(None if step is None else step())
        except StopIteration as stop:
            handle, _ = stop.value
            break
        for _ in range(20):
            at -= 1
            if at >= 0:
                table.get(at).append("later")
                changed.add(at)
    assert changed and before
    older = {i: [i, 3] if i < 1501 else [i] for i in range(3000)}
    assert contents(make.restored(handle)) == older
    newer = {i: older[i] + ["later"] * (i in changed) for i in range(3000)}
    assert contents(backend) == newer
    handle = make.snapshot(backend, 4)
    assert contents(make.restored(handle)) == newer
    # What was left out was written with the capture after, and then the old blocks went.
    assert min(stored(backend)) > 3


def test_eagerly_flushed_entries_are_not_written_again(make):
    backend = make(inline_threshold=0, settings=TIGHT)
    fill(backend, 9000)
    make.snapshot(backend, 1)
    fill(backend, 9000, lambda i: -i)
    drive(backend.flush_eagerly())
    ahead = len(backend.table("s").clean) - len(backend.table("s").dirty)
    assert ahead > 4000
    handle = make.snapshot(backend, 2)
    assert contents(make.restored(handle)) == {f"k{i}": -i for i in range(9000)}
    assert entries(backend) <= 2 * 9000


def test_deleted_entries_do_not_come_back(make):
    backend = make(inline_threshold=0, settings=TIGHT)
    fill(backend, 2000)
    make.snapshot(backend, 1)
    for i in range(1990):
        backend.table("s").delete(f"k{i}")
    handle = make.snapshot(backend, 2)
    left = {f"k{i}": i for i in range(1990, 2000)}
    assert contents(make.restored(handle)) == left
    backend.table("s").put("k1990", 0)
    handle = make.snapshot(backend, 3)
    assert contents(make.restored(handle)) == left | {"k1990": 0}
    assert entries(backend) < 2020


@pytest.mark.parametrize("cut", [1, 7, GROUPS - 1])
def test_blocks_and_rows_are_redistributed_together(make, cut):
    lower, upper = make(range(cut), inline_threshold=0), make(range(cut, GROUPS))
    for backend in (lower, upper):
        for i in range(9000):
            if backend.storage.row_keys.group(f"k{i}") in backend.groups:
                backend.table("s").put(f"k{i}", (i, "x" * 10))
    as_rows(lower)
    handles = [make.snapshot(lower, 1), make.snapshot(upper, 1)]
    assert handles[0].folder is not None
    whole = make.restored(*handles)
    assert whole.storage.cold.is_readable
    expected = {f"k{i}": (i, "x" * 10) for i in range(9000)}
    assert contents(whole) == expected
    assert contents(make.restored(make.snapshot(whole, 2))) == expected
    middle = make.restored(*handles, groups=range(cut // 2, GROUPS))
    assert contents(middle) == {
        key: value
        for key, value in expected.items()
        if middle.storage.row_keys.group(key) in middle.groups
    }


def test_a_restored_state_goes_on_with_its_blocks(make):
    backend = make(inline_threshold=0)
    fill(backend, 3000)
    restored = make.restored(make.snapshot(backend, 1))
    before = stored(restored)
    restored.table("s").put("k5", "new")
    handle = make.snapshot(restored, 2)
    after = stored(restored)
    assert set(before) < set(after)
    assert max(after) == max(before) + 1
    assert after[max(after)] == (["k5"], ["new"], [])
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(3000)} | {"k5": "new"}


def test_a_snapshot_captured_while_rows_replace_blocks_has_everything(make):
    backend = make(inline_threshold=0, memory_budget=50_000)
    fill(backend, 1000)
    make.snapshot(backend, 1)
    work = backend.evict()
    step = next(work)
    backend.table("s").put("k5", "new")
    capture = backend.capture(2)
    backend.table("s").put("k6", "newer")
    with pytest.raises(StopIteration):
        while True:
            step = work.send(None if step is None else step())
    handle, _ = drive(capture.write(make.root / "2"))
    expected = {f"k{i}": i for i in range(1000)} | {"k5": "new"}
    assert contents(make.restored(handle)) == expected
    assert contents(backend) == expected | {"k6": "newer"}
    drive(backend.evict())
    assert contents(make.restored(make.snapshot(backend, 3))) == expected | {"k6": "newer"}


def test_a_damaged_block_is_a_store_error():
    with pytest.raises(StoreError, match="block of keyed state"):
        read_block(PlainCodec(), b"\xff\xff" + bytes(10), b"nothing")

"""The rules of keyed state, one by one."""

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from penstock.dataflow.errors import ProtocolError, StoreError
from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import canonical
from penstock.snapshot.metadata.handles import FileRecord
from penstock.snapshot.state import MISSING, TOMBSTONE, KeyedBackend
from penstock.snapshot.state.rocksdb.database import ROCKSDB
from tests.snapshot.state.backends import (
    ENGINE_IDS,
    ENGINES,
    GROUPS,
    PlainCodec,
    as_rows,
    content_of_folder,
    contents,
    drive,
    fill,
)


def is_table(file: FileRecord) -> bool:
    return Path(file.name).suffix in (".sst", ".changes")


@pytest.fixture(params=ENGINES, ids=ENGINE_IDS)
def engine(request):
    """Each kind of database, for all tests of this module."""
    return request.param


# --- tables ---


def test_a_table_gives_what_was_put_and_nothing_after_a_deletion(make):
    table = make().table("s")
    assert table.get("a") is MISSING
    assert table.get("a", 0) == 0
    table.put("a", 1)
    assert table.get("a") == 1
    table.delete("a")
    assert table.get("a") is MISSING
    assert table.lookup("a") is MISSING
    assert table.get("a", 7) == 7


def test_the_same_name_is_the_same_table_and_ids_count_up(make):
    backend = make()
    assert backend.table("a") is backend.table("a")
    assert [backend.table("a").table_id, backend.table("b").table_id] == [0, 1]


@pytest.mark.parametrize("threshold", [0, 65536])
def test_levels_shadow_those_below(make, threshold):
    backend = make(inline_threshold=threshold)
    table = backend.table("s")
    table.put("a", 1)
    table.put("b", 1)
    make.snapshot(backend, 1)
    table.put("a", 2)
    first = backend.capture(2)
    table.delete("a")
    second = backend.capture(3)
    assert table.get("a") is MISSING
    assert table.get("b") == 1
    table.put("a", 4)
    assert contents(backend) == {"a": 4, "b": 1}
    drive(first.write(make.root / "2"))
    drive(second.write(make.root / "3"))
    assert contents(backend) == {"a": 4, "b": 1}


def test_a_capture_swaps_the_dirty_map(make):
    backend = make()
    table = backend.table("s")
    before = table.dirty
    table.put("a", 1)
    backend.capture(1)
    assert table.dirty is not before
    assert table.dirty == {}
    assert table.captured == [before]


# --- inline, and outgrowing it ---


def test_a_small_state_travels_whole_in_its_handle_and_opens_no_rocksdb(make):
    backend = make()
    table = backend.table("s")
    table.put(("x", 1), [1])
    table.put("gone", 1)
    make.snapshot(backend, 1)
    table.delete("gone")
    table.put("b", 2)
    handle = make.snapshot(backend, 2)
    assert handle.folder is None
    assert handle.files == ()
    assert not backend.storage.folder.exists()
    restored = make.restored(handle)
    assert contents(restored) == {("x", 1): [1], "b": 2}
    # What was restored is part of the next snapshot.
    assert contents(make.restored(make.snapshot(restored, 3))) == {("x", 1): [1], "b": 2}


def test_several_pending_inline_snapshots_each_hold_the_whole_state(make):
    backend = make()
    table = backend.table("s")
    table.put("a", [1])
    captures = []
    for number in range(1, 4):
        captures.append(backend.capture(number))
        table.lookup("a").append(number)
        table.put(number, number)
    handles = [drive(capture.write(None))[0] for capture in captures]
    assert contents(make.restored(handles[0])) == {"a": [1]}
    assert contents(make.restored(handles[1])) == {"a": [1, 1], 1: 1}
    assert contents(make.restored(handles[2])) == {"a": [1, 1, 2], 1: 1, 2: 2}


def test_a_state_above_the_threshold_is_written_whole_and_stays_in_rocksdb(make):
    backend = make(inline_threshold=1000)
    fill(backend, 10)
    assert make.snapshot(backend, 1).inline is not None
    table = backend.table("s")
    for i in range(10, 500):
        table.put(f"k{i}", i)
    handle = make.snapshot(backend, 2)
    assert handle.inline is None
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(500)}
    for i in range(1, 500):
        table.delete(f"k{i}")
    handle = make.snapshot(backend, 3)
    assert handle.inline is None
    assert contents(make.restored(handle)) == {"k0": 0}


def test_threshold_zero_means_rocksdb_even_when_empty(make):
    backend = make(inline_threshold=0)
    backend.table("s")
    handle = make.snapshot(backend, 1)
    assert handle.folder is not None
    assert handle.states == ("s",)
    restored = make.restored(handle)
    assert contents(restored) == {}


# --- writing captures ---


@pytest.mark.parametrize("engine", [ROCKSDB])
def test_the_checkpoint_opens_with_plain_rocksdict_and_has_the_documented_rows(make):
    backend = as_rows(make(inline_threshold=0))
    backend.table("other")
    long = "x" * 300
    for key in ("a", True, long):
        backend.table("s").put(key, (key, 1))
    handle = make.snapshot(backend, 1)
    copy = make.root / "copy"
    shutil.copytree(make.root / handle.folder, copy)
    database = Rdict(str(copy), Options(raw_mode=True))
    rows = dict(database.items())
    database.close()
    codec = PlainCodec()
    expected = {}
    for key in ("a", True, long):
        form, original = canonical(key), codec.encode_value(key)
        row = key_group(form, GROUPS).to_bytes(2, "big") + b"\0\1" + form
        size = len(original)
        opening = bytes([size]) if size < 255 else b"\xff" + size.to_bytes(4, "big")
        expected[row] = opening + original + codec.encode_value((key, 1))
    assert rows == expected


def test_a_key_whose_canonical_bytes_are_its_encoding_is_stored_once(make):
    codec = PlainCodec()
    backend = KeyedBackend(
        folder=make.root / "w",
        codec=codec,
        canonical=codec.encode_value,
        max_parallelism=1,
        groups=range(1),
        inline_threshold=0,
        engine=make.engine,
    )
    make.made.append(as_rows(backend))
    backend.table("s").put("key", 5)
    handle = make.snapshot(backend, 1)
    assert handle.inline is None
    assert dict(backend.storage.database.scan(b"", None)) == {b"\0\0\0\0\xa3key": b"\0\x05"}
    assert contents(backend) == {"key": 5}


def test_files_are_recorded_with_size_and_checksum_and_later_only_linked(make):
    backend = make(inline_threshold=0)
    fill(backend, 1000)
    first, first_bytes = drive(backend.capture(1).write(make.root / "1"))
    assert first_bytes.linked == 0
    assert first_bytes.total == sum(file.size for file in first.files)
    for file in first.files:
        data = (make.root / file.name).read_bytes()
        assert len(data) == file.size
        assert hashlib.blake2b(data, digest_size=16).hexdigest() == file.checksum
    backend.table("s").put("k5", -5)
    second, second_bytes = drive(backend.capture(2).write(make.root / "2"))
    old = {
        file.checksum: file.size for file in first.files if file.name.endswith((".sst", ".changes"))
    }
    shared = [file for file in second.files if file.checksum in old]
    assert len(shared) == len(old)
    assert second_bytes.linked >= sum(old.values())
    assert second_bytes.new == second_bytes.total - second_bytes.linked


def test_later_changes_do_not_reach_an_earlier_checkpoint(make):
    backend = make(inline_threshold=0)
    fill(backend, 100)
    first = make.snapshot(backend, 1)
    fill(backend, 50, lambda i: -i)
    backend.table("s").delete("k99")
    second = make.snapshot(backend, 2)
    assert contents(make.restored(first)) == {f"k{i}": i for i in range(100)}
    expected = {f"k{i}": -i if i < 50 else i for i in range(99)}
    assert contents(make.restored(second)) == expected


def test_snapshots_are_written_in_order_only(make):
    backend = make(inline_threshold=0)
    backend.capture(1)
    second = backend.capture(2)
    with pytest.raises(ProtocolError, match="snapshot 2 is written out of order"):
        drive(second.write(make.root / "2"))


def test_a_snapshot_is_written_once(make):
    backend = make()
    capture = backend.capture(1)
    drive(capture.write(None))
    with pytest.raises(ProtocolError, match="twice"):
        drive(capture.write(None))


def test_numbers_of_snapshots_must_rise(make):
    backend = make()
    backend.capture(5)
    with pytest.raises(ProtocolError, match="snapshot 5 is captured after 5"):
        backend.capture(5)


@pytest.mark.parametrize("threshold", [0, 65536])
def test_an_aborted_snapshot_is_written_but_makes_no_checkpoint(make, threshold):
    backend = make(inline_threshold=threshold)
    fill(backend, 10)
    make.snapshot(backend, 1)
    table = backend.table("s")
    table.put("k1", "new")
    table.delete("k2")
    aborted = backend.capture(2)
    aborted.abort()
    table.put("k3", "newer")
    third = backend.capture(3)
    assert drive(aborted.write(make.root / "2")) is None
    assert not (make.root / "2").exists()
    handle, _ = drive(third.write(make.root / "3"))
    expected = {f"k{i}": i for i in range(10)} | {"k1": "new", "k3": "newer"}
    del expected["k2"]
    assert contents(make.restored(handle)) == expected == contents(backend)


def test_an_abort_during_writing_still_writes_the_rest(make):
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    fill(backend, 20000)
    capture = backend.capture(2)
    work = capture.write(make.root / "2")
    assert next(work) is None
    capture.abort()
    assert drive(work) is None
    assert contents(make.restored(make.snapshot(backend, 3))) == {f"k{i}": i for i in range(20000)}


def test_writing_that_was_given_up_starts_again(make):
    backend = make(inline_threshold=0)
    make.snapshot(backend, 1)
    fill(backend, 20000)
    capture = backend.capture(2)
    work = capture.write(make.root / "2")
    next(work)
    work.close()
    assert backend.table("s").get("k19999") == 19999
    handle, _ = drive(capture.write(make.root / "2"))
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(20000)}


def test_a_checkpoint_that_cannot_be_written_fails_only_its_snapshot(make):
    backend = make(inline_threshold=0)
    fill(backend, 10)
    capture = backend.capture(1)
    (make.root / "1").mkdir()
    with pytest.raises(StoreError, match="cannot write the checkpoint"):
        drive(capture.write(make.root / "1"))
    assert contents(make.restored(make.snapshot(backend, 2))) == {f"k{i}": i for i in range(10)}


def test_two_generators_in_off_loop_steps_are_refused(make):
    backend = make(inline_threshold=0)
    fill(backend, 5000)
    first = backend.capture(1).write(make.root / "1")
    assert callable(next(first))
    with pytest.raises(ProtocolError, match="same time"):
        next(backend.storage.slicing.offload(lambda: None))


def test_slices_on_the_loop_end_by_time(make):
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    backend = make(inline_threshold=0, clock=clock, slice_seconds=0.004)
    make.snapshot(backend, 1)
    fill(backend, 1024 * 20)
    work = backend.capture(2).write(make.root / "2")
    slices = 0
    while next(work) is None:
        slices += 1
    assert slices >= 4
    work.close()


# --- mutable values ---


@pytest.mark.parametrize("threshold", [0, 65536])
def test_changes_in_place_are_neither_lost_nor_visible_in_an_older_snapshot(make, threshold):
    backend = make(inline_threshold=threshold)
    table = backend.table("s")
    table.put("a", [0])
    handles = [make.snapshot(backend, 1)]
    table.get("a").append(1)
    capture = backend.capture(2)
    table.get("a").append(2)
    handles.append(drive(capture.write(make.root / "2"))[0])
    handles.append(make.snapshot(backend, 3))
    assert [contents(make.restored(handle))["a"] for handle in handles] == [
        [0],
        [0, 1],
        [0, 1, 2],
    ]


@pytest.mark.parametrize("threshold", [0, 65536])
def test_an_entry_that_changed_while_it_was_written_does_not_return_after_its_deletion(
    make, threshold
):
    backend = make(inline_threshold=threshold)
    table = backend.table("s")
    table.put("a", [0])
    capture = backend.capture(1)
    table.get("a").append(1)
    older = drive(capture.write(make.root / "1"))[0]
    table.delete("a")
    newer = make.snapshot(backend, 2)
    assert contents(make.restored(older)) == {"a": [0]}
    assert contents(make.restored(newer)) == {}


def test_only_entries_of_older_levels_leave_tombstones(make):
    backend = make(inline_threshold=0)
    table, pairs = backend.table("s"), backend.composite_table("m")
    table.put("kept", 0)
    pairs.put(("kept", 0), 0)
    make.snapshot(backend, 1)
    for i in range(100):
        table.put(i, i)
        pairs.put((i, i), i)
        assert list(pairs.entries_of(i)) == [((i, i), i)]
        table.delete(i)
        pairs.delete((i, i))
        assert not pairs.has_entries(i)
    assert not table.dirty and not pairs.dirty
    table.delete("kept")
    pairs.delete(("kept", 0))
    assert table.dirty == {"kept": TOMBSTONE}
    assert pairs.dirty == {("kept", 0): TOMBSTONE}
    assert contents(make.restored(make.snapshot(backend, 2))) == {}


def test_immutable_values_stay_clean_when_looked_up(make):
    backend = make()
    table = backend.table("s")
    table.put("a", (1, "x"))
    table.put("b", ([],))
    make.snapshot(backend, 1)
    table.lookup("a")
    assert table.dirty == {}
    table.lookup("b")
    assert list(table.dirty) == ["b"]


def test_a_value_read_from_rocksdb_is_dirty_if_it_is_mutable(make):
    backend = as_rows(make(inline_threshold=0))
    backend.table("s").put("a", {"n": 1})
    backend.table("s").put("b", 1)
    restored = make.restored(make.snapshot(backend, 1))
    table = restored.table("s")
    table.get("a")["n"] = 2
    assert table.get("b") == 1
    assert list(table.dirty) == ["a"]
    assert contents(make.restored(make.snapshot(restored, 2))) == {"a": {"n": 2}, "b": 1}


# --- memory ---


def test_only_clean_entries_are_evicted_and_they_are_found_again(make):
    backend = make(inline_threshold=0, memory_budget=200_000)
    table = backend.table("s")
    fill(backend, 1000)
    drive(backend.evict())
    for i in range(500):
        table.put(f"k{i}", -i)
    assert backend.memory.is_exceeded()
    while table.evict(64):
        pass
    assert len(table.dirty) >= 500
    assert backend.storage.cold.is_readable
    assert contents(backend) == {f"k{i}": -i if i < 500 else i for i in range(1000)}
    assert table.get("k0") == 0
    assert table.get("k7") == -7
    assert table.get("k900") == 900
    assert table.get("nothing") is MISSING


def test_nothing_is_cold_before_rocksdb_holds_rows(make):
    backend = make(inline_threshold=0, memory_budget=50_000)
    fill(backend, 1000)
    make.snapshot(backend, 1)
    assert backend.over_memory_limit
    assert not backend.storage.cold.is_readable
    drive(backend.evict())
    assert not backend.over_memory_limit
    assert backend.storage.cold.is_readable
    assert contents(backend) == {f"k{i}": i for i in range(1000)}


def test_a_database_that_cannot_be_opened_fails_one_snapshot_only(make):
    failures = [OSError(28, "No space left on device")]

    def create(folder, shared):
        if failures:
            raise failures.pop()
        return make.engine.create(folder, shared)

    backend = make(inline_threshold=0, engine=replace(make.engine, create=create))
    fill(backend, 1000)
    capture = backend.capture(1)
    with pytest.raises(OSError, match="No space left"):
        drive(capture.write(make.root / "1"))
    assert capture.over
    backend.table("s").put("k5", "new")
    handle = make.snapshot(backend, 2)
    expected = {f"k{i}": i for i in range(1000)} | {"k5": "new"}
    assert contents(make.restored(handle)) == contents(backend) == expected


@pytest.mark.parametrize("engine", [ROCKSDB])
def test_a_failed_write_is_a_store_error_with_its_path(make):
    backend = make(inline_threshold=0)
    fill(backend, 10)
    make.snapshot(backend, 1)
    store = backend.storage.database

    class Full:
        def write(self, *_):
            raise Exception("IO error: While appending to file")

        get = items = write

    database, store._database = store._database, Full()
    backend.table("s").put("k5", "new")
    capture = backend.capture(2)
    with pytest.raises(StoreError, match="cannot write keyed state: IO error") as caught:
        drive(capture.write(make.root / "2"))
    assert caught.value.path == str(store.folder)
    assert not capture.over
    with pytest.raises(StoreError, match="cannot read keyed state: IO error"):
        store.get(b"key")
    store._database = database


def test_eviction_waits_for_a_pending_snapshot(make):
    backend = make(inline_threshold=0, memory_budget=50_000)
    fill(backend, 1000)
    capture = backend.capture(1)
    assert backend.over_memory_limit
    drive(backend.evict())
    assert backend.over_memory_limit
    drive(capture.write(make.root / "1"))
    drive(backend.evict())
    assert not backend.over_memory_limit


def test_a_small_state_over_budget_goes_to_rocksdb_whole(make):
    backend = make(memory_budget=50_000)
    fill(backend, 100)
    make.snapshot(backend, 1)
    for i in range(100, 1000):
        backend.table("s").put(f"k{i}", i)
    drive(backend.evict())
    expected = {f"k{i}": i for i in range(1000)}
    assert contents(backend) == expected
    handle = make.snapshot(backend, 2)
    assert handle.inline is None
    assert contents(make.restored(handle)) == expected


def test_a_state_ten_times_its_budget_runs(make):
    backend = make(memory_budget=500_000)
    table = backend.table("s")
    largest = 0
    for i in range(20000):
        table.put(i, (i, "x" * 20))
        if i % 500 == 499:
            if backend.over_memory_limit:
                drive(backend.evict())
            largest = max(largest, backend.memory.used_bytes())
            assert not backend.over_memory_limit
    assert backend.memory.used_bytes() < 500_000
    assert all(table.get(i)[0] == i for i in range(0, 20000, 97))
    assert len(contents(make.restored(make.snapshot(backend, 1)))) == 20000


def test_the_cache_and_write_buffers_of_a_process_are_shared_and_counted(make):
    shared = make.engine.memory(8 * 1024 * 1024)
    backends = [
        make(inline_threshold=0, shared=shared, memory_budget=32 * 1024 * 1024) for _ in "ab"
    ]
    for backend in backends:
        fill(backend, 10)
        make.snapshot(backend, 1)
    assert shared._users == 2
    assert backends[0].memory.limit_bytes() == 28 * 1024 * 1024
    backends[1].close()
    assert shared._users == 1
    assert backends[0].memory.limit_bytes() == 24 * 1024 * 1024


# --- restoring ---


def test_restoring_leaves_the_snapshot_as_it_was_whatever_happens_afterwards(make):
    backend = make(inline_threshold=0)
    fill(backend, 2000)
    handle = make.snapshot(backend, 1)
    folder = make.root / handle.folder
    before = content_of_folder(folder)
    restored = make.restored(handle)
    assert make.tables(folder)[0].stat().st_nlink >= 2
    for number in range(2, 9):
        fill(restored, 2000, lambda i, n=number: i * n)
        restored.table("s").delete(f"k{number}")
        make.snapshot(restored, number)
    if make.engine is ROCKSDB:
        restored.storage.database._database.compact_range(None, None)
    restored.close()
    assert content_of_folder(folder) == before
    assert contents(make.restored(handle)) == {f"k{i}": i for i in range(2000)}


def test_a_restored_snapshot_is_linked_into_the_next_one(make):
    backend = make(inline_threshold=0)
    fill(backend, 2000)
    first = make.snapshot(backend, 1)
    restored = make.restored(first)
    restored.table("s").put("new", 1)
    second, size = drive(restored.capture(2).write(make.root / "2"))
    old = {
        file.checksum: file.size for file in first.files if file.name.endswith((".sst", ".changes"))
    }
    assert old.keys() <= {file.checksum for file in second.files}
    assert size.linked >= sum(old.values())


def test_two_attempts_from_one_snapshot_do_not_mix_up_files_of_one_name(make):
    backend = make(inline_threshold=0)
    fill(backend, 100)
    first = make.snapshot(backend, 1)
    handles = []
    for attempt in (1, 2):
        restored = make.restored(first)
        fill(restored, 100, lambda i, n=attempt: (n, i))
        handles.append(make.snapshot(restored, 2))
    for attempt, handle in enumerate(handles, 1):
        assert contents(make.restored(handle)) == {f"k{i}": (attempt, i) for i in range(100)}


def test_state_is_restored_under_its_name_and_keeps_its_id(make):
    backend = make(inline_threshold=0)
    backend.table("a").put("k", "a")
    backend.table("b").put("k", "b")
    restored = make.restored(make.snapshot(backend, 1))
    assert restored.table("b").table_id == 1
    assert restored.table("new").table_id == 2
    assert restored.table("b").get("k") == "b"
    assert restored.table("a").get("k") == "a"
    restored.table("new").put("k", "new")
    again = make.restored(make.snapshot(restored, 2))
    assert again.table("new").get("k") == "new"


@pytest.mark.parametrize("thresholds", [(0, 0), (65536, 65536), (0, 65536)])
def test_state_is_redistributed_by_key_group(make, thresholds):
    """Three subtasks from two, whose states were registered in different orders."""
    halves = [make(range(8), inline_threshold=thresholds[0])]
    halves.append(make(range(8, 16), inline_threshold=thresholds[1]))
    halves[0].table("s")
    halves[1].table("other")
    expected = {}
    for i in range(300):
        half = halves[key_group(canonical(i), GROUPS) // 8]
        half.table("s").put(i, [i])
        half.table("other").put(i, -i)
        expected[i] = [i]
    handles = [make.snapshot(half, 1) for half in halves]
    assert handles[0].states != handles[1].states
    found = {}
    for groups in (range(5), range(5, 10), range(10, 16)):
        restored = make.restored(*handles, groups=groups)
        part = contents(restored)
        assert all(key_group(canonical(key), GROUPS) in groups for key in part)
        assert contents(restored, "other") == {key: -key for key in part}
        # A second generation holds the same.
        again = make.restored(make.snapshot(restored, 2), groups=groups)
        assert contents(again) == part
        found.update(part)
    assert found == expected
    whole = make.restored(*handles)
    assert contents(whole) == expected
    assert all(whole.table("s").get(i) == [i] for i in range(300))


def test_only_a_new_backend_is_restored(make):
    backend = make()
    backend.table("s")
    with pytest.raises(ProtocolError, match="restored after it had been used"):
        drive(backend.restore([]))


def test_a_missing_file_is_named(make):
    backend = make(inline_threshold=0)
    fill(backend, 10)
    handle = make.snapshot(backend, 1)
    missing = make.tables(make.root / handle.folder)[0]
    missing.unlink()
    with pytest.raises(StoreError, match=missing.name):
        make.restored(handle)


# --- other file systems ---


def test_where_nothing_can_be_linked_everything_is_copied(make, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    backend = make(inline_threshold=0)
    fill(backend, 100)
    handle = make.snapshot(backend, 1)
    monkeypatch.setattr(os, "link", refuse)
    restored = make.restored(handle)
    assert make.tables(restored.storage.folder / "db")[0].stat().st_nlink == 1
    assert contents(restored) == {f"k{i}": i for i in range(100)}


def test_files_copied_out_of_a_snapshot_are_synced_since_the_next_snapshot_links_them(
    make, monkeypatch
):
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    backend = make(inline_threshold=0)
    fill(backend, 100)
    handle = make.snapshot(backend, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        synced = _synced(patch)
        restored = make.restored(handle)
    tables = {path.name for path in make.tables(restored.storage.folder / "db")}
    assert tables
    assert tables <= {path.name for path in synced}


@pytest.mark.parametrize("engine", [ROCKSDB])
def test_a_checkpoint_syncs_the_manifest_and_last_its_folder(make, monkeypatch):
    """The rest is durable: RocksDB has synced table files, and CURRENT is the one from before."""
    backend = make(inline_threshold=0)
    synced = _synced(monkeypatch)
    for number in range(3):
        fill(backend, 100, lambda i, n=number: (n, i))
        del synced[:]
        handle = make.snapshot(backend, number)
        folder = make.root / handle.folder
        assert [path.name.partition("-")[0] for path in synced[:-1]] == (
            ["MANIFEST"] if number else ["MANIFEST", "CURRENT"]
        )
        assert synced[-1] == folder
        assert all(path.is_relative_to(folder) for path in synced)
        assert {Path(file.name).name for file in handle.files} == {
            path.name for path in folder.iterdir()
        }
    assert (folder / "CURRENT").stat().st_nlink == 3


def _synced(monkeypatch) -> list[Path]:
    """Every file and folder that is synced by Python from now on."""
    found: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_on_another_file_system_a_file_is_copied_once_and_then_linked(make, monkeypatch):
    _pretend_other_device(monkeypatch, make.root / "store")
    (make.root / "store").mkdir()
    backend = make(inline_threshold=0)
    fill(backend, 2000)
    first, first_bytes = drive(backend.capture(1).write(make.root / "store" / "1"))
    assert first_bytes.linked == 0
    backend.table("s").put("k1", -1)
    _, second_bytes = drive(backend.capture(2).write(make.root / "store" / "2"))
    old = sum(file.size for file in first.files if is_table(file))
    assert second_bytes.linked >= old
    shutil.rmtree(make.root / "store" / "2")
    third, third_bytes = drive(backend.capture(3).write(make.root / "store" / "3"))
    assert third_bytes.linked == 0
    restored = make()
    drive(restored.restore([(make.root / "store", third)]))
    assert contents(restored) == {f"k{i}": i if i != 1 else -1 for i in range(2000)}


def _pretend_other_device(monkeypatch, folder: Path) -> None:
    real = Path.stat

    class Elsewhere:
        def __init__(self, status):
            self.status = status

        def __getattr__(self, name):
            return -1 if name == "st_dev" else getattr(self.status, name)

    def stat(self, **options):
        status = real(self, **options)
        return Elsewhere(status) if self == folder else status

    monkeypatch.setattr(Path, "stat", stat)


def test_a_tombstone_is_a_row_that_is_deleted(make):
    backend = as_rows(make(inline_threshold=0))
    table = backend.table("s")
    fill(backend, 10)
    make.snapshot(backend, 1)
    table.dirty["k1"] = TOMBSTONE
    make.snapshot(backend, 2)
    assert len(list(backend.storage.database.scan(b"", b"\xff"))) == 9
    assert "k1" not in table.clean

"""SQLite as the database of cold state: what it adds to the tests that both databases share."""

import os
import random
import sqlite3
import threading
from pathlib import Path

import msgpack
import pytest

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.state.cold.database import SharedMemory
from penstock.snapshot.state.sqlite import change_files
from penstock.snapshot.state.sqlite.change_files import read_changes
from penstock.snapshot.state.sqlite.database import SqliteDatabase

MEMORY = SharedMemory(4 * 1024 * 1024)


@pytest.fixture
def database(tmp_path):
    made = SqliteDatabase.create(tmp_path / "db", MEMORY)
    yield made
    made.close()


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def write(database, rows):
    batch = database.new_batch()
    for row_key, value in rows.items():
        if value is None:
            del batch[row_key]
        else:
            batch[row_key] = value
    database.write(batch)


def content(database):
    return dict(database.scan(b"", None))


def files(folder):
    return sorted(folder.glob("*.changes"))


# --- reading and writing ---


def test_many_keys_are_read_in_the_order_in_which_they_are_given(database):
    write(database, {key(i): b"%d" % i for i in range(0, 1000, 2)})
    keys = [key(i) for i in random.Random(1).sample(range(1000), 700)]
    expected = [b"%d" % int.from_bytes(k, "big") if k[-1] % 2 == 0 else None for k in keys]
    assert database.get_all(keys) == expected
    assert database.get_all([]) == []
    assert database.get_all([key(2), key(2), key(3)]) == [b"2", b"2", None]
    assert (database.get(key(4)), database.get(key(5))) == (b"4", None)


def test_a_scan_has_the_rows_of_its_range_in_order(database):
    rows = {b"a\xff": b"1", b"a\xff\xff": b"2", b"b": b"3", b"\xff\xff": b"4", b"\xff\xffx": b"5"}
    write(database, rows)
    assert list(database.scan(b"", None)) == sorted(rows.items())
    assert dict(database.rows_of(b"a\xff")) == {b"a\xff": b"1", b"a\xff\xff": b"2"}
    assert dict(database.rows_of(b"a", b"a\xff\xff")) == {b"a\xff\xff": b"2"}
    assert dict(database.rows_of(b"\xff\xff")) == {b"\xff\xff": b"4", b"\xff\xffx": b"5"}
    assert list(database.scan(b"a\xff\xff", b"b")) == [(b"a\xff\xff", b"2")]
    assert database.holds_blocks()


def test_ranges_are_deleted_also_in_a_restored_database(database, tmp_path):
    write(database, {key(i): b"x" for i in range(20)})
    batch = database.new_batch()
    batch.delete_range(key(3), key(7))
    batch.delete_range(key(9), key(10))
    batch[key(8)] = b"y"
    database.write(batch)
    expected = [*range(3), 7, 8, *range(10, 20)]
    assert list(content(database)) == [key(i) for i in expected]
    database.checkpoint(tmp_path / "1")
    restored = SqliteDatabase(tmp_path / "1", MEMORY)
    assert content(restored) == content(database)
    restored.close()


@pytest.mark.parametrize("count", [10, 1000])
def test_later_writes_do_not_change_a_scan(database, count):
    before = {key(i): b"old" for i in range(count)}
    write(database, before)
    scan = database.scan(b"", None)
    begun = database.scan(b"", None)
    next(begun)
    write(database, {key(i): b"new" if i % 2 else None for i in range(2 * count)})
    assert dict(scan) == before
    assert len(list(begun)) == count - 1
    assert content(database) == {key(i): b"new" for i in range(1, 2 * count, 2)}


def test_scans_that_are_not_read_to_their_end_give_their_connections_back(database):
    write(database, {key(i): b"x" for i in range(1000)})
    for _ in range(20):
        scans = [database.scan(b"", None) for _ in range(2)]
        assert next(scans[0])
        del scans
    assert len(database._idle) == 2


def test_a_scan_of_many_ranges_needs_one_connection_and_sees_no_later_write(database):
    write(database, {key(i): b"old" for i in range(1000)})
    ranges = [(key(i), key(i + 90)) for i in range(0, 1000, 100)]
    scan = database.scan_each(ranges)
    write(database, {key(i): b"new" for i in range(1000)})
    expected = [(key(i), b"old") for i in range(1000) if i % 100 < 90]
    assert list(scan) == expected
    assert len(database._idle) == 1
    assert dict(database.scan_each([])) == {}


def test_a_scan_may_outlive_its_database(tmp_path):
    database = SqliteDatabase.create(tmp_path / "db", MEMORY)
    write(database, {key(i): b"x" for i in range(1000)})
    scan = database.scan(b"", None)
    database.close()
    assert len(list(scan)) == 1000


def test_rows_are_read_while_a_thread_writes_a_checkpoint(tmp_path):
    database = SqliteDatabase.create(tmp_path / "db", MEMORY, slack_bytes=-(1 << 30))
    rows = {key(i): b"x" * 200 for i in range(5_000)}
    write(database, rows)
    failures = []

    def make_checkpoints():
        try:
            for number in range(5):
                database.checkpoint(tmp_path / str(number))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=make_checkpoints)
    thread.start()
    reads = 0
    while thread.is_alive() or not reads:
        assert len(database.get_all(list(rows)[:300])) == 300
        assert database.get(key(7)) == rows[key(7)]
        reads += 1
    thread.join()
    database.close()
    assert not failures
    (file,) = files(tmp_path / "4")
    assert {k: v for changes in read_changes(file) for k, v in changes} == rows


def test_a_rewrite_that_fails_leaves_no_file_and_no_open_scan(tmp_path, monkeypatch):
    database = SqliteDatabase.create(tmp_path / "db", MEMORY, slack_bytes=-(1 << 30))
    rows = {key(i): b"x" * 200 for i in range(2_000)}
    write(database, rows)
    database.checkpoint(tmp_path / "1")
    before = files(database.folder)

    def full(file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(change_files, "sync_file", full)
        with pytest.raises(OSError, match="No space"):
            database._files.replace_all(iter([list(rows.items())]))
    assert files(database.folder) == before
    scan = database._all_rows()
    next(scan)
    scan.close()
    assert len(database._idle) == 1
    database.checkpoint(tmp_path / "2")
    (file,) = files(tmp_path / "2")
    assert {k: v for changes in read_changes(file) for k, v in changes} == rows
    database.close()


def test_a_file_that_cannot_be_removed_is_in_no_later_checkpoint(tmp_path, monkeypatch):
    database = SqliteDatabase.create(tmp_path / "db", MEMORY, slack_bytes=-(1 << 30))
    rows = {key(i): b"x" for i in range(100)}
    write(database, rows)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: os.close(-1))
        database.checkpoint(tmp_path / "1")
        database.checkpoint(tmp_path / "2")
    assert len(files(database.folder)) > 1
    (file,) = files(tmp_path / "2")
    assert {k: v for changes in read_changes(file) for k, v in changes} == rows
    database.close()


def test_a_scan_sees_what_a_checkpoint_commits_in_a_thread(database):
    write(database, {key(i): b"x" for i in range(100)})
    with database._commit_lock:
        scans = []
        thread = threading.Thread(target=lambda: scans.append(content(database)))
        thread.start()
        thread.join(0.05)
        assert not scans
    thread.join()
    assert len(scans[0]) == 100


def test_after_a_failed_write_nothing_is_read_or_snapshot(database, tmp_path):
    write(database, {key(1): b"1"})
    database._connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON rows BEGIN "
        "SELECT RAISE(ROLLBACK, 'database or disk is full'); END"
    )
    with pytest.raises(StoreError, match="cannot write keyed state: database or disk") as caught:
        write(database, {key(2): b"2"})
    assert caught.value.path == str(database.folder)
    for use in (
        lambda: write(database, {key(3): b"3"}),
        lambda: database.get(key(1)),
        lambda: database.get_all([key(1)]),
        lambda: database.scan(b"", None),
        lambda: database.checkpoint(tmp_path / "checkpoint"),
    ):
        with pytest.raises(StoreError, match="an earlier write has failed"):
            use()


def test_a_full_disk_is_an_error_of_the_environment(database):
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError, match="database or disk is full") as caught:
        write(database, {key(i): b"x" * 1000 for i in range(100)})
    assert caught.value.recoverability is Recoverability.ENVIRONMENT


def test_a_library_without_threads_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite3, "threadsafety", 1)
    with pytest.raises(StoreError, match="cannot be used by several threads") as caught:
        SqliteDatabase.create(tmp_path / "db", MEMORY)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_backends_share_the_memory(tmp_path):
    memory = SharedMemory(8 * 1024 * 1024)
    memory.join()
    database = SqliteDatabase.create(tmp_path / "db", memory)
    (before,) = database._connection.execute("PRAGMA cache_size").fetchone()
    memory.join()
    # The share is looked at after each megabyte.
    write(database, {key(i): b"x" * 1000 for i in range(2000)})
    (after,) = database._connection.execute("PRAGMA cache_size").fetchone()
    database.close()
    assert (before, after) == (-8 * 1024, -4 * 1024)


# --- change files and checkpoints ---


def test_change_files_have_the_documented_bytes(database, tmp_path):
    write(database, {b"a": b"1", b"b": None})
    write(database, {b"a": None})
    database.checkpoint(tmp_path / "1")
    (file,) = files(tmp_path / "1")
    assert file.name == "000001.changes"
    assert file.read_bytes() == b"".join(
        map(msgpack.packb, ("penstock changes 1", [[b"a", b"1"], [b"b", None]], [[b"a", None]]))
    )


def test_a_checkpoint_adds_the_changes_since_the_one_before(database, tmp_path):
    write(database, {key(i): b"x" for i in range(100)})
    first = database.checkpoint(tmp_path / "1")
    write(database, {key(5): b"y", key(6): None})
    second = database.checkpoint(tmp_path / "2")
    third = database.checkpoint(tmp_path / "3")
    assert list(first.tables) == ["000001.changes"]
    assert list(second.tables) == ["000001.changes", "000002.changes"]
    assert third.tables == second.tables
    old, new = ((tmp_path / name / "000001.changes").stat() for name in "12")
    assert (old.st_ino, old.st_nlink) == (new.st_ino, 4)
    restored = SqliteDatabase(tmp_path / "2", MEMORY)
    assert content(restored) == content(database)
    assert restored.get(key(6)) is None
    restored.close()


def test_an_empty_database_has_a_file_too(database, tmp_path):
    database.checkpoint(tmp_path / "1")
    assert len(files(tmp_path / "1")) == 1


def test_many_checkpoints_have_few_files_and_copy_each_change_a_few_times(database, tmp_path):
    written = seen = 0
    known = set()
    for number in range(300):
        write(database, {key(number): b"x" * 100})
        made = database.checkpoint(tmp_path / str(number))
        assert len(made.tables) <= 11
        seen += sum(size for name, size in made.tables.items() if name not in known)
        known.update(made.tables)
        written += 100
    assert seen < 7 * written
    restored = SqliteDatabase(tmp_path / "299", MEMORY)
    assert content(restored) == {key(i): b"x" * 100 for i in range(300)}
    restored.close()


def test_outdated_changes_are_left_out_once_they_are_many(tmp_path):
    database = SqliteDatabase.create(tmp_path / "db", MEMORY, slack_bytes=0)
    sizes = []
    for number in range(20):
        write(database, {key(i): b"%d" % number * 100 for i in range(200)})
        sizes.append(sum(database.checkpoint(tmp_path / str(number)).tables.values()))
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database.close()
    assert max(sizes) <= 2 * 4096 * pages
    restored = SqliteDatabase(tmp_path / "19", MEMORY)
    assert content(restored) == {key(i): b"19" * 100 for i in range(200)}
    restored.close()


def test_a_restored_database_goes_on_with_the_next_number(database, tmp_path):
    for number in range(3):
        write(database, {key(number): b"x"})
        database.checkpoint(tmp_path / str(number))
    restored = SqliteDatabase(tmp_path / "2", MEMORY)
    write(restored, {key(9): b"y"})
    names = list(restored.checkpoint(tmp_path / "again").tables)
    restored.close()
    assert names == [f"00000{number}.changes" for number in range(1, 5)]


def test_the_log_of_an_early_checkpoint_has_the_writes_after_it(database, tmp_path):
    write(database, {key(1): b"1"})
    early = tmp_path / "early"
    database.checkpoint(early)
    name = database.begin_log()
    write(database, {key(1): b"2", key(2): b"2"})
    (early / name).write_bytes(database.end_log())
    write(database, {key(3): b"3"})
    later = database.checkpoint(tmp_path / "later")
    assert list(later.tables) == ["000001.changes", name]
    restored = SqliteDatabase(early, MEMORY)
    assert content(restored) == {key(1): b"2", key(2): b"2"}
    restored.close()
    restored = SqliteDatabase(tmp_path / "later", MEMORY)
    assert content(restored) == content(database)
    restored.close()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_change_file_that_was_cut_is_refused(database, tmp_path, cut):
    write(database, {key(i): b"x" * 10 for i in range(10)})
    database.checkpoint(tmp_path / "1")
    (file,) = files(tmp_path / "1")
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-cut])
    with pytest.raises(StoreError, match=r"end of a file of keyed state is missing.*000001"):
        SqliteDatabase(tmp_path / "1", MEMORY)


@pytest.mark.parametrize("data", [b"\xc1", msgpack.packb("other"), msgpack.packb(5)])
def test_a_damaged_change_file_is_refused(tmp_path, data):
    (tmp_path / "000001.changes").write_bytes(data)
    with pytest.raises(StoreError, match="cannot be decoded"):
        SqliteDatabase(tmp_path, MEMORY)


def test_after_a_failed_sync_no_checkpoint_is_made(database, tmp_path, monkeypatch):
    write(database, {key(1): b"1"})
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
        # An early flush only remembers the error.
        database.flush()
    for _ in range(2):
        with pytest.raises(OSError, match="I/O error"):
            database.checkpoint(tmp_path / "1")

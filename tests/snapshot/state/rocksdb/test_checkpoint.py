"""Checkpoints of RocksDB made beside it: they are what RocksDB's own would be, whatever it does.

The method: databases with tiny buffers, so that flushes, compactions and deletions of files never
cease, are checkpointed again and again; each checkpoint is opened by plain rocksdict and its
content compared with what had been written by then.
"""

import errno
import itertools
import logging
import os
import random
import re
import shutil
import struct
import tempfile
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rocksdict import Checkpoint, Options, Rdict

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.handles import FileRecord
from penstock.snapshot.state.cold.checkpoint import CheckpointFiles
from penstock.snapshot.state.engines import open_files
from penstock.snapshot.state.rocksdb import database, manifest_reader, options
from penstock.snapshot.state.rocksdb.database import ROCKSDB, RocksDatabase
from penstock.snapshot.state.rocksdb.manifest_reader import (
    ManifestReader,
    UnknownManifestError,
    masked_crc,
    records,
)
from penstock.snapshot.state.rocksdb.options import RocksMemory, database_options
from tests.sizes import sized

GROUP = b"\0\1"
CHECKPOINTS = sized(700, 6000)


@pytest.fixture
def memory_path(tmp_path):
    """A folder in memory if there is such a file system: thousands of syncs take long on a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def make(tmp_path, memory_path):
    """Makes databases in folders of their own, and closes them."""
    made = []
    memory = RocksMemory(8 * 1024 * 1024)

    def make(folder: Path = tmp_path / "db", options=database_options) -> RocksDatabase:
        made.append(RocksDatabase.create(folder, memory, options))
        return made[-1]

    assert memory_path.exists()  # and so is there until all are closed
    yield make
    for store in made:
        store.close()


def restless(shared, **options):
    """Options with tiny files that several threads of RocksDB compact and delete all the time."""
    made = database_options(shared, **options)
    made.set_write_buffer_size(64 * 1024)
    made.set_level_zero_file_num_compaction_trigger(2)
    made.set_max_bytes_for_level_base(64 * 1024)
    made.set_max_bytes_for_level_multiplier(2)
    made.set_target_file_size_base(8 * 1024)
    made.set_max_background_jobs(4)
    made.set_max_subcompactions(2)
    return made


def write(store: RocksDatabase, rows: dict[int, int]) -> None:
    batch = store.new_batch()
    for key, value in rows.items():
        batch[GROUP + key.to_bytes(4)] = value.to_bytes(8) + bytes(32)
    store.write(batch)


def finish(store: RocksDatabase, folder: Path) -> None:
    """A checkpoint with all its files written."""
    for name, data in store.checkpoint(folder).others.items():
        (folder / name).write_bytes(data)


def content(folder: Path) -> dict[int, int]:
    """What plain rocksdict finds in a folder; writes to it."""
    database = Rdict(str(folder), Options(raw_mode=True))
    try:
        return {
            int.from_bytes(key[2:]): int.from_bytes(value[:8]) for key, value in database.items()
        }
    finally:
        database.close()


def tables(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.sst")}


def rows(seed: int, count: int = 200, keys: int = 3000) -> dict[int, int]:
    chance = random.Random(seed)
    return {chance.randrange(keys): chance.getrandbits(60) for _ in range(count)}


def buffer_bytes(folder: Path) -> set[str]:
    """The size of the write buffer in the newest OPTIONS file of a database."""
    newest = max(folder.glob("OPTIONS-*"), key=lambda path: path.name)
    return set(re.findall(r"^ *write_buffer_size=(\d+)$", newest.read_text(), re.MULTILINE))


def test_large_state_is_written_with_a_larger_buffer(make, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "LARGE_STATE_BYTES", 10_000)
    store = make()
    small = buffer_bytes(store.folder)
    expected = {}
    for seed, large in ((1, False), (2, True), (3, True)):
        count = 2_000 if large else 5
        write(store, rows(seed, count))
        expected |= rows(seed, count)
        finish(store, tmp_path / f"snapshot-{seed}")
        assert (buffer_bytes(store.folder) != small) is large
        assert content(tmp_path / f"snapshot-{seed}") == expected
    assert buffer_bytes(store.folder) > set()


def test_a_database_keeps_its_files_open(monkeypatch):
    limits = {"soft": 100_000, "hard": 100_000}
    monkeypatch.setattr(options.resource, "getrlimit", lambda _: (limits["soft"], limits["hard"]))
    raised = []
    monkeypatch.setattr(options.resource, "setrlimit", lambda _, pair: raised.append(pair))
    assert options._max_open_files() == 8192 and not raised
    limits["soft"] = 1024
    assert options._max_open_files() == 8192 and raised.pop() == (8192 * 8, 100_000)
    limits["hard"] = 4096
    assert options._max_open_files() == 512 and raised.pop() == (4096, 4096)
    limits["hard"] = 1024
    assert options._max_open_files() == 128 and raised.pop() == (1024, 1024)


# --- equal to RocksDB's own ---


def test_a_checkpoint_is_the_one_that_rocksdb_makes(make, tmp_path):
    store = make()
    expected = {}
    for i in range(5):
        write(store, rows(i))
        expected |= rows(i)
        finish(store, tmp_path / f"ours-{i}")
        theirs = tmp_path / f"theirs-{i}"
        Checkpoint(store._database).create_checkpoint(str(theirs))
    for i in range(5):
        ours, theirs = tmp_path / f"ours-{i}", tmp_path / f"theirs-{i}"
        assert tables(ours) == tables(theirs) != set()
        for path in ours.iterdir():
            assert path.read_bytes() == (theirs / path.name).read_bytes(), path.name
        left_out = {path.name for path in theirs.iterdir()} - {path.name for path in ours.iterdir()}
        assert {Path(name).suffix or name[:8] for name in left_out} == {
            ".json",
            ".log",
            "OPTIONS-",
        }
    assert content(tmp_path / "ours-4") == content(tmp_path / "theirs-4") == expected


def test_a_checkpoint_of_an_empty_database_opens(make, tmp_path):
    finish(make(), tmp_path / "empty")
    assert content(tmp_path / "empty") == {}


def test_table_files_are_links_and_their_sizes_are_those_in_the_manifest(make, tmp_path):
    store = make()
    write(store, rows(1))
    found = store.checkpoint(tmp_path / "1")
    assert not found.copied
    for name, size in found.tables.items():
        status = (tmp_path / "1" / name).stat()
        assert status.st_size == size
        assert status.st_ino == (store.folder / name).stat().st_ino


def test_a_checkpoint_can_be_opened_written_to_and_checkpointed(make, tmp_path):
    store = make()
    write(store, rows(1))
    finish(store, tmp_path / "1")
    second = RocksDatabase(tmp_path / "1", RocksMemory(8 * 1024 * 1024))
    write(second, rows(2))
    finish(second, tmp_path / "2")
    write(second, rows(3))
    finish(second, tmp_path / "3")
    second.close()
    assert content(tmp_path / "2") == rows(1) | rows(2)
    assert content(tmp_path / "3") == rows(1) | rows(2) | rows(3)


# --- while files come and go ---


def test_checkpoints_are_consistent_whatever_rocksdb_does_meanwhile(
    make, memory_path, monkeypatch, caplog
):
    """One thread writes, this one checkpoints: each holds a prefix of the writes, none in part."""
    link, vanished = os.link, []

    def note(source, target):
        try:
            link(source, target)
        except FileNotFoundError:
            vanished.append(source)
            raise

    monkeypatch.setattr(os, "link", note)
    store = make(memory_path / "db", restless)
    written = [0]
    stop = threading.Event()
    # The writer is at most this much ahead, or compactions would stall it.
    ahead = threading.Semaphore(4)
    failures = []

    def run() -> None:
        try:
            for number in itertools.count(1):
                ahead.acquire()
                if stop.is_set():
                    return
                # Row 0 tells the number of the batch, and the rest follows from it.
                write(store, {0: number} | dict.fromkeys(_keys(number), number))
                written[0] = number
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    numbers, seen = set(), set()

    def enough() -> bool:
        return len(numbers) > CHECKPOINTS // 20 and len(seen) > 10 * len(tables(store.folder))

    try:
        # On a slow machine, the writer may come to its turn late.
        for i in range(50 * CHECKPOINTS):
            if i >= CHECKPOINTS and enough():
                break
            folder = memory_path / f"{i}"
            before = written[0]
            finish(store, folder)
            after = written[0] + 1
            ahead.release(2)
            seen |= tables(folder)
            if i % 10 == 0 or vanished:
                vanished.clear()
                found = content(folder)
                number = found.pop(0, 0)
                assert before <= number <= after
                assert found == _after(number), f"checkpoint {i}, batch {number}"
                numbers.add(number)
            shutil.rmtree(folder)
    finally:
        stop.set()
        ahead.release()
        thread.join()
    assert not failures
    assert enough(), "there were few compactions"
    assert not caplog.records, "RocksDB had to make a checkpoint itself"


def test_a_checkpoint_with_a_log_is_consistent_whatever_rocksdb_does_meanwhile(make, memory_path):
    store = make(memory_path / "db", restless)
    expected: dict[int, int] = {}
    chance = random.Random(4)
    added = lacking = 0
    for number in range(sized(120, 1500)):
        folder = memory_path / str(number)

        def change(counts: list[int]) -> None:
            for count in counts:
                changes = rows(chance.getrandbits(60), count)
                write(store, changes)
                expected.update(changes)

        change([chance.randrange(1500)])
        finish(store, folder)
        name = store.begin_log()
        # A buffer holds about a thousand.
        change([chance.randrange(1, 500)] * chance.randrange(9))
        data = store.end_log()
        at_the_end = dict(expected)
        change([10])  # is in no log
        if data is None:
            lacking += 1
        else:
            added += 1
            (folder / name).write_bytes(data)
            assert content(folder) == at_the_end
        shutil.rmtree(folder)
    assert added > 10 and lacking > 10


def _keys(number: int) -> range:
    """What batch `number` writes, besides row 0."""
    return range(1 + number % 7, 700, 7)


def _after(number: int) -> dict[int, int]:
    """What batches 1 to `number` leave, besides row 0."""
    return {
        key: newest for newest in range(max(1, number - 6), number + 1) for key in _keys(newest)
    }


def test_a_table_file_that_is_deleted_before_it_is_linked_is_left_out(make, tmp_path, monkeypatch):
    store = make()
    for i in range(3):
        write(store, rows(i))
        store._database.flush()
    link, vanished = os.link, []

    def compact_first(source, target):
        if not vanished:
            vanished.append(source)
            link(source, target)
            # Compacts all into one; then the others are gone.
            store._database.compact_range(None, None)
            return
        try:
            link(source, target)
        except FileNotFoundError:
            vanished.append(source)
            raise

    monkeypatch.setattr(os, "link", compact_first)
    finish(store, tmp_path / "1")
    assert len(vanished) == 2
    # The one that was linked before it was removed is no part of it either.
    assert len(tables(tmp_path / "1")) == 1
    assert tables(tmp_path / "1") == tables(store.folder)
    assert content(tmp_path / "1") == rows(0) | rows(1) | rows(2)


def test_a_checkpoint_is_complete_though_the_manifest_is_replaced(make, memory_path, caplog):
    store = make(memory_path / "db", partial(restless, max_manifest_bytes=4096))
    expected, manifests = {}, set()
    for i in range(150):
        write(store, rows(i))
        expected |= rows(i)
        folder = memory_path / f"{i}"
        finish(store, folder)
        manifests.add((folder / "CURRENT").read_text())
        assert content(folder) == expected
    assert len(manifests) > 5
    assert not caplog.records


def test_a_manifest_that_is_replaced_between_two_readings_is_read_again(
    make, tmp_path, monkeypatch
):
    store = make(options=partial(database_options, max_manifest_bytes=1))
    write(store, rows(1))
    store._database.flush()
    stale = (store.folder / "CURRENT").read_bytes()
    write(store, rows(2))
    store._database.flush()
    assert not (store.folder / stale.decode().strip()).exists()
    read, told = manifest_reader.read_file, []

    def late(path, expected=0):
        data = read(path, expected)
        if path.name == "CURRENT" and not told:
            told.append(path)
            return stale
        return data

    monkeypatch.setattr(manifest_reader, "read_file", late)
    finish(store, tmp_path / "1")
    assert told
    assert content(tmp_path / "1") == rows(1) | rows(2)


# --- what is not understood ---


def test_rocksdb_makes_the_checkpoint_itself_when_the_manifest_is_not_understood(
    make, tmp_path, monkeypatch, caplog
):
    store = make()
    write(store, rows(1))

    def refuse(self):
        raise UnknownManifestError("an edit has a field 4711")

    with monkeypatch.context() as patch:
        patch.setattr(ManifestReader, "read", refuse)
        for i in range(3):
            finish(store, tmp_path / f"{i}")
            assert content(tmp_path / f"{i}") == rows(1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "4711" in caplog.text
    write(store, rows(2))
    finish(store, tmp_path / "again")
    assert content(tmp_path / "again") == rows(1) | rows(2)


def test_where_nothing_can_be_linked_rocksdb_copies(make, tmp_path, monkeypatch):
    def refuse(source, target):
        raise PermissionError("no links here")

    store = make()
    write(store, rows(1))
    monkeypatch.setattr(os, "link", refuse)
    finish(store, tmp_path / "1")
    assert content(tmp_path / "1") == rows(1)


def test_files_that_always_vanish_end_in_a_checkpoint_by_rocksdb(
    make, tmp_path, monkeypatch, caplog
):
    def vanish(source, target):
        raise FileNotFoundError(source)

    store = make()
    write(store, rows(1))
    monkeypatch.setattr(os, "link", vanish)
    finish(store, tmp_path / "1")
    assert "vanish" in caplog.text
    assert content(tmp_path / "1") == rows(1)


def test_a_folder_that_is_there_already_is_left_as_it_is(make, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(FileExistsError):
        make().checkpoint(tmp_path / "mine")
    assert (tmp_path / "mine" / "file").exists()


# --- the formats ---


def log_of(*fragments: tuple[int, bytes]) -> bytes:
    """A log as RocksDB writes it, of one block."""
    data = b""
    for kind, payload in fragments:
        crc = masked_crc(bytes([kind]) + payload)
        data += struct.pack("<IHB", crc, len(payload), kind) + payload
    return data


def test_the_checksum_is_the_one_of_rfc_3720():
    """Appendix B.4: 32 bytes of zeros have the CRC-32C 8a9136aa."""
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_every_prefix_of_a_log_gives_the_records_that_are_complete_in_it():
    log = log_of((1, b"one"), (2, b"tw"), (3, b""), (4, b"o"), (1, b""))
    ends = [(10, b"one"), (35 - 1, b"two"), (41, b"")]
    assert [record for _, record in records(log, 0)] == [b"one", b"two", b""]
    ends = [end for end, _ in records(log, 0)]
    for length in range(len(log) + 1):
        found = list(records(log[:length], 0))
        assert [end for end, _ in found] == [end for end in ends if end <= length]
        for start in (0, *(end for end in ends if end <= length)):
            assert list(records(log[:length], start)) == [r for r in found if r[0] > start]


def test_a_record_may_be_longer_than_a_block_and_a_block_end_in_zeros(make, tmp_path):
    """Real edits: of a database with very long keys, which the MANIFEST has of every file."""
    store = make()
    for i in range(12):
        batch = store.new_batch()
        batch[GROUP + bytes([i]) * random.Random(i).randrange(4000, 50_000)] = bytes(8)
        store.write(batch)
        finish(store, tmp_path / f"{i}")
        assert len(content(tmp_path / f"{i}")) == i + 1
    assert max(path.stat().st_size for path in tmp_path.rglob("MANIFEST-*")) > 4 * 32 * 1024


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (b"\xc8\x01\x01", "field 200"),  # of another column family
        (b"\xac\x02\x00", "field 300"),  # in an atomic group
        (b"\x90\x03", "field 400"),  # a blob file
        (b"\x84\x40\x01", "field 8196"),  # a write-ahead log
        (b"\x06\x00\x07", "removes file 7"),
        (b"\x67\x00\x07\x09\x00\x00\x01\x01\x41\x01\x01\x01", "field 65"),  # in another folder
        (b"\x67\x00\x07\x09\x00\x00\x01\x01\x04\x01\x01\x01", "field 4"),  # points to a blob file
        (b"\x01\x05ab", "ends within"),
        (b"\x02\x80", "index out of range"),
    ],
)
def test_an_edit_that_is_not_understood_is_refused(tmp_path, edit, problem):
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    (tmp_path / "MANIFEST-000001").write_bytes(log_of((1, edit)))
    with pytest.raises(UnknownManifestError, match=f"{problem}.*MANIFEST-000001"):
        ManifestReader(tmp_path).read()


def test_a_field_of_the_future_that_may_be_ignored_is_ignored(tmp_path):
    new = b"\x67\x00\x07\x09\x00\x00\x01\x01\x3f\x02ab\x01"
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    (tmp_path / "MANIFEST-000001").write_bytes(log_of((1, b"\xff\x7f\x03abc" + new)))
    version = ManifestReader(tmp_path).read()
    assert version.files == {7: 9}


def test_a_damaged_manifest_is_refused(make, tmp_path):
    store = make()
    write(store, rows(1))
    store._database.flush()
    folder = tmp_path / "copy"
    shutil.copytree(store.folder, folder)
    manifest = next(folder.glob("MANIFEST-*"))
    whole = manifest.read_bytes()
    for seed in range(50):
        place = random.Random(seed).randrange(len(whole) - 7)
        damaged = bytearray(whole)
        damaged[place] ^= 1
        manifest.write_bytes(damaged)
        try:
            version = ManifestReader(folder).read()
        except UnknownManifestError:
            continue
        # A length that reaches beyond the end looks like a record that is being written.
        assert len(version.data) <= place, f"seed {seed}"


@pytest.mark.parametrize("by_rocksdb", [True, False])
def test_a_full_disk_at_a_restore_is_not_blamed_on_the_snapshot(
    make, tmp_path, monkeypatch, by_rocksdb
):
    store = make()
    write(store, rows(1))
    finish(store, tmp_path / "snapshot")
    files = [FileRecord(path.name, 1, "") for path in (tmp_path / "snapshot").iterdir()]

    def fail(*_):
        if by_rocksdb:
            raise Exception("IO error: No space left on device: While appending to file")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if not by_rocksdb:
        monkeypatch.setattr(shutil, "copyfile", fail)
    work, memory = tmp_path / "work", RocksMemory(1 << 20)
    engine = replace(ROCKSDB, open=fail) if by_rocksdb else ROCKSDB
    with pytest.raises(StoreError, match=r"disk is full.*itself is well: make room") as caught:
        CheckpointFiles(work).take_over(tmp_path / "snapshot", files, work)
        open_files(engine, work, memory, tmp_path / "snapshot")
    assert caught.value.recoverability is Recoverability.ENVIRONMENT


def test_a_database_that_a_thread_uses_is_reported_and_not_taken_for_an_error_of_the_user(
    make, monkeypatch
):
    class InUse:
        def close(self) -> None:
            raise RuntimeError("Already borrowed")

    database = make()
    with monkeypatch.context() as patch:
        patch.setattr(database, "_database", InUse())
        with pytest.raises(StoreError, match="cannot close the state: Already borrowed"):
            database.close()

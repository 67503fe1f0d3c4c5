"""Snapshots of real jobs on disk: never touched by a restore, and open to plain rocksdict."""

import hashlib
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import rocksdict

from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.errors import StoreError
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.state.cold.blocks import newest_entries, read_block
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store
from tests.processes.harness import (
    Killer,
    Settings,
    committed,
    counting_job,
    expected_words,
    lost_and_doubled,
    run,
)


def _checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        # A JobManager that was killed while it published left one of these, which a resume removes.
        if path.is_file() and not JobPaths.is_temporary(path.name)
    }


@pytest.fixture
def interrupted(tmp_path: Path) -> Settings:
    """A job whose JobManager was killed in mid-stream, with all words in its state in RocksDB."""
    return interrupted_job(tmp_path, ColdStoreKind.ROCKSDB)


def interrupted_job(folder: Path, cold_store: ColdStoreKind) -> Settings:
    settings = Settings(folder, count=40_000, inline_threshold=0, parts=2, cold_store=cold_store)

    def all_counted() -> bool:
        return {word for word, _ in committed(settings.output)} == expected_words(settings).keys()

    killer = Killer(
        random.Random(3),
        targets=("jobmanager",),
        after_snapshots=3,
        gate=settings.gate,
        when=all_counted,
    )
    with pytest.raises(StoreError, match="killed by signal 9"):
        run(counting_job(settings), progress=killer)
    return settings


def test_a_restore_leaves_every_file_of_a_snapshot_as_it_was(interrupted: Settings):
    newest = Store(interrupted.job).newest()
    assert newest is not None
    folder = Store(interrupted.job).paths.snapshot(newest.number)
    before = _checksums(folder)
    assert any(name.endswith(".sst") for name in before)
    env = counting_job(interrupted)
    env.get_checkpoint_config().set_retained_checkpoints(1000)
    run(env, resume="newest")
    assert _checksums(folder) == before
    words = expected_words(interrupted)
    assert lost_and_doubled(committed(interrupted.output), words) == (0, 0)


def test_the_rocksdb_files_of_a_snapshot_open_with_plain_rocksdict(
    interrupted: Settings, tmp_path: Path
):
    newest = Store(interrupted.job).newest()
    assert newest is not None
    folder = Store(interrupted.job).paths.snapshot(newest.number)
    databases = sorted(path.parent for path in folder.rglob("CURRENT"))
    assert len(databases) == 2
    words = {}
    codec = Codec(TypeRegistry())
    for number, database in enumerate(databases):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(database, copy)
        plain = rocksdict.Rdict(str(copy), rocksdict.Options(raw_mode=True))
        blocks = [read_block(codec, *row) for row in plain.items()]
        plain.close()
        words |= {key: value for _, key, value in newest_entries(blocks)}
    assert words.keys() == expected_words(interrupted).keys()


def test_a_job_with_state_in_sqlite_goes_on_in_rocksdb(tmp_path: Path):
    interrupted = interrupted_job(tmp_path, ColdStoreKind.SQLITE)
    newest = Store(interrupted.job).newest()
    assert newest is not None
    folder = Store(interrupted.job).paths.snapshot(newest.number)
    suffixes = {path.suffix for path in folder.rglob("*.*") if path.is_file()}
    assert ".changes" in suffixes
    assert ".sst" not in suffixes
    resumed = replace(interrupted, cold_store=ColdStoreKind.ROCKSDB)
    run(counting_job(resumed), resume="newest")
    newest = Store(interrupted.job).newest()
    assert newest is not None
    assert list(Store(interrupted.job).paths.snapshot(newest.number).rglob("*.sst"))
    assert lost_and_doubled(committed(resumed.output), expected_words(resumed)) == (0, 0)

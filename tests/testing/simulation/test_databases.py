"""The files of a database do not depend on the machine in a simulation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from penstock.snapshot.state.rocksdb.database import RocksDatabase
from penstock.snapshot.state.rocksdb.options import RocksMemory
from penstock.testing.simulation.databases import orderly_databases


def files_of(folder: Path, memory: int) -> list[dict[str, int]]:
    """Write rows, and return the names and sizes of the files of each checkpoint."""
    database = RocksDatabase.create(folder / "database", RocksMemory(memory))
    found = []
    for number in range(40):
        for row in range(10):
            batch = database.new_batch()
            batch.put(b"%03d" % (7 * row * number % 100), b"value %06d" % number)
            database.write(batch)
        found.append(database.checkpoint(folder / str(number)).tables)
    database.close()
    return found


def test_the_same_writes_give_the_same_files(tmp_path: Path) -> None:
    with orderly_databases():
        first, second = (files_of(tmp_path / name, 4096) for name in ("one", "two"))
    assert first == second
    counts = [len(tables) for tables in first]
    changes = [after - before for before, after in pairwise(counts)]
    # It has flushed between checkpoints, and has compacted.
    assert max(changes) > 1
    assert min(changes) < 0
    assert RocksDatabase.write.__name__ == "write"


def test_a_database_with_much_memory_flushes_at_checkpoints_only(tmp_path: Path) -> None:
    with orderly_databases():
        counts = [len(tables) for tables in files_of(tmp_path, 1 << 20)]
    assert counts == list(range(1, 41))

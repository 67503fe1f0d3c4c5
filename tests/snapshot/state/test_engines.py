"""Which database stores cold state, and that each restores what the other one has written."""

import logging
import sys
from itertools import pairwise

import pytest

from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.state import engines
from penstock.snapshot.state.rocksdb.database import ROCKSDB
from penstock.snapshot.state.sqlite.database import SQLITE
from tests.snapshot.state.backends import ENGINE_IDS, ENGINES, GROUPS, as_rows, contents, fill

ROCKSDB_MODULES = "penstock.snapshot.state.rocksdb"


@pytest.fixture
def without_rocksdict(monkeypatch):
    """Python as it is where rocksdict is not installed."""
    for name in [
        name for name in sys.modules if name.startswith("penstock.snapshot.state.rocksdb")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    engines.default_engine.cache_clear()
    yield
    engines.default_engine.cache_clear()


def test_rocksdb_is_the_default():
    assert engines.engine_of_kind(None) is ROCKSDB
    assert engines.engine_of_kind(ColdStoreKind.ROCKSDB) is ROCKSDB
    assert engines.engine_of_kind(ColdStoreKind.SQLITE) is SQLITE


def test_without_rocksdict_the_default_is_sqlite_which_is_said_once(without_rocksdict, caplog):
    with caplog.at_level(logging.WARNING):
        assert engines.engine_of_kind(None) is engines.engine_of_kind(None) is SQLITE
    (record,) = caplog.records
    assert "will be stored in SQLite instead of RocksDB" in record.message
    assert "cold_store = sqlite" in record.message


def test_without_rocksdict_a_job_that_asks_for_rocksdb_is_refused(without_rocksdict):
    with pytest.raises(StoreError, match=r"has chosen RocksDB.*rocksdict.*choose SQLite") as caught:
        engines.engine_of_kind(ColdStoreKind.ROCKSDB)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_without_rocksdict_a_snapshot_in_rocksdb_is_refused(make, request):
    backend = make(inline_threshold=0)
    fill(backend, 10)
    handle = make.snapshot(backend, 1)
    request.getfixturevalue("without_rocksdict")
    with pytest.raises(StoreError, match=r"stored in files of RocksDB.*install it, or resume"):
        make.restored(handle, engine=SQLITE)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_IDS)
@pytest.mark.parametrize("rows", [False, True], ids=["blocks", "rows"])
@pytest.mark.parametrize("parts", [1, 2])
def test_each_database_restores_the_snapshots_of_the_other(make, engine, rows, parts):
    (other,) = set(ENGINES) - {engine}
    backend = make(inline_threshold=0)
    if rows:
        as_rows(backend)
    fill(backend, 500)
    make.snapshot(backend, 1)
    backend.table("s").put("k1", "changed")
    backend.table("s").delete("k2")
    handle = make.snapshot(backend, 2)
    expected = contents(backend)
    bounds = [GROUPS * part // parts for part in range(parts + 1)]
    found, handles = {}, []
    for begin, end in pairwise(bounds):
        restored = make.restored(handle, groups=range(begin, end), engine=other)
        assert restored.storage.is_open == rows
        found |= contents(restored)
        restored.table("s").put("k1", "again")
        handles.append(make.snapshot(restored, 3))
        restored.close()
    assert found == expected
    # And back, from all of them.
    assert contents(make.restored(*handles)) == {**expected, "k1": "again"}


def test_handles_of_both_databases_are_restored_together(make):
    handles = []
    for engine, groups in zip(ENGINES, (range(7), range(7, GROUPS)), strict=True):
        backend = as_rows(make(inline_threshold=0, engine=engine, groups=groups))
        group_of = backend.storage.row_keys.group
        for i in range(100):
            if group_of(f"k{i}") in groups:
                backend.table("s").put(f"k{i}", i)
        handles.append(make.snapshot(backend, 1))
    for engine in ENGINES:
        assert contents(make.restored(*handles, engine=engine)) == {f"k{i}": i for i in range(100)}

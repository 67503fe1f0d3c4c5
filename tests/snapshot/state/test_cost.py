"""What an access and a snapshot cost, counted in entries: no more than what was touched."""

import pytest

from penstock import ListStateDescriptor, MapStateDescriptor
from penstock.dataflow.graph.keys import canonical
from penstock.snapshot.state import MISSING, KeyedBackend
from penstock.snapshot.state.rocksdb.database import RocksDatabase
from tests.runtime.operators.state.states import context_of, with_key
from tests.snapshot.state.backends import GROUPS, PlainCodec, as_rows, drive


class CountingCodec(PlainCodec):
    """Counts the values that it encodes and decodes."""

    def __init__(self) -> None:
        self.encoded = self.decoded = 0

    def encode_values(self, values):
        self.encoded += len(values)
        return [super(CountingCodec, self).encode_value(value) for value in values]

    def encode_value(self, value):
        self.encoded += 1
        return super().encode_value(value)

    def encode_batch(self, records):
        self.encoded += len(records)
        return super().encode_value(records)

    def decode_value(self, data):
        self.decoded += 1
        return super().decode_value(data)


def backend_with(root, codec, **options):
    return KeyedBackend(
        folder=root / "work",
        codec=codec,
        canonical=canonical,
        max_parallelism=GROUPS,
        groups=range(GROUPS),
        inline_threshold=0,
        **options,
    )


TOUCHED = 10


@pytest.mark.parametrize("form", ["blocks", "rows"])
@pytest.mark.parametrize("kind", ["map", "list"])
def test_a_snapshot_writes_only_the_entries_that_were_touched(tmp_path, form, kind):
    costs = {}
    for size in (100, 20_000):
        codec = CountingCodec()
        backend = backend_with(tmp_path / str(size), codec)
        (tmp_path / str(size)).mkdir()
        context = with_key(context_of(backend), "a")
        entries = context.get_map_state(MapStateDescriptor("m"))
        elements = context.get_list_state(ListStateDescriptor("l"))
        if kind == "map":
            entries.put_all({index: [index] for index in range(size)})
        else:
            elements.add_all(range(size))
        if form == "rows":
            as_rows(backend)
        drive(backend.capture(1).write(tmp_path / str(size) / "1"))
        codec.encoded = 0
        for index in range(TOUCHED):
            if kind == "map":
                entries.put(7 * index, ["again"])
                assert entries.contains(index)
            else:
                elements.add("more")
        drive(backend.capture(2).write(tmp_path / str(size) / "2"))
        costs[size] = codec.encoded
        backend.close()
    # Keys and values are encoded, the bounds of a list with them, and samples to estimate sizes.
    assert costs[20_000] <= costs[100] <= 4 * TOUCHED + 32


def test_a_cold_map_is_not_read_to_access_an_entry(tmp_path):
    reads = {}
    for size in (100, 20_000):
        codec, root = CountingCodec(), tmp_path / str(size)
        root.mkdir()
        backend = backend_with(root, codec)
        context = with_key(context_of(backend), "a")
        state = context.get_map_state(MapStateDescriptor("m"))
        state.put_all({index: index for index in range(size)})
        as_rows(backend)
        drive(backend.capture(1).write(root / "1"))
        backend.tables.named("m").evict(size)
        codec.decoded = 0
        for index in range(TOUCHED):
            assert state.get(index) == index
            state.put(index, -index)
            state.remove(index + TOUCHED)
        assert not state.is_empty()
        reads[size] = codec.decoded
        backend.close()
    assert reads[20_000] == reads[100] <= TOUCHED + 2


def test_iterating_one_map_does_not_read_the_maps_of_other_keys(tmp_path):
    codec = CountingCodec()
    backend = backend_with(tmp_path, codec)
    context = context_of(backend)
    state = context.get_map_state(MapStateDescriptor("m"))
    for context.key in range(500):
        state.put_all({index: index for index in range(20)})
    as_rows(backend)
    drive(backend.capture(1).write(tmp_path / "1"))
    backend.tables.named("m").evict(10**6)
    codec.decoded, context.key = 0, 77
    assert dict(state.items()) == {index: index for index in range(20)}
    assert codec.decoded <= 100
    backend.close()


@pytest.mark.parametrize("used", [True, False])
def test_the_keys_of_a_batch_are_read_together_if_they_are_looked_up(tmp_path, monkeypatch, used):
    backend = backend_with(tmp_path, PlainCodec())
    table = backend.table("s")
    for key in range(1_000):
        table.put(key, key)
    as_rows(backend)
    drive(backend.capture(1).write(tmp_path / "1"))
    reads = {"single": 0, "together": 0}

    def single(database, row_key):
        reads["single"] += 1
        return get(database, row_key)

    def together(database, row_keys):
        reads["together"] += len(row_keys)
        return get_all(database, row_keys)

    get, get_all = RocksDatabase.get, RocksDatabase.get_all
    monkeypatch.setattr(RocksDatabase, "get", single)
    monkeypatch.setattr(RocksDatabase, "get_all", together)
    for begin in range(0, 1_000, 10):
        table.evict(len(table.clean))
        keys = range(begin, begin + 20)
        table.read_ahead(keys)
        for key in keys if used else keys[:2]:
            assert table.get(key) == (key if key < 1_000 else MISSING)
    if used:
        assert reads["together"] > 5 * reads["single"] > 0
    else:
        assert reads["together"] == 0


class LookedUp(dict):
    """A map whose keys can be looked up, but not gone through."""

    def __iter__(self):
        raise AssertionError("all keys are gone through")

    keys = __iter__


def test_to_read_the_keys_of_a_batch_does_not_cost_more_with_more_entries_in_memory(tmp_path):
    backend = backend_with(tmp_path, PlainCodec())
    table = backend.table("s")
    table.dirty, table.clean = LookedUp({0: 0}), LookedUp({1: 1})
    table.captured = [LookedUp({2: 2}), LookedUp({3: 3})]
    for _ in range(40):
        table.read_ahead(range(10))
        assert table.get(9) is MISSING

"""Snapshots that are read as data, without the job's code."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from penstock import (
    GraphError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StoreError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    open_snapshot,
)
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.snapshot.metadata.manifest import SnapshotKind, SnapshotNumber
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.leases import Lease, leased_numbers
from penstock.snapshot.storage.store import Store
from tests.snapshot.state.test_golden_states import ENTRIES, FORMS, GOLDEN

FORMATS = [GOLDEN.parent / f"format-{number}" for number in (1, 2, 3, 4)]


class Colour(Enum):
    RED = "r"
    BLUE = "b"


class Place(NamedTuple):
    city: str
    street: int


@dataclass(frozen=True)
class Order:
    id: int
    place: Place
    colour: Colour


@pytest.mark.parametrize("form", FORMS)
def test_all_entries_of_every_form_of_state_are_read(form):
    with open_snapshot(GOLDEN / form) as snapshot:
        found = [
            (one.state, one.kind, one.key, one.part, one.value, one.last_used_ms)
            for one in snapshot.entries()
        ]
        assert sorted(found, key=repr) == sorted(ENTRIES, key=repr)
        groups = [one.group for one in snapshot.entries("sum", "value")]
        assert groups == sorted(groups)
        assert snapshot.verify()["entries"] == len(ENTRIES)


@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_looked_up(form):
    with open_snapshot(GOLDEN / form) as snapshot:
        assert snapshot.get("sum", "value", "b") == [1, "two"]
        assert snapshot.get("sum", "value", ("c", 1)) == b"\x00"
        assert snapshot.get("sum", "value", "x") is None
        assert snapshot.get("sum", "value", "x", 7) == 7
        assert snapshot.get("sum", "list", "b") == [1, None, ("t", [2.5])]
        assert snapshot.get("sum", "map", "b") == {"x": {"y": 1}, ("t", 1): None}
        assert snapshot.get("sum", "map", 7.0) == {"x": "seven"}
        assert snapshot.get("sum", "visits", "b") == ["home"]
        assert snapshot.get("sum", "windows", "b") == {(0, 1000): 4}
        assert snapshot.get("sum", "timers", "b") == {(1500, None, 0): True}
        assert [one.window for one in snapshot.find("sum", "windows", "b")] == [(0, 1000)]


@pytest.mark.parametrize("form", FORMS)
def test_keys_are_found_by_a_prefix(form):
    with open_snapshot(GOLDEN / form) as snapshot:
        assert [one.key for one in snapshot.prefix("sum", "value", "b")] == ["b"]
        assert [one.key for one in snapshot.prefix("sum", "value", ("c",))] == [("c", 1)]
        assert [one.part for one in snapshot.prefix("sum", "map", "")] == ["x", ("t", 1)]
        assert list(snapshot.prefix("sum", "value", "c")) == []
        with pytest.raises(GraphError, match="7 is no prefix of a key"):
            snapshot.prefix("sum", "value", 7)


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_snapshots_of_every_format_are_described(folder):
    with open_snapshot(folder) as snapshot:
        assert (snapshot.job, snapshot.number, snapshot.kind) == ("word count", 12, "savepoint")
        assert {one.operator for one in snapshot.states} >= {"count"}
        assert [one.uid for one in snapshot.operators]
        assert snapshot.enumerators()


class Everything(KeyedProcessFunction):
    """Keeps each kind of state, and remembers what it must contain."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last"))
        self.seen = context.get_list_state(ListStateDescriptor("seen"))
        self.by_city = context.get_map_state(MapStateDescriptor("by city"))

    def process_element(self, order, context):
        self.last.update(order)
        self.seen.add(order.id)
        city = order.place.city
        self.by_city.put(city, (self.by_city.get(city) or 0) + 1)
        context.timer_service().register_event_time_timer(10**12 + order.id)
        yield order


def orders_of(rng: random.Random) -> list[Order]:
    cities = ["Athens", "Bonn", "Cork"]
    return [
        Order(number, Place(rng.choice(cities), rng.randrange(9)), rng.choice(list(Colour)))
        for number in range(rng.randrange(50, 400))
    ]


def job_of(folder: Path, orders: list[Order], threshold: int) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True).enable_checkpointing(20)
    for kind in (Order, Place, Colour):
        env.register_type(kind)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder))
    env.get_checkpoint_config().set_inline_threshold(threshold)
    return env


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [0, 1 << 16])
@pytest.mark.parametrize("cold_store", [ColdStoreKind.ROCKSDB, ColdStoreKind.SQLITE])
def test_a_job_left_what_its_snapshot_holds(tmp_path, seed, threshold, cold_store):
    print(f"seed {seed}")
    orders = orders_of(random.Random(seed))
    env = job_of(tmp_path, orders, threshold)
    env.config.cold_store = cold_store
    keyed = env.from_collection(orders).key_by(lambda order: (order.id % 7, order.colour))
    keyed.process(Everything()).uid("everything").print()
    env.execute("orders")

    by_key: dict[Any, list[Order]] = {}
    for order in orders:
        by_key.setdefault((order.id % 7, order.colour), []).append(order)
    with open_snapshot(tmp_path, classes=[Order, Place, Colour]) as snapshot:
        last = {one.key: one.value for one in snapshot.entries("everything", "last")}
        assert last == {key: some[-1] for key, some in by_key.items()}
        for key, some in by_key.items():
            assert snapshot.get("everything", "last", key) == some[-1]
            assert sorted(snapshot.get("everything", "seen", key)) == [one.id for one in some]
            cities = Counter(one.place.city for one in some)
            assert snapshot.get("everything", "by city", key) == cities
        timers = {one.window for one in snapshot.entries("everything", "timers/event-time")}
        assert timers <= {10**12 + one.id for one in orders}
        assert snapshot.verify()["entries"] > 0
    # Without the classes, records are named tuples, and enums have the same members.
    with open_snapshot(tmp_path) as snapshot:
        plain = {
            (number, colour.name): tuple(order)[:2]
            for (number, colour), order in (
                (one.key, one.value) for one in snapshot.entries("everything", "last")
            )
        }
        assert plain == {(n, c.name): (s[-1].id, s[-1].place) for (n, c), s in by_key.items()}
        entry = next(snapshot.entries("everything", "last"))
        assert entry.value._fields == ("id", "place", "colour")
        assert entry.value.place.city == entry.value[1][0]
        assert snapshot.find("everything", "last", entry.key) == [entry]


def test_tables_have_structs_of_tuples_and_records(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("duckdb")
    orders = orders_of(random.Random(1))
    env = job_of(tmp_path, orders, 0)
    keyed = env.from_collection(orders).key_by(lambda order: (order.id % 7, order.colour))
    keyed.process(Everything()).uid("everything").print()
    env.execute("orders")
    with open_snapshot(tmp_path) as snapshot:
        table = snapshot.to_arrow("everything", "last")
        assert table.column_names == ["key", "value"]
        assert [field.name for field in table.schema.field("value").type] == [
            "id",
            "place",
            "colour",
        ]
        frame = snapshot.to_pandas("everything", "by city")
        assert list(frame.columns) == ["key", "part", "value"]
        assert frame["value"].sum() == len(orders)
        total = snapshot.sql(
            'SELECT part AS city, sum(value)::BIGINT AS orders FROM everything."by city" '
            "GROUP BY ALL ORDER BY city"
        ).to_pylist()
        expected = Counter(one.place.city for one in orders)
        assert total == [{"city": c, "orders": expected[c]} for c in sorted(expected)]
        (most,) = snapshot.sql("SELECT max(value.id) AS most FROM last").to_pylist()
        assert most == {"most": orders[-1].id}
        assert snapshot.sql("SELECT count(*) AS n FROM states").to_pylist()[0]["n"] == len(
            snapshot.states
        )
        with pytest.raises(GraphError, match=r'(?s)DuckDB refused.*"everything"\."by city"'):
            snapshot.sql("SELECT * FROM nothing")


def test_values_of_several_types_become_json(tmp_path):
    pytest.importorskip("pyarrow")
    from penstock.saved.tables import table_of

    table = table_of(["a", "b", "c"], iter([(1, "x", None), (2.5, 1, None), (None, (1,), None)]))
    assert table.to_pylist() == [
        {"a": 1.0, "b": '"x"', "c": None},
        {"a": 2.5, "b": "1", "c": None},
        {"a": None, "b": "[1]", "c": None},
    ]
    many = ((n,) if n < 70_000 else (str(n),) for n in range(140_000))
    column = table_of(["a"], many).column(0).to_pylist()
    assert (column[0], column[-1]) == ("0", '"139999"')


def test_windows_are_entries(tmp_path):
    env = job_of(tmp_path, [], 1 << 16)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, _: record[1]
    )
    records = [("a", 1), ("b", 2), ("a", 3), ("a", 1001)]
    stream = env.from_collection(records).assign_timestamps_and_watermarks(times)
    windows = stream.key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(1000))
    windows.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sums").print()
    env.execute("windows")
    with open_snapshot(tmp_path) as snapshot:
        kinds = {one.kind for one in snapshot.states if one.operator == "sums"}
        assert kinds <= {"window", "timer"}
        assert snapshot.verify()["files"] == 0


# ---- leases


def test_a_snapshot_that_is_read_is_not_removed(tmp_path):
    store, paths = stored(tmp_path, 5)
    with open_snapshot(tmp_path, 2) as snapshot:
        assert leased_numbers(paths) == {2}
        assert store.retain(1) == (1, 3, 4)
        assert snapshot.get("sum", "value", "b") == [1, "two"]
    assert leased_numbers(paths) == set()
    assert store.retain(1) == (2,)
    assert not paths.leases.exists()


def test_the_files_of_a_discarded_snapshot_stay_until_its_reader_ends(tmp_path):
    store, paths = stored(tmp_path, 2)
    with open_snapshot(tmp_path, 1) as snapshot:
        store.discard(1)
        assert not paths.manifest(1).exists()
        assert snapshot.get("sum", "value", "b") == [1, "two"]
        assert store.clean_debris() == ()
    assert store.clean_debris() == (1,)
    assert not paths.snapshot(1).exists()


def test_the_lease_of_a_dead_process_is_over(tmp_path):
    _, paths = stored(tmp_path, 1)
    paths.leases.mkdir()
    paths.lease(1, "dead").touch()
    (paths.leases / "other").touch()
    assert leased_numbers(paths) == set()
    assert sorted(path.name for path in paths.leases.iterdir()) == ["other"]
    lease = Lease(paths, 1)
    assert lease.is_held and leased_numbers(paths) == {1}
    lease.release()
    lease.release()


def test_a_folder_that_cannot_be_written_is_read_without_a_lease(tmp_path, caplog):
    _, paths = stored(tmp_path, 1)
    paths.leases.touch()  # a file where the folder should be
    with open_snapshot(tmp_path) as snapshot:
        assert snapshot.get("sum", "value", "b") == [1, "two"]
    assert "read without a lease" in caplog.text


def stored(folder: Path, count: int) -> tuple[Store, JobPaths]:
    """Makes a job's folder with copies of a golden snapshot as checkpoints, and locks it."""
    store = Store(folder)
    store.open("states")
    store.lock()
    manifest = Store(GOLDEN / "rows").load(1)
    for number in store.reserve_numbers(count):
        shutil.copytree(JobPaths(GOLDEN / "rows").snapshot(1), store.paths.snapshot(number))
        changed = replace(manifest, number=SnapshotNumber(number), kind=SnapshotKind.CHECKPOINT)
        store.paths.manifest(number).write_bytes(encode_manifest(changed))
    return store, store.paths


# ---- bad input


def test_what_is_not_there_is_an_error_that_says_what_is(tmp_path):
    with pytest.raises(StoreError, match="there is no such folder; give the checkpoint folder"):
        open_snapshot(tmp_path / "nothing")
    with pytest.raises(StoreError, match=str(tmp_path)):
        open_snapshot(tmp_path)
    with pytest.raises(StoreError, match="there is no complete snapshot 9"):
        open_snapshot(GOLDEN / "rows", 9)
    with open_snapshot(GOLDEN / "rows") as snapshot:
        with pytest.raises(GraphError, match="no state of an operator with the uid 'x'; it holds"):
            list(snapshot.entries("x"))
        with pytest.raises(GraphError, match="no state 'x' of 'sum'; it holds, by uid: sum: list"):
            snapshot.get("sum", "x", 1)
        with pytest.raises(penstock.KeyRefusedError, match="can't be a key"):
            snapshot.get("sum", "value", [1])


@pytest.mark.parametrize("form", ["rows", "blocks", "sqlite-rows", "sqlite-blocks"])
def test_a_damaged_file_is_an_error(tmp_path, form):
    shutil.copytree(GOLDEN / form, tmp_path / "job")
    (table,) = [path for path in tmp_path.rglob("*") if path.suffix in (".sst", ".changes")]
    data = bytearray(table.read_bytes())
    for place in range(len(data) // 2):
        data[place] ^= 0x55
    table.write_bytes(data)
    with open_snapshot(tmp_path / "job") as snapshot:
        with pytest.raises(StoreError, match=r"job/checkpoints/000001"):
            list(snapshot.entries())
        with pytest.raises(StoreError, match="has another checksum than recorded"):
            snapshot.verify()
    table.write_bytes(data[:100])
    with pytest.raises(StoreError, match="has 100 bytes instead of"):
        open_snapshot(tmp_path / "job")
    table.unlink()
    with pytest.raises(StoreError, match="is missing"):
        open_snapshot(tmp_path / "job")


def test_a_newer_format_and_an_altered_manifest_are_refused(tmp_path):
    shutil.copytree(GOLDEN / "inline", tmp_path / "job")
    manifest = JobPaths(tmp_path / "job").manifest(1)
    data = bytearray(manifest.read_bytes())
    data[40] ^= 1
    manifest.write_bytes(data)
    with pytest.raises(StoreError, match="altered after it was written"):
        open_snapshot(tmp_path / "job")
    data[40] ^= 1
    data[11] = 9
    body = bytes(data[:-16])
    manifest.write_bytes(body + hashlib.blake2b(body, digest_size=16).digest())
    with pytest.raises(StoreError, match=r"has format 9.*upgrade Penstock"):
        open_snapshot(tmp_path / "job")
    manifest.write_bytes(body[:30])
    with pytest.raises(StoreError, match="truncated"):
        open_snapshot(tmp_path / "job")
